//! Bootstrap tokens: signing the public cluster info with each, so that a joining node can
//! check it, and removing tokens whose time is up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ferry_client::{Attempt, Client, Error, Informer, NamespacedName, Outcome, Selection, error};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use ring::hmac;
use serde_json::json;

use crate::context::{Context, Running};

const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
const CLUSTER_INFO: &str = "cluster-info";
const SIGNATURE: &str = "jws-kubeconfig-";

fn field(secret: &Secret, key: &str) -> Option<String> {
    String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok()
}

/// Id and secret of a token that may sign: well formed, not expired, meant for it.
fn signing_token(secret: &Secret, now: Timestamp) -> Option<(String, String)> {
    let id = field(secret, "token-id")?;
    let value = field(secret, "token-secret").filter(|value| !value.is_empty())?;
    let named = secret.name_any() == format!("bootstrap-token-{id}");
    let signs = field(secret, "usage-bootstrap-signing").as_deref() == Some("true");
    let alive = expires_in(secret, now).is_none_or(|left| !left.is_zero());
    (secret.type_.as_deref() == Some(SECRET_TYPE) && named && signs && alive).then_some((id, value))
}

/// Time left; None for a token without end. What is not a time has passed: better a token too
/// few than one for ever.
fn expires_in(secret: &Secret, now: Timestamp) -> Option<Duration> {
    let text = field(secret, "expiration").filter(|text| !text.is_empty())?;
    let Ok(end) = text.parse::<Timestamp>() else { return Some(Duration::ZERO) };
    Some(Duration::try_from(end.duration_since(now)).unwrap_or(Duration::ZERO))
}

/// A detached JWS (RFC 7515, appendix F) over the content.
fn sign(content: &str, id: &str, secret: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": id}).to_string());
    let payload = URL_SAFE_NO_PAD.encode(content);
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, format!("{header}.{payload}").as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
}

/// The cluster info with a signature by each token and by no other; None if it has them.
fn plan(info: &ConfigMap, tokens: &[(String, String)]) -> Option<ConfigMap> {
    let data = info.data.clone().unwrap_or_default();
    let content = data.get("kubeconfig")?.clone();
    let mut next: BTreeMap<String, String> =
        data.clone().into_iter().filter(|(key, _)| !key.starts_with(SIGNATURE)).collect();
    next.extend(tokens.iter().map(|(id, secret)| (format!("{SIGNATURE}{id}"), sign(&content, id, secret))));
    (next != data).then(|| ConfigMap { data: Some(next), ..info.clone() })
}

fn token_secrets() -> Selection {
    Selection { fields: Some(format!("type={SECRET_TYPE}")), labels: None }
}

struct Signer {
    client: Client,
    infos: Informer<ConfigMap>,
    secrets: Informer<Secret>,
}

pub fn start_signer(context: &Context) -> Running {
    let builder = context.controller("bootstrap-signer-controller");
    let by_name = Selection { fields: Some(format!("metadata.name={CLUSTER_INFO}")), labels: None };
    let infos = builder.in_namespace::<ConfigMap>("kube-public", by_name);
    let secrets = builder.in_namespace::<Secret>("kube-system", token_secrets());
    let signer = Signer { client: context.client.clone(), infos: infos.clone(), secrets: secrets.clone() };
    builder
        .of(&infos, Arc::new(signer))
        .watches(&secrets, |_, _| vec![NamespacedName::new("kube-public", CLUSTER_INFO)])
        .run(Signer::reconcile)
}

impl Signer {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(info) = self.infos.get(&key) else { return Ok(Outcome::Done) };
        let (secrets, now) = (self.secrets.list(), Timestamp::now());
        let tokens: Vec<(String, String)> =
            secrets.iter().filter_map(|secret| signing_token(secret, now)).collect();
        if let Some(next) = plan(&info, &tokens) {
            let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &key.namespace);
            error::ignore_not_found(api.replace(&key.name, &PostParams::default(), &next).await)
                .attempting("sign cluster info")?;
        }
        let lifetimes = secrets.iter().filter_map(|secret| expires_in(secret, now));
        let next_end = lifetimes.filter(|left| !left.is_zero()).min();
        Ok(next_end.map_or(Outcome::Done, Outcome::After))
    }
}

struct Cleaner {
    client: Client,
    secrets: Informer<Secret>,
}

pub fn start_cleaner(context: &Context) -> Running {
    let builder = context.controller("token-cleaner-controller");
    let secrets = builder.in_namespace::<Secret>("kube-system", token_secrets());
    let cleaner = Cleaner { client: context.client.clone(), secrets: secrets.clone() };
    builder.of(&secrets, Arc::new(cleaner)).run(Cleaner::reconcile)
}

impl Cleaner {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(secret) = self.secrets.get(&key) else { return Ok(Outcome::Done) };
        match expires_in(&secret, Timestamp::now()) {
            None => Ok(Outcome::Done),
            Some(left) if !left.is_zero() => Ok(Outcome::After(left)),
            Some(_) => {
                let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
                let only_this = DeleteParams::default()
                    .preconditions(Preconditions { uid: secret.uid(), resource_version: None });
                error::ignore_not_found(api.delete(&key.name, &only_this).await)
                    .attempting("remove expired token")?;
                Ok(Outcome::Done)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;
    use crate::testing::{at, labels, named};

    fn token(id: &str, fields: &[(&str, &str)]) -> Secret {
        let mut secret: Secret = named(&format!("bootstrap-token-{id}"));
        secret.type_ = Some(SECRET_TYPE.into());
        let all =
            [("token-id", id), ("token-secret", "0123456789abcdef"), ("usage-bootstrap-signing", "true")];
        let all = all
            .iter()
            .chain(fields)
            .map(|(key, value)| (key.to_string(), ByteString(value.as_bytes().to_vec())));
        secret.data = Some(all.collect());
        secret
    }

    #[test]
    fn only_living_tokens_that_are_meant_for_it_sign() {
        let check = |fields: &[(&str, &str)], expected: bool| {
            assert_eq!(signing_token(&token("abcdef", fields), at(0)).is_some(), expected, "{fields:?}");
        };
        check(&[], true);
        check(&[("usage-bootstrap-signing", "false")], false);
        check(&[("token-secret", "")], false);
        check(&[("token-id", "other0")], false);
        check(&[("expiration", "2099-01-01T00:00:00Z")], true);
        check(&[("expiration", "2001-01-01T00:00:00Z")], false);
        check(&[("expiration", "soon")], false);
    }

    #[test]
    fn the_info_carries_one_signature_per_token_and_no_stale_one() {
        let mut info: ConfigMap = named(CLUSTER_INFO);
        info.data = Some(labels(&[("kubeconfig", "content"), ("jws-kubeconfig-gone00", "old")]));
        let tokens = [("abcdef".to_string(), "0123456789abcdef".to_string())];
        let next = plan(&info, &tokens).expect("needs signing");
        let data = next.data.clone().unwrap();
        assert_eq!(data.keys().collect::<Vec<_>>(), ["jws-kubeconfig-abcdef", "kubeconfig"]);
        assert_eq!(data["jws-kubeconfig-abcdef"].split("..").count(), 2);
        assert_eq!(plan(&next, &tokens), None);
        assert_eq!(plan(&named(CLUSTER_INFO), &tokens), None);
    }
}
