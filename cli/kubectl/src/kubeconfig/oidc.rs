//! OpenID Connect tokens kept in the kubeconfig: used while they last, renewed with the refresh
//! token when they have expired, and the new ones written back.

use base64::Engine as _;
use serde_json::{Value, json};

use super::resolve::{ClientConfig, Credentials, Impersonate};
use super::{change_file, entry_mut, relative_to};
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::transport::{Client, form_encode};

/// Tokens about to expire are as good as expired: the request still has to travel.
const LEEWAY_SECONDS: i64 = 10;

pub async fn token(config: &Value, user: &str, file: &std::path::Path) -> Result<String> {
    let id_token = config.text("id-token");
    if !id_token.is_empty() && !is_expired(id_token, jiff::Timestamp::now().as_second()) {
        return Ok(id_token.to_owned());
    }
    let refresh_token = config.text("refresh-token");
    if refresh_token.is_empty() {
        return Err(Error::plain(
            "Unable to connect to the server: No valid id-token, and cannot refresh without refresh-token"
                .to_owned(),
        ));
    }
    let renewed = renew(config, refresh_token, file).await?;
    let id_token = renewed.text("id_token").to_owned();
    if id_token.is_empty() {
        return Err(Error::message("oidc: the identity provider returned no id_token"));
    }
    change_file(file, |document| {
        let stored = &mut entry_mut(document, "users", user)["auth-provider"]["config"];
        stored["id-token"] = json!(id_token);
        if !renewed.text("refresh_token").is_empty() {
            stored["refresh-token"] = renewed["refresh_token"].clone();
        }
        Ok(())
    })?;
    Ok(id_token)
}

/// A token that cannot be read counts as expired: the provider will say more.
fn is_expired(token: &str, now: i64) -> bool {
    let expiry = token
        .split('.')
        .nth(1)
        .and_then(|payload| {
            base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()
        })
        .and_then(|payload| serde_json::from_slice::<Value>(&payload).ok())
        .and_then(|claims| claims.int("exp"));
    expiry.is_none_or(|expiry| expiry - LEEWAY_SECONDS <= now)
}

async fn renew(config: &Value, refresh_token: &str, file: &std::path::Path) -> Result<Value> {
    let _span = ferry_trace::span("kubectl.oidc_refresh");
    let issuer = config.text("idp-issuer-url").trim_end_matches('/');
    let discovery = provider(config, issuer, file)?.get_json("/.well-known/openid-configuration").await?;
    let endpoint = discovery.text("token_endpoint");
    let (origin, path) = split_origin(endpoint)
        .ok_or_else(|| Error::message(format!("oidc: token endpoint {endpoint:?} is not a URL")))?;
    let form = form_encode(&[
        ("grant_type", "refresh_token"),
        ("refresh_token", refresh_token),
        ("client_id", config.text("client-id")),
        ("client_secret", config.text("client-secret")),
    ]);
    provider(config, origin, file)?.post_form(path, form).await
}

fn provider(config: &Value, origin: &str, file: &std::path::Path) -> Result<Client> {
    let authority = if !config.text("idp-certificate-authority-data").is_empty() {
        base64::engine::general_purpose::STANDARD
            .decode(config.text("idp-certificate-authority-data"))
            .map_err(|error| Error::message(format!("oidc: certificate authority: {error}")))?
    } else if !config.text("idp-certificate-authority").is_empty() {
        std::fs::read(relative_to(file, config.text("idp-certificate-authority")))?
    } else {
        Vec::new()
    };
    Client::new(
        ClientConfig {
            server: origin.to_owned(),
            certificate_authority: authority,
            insecure: false,
            server_name: String::new(),
            client_certificate: Vec::new(),
            client_key: Vec::new(),
            credentials: Credentials::None,
            impersonate: Impersonate::default(),
            timeout: None,
            proxy: String::new(),
        },
        0,
        "kubectl",
    )
}

fn split_origin(url: &str) -> Option<(&str, &str)> {
    let authority = url.find("://")? + 3;
    let path = url[authority..].find('/').map_or(url.len(), |slash| authority + slash);
    Some((&url[..path], if path == url.len() { "/" } else { &url[path..] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jwt(expiry: i64) -> String {
        let payload =
            base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json!({"exp": expiry}).to_string());
        format!("e30.{payload}.sig")
    }

    #[test]
    fn a_token_is_used_until_shortly_before_it_expires() {
        assert!(!is_expired(&jwt(1_000), 900));
        assert!(is_expired(&jwt(1_000), 995));
        assert!(is_expired("not-a-token", 0));
    }

    #[test]
    fn a_url_splits_into_origin_and_path() {
        assert_eq!(split_origin("https://id.example:8443/a/b"), Some(("https://id.example:8443", "/a/b")));
        assert_eq!(split_origin("https://id.example"), Some(("https://id.example", "/")));
        assert_eq!(split_origin("nonsense"), None);
    }
}
