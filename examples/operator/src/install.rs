//! What the operator needs in the cluster before it works: a certificate that all its pods share, the definition, the
//! validating webhook, and the ledger. Every pod applies the same, so the order in which they start does not matter.

use anyhow::{Context, Result};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, ServiceReference, WebhookClientConfig,
    WebhookConversion,
};
use k8s_openapi::{ByteString, Resource};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::site;

/// The name of the field manager, the Service, the Lease and the webhook.
pub const MANAGER: &str = "site-operator";
pub const LEDGER: &str = "sites";
const CERTIFICATE: &str = "site-operator-tls";

pub fn labels() -> Value {
    json!({"app.kubernetes.io/managed-by": MANAGER})
}

/// In PEM format.
pub struct Certificate {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

/// The first pod makes it, the others take what is there.
pub async fn certificate(client: &Client, namespace: &str) -> Result<Certificate> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let pair = rcgen::generate_simple_self_signed([format!("{MANAGER}.{namespace}.svc")])?;
    let data = [("tls.crt", pair.cert.pem()), ("tls.key", pair.signing_key.serialize_pem())];
    let mut secret = Secret {
        type_: Some("kubernetes.io/tls".into()),
        data: Some(data.map(|(name, text)| (name.to_owned(), ByteString(text.into_bytes()))).into()),
        ..Secret::default()
    };
    secret.metadata.name = Some(CERTIFICATE.into());
    secret.labels_mut().insert("app.kubernetes.io/managed-by".into(), MANAGER.into());
    let found = match secrets.create(&PostParams::default(), &secret).await {
        Err(kube::Error::Api(status)) if status.code == 409 => secrets.get(CERTIFICATE).await,
        other => other,
    };
    let mut data = found.context("have a certificate")?.data.unwrap_or_default();
    let mut take = |name| data.remove(name).map(|bytes| bytes.0).with_context(|| format!("no {name}"));
    Ok(Certificate { certificate: take("tls.crt")?, key: take("tls.key")? })
}

pub async fn install(client: &Client, namespace: &str, certificate: &Certificate) -> Result<()> {
    let apply = PatchParams::apply(MANAGER).force();
    let authority = ByteString(certificate.certificate.clone());
    let mut definition = site::definition()?;
    definition.labels_mut().insert("app.kubernetes.io/managed-by".into(), MANAGER.into());
    let service = |path: &str| json!({"namespace": namespace, "name": MANAGER, "path": path, "port": 443});
    definition.spec.conversion = Some(CustomResourceConversion {
        strategy: "Webhook".into(),
        webhook: Some(WebhookConversion {
            client_config: Some(WebhookClientConfig {
                ca_bundle: Some(authority.clone()),
                service: Some(serde_json::from_value::<ServiceReference>(service("/convert"))?),
                url: None,
            }),
            conversion_review_versions: vec!["v1".into()],
        }),
    });
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = definition.name_any();
    definitions.patch(&name, &apply, &Patch::Apply(&definition)).await.context("apply the definition")?;
    await_condition(definitions, &name, conditions::is_crd_established())
        .await
        .context("wait for the definition")?;

    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": ValidatingWebhookConfiguration::KIND,
        "metadata": {"name": MANAGER, "labels": labels()},
        "webhooks": [{
            "name": "sites.example.dev",
            "clientConfig": {"service": service("/validate"), "caBundle": authority},
            "rules": [{
                "apiGroups": [site::GROUP], "apiVersions": ["v1"], "resources": ["sites"],
                "operations": ["CREATE", "UPDATE"],
            }],
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    });
    webhooks.patch(MANAGER, &apply, &Patch::Apply(&webhook)).await.context("apply the webhook")?;

    let ledgers: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let ledger = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": LEDGER, "labels": labels()},
    });
    ledgers.patch(LEDGER, &apply, &Patch::Apply(&ledger)).await.context("apply the ledger")?;
    Ok(())
}
