//! Gathers the facts: files and their modes, the flags of the running process, responses without credentials, objects.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use ferry_auth::certificate::read_certificate;
use ferry_client::{Api, Client, Kubeconfig, connect};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::Resource;
use kube::api::ListParams;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::super::layout::Layout;
use super::super::options::ServerOptions;
use super::super::status;

/// Timeout of one request to a kubelet or to the server.
const PATIENCE: Duration = Duration::from_secs(5);
/// At most so many kubelets are queried; those of a larger cluster have the same configuration.
const MOST_KUBELETS: usize = 50;
/// The kubelet's former port without authentication.
const READ_ONLY_PORT: u16 = 10_255;
/// Limit of files in the data directory.
const MOST_FILES: usize = 10_000;

pub struct Facts {
    /// The data directory, what lies in it, and what lies in `pki`, `store` and `kubelet/pki`.
    pub files: Vec<FileFact>,
    pub certificates: Vec<(PathBuf, SystemTime)>,
    pub now: SystemTime,
    pub server: ServerFacts,
    /// The status code of a request without credentials, by path.
    pub anonymous: Vec<(&'static str, u16)>,
    /// Whether the secure port answers to HTTP without TLS.
    pub answers_plainly: bool,
    /// The code for `/debug/pprof/` to an administrator.
    pub profiling: u16,
    pub kubelets: Vec<KubeletFacts>,
    pub namespaces: Vec<Namespace>,
    pub pods: Vec<Pod>,
    pub service_accounts: Vec<ServiceAccount>,
    pub network_policies: Vec<NetworkPolicy>,
    pub cluster_roles: Vec<ClusterRole>,
    pub cluster_role_bindings: Vec<ClusterRoleBinding>,
    pub role_bindings: Vec<RoleBinding>,
}

pub struct FileFact {
    pub path: PathBuf,
    pub is_directory: bool,
    pub mode: u32,
    pub user: u32,
    pub group: u32,
}

/// The settings of the running process.
#[derive(Clone, Debug, Default)]
pub struct ServerFacts {
    pub authorization_modes: Vec<String>,
    pub token_auth_file: Option<PathBuf>,
    pub basic_auth_file: Option<PathBuf>,
    pub enabled_plugins: Vec<String>,
    pub disabled_plugins: Vec<String>,
    pub audit_policy: Option<PathBuf>,
    pub audit_log: Option<PathBuf>,
    pub audit_webhook: Option<PathBuf>,
    pub audit_max_age: u32,
    pub audit_max_backup: usize,
    pub audit_max_size: u64,
    /// The first provider for Secrets; `None` without encryption at rest.
    pub secrets_provider: Option<String>,
    pub request_timeout: Duration,
    pub etcd_servers: Vec<String>,
    pub etcd_ca: bool,
    pub etcd_certificate: bool,
}

pub struct KubeletFacts {
    pub node: String,
    /// For `/pods` without credentials; `None` where nothing answers.
    pub anonymous: Option<u16>,
    pub read_only_port: bool,
}

/// A command line, and the environment it was started in.
pub struct Words {
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
}

pub async fn gather(
    layout: &Layout,
    options: fn(Words) -> anyhow::Result<ServerOptions>,
) -> anyhow::Result<Facts> {
    let Some(snapshot) = status::running(layout)? else {
        bail!("no cluster runs in {}; `ferry up` starts one", layout.data_dir.display());
    };
    let options = options(words_of(snapshot.pid)?).context("read the flags of the running server")?;
    let files = files(layout)?;
    let certificates = certificates(&files)?;
    let kubeconfig = Kubeconfig { path: Some(layout.admin_kubeconfig()), ..Kubeconfig::default() };
    let client = connect(&kubeconfig).await.context("reach the API server")?;
    let nobody = without_credentials(&snapshot.url, Some(&layout.pki().join("ca.crt")))?;
    let mut anonymous = Vec::new();
    for path in ["/api/v1/namespaces", "/apis", "/metrics", "/openapi/v3", "/healthz"] {
        anonymous.push((path, code(&nobody, path).await.with_context(|| format!("ask for {path}"))?));
    }
    let nodes: Vec<Node> = all(&client).await?;
    let mut kubelets = Vec::new();
    for node in nodes.iter().take(MOST_KUBELETS) {
        kubelets.extend(kubelet(node).await?);
    }
    Ok(Facts {
        files,
        certificates,
        now: SystemTime::now(),
        server: server(&options)?,
        anonymous,
        answers_plainly: answers_plainly(&snapshot.url).await,
        profiling: code(&client, "/debug/pprof/").await.context("ask for /debug/pprof/")?,
        kubelets,
        namespaces: all(&client).await?,
        pods: all(&client).await?,
        service_accounts: all(&client).await?,
        network_policies: all(&client).await?,
        cluster_roles: all(&client).await?,
        cluster_role_bindings: all(&client).await?,
        role_bindings: all(&client).await?,
    })
}

async fn all<K>(client: &Client) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let list = Api::<K>::all(client.clone()).list(&ListParams::default()).await;
    Ok(list.with_context(|| format!("list {}", K::plural(&())))?.items)
}

/// How a process was started. Only root and its own user may know.
fn words_of(pid: u32) -> anyhow::Result<Words> {
    let read = |file: &str| {
        let path = format!("/proc/{pid}/{file}");
        std::fs::read(&path).with_context(|| format!("read {path}"))
    };
    let words = |bytes: Vec<u8>| -> Vec<OsString> {
        let parts = bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty());
        parts.map(|part| OsString::from_vec(part.to_vec())).collect()
    };
    let environment = words(read("environ")?).into_iter().filter_map(|word| {
        let bytes = word.into_vec();
        let at = bytes.iter().position(|byte| *byte == b'=')?;
        Some((OsString::from_vec(bytes[..at].to_vec()), OsString::from_vec(bytes[at + 1..].to_vec())))
    });
    let environment = environment.collect();
    Ok(Words { arguments: words(read("cmdline")?), environment })
}

fn files(layout: &Layout) -> anyhow::Result<Vec<FileFact>> {
    let mut found = vec![fact(layout.data_dir.clone())?];
    for directory in
        [layout.data_dir.clone(), layout.pki(), layout.data_dir.join("store"), layout.kubelet().join("pki")]
    {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            // Not every server has all of them: one on etcd has no store.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("read {}", directory.display())),
        };
        for entry in entries {
            let path = entry.with_context(|| format!("read {}", directory.display()))?.path();
            if found.len() >= MOST_FILES {
                bail!("{} holds more than {MOST_FILES} files", layout.data_dir.display());
            }
            match fact(path) {
                Ok(fact) => found.push(fact),
                // The store removes its old segments, and others their unfinished files, while we look.
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(found)
}

fn is_gone(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<std::io::Error>();
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::NotFound)
}

fn fact(path: PathBuf) -> anyhow::Result<FileFact> {
    // A link's own mode says nothing; what it leads to does.
    let metadata = std::fs::metadata(&path).with_context(|| format!("look at {}", path.display()))?;
    Ok(FileFact {
        is_directory: metadata.is_dir(),
        mode: metadata.mode() & 0o7777,
        user: metadata.uid(),
        group: metadata.gid(),
        path,
    })
}

/// When each certificate among the files ends.
fn certificates(files: &[FileFact]) -> anyhow::Result<Vec<(PathBuf, SystemTime)>> {
    let is_certificate = |file: &&FileFact| {
        let extension = file.path.extension().and_then(|extension| extension.to_str());
        !file.is_directory && matches!(extension, Some("crt" | "pem"))
    };
    let mut found = Vec::new();
    for file in files.iter().filter(is_certificate) {
        let pem = std::fs::read(&file.path).with_context(|| format!("read {}", file.path.display()))?;
        for der in CertificateDer::pem_slice_iter(&pem) {
            let der = der.with_context(|| format!("read {}", file.path.display()))?;
            let facts = read_certificate(&der).with_context(|| format!("read {}", file.path.display()))?;
            found.push((file.path.clone(), facts.not_after));
        }
    }
    Ok(found)
}

fn server(options: &ServerOptions) -> anyhow::Result<ServerFacts> {
    let api = &options.api;
    let provider = match &api.encryption.encryption_provider_config {
        None => None,
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
            let read = ferry_api::yaml::one::<Value>(&text);
            let configuration = read.map_err(|why| anyhow::anyhow!("{}: {why}", path.display()))?;
            secrets_provider(&configuration)
        }
    };
    Ok(ServerFacts {
        authorization_modes: api.authorization_mode.clone(),
        token_auth_file: api.token_auth_file.clone(),
        basic_auth_file: api.basic_auth_file.clone(),
        enabled_plugins: api.enable_admission_plugins.clone(),
        disabled_plugins: api.disable_admission_plugins.clone(),
        audit_policy: api.audit.audit_policy_file.clone(),
        audit_log: api.audit.audit_log_path.clone(),
        audit_webhook: api.audit.audit_webhook_config_file.clone(),
        audit_max_age: api.audit.audit_log_maxage,
        audit_max_backup: api.audit.audit_log_maxbackup,
        audit_max_size: api.audit.audit_log_maxsize,
        secrets_provider: provider,
        request_timeout: api.request_timeout,
        etcd_servers: api.etcd_servers.clone(),
        etcd_ca: api.etcd_cafile.is_some(),
        etcd_certificate: api.etcd_certfile.is_some(),
    })
}

/// The provider that writes Secrets: the first of the first entry that speaks of them.
pub fn secrets_provider(configuration: &Value) -> Option<String> {
    let entries = configuration["resources"].as_array()?;
    let covers = |entry: &&Value| {
        let mut names = entry["resources"].as_array().into_iter().flatten().filter_map(Value::as_str);
        names.any(|name| matches!(name, "secrets" | "secrets." | "*." | "*.*"))
    };
    let providers = entries.iter().find(covers)?["providers"].as_array()?;
    Some(providers.first()?.as_object()?.keys().next()?.clone())
}

/// A client that shows nothing of itself. Without an authority it takes any certificate: it tells no secrets.
fn without_credentials(url: &str, authority: Option<&Path>) -> anyhow::Result<Client> {
    let mut config = kube::Config::new(url.parse().with_context(|| format!("understand {url}"))?);
    (config.connect_timeout, config.read_timeout) = (Some(PATIENCE), Some(PATIENCE));
    match authority {
        None => {
            config.accept_invalid_certs = true;
            // Otherwise the host's authorities are read, which it may not have.
            config.root_cert = Some(Vec::new());
        }
        Some(path) => {
            let pem = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
            let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
            let all = all.with_context(|| format!("read {}", path.display()))?;
            config.root_cert = Some(all.into_iter().map(|der| der.to_vec()).collect());
        }
    }
    Client::try_from(config).context("make a client")
}

async fn code(client: &Client, path: &str) -> anyhow::Result<u16> {
    let request = http::Request::get(path).body(kube::client::Body::empty())?;
    let response =
        tokio::time::timeout(PATIENCE, client.send(request)).await.context("no answer in time")??;
    Ok(response.status().as_u16())
}

/// `None` for a node that tells no address.
async fn kubelet(node: &Node) -> anyhow::Result<Option<KubeletFacts>> {
    let Some(status) = &node.status else { return Ok(None) };
    let internal = status.addresses.iter().flatten().find(|address| address.type_ == "InternalIP");
    let address: Option<std::net::IpAddr> = internal.and_then(|address| address.address.parse().ok());
    let Some(address) = address else { return Ok(None) };
    let endpoint = status.daemon_endpoints.as_ref().and_then(|all| all.kubelet_endpoint.as_ref());
    let port = endpoint.and_then(|endpoint| u16::try_from(endpoint.port).ok()).unwrap_or(10_250);
    let nobody = without_credentials(&format!("https://{}", std::net::SocketAddr::new(address, port)), None)?;
    let connecting = tokio::net::TcpStream::connect((address, READ_ONLY_PORT));
    Ok(Some(KubeletFacts {
        node: node.metadata.name.clone().unwrap_or_default(),
        anonymous: code(&nobody, "/pods").await.ok(),
        read_only_port: tokio::time::timeout(PATIENCE, connecting)
            .await
            .is_ok_and(|connected| connected.is_ok()),
    }))
}

/// Whether something that is no TLS is answered with HTTP that is not a refusal.
async fn answers_plainly(url: &str) -> bool {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let Some(place) = url.strip_prefix("https://") else { return true };
    let asking = async {
        let mut connection = tokio::net::TcpStream::connect(place.trim_end_matches('/')).await.ok()?;
        connection.write_all(b"GET /version HTTP/1.0\r\n\r\n").await.ok()?;
        let mut answer = Vec::new();
        connection.take(64).read_to_end(&mut answer).await.ok()?;
        Some(answer.starts_with(b"HTTP/1.") && answer[8..].starts_with(b" 200"))
    };
    matches!(tokio::time::timeout(PATIENCE, asking).await, Ok(Some(true)))
}
