//! How a node gets its certificates: it creates a key, sends a CertificateSigningRequest, and waits for the certificate.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use ferry_auth::kubeconfig::{Kubeconfig as Written, KubeconfigCredentials};
use ferry_auth::user::{NODE_PREFIX, NODES};
use ferry_client::{Api, Client, Kubeconfig};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{PostParams, WatchEvent, WatchParams};
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use serde_json::json;

use super::kubeconfig;
use super::server::write_private;
use super::token::Token;

const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
/// How long a request may wait to be signed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The files of a node that has joined.
pub struct Identity {
    pub kubeconfig: PathBuf,
    pub client_ca: PathBuf,
    /// Any of them will do.
    servers: Vec<String>,
}

impl Identity {
    pub fn below(directory: &Path, servers: &[String]) -> Identity {
        Identity {
            kubeconfig: directory.join("node.kubeconfig"),
            client_ca: directory.join("client-ca.crt"),
            servers: servers.to_vec(),
        }
    }

    pub fn exists(&self) -> bool {
        self.kubeconfig.exists() && self.client_ca.exists()
    }

    /// Whether the certificate that the node is known by is to be replaced.
    pub fn is_due(&self) -> bool {
        let certificate = kubeconfig::certificate(&self.kubeconfig);
        certificate.is_ok_and(|pem| ferry_auth::pki::is_pem_due(&pem, SystemTime::now()))
    }

    pub async fn client(&self, component: &str) -> anyhow::Result<Client> {
        let kubeconfig = Kubeconfig {
            path: Some(self.kubeconfig.clone()),
            context: None,
            user_agent: Some(format!("{component}/{} (ferry)", env!("CARGO_PKG_VERSION"))),
            servers: self.servers.clone(),
        };
        ferry_client::connect(&kubeconfig).await.context("reach the API server")
    }
}

/// Makes the node's identity. One that it has is kept, and led to where the server is now.
pub async fn join(
    directory: &Path,
    servers: &[String],
    token: Option<&Token>,
    node: &str,
) -> anyhow::Result<Identity> {
    let identity = Identity::below(directory, servers);
    let server = servers.first().context("no server was named")?;
    if identity.exists() {
        kubeconfig::point_to(&identity.kubeconfig, server)?;
        if identity.is_due()
            && let Err(error) = renew(&identity, server, node).await
        {
            // It counts for a third of its life yet; the next start tries again.
            tracing::warn!(error = format!("{error:#}"), "the node's certificate is not renewed");
        }
        return Ok(identity);
    }
    let Some(token) = token else {
        bail!("this node has not joined yet: pass the --token that `ferry token create` prints");
    };
    let mut span = ferry_trace::span("cluster.join");
    span.object("nodes", "", node);
    let work = async {
        std::fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        let ca_pem = token.ca_pem();
        let bootstrap = directory.join("bootstrap.kubeconfig");
        let user = format!("{NODE_PREFIX}{node}");
        let write = |path: &Path, credentials: KubeconfigCredentials<'_>| {
            let file = Written { cluster: "ferry", server, ca_pem: &ca_pem, user: &user, credentials };
            write_private(path, &file.to_yaml())
        };
        write(&bootstrap, KubeconfigCredentials::Token(&token.bearer()))?;
        let kubeconfig =
            Kubeconfig { path: Some(bootstrap.clone()), servers: servers.to_vec(), ..Kubeconfig::default() };
        let client = ferry_client::connect(&kubeconfig).await.context("reach the API server")?;
        let key = KeyPair::generate().context("make a key")?;
        let certificate =
            request(&client, CLIENT_SIGNER, "client auth", subject(node, Vec::new())?, &key).await?;
        write_private(&identity.client_ca, &ca_pem)?;
        let key_pem = key.serialize_pem();
        let credentials =
            KubeconfigCredentials::Certificate { certificate_pem: &certificate, key_pem: &key_pem };
        write(&identity.kubeconfig, credentials)?;
        std::fs::remove_file(&bootstrap).with_context(|| format!("remove {}", bootstrap.display()))?;
        anyhow::Ok(identity)
    };
    span.in_scope(work).await
}

/// Another certificate for a node that has one: the node itself asks for it.
async fn renew(identity: &Identity, server: &str, node: &str) -> anyhow::Result<()> {
    let span = ferry_trace::span("cluster.renew");
    let work = async {
        let client = identity.client("kubelet").await?;
        let key = KeyPair::generate().context("make a key")?;
        let asked = request(&client, CLIENT_SIGNER, "client auth", subject(node, Vec::new())?, &key);
        let certificate = tokio::time::timeout(PATIENCE, asked).await.context("ask for a certificate")??;
        let ca_pem = std::fs::read_to_string(&identity.client_ca).context("read the authority")?;
        let file = Written {
            cluster: "ferry",
            server,
            ca_pem: &ca_pem,
            user: &format!("{NODE_PREFIX}{node}"),
            credentials: KubeconfigCredentials::Certificate {
                certificate_pem: &certificate,
                key_pem: &key.serialize_pem(),
            },
        };
        write_private(&identity.kubeconfig, &file.to_yaml())
    };
    span.instrument(work).await
}

/// A certificate to serve with, under the node's name and address. The node must be registered.
pub async fn serving(
    client: &Client,
    node: &str,
    address: IpAddr,
    certificate: &Path,
    key: &Path,
) -> anyhow::Result<()> {
    let mut span = ferry_trace::span("cluster.serving_certificate");
    span.object("nodes", "", node);
    let name = node.try_into().context("the node's name")?;
    let names = vec![SanType::DnsName(name), SanType::IpAddress(address)];
    let pair = KeyPair::generate().context("make a key")?;
    let work = request(client, SERVING_SIGNER, "server auth", subject(node, names)?, &pair);
    let signed = span.in_scope(work).await?;
    write_private(key, &pair.serialize_pem())?;
    write_private(certificate, &signed)
}

fn subject(node: &str, names: Vec<SanType>) -> anyhow::Result<CertificateParams> {
    let mut parameters = CertificateParams::new(Vec::new()).context("a certificate request")?;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::OrganizationName, NODES);
    parameters.distinguished_name.push(DnType::CommonName, format!("{NODE_PREFIX}{node}"));
    parameters.subject_alt_names = names;
    Ok(parameters)
}

async fn request(
    client: &Client,
    signer: &str,
    purpose: &str,
    parameters: CertificateParams,
    key: &KeyPair,
) -> anyhow::Result<String> {
    let pem =
        parameters.serialize_request(key).and_then(|request| request.pem()).context("sign a request")?;
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    let asked: CertificateSigningRequest = serde_json::from_value(json!({
        "metadata": { "generateName": "node-csr-" },
        "spec": { "request": encoded, "signerName": signer, "usages": ["digital signature", purpose] },
    }))
    .context("write the request")?;
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let created = requests.create(&PostParams::default(), &asked).await.context("ask for a certificate")?;
    let name = created.metadata.name.context("the request has no name")?;
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let wait = async {
        // From the start: it may have been signed before we look.
        let mut events = requests.watch(&only, "0").await.context("wait for the certificate")?.boxed();
        while let Some(event) = events.try_next().await.context("wait for the certificate")? {
            if let WatchEvent::Added(csr) | WatchEvent::Modified(csr) = event
                && let Some(signed) = outcome(&csr)?
            {
                return Ok(signed);
            }
        }
        bail!("the API server closed the connection")
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .with_context(|| format!("nobody signed {name}; `kubectl get csr` shows it"))?
}

/// The certificate, if it is there; an error, if it will never be.
fn outcome(csr: &CertificateSigningRequest) -> anyhow::Result<Option<String>> {
    let Some(status) = &csr.status else { return Ok(None) };
    if let Some(bytes) = status.certificate.as_ref().filter(|bytes| !bytes.0.is_empty()) {
        return Ok(Some(String::from_utf8(bytes.0.clone()).context("the certificate")?));
    }
    for condition in status.conditions.iter().flatten() {
        if ["Denied", "Failed"].contains(&condition.type_.as_str()) {
            bail!("{}: {}", condition.type_, condition.message.as_deref().unwrap_or("no reason given"));
        }
    }
    Ok(None)
}
