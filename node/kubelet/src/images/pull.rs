//! Having a container's image: there already, or pulled with the credentials
//! that fit, and not asked for again too soon after a failure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{Container, Secret};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::oci::canonical_name;
use crate::backoff::Backoff;
use crate::cri;
use crate::runtime::security::ImageUser;
use crate::status::containers::StartFailure;

/// An image ready to run.
#[derive(Clone, Debug)]
pub struct Present {
    pub reference: String,
    pub user: ImageUser,
    /// `None` when it was there already.
    pub pulled_in: Option<Duration>,
    pub size: u64,
}

pub struct Images {
    runtime: cri::Client,
    permits: Arc<Semaphore>,
    backoff: Mutex<Backoff<Pull>>,
    /// What the last pull of an image failed with, while it is held back.
    problems: Mutex<HashMap<Pull, String>>,
}

/// A pod's uid and an image: what one pod may not pull, another may.
type Pull = (String, String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Always,
    IfNotPresent,
    Never,
}

impl Images {
    pub fn new(runtime: cri::Client, parallel: usize) -> Self {
        Self {
            runtime,
            permits: Arc::new(Semaphore::new(parallel.max(1))),
            backoff: Mutex::new(Backoff::new(Duration::from_secs(10), Duration::from_secs(300))),
            problems: Mutex::default(),
        }
    }

    /// Makes sure the image of a container is here. `pulling` is told when a
    /// pull begins.
    pub async fn ensure(
        &self,
        uid: &str,
        container: &Container,
        secrets: &[Arc<Secret>],
        sandbox_config: &cri::PodSandboxConfig,
        handler: &str,
        pulling: impl FnOnce(),
    ) -> Result<Present, StartFailure> {
        let image = container.image.as_deref().unwrap_or_default();
        if image.trim().is_empty() || image.contains(char::is_whitespace) {
            return Err(failure(
                "InvalidImageName",
                format!("Failed to apply default image tag \"{image}\": invalid reference format"),
            ));
        }
        let spec = cri::ImageSpec {
            image: with_tag(image),
            user_specified_image: image.into(),
            runtime_handler: handler.into(),
            ..Default::default()
        };
        let present = self.runtime.image_status(spec.clone()).await.map_err(|error| {
            failure("ImageInspectError", format!("Failed to inspect image \"{image}\": {error}"))
        })?;
        let policy = policy(container.image_pull_policy.as_deref(), image);
        match (present, policy) {
            (Some(found), Policy::IfNotPresent | Policy::Never) => return Ok(describe(&found, None)),
            (None, Policy::Never) => {
                return Err(failure(
                    "ErrImageNeverPull",
                    format!("Container image \"{image}\" is not present with pull policy of Never"),
                ));
            }
            _ => {}
        }
        let pull = (uid.to_string(), spec.image.clone());
        if let Some(left) = self.backoff.lock().blocked(&pull, Instant::now()) {
            tracing::debug!(image, ?left, "pull held back");
            let problem = self.problems.lock().get(&pull).cloned().unwrap_or_default();
            return Err(failure(
                "ImagePullBackOff",
                format!("Back-off pulling image \"{image}\": ErrImagePull: {problem}"),
            ));
        }
        let mut span = ferry_trace::span("kubelet.pull");
        span.set("image", image);
        pulling();
        let started = Instant::now();
        let pulled = span.in_scope(self.pull(&spec, secrets, sandbox_config)).await;
        match pulled {
            Ok(reference) => {
                self.backoff.lock().reset(&pull);
                self.problems.lock().remove(&pull);
                let found = self
                    .runtime
                    .image_status(cri::ImageSpec { image: reference.clone(), ..spec.clone() })
                    .await;
                let found = found.ok().flatten().unwrap_or_default();
                let mut present = describe(&found, Some(started.elapsed()));
                present.reference = reference;
                Ok(present)
            }
            Err(error) => {
                span.fail(&error);
                self.backoff.lock().failed(pull.clone(), Instant::now());
                self.problems.lock().insert(pull, error.to_string());
                Err(failure("ErrImagePull", error.to_string()))
            }
        }
    }

    /// Nothing of a pod that is gone is held against anybody.
    pub fn forget(&self, uid: &str) {
        self.backoff.lock().retain(|(owner, _)| owner != uid);
        self.problems.lock().retain(|(owner, _), _| owner != uid);
    }

    async fn pull(
        &self,
        spec: &cri::ImageSpec,
        secrets: &[Arc<Secret>],
        sandbox_config: &cri::PodSandboxConfig,
    ) -> Result<String, cri::Error> {
        // the semaphore is never closed; if it were, pulling at once is fine
        let _permit = self.permits.acquire().await;
        let candidates = credentials(&spec.image, secrets);
        let mut last = None;
        for auth in
            candidates.iter().map(|auth| Some(auth.clone())).chain(candidates.is_empty().then_some(None))
        {
            match self.runtime.pull_image(spec.clone(), auth, Some(sandbox_config.clone())).await {
                Ok(reference) => return Ok(reference),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("at least one attempt is made, with credentials or without"))
    }

    pub fn runtime(&self) -> &cri::Client {
        &self.runtime
    }
}

fn failure(reason: &str, message: String) -> StartFailure {
    StartFailure { reason: reason.into(), message }
}

fn describe(image: &cri::Image, pulled_in: Option<Duration>) -> Present {
    let uid = image.uid.as_ref().map(|uid| uid.value);
    let user = ImageUser { uid, name: image.username.clone() };
    Present { reference: image.id.clone(), user, pulled_in, size: image.size }
}

/// Without a policy, an image that can change under its tag is always asked
/// for again.
fn policy(said: Option<&str>, image: &str) -> Policy {
    match said {
        Some("Always") => Policy::Always,
        Some("Never") => Policy::Never,
        Some("IfNotPresent") => Policy::IfNotPresent,
        _ if with_tag(image).ends_with(":latest") => Policy::Always,
        _ => Policy::IfNotPresent,
    }
}

fn with_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_string() } else { format!("{image}:latest") }
}

/// Logins from pull secrets that fit an image, the most specific first.
pub fn credentials(image: &str, secrets: &[Arc<Secret>]) -> Vec<cri::AuthConfig> {
    let name = canonical_name(image);
    let mut fitting: Vec<(usize, cri::AuthConfig)> = Vec::new();
    for secret in secrets {
        for (registry, entry) in logins(secret) {
            let pattern = pattern(&registry);
            if fits(&pattern, &name) {
                fitting.push((pattern.len(), auth(&entry)));
            }
        }
    }
    fitting.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    fitting.into_iter().map(|(_, auth)| auth).collect()
}

fn logins(secret: &Secret) -> HashMap<String, serde_json::Value> {
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
    fn the_policy_follows_the_tag_unless_said() {
        for (said, image, expected) in [
            (None, "nginx", Policy::Always),
            (None, "nginx:latest", Policy::Always),
            (None, "nginx:1.29", Policy::IfNotPresent),
            (None, "host:5000/nginx", Policy::Always),
            (None, "nginx@sha256:00", Policy::IfNotPresent),
            (Some("Never"), "nginx", Policy::Never),
            (Some("IfNotPresent"), "nginx", Policy::IfNotPresent),
        ] {
            assert_eq!(policy(said, image), expected, "{image}");
        }
    }

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
            credentials(image, &secrets).into_iter().map(|auth| auth.username).collect()
        };
        assert_eq!(users("nginx"), ["hub"]);
        assert_eq!(users("registry.example.com/other/app:1"), ["all"]);
        assert_eq!(users("registry.example.com/team/app:1"), ["team", "all"]);
        assert_eq!(users("a.wild.example/x"), ["wild"]);
        assert!(users("a.b.wild.example/x").is_empty());
        assert!(users("other.example/x").is_empty());
        assert_eq!(credentials("nginx", &secrets)[0].password, "1");
    }
}
