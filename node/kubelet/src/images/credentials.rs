//! Logins for registries, as pull secrets hold them.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;

use super::oci::canonical_name;
use super::records::PullSecret;
use crate::cri;

/// A way into a registry, and the secret that holds it.
#[derive(Clone, Debug)]
pub struct Login {
    pub auth: cri::AuthConfig,
    pub secret: PullSecret,
}

/// Logins from pull secrets that fit an image, the most specific first.
pub fn logins(image: &str, secrets: &[Arc<Secret>]) -> Vec<Login> {
    let name = canonical_name(image);
    let mut fitting: Vec<(usize, Login)> = Vec::new();
    for secret in secrets {
        for (registry, entry) in entries(secret) {
            let pattern = pattern(&registry);
            if fits(&pattern, &name) {
                let auth = auth(&entry);
                let secret = PullSecret::new(&secret.metadata, &auth);
                fitting.push((pattern.len(), Login { auth, secret }));
            }
        }
    }
    fitting.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    fitting.into_iter().map(|(_, login)| login).collect()
}

fn entries(secret: &Secret) -> HashMap<String, serde_json::Value> {
    let data = |key: &str| secret.data.as_ref().and_then(|data| data.get(key));
    let parsed = if let Some(config) = data(".dockerconfigjson") {
        serde_json::from_slice::<serde_json::Value>(&config.0).ok().map(|mut config| config["auths"].take())
    } else if let Some(config) = data(".dockercfg") {
        serde_json::from_slice(&config.0).ok()
    } else {
        None
    };
    match parsed {
        Some(serde_json::Value::Object(map)) => map.into_iter().collect(),
        _ => HashMap::new(),
    }
}

/// A registry's key without scheme and version path, Docker Hub by its name.
fn pattern(registry: &str) -> String {
    let bare = registry.trim_start_matches("https://").trim_start_matches("http://");
    let bare = bare.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches("/v2");
    match bare {
        "index.docker.io" | "registry-1.docker.io" => "docker.io".into(),
        other => other.into(),
    }
}

/// Hosts match part by part, where `*` stands for one part; a path must be a
/// prefix of the image's.
fn fits(pattern: &str, image: &str) -> bool {
    let (host, path) = pattern.split_once('/').unwrap_or((pattern, ""));
    let (image_host, image_path) = image.split_once('/').unwrap_or((image, ""));
    let parts = |host: &str| -> Vec<String> { host.split('.').map(str::to_string).collect() };
    let (wanted, given) = (parts(host), parts(image_host));
    let hosts_match = wanted.len() == given.len()
        && wanted.iter().zip(&given).all(|(wanted, given)| match wanted.split_once('*') {
            Some((before, after)) => {
                given.starts_with(before)
                    && given.ends_with(after)
                    && given.len() >= before.len() + after.len()
            }
            None => wanted == given,
        });
    hosts_match && (path.is_empty() || image_path.starts_with(path))
}

/// Without an address: that these fit is decided already, and runtimes take
/// only URLs for one.
fn auth(entry: &serde_json::Value) -> cri::AuthConfig {
    let text = |key: &str| entry[key].as_str().unwrap_or_default().to_string();
    let mut auth = cri::AuthConfig {
        username: text("username"),
        password: text("password"),
        identity_token: text("identitytoken"),
        registry_token: text("registrytoken"),
        ..Default::default()
    };
    let decoded = STANDARD.decode(text("auth")).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    if let (true, Some((user, password))) =
        (auth.username.is_empty(), decoded.as_deref().and_then(|text| text.split_once(':')))
    {
        auth.username = user.into();
        auth.password = password.trim_end_matches('\0').into();
    }
    auth
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn logins_are_chosen_by_registry_and_path() {
        let config = json!({"auths": {
            "https://index.docker.io/v1/": {"auth": STANDARD.encode("hub:1")},
            "registry.example.com": {"username": "all", "password": "2"},
            "registry.example.com/team": {"username": "team", "password": "3"},
            "*.wild.example": {"username": "wild", "password": "4"},
        }});
        let secret: Secret = serde_json::from_value(json!({
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": STANDARD.encode(config.to_string())},
        }))
        .expect("the secret is well formed");
        let secrets = [Arc::new(secret)];
        let users = |image: &str| -> Vec<String> {
            logins(image, &secrets).into_iter().map(|login| login.auth.username).collect()
        };
        assert_eq!(users("nginx"), ["hub"]);
        assert_eq!(users("registry.example.com/other/app:1"), ["all"]);
        assert_eq!(users("registry.example.com/team/app:1"), ["team", "all"]);
        assert_eq!(users("a.wild.example/x"), ["wild"]);
        assert!(users("a.b.wild.example/x").is_empty());
        assert!(users("other.example/x").is_empty());
        assert_eq!(logins("nginx", &secrets)[0].auth.password, "1");
    }
}
