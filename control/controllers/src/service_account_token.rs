//! Long-lived tokens for ServiceAccounts that ask for one with a Secret, the old way. Pods get
//! short-lived ones from the API server and do not need this.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ferry_client::{Attempt, Client, Error, Event, Informer, NamespacedName, Outcome, Selection, error};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;

use crate::config::ConfigError;
use crate::context::{Context, Running};

const CONTROLLER: &str = "serviceaccount-token-controller";
const SECRET_TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const ISSUER: &str = "kubernetes/serviceaccount";

/// A key that signs tokens.
pub enum SigningKey {
    Ecdsa(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl SigningKey {
    /// Reads PEM: PKCS#8 of ECDSA P-256 or RSA, or PKCS#1.
    pub fn parse(pem: &[u8]) -> Result<SigningKey, ConfigError> {
        let malformed = || ConfigError::InvalidServiceAccountKey;
        let der = match PrivateKeyDer::from_pem_slice(pem).map_err(|_| malformed())? {
            PrivateKeyDer::Pkcs1(key) => {
                let key = RsaKeyPair::from_der(key.secret_pkcs1_der());
                return key.map(SigningKey::Rsa).map_err(|_| malformed());
            }
            PrivateKeyDer::Pkcs8(key) => key.secret_pkcs8_der().to_vec(),
            _ => return Err(malformed()),
        };
        let ecdsa = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der, &SystemRandom::new());
        ecdsa
            .map(SigningKey::Ecdsa)
            .or_else(|_| RsaKeyPair::from_pkcs8(&der).map(SigningKey::Rsa))
            .map_err(|_| malformed())
    }

    /// None only if the system has no randomness to give.
    fn sign(&self, claims: &serde_json::Value) -> Option<String> {
        let algorithm = match self {
            SigningKey::Ecdsa(_) => "ES256",
            SigningKey::Rsa(_) => "RS256",
        };
        let header = URL_SAFE_NO_PAD.encode(json!({"alg": algorithm}).to_string());
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let random = SystemRandom::new();
        let signature = match self {
            SigningKey::Ecdsa(key) => key.sign(&random, signed.as_bytes()).ok()?.as_ref().to_vec(),
            SigningKey::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).ok()?;
                signature
            }
        };
        Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

fn claims(account: &ServiceAccount, secret: &Secret) -> serde_json::Value {
    let (namespace, name) = (account.namespace().unwrap_or_default(), account.name_any());
    json!({
        "iss": ISSUER,
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
        "kubernetes.io/serviceaccount/namespace": namespace,
        "kubernetes.io/serviceaccount/secret.name": secret.name_any(),
        "kubernetes.io/serviceaccount/service-account.name": name,
        "kubernetes.io/serviceaccount/service-account.uid": account.uid(),
    })
}

/// What to do about a token's Secret.
#[derive(Debug, PartialEq)]
enum Plan {
    Nothing,
    /// Its account is gone, or is another of the same name.
    Delete,
    Write(Box<Secret>),
}

fn plan(secret: &Secret, account: Option<&ServiceAccount>, key: &SigningKey, root_ca: Option<&[u8]>) -> Plan {
    let named = secret.annotations().get(ACCOUNT_NAME);
    if secret.type_.as_deref() != Some(SECRET_TYPE) || named.is_none_or(String::is_empty) {
        return Plan::Nothing;
    }
    let Some(account) = account else { return Plan::Delete };
    let known = secret.annotations().get(ACCOUNT_UID).filter(|uid| !uid.is_empty());
    if known.is_some_and(|uid| account.metadata.uid.as_ref() != Some(uid)) {
        return Plan::Delete;
    }
    let mut next = secret.clone();
    next.annotations_mut().insert(ACCOUNT_UID.into(), account.uid().unwrap_or_default());
    let data = next.data.get_or_insert_default();
    if let Some(root_ca) = root_ca {
        data.insert("ca.crt".into(), ByteString(root_ca.to_vec()));
    }
    data.entry("namespace".into())
        .or_insert_with(|| ByteString(account.namespace().unwrap_or_default().into_bytes()));
    if data.get("token").is_none_or(|token| token.0.is_empty()) {
        let Some(token) = key.sign(&claims(account, secret)) else { return Plan::Nothing };
        data.insert("token".into(), ByteString(token.into_bytes()));
    }
    if next == *secret { Plan::Nothing } else { Plan::Write(Box::new(next)) }
}

struct Controller {
    client: Client,
    secrets: Informer<Secret>,
    accounts: Informer<ServiceAccount>,
    key: SigningKey,
    root_ca: Option<Vec<u8>>,
}

pub fn start(context: &Context) -> Running {
    let key = context.config.service_account_key.as_deref().and_then(|pem| SigningKey::parse(pem).ok());
    let Some(key) = key else {
        tracing::info!("no service account key is configured; no long-lived tokens are made");
        return Box::pin(std::future::ready(()));
    };
    let builder = context.controller(CONTROLLER);
    let only_tokens = Selection { fields: Some(format!("type={SECRET_TYPE}")), labels: None };
    let (secrets, accounts) = (builder.selected(only_tokens), builder.informer());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        secrets: secrets.clone(),
        accounts: accounts.clone(),
        key,
        root_ca: context.config.root_ca.clone(),
    });
    let controller = builder.of(&secrets, controller).watches(&accounts, Controller::account_changed);
    controller.run(Controller::reconcile)
}

impl Controller {
    fn account_changed(&self, event: &Event<ServiceAccount>) -> Vec<NamespacedName> {
        let account = event.key();
        let mut secrets = self.secrets.list_namespace(&account.namespace);
        secrets.retain(|secret| secret.annotations().get(ACCOUNT_NAME) == Some(&account.name));
        secrets.iter().map(|secret| NamespacedName::of(&**secret)).collect()
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(secret) = self.secrets.get(&key) else { return Ok(Outcome::Done) };
        let account = NamespacedName::new(
            key.namespace.clone(),
            secret.annotations().get(ACCOUNT_NAME).cloned().unwrap_or_default(),
        );
        let mut known = self.accounts.get(&account).map(|account| (*account).clone());
        let mut plan = plan(&secret, known.as_ref(), &self.key, self.root_ca.as_deref());
        if plan == Plan::Delete {
            // A token that is still wanted must not go because the cache is behind.
            let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &key.namespace);
            known = accounts.get_opt(&account.name).await.attempting("read service account")?;
            plan = self::plan(&secret, known.as_ref(), &self.key, self.root_ca.as_deref());
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
        match plan {
            Plan::Nothing => {}
            Plan::Delete => {
                let only_this = DeleteParams::default()
                    .preconditions(Preconditions { uid: secret.uid(), resource_version: None });
                error::ignore_not_found(api.delete(&key.name, &only_this).await)
                    .attempting("delete token")?;
            }
            Plan::Write(next) => {
                error::ignore_not_found(api.replace(&key.name, &PostParams::default(), &next).await)
                    .attempting("write token")?;
            }
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{labels, named};

    fn key() -> SigningKey {
        SigningKey::parse(rcgen::KeyPair::generate().unwrap().serialize_pem().as_bytes()).unwrap()
    }

    fn secret(annotations: &[(&str, &str)]) -> Secret {
        let mut secret: Secret = named("token");
        secret.type_ = Some(SECRET_TYPE.into());
        secret.metadata.annotations = Some(labels(annotations));
        secret
    }

    #[test]
    fn a_secret_that_asks_gets_a_token_and_keeps_it() {
        let account: ServiceAccount = named("robot");
        let Plan::Write(filled) =
            plan(&secret(&[(ACCOUNT_NAME, "robot")]), Some(&account), &key(), Some(b"PEM"))
        else {
            panic!()
        };
        let data = filled.data.clone().unwrap();
        let token = String::from_utf8(data["token"].0.clone()).unwrap();
        let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&payload).unwrap();
        assert_eq!(claims["sub"], "system:serviceaccount:default:robot");
        assert_eq!(claims["kubernetes.io/serviceaccount/secret.name"], "token");
        assert_eq!(
            (data["ca.crt"].0.as_slice(), data["namespace"].0.as_slice()),
            (b"PEM".as_slice(), b"default".as_slice())
        );
        assert_eq!(plan(&filled, Some(&account), &key(), Some(b"PEM")), Plan::Nothing);
    }

    #[test]
    fn a_token_goes_with_its_account() {
        let account: ServiceAccount = named("robot");
        assert_eq!(plan(&secret(&[(ACCOUNT_NAME, "robot")]), None, &key(), None), Plan::Delete);
        let of_another = secret(&[(ACCOUNT_NAME, "robot"), (ACCOUNT_UID, "uid-older")]);
        assert_eq!(plan(&of_another, Some(&account), &key(), None), Plan::Delete);
        assert_eq!(plan(&secret(&[]), None, &key(), None), Plan::Nothing);
    }

    #[test]
    fn a_malformed_key_is_refused() {
        for bad in ["", "x", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            assert!(SigningKey::parse(bad.as_bytes()).is_err());
        }
    }
}
