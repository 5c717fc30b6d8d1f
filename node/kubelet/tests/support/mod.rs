//! A node of its own for a test: a private containerd, a kubelet on it, and a
//! client of the kubelet's port. Everything goes away with it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ferry_client::CancellationToken;
use ferry_kubelet::images::containerd::{self, Source};
use ferry_kubelet::images::oci;
use ferry_kubelet::{Config, cri};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub const IMAGE: &str = "docker.io/library/busybox:test";
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Node {
    directory: TempDir,
    containerd: Child,
    pub runtime: cri::Client,
    cgroup_root: String,
    tls: TlsConnector,
    port: u16,
    kubelet: Option<(CancellationToken, JoinHandle<()>)>,
    busybox: &'static str,
}

/// `None`, with a note, where the machine lacks what a real node needs.
pub async fn node() -> Option<Node> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    let has = |name: &str| {
        ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"]
            .iter()
            .any(|dir| Path::new(dir).join(name).exists())
    };
    let Some(busybox) =
        busybox.filter(|_| has("containerd") && has("runc") && nix::unistd::geteuid().is_root())
    else {
        ferry_skip::missing("root, containerd, runc and busybox-static");
        return None;
    };
    let directory =
        tempfile::Builder::new().prefix("ferry-kubelet-").tempdir().expect("a directory can be made");
    let containerd = start_containerd(directory.path());
    let endpoint = directory.path().join("containerd.sock").display().to_string();
    let runtime = cri::Client::new(&endpoint).expect("a socket's path");
    let cgroup_root = format!("/ferry-kubelet-test-{}-{}", std::process::id(), port());
    let port = port();
    let tls = certificates(directory.path());
    let node = Node { directory, containerd, runtime, cgroup_root, tls, port, kubelet: None, busybox };
    eventually("containerd answers", async || node.runtime.version().await.is_ok().then_some(())).await;
    node.import(IMAGE).await;
    Some(node)
}

/// A busybox of this name, for the runtime to have.
async fn import(endpoint: &str, name: &str, busybox: &str, source: Source) {
    let program = std::fs::read(busybox).expect("busybox can be read");
    let tools = ["sh", "cat", "sleep", "echo", "id", "ls", "true", "false", "env", "httpd", "touch"];
    let links: Vec<String> = tools.iter().map(|tool| format!("bin/{tool}")).collect();
    let links: Vec<(&str, &str)> = links.iter().map(|link| (link.as_str(), "busybox")).collect();
    let files = [oci::File { path: "bin/busybox", mode: 0o755, data: &program }];
    let process = oci::Process { environment: &["PATH=/bin"], ..oci::Process::default() };
    let image = oci::assemble(name, &files, &links, &process).expect("an image can be assembled");
    let importer = containerd::Client::new(endpoint).expect("a socket's path");
    importer.import(&image, source).await.expect("containerd takes the image");
}

fn start_containerd(directory: &Path) -> Child {
    let path = |name: &str| directory.join(name).display().to_string();
    // without CAP_SYS_RESOURCE scores cannot be lowered
    let config = format!(
        "version = 2\nroot = \"{}\"\nstate = \"{}\"\n[grpc]\naddress = \"{}\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nrestrict_oom_score_adj = true\nsandbox_image = \"ferry.test/pause:1\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"{}\"\nconf_dir = \"{}\"\n",
        path("root"),
        path("state"),
        path("containerd.sock"),
        path("cni-bin"),
        path("cni-conf")
    );
    std::fs::write(directory.join("config.toml"), config).expect("a file can be written");
    let log = std::fs::File::create(directory.join("containerd.log")).expect("a file can be made");
    Command::new("containerd")
        .args(["--config", &path("config.toml")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("containerd starts")
}

/// An authority, a serving certificate, and an administrator's.
fn certificates(directory: &Path) -> TlsConnector {
    let authority_key = KeyPair::generate().expect("a key can be made");
    let mut authority = CertificateParams::new(vec![]).expect("no names");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key).expect("it can be signed");
    let issuer = Issuer::new(authority, authority_key);
    let serving_key = KeyPair::generate().expect("a key can be made");
    let serving = CertificateParams::new(vec!["localhost".to_string()]).expect("a name");
    let serving = serving.signed_by(&serving_key, &issuer).expect("it can be signed");
    let client_key = KeyPair::generate().expect("a key can be made");
    let mut client = CertificateParams::new(vec![]).expect("no names");
    client.distinguished_name.push(DnType::CommonName, "admin");
    client.distinguished_name.push(DnType::OrganizationName, "system:masters");
    let client = client.signed_by(&client_key, &issuer).expect("it can be signed");
    for (name, text) in [
        ("ca.crt", authority_certificate.pem()),
        ("server.crt", serving.pem()),
        ("server.key", serving_key.serialize_pem()),
    ] {
        std::fs::write(directory.join(name), text).expect("a file can be written");
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(directory.join(name), private).expect("a mode can be set");
    }
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority_certificate.der().clone()).expect("an authority");
    let key = rustls_pki_types::PrivateKeyDer::try_from(client_key.serialize_der()).expect("a key");
    let config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![client.der().clone()], key)
            .expect("they fit");
    TlsConnector::from(Arc::new(config))
}

fn port() -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    socket.local_addr().expect("it is bound").port()
}

impl Node {
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn endpoint(&self) -> String {
        self.path("containerd.sock").display().to_string()
    }

    /// Brings an image of this name.
    pub async fn import(&self, name: &str) {
        import(&self.endpoint(), name, self.busybox, Source::Ferry).await;
    }

    /// The same, as `ferry image load` does it.
    pub async fn load(&self, name: &str) {
        import(&self.endpoint(), name, self.busybox, Source::Loaded).await;
    }

    pub fn start_kubelet(&mut self) {
        let mut config = Config::new("test-node");
        config.node_ips = vec!["127.0.0.1".parse().expect("an address")];
        config.address = "127.0.0.1".parse().expect("an address");
        config.port = self.port;
        config.root_dir = self.path("kubelet");
        config.pod_logs_dir = self.path("logs/pods");
        config.static_pod_path = Some(self.path("manifests"));
        config.container_runtime_endpoint = self.path("containerd.sock").display().to_string();
        config.cgroup_root = self.cgroup_root.clone();
        config.tls_cert_file = Some(self.path("server.crt"));
        config.tls_private_key_file = Some(self.path("server.key"));
        config.client_ca_file = Some(self.path("ca.crt"));
        // the machine's disk is not this test's affair
        config.eviction_hard.clear();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let task = tokio::spawn(async move {
            ferry_kubelet::run(None, config, token).await.expect("the kubelet runs");
        });
        self.kubelet = Some((stop, task));
    }

    pub async fn stop_kubelet(&mut self) {
        if let Some((stop, task)) = self.kubelet.take() {
            stop.cancel();
            task.await.expect("the kubelet stops");
        }
    }

    /// Puts a manifest in place as an editor would: written, then renamed.
    pub fn run_pod(&self, name: &str, spec: Value) {
        let manifest =
            serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        let file = self.path("manifests").join(format!("{name}.json"));
        std::fs::create_dir_all(self.path("manifests")).expect("a directory can be made");
        let hidden = self.path("manifests").join(format!(".{name}"));
        std::fs::write(&hidden, manifest.to_string()).expect("a file can be written");
        std::fs::rename(hidden, file).expect("it can be renamed");
    }

    pub fn delete_pod(&self, name: &str) {
        std::fs::remove_file(self.path("manifests").join(format!("{name}.json")))
            .expect("the manifest is there");
    }

    pub async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let name = rustls_pki_types::ServerName::try_from("localhost").expect("a name");
        self.tls.connect(name, stream).await
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub async fn get(&self, path: &str) -> Result<(u16, String), String> {
        let stream = self.connect().await.map_err(|error| error.to_string())?;
        let exchange = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = exchange.map_err(|error| error.to_string())?;
        let driver = tokio::spawn(connection);
        let request = http::Request::get(path).header("Host", "localhost").body(Empty::<bytes::Bytes>::new());
        let answer =
            sender.send_request(request.expect("a request")).await.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        driver.abort();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// The pod of a manifest, as the kubelet shows it.
    pub async fn pod(&self, name: &str) -> Option<Value> {
        let (_, body) = self.get("/pods").await.ok()?;
        let list: Value = serde_json::from_str(&body).ok()?;
        let wanted = format!("{name}-test-node");
        list["items"].as_array()?.iter().find(|pod| pod["metadata"]["name"] == wanted.as_str()).cloned()
    }

    /// Waits until the pod is as it should be.
    pub async fn wait_for(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{name} {what}"), async || self.pod(name).await.filter(|pod| is(pod))).await
    }

    /// The identities of everything the runtime has: sandboxes, then containers.
    pub async fn has(&self) -> (Vec<String>, Vec<String>) {
        let sandboxes = self.runtime.list_pod_sandboxes(None).await.expect("sandboxes are listed");
        let containers = self.runtime.list_containers(None).await.expect("containers are listed");
        (
            sandboxes.into_iter().map(|each| each.id).collect(),
            containers.into_iter().map(|each| each.id).collect(),
        )
    }

    pub fn cgroup_processes(&self) -> Vec<i32> {
        let hierarchy = ferry_linux::cgroup::Hierarchy::detect().expect("cgroups are mounted");
        hierarchy.processes(&ferry_linux::cgroup::Path::new(self.cgroup_root.clone()))
    }
}

impl Drop for Node {
    /// Also after a failure nothing is left: processes, mounts, cgroups.
    fn drop(&mut self) {
        if let Some((stop, task)) = self.kubelet.take() {
            stop.cancel();
            task.abort();
        }
        for pid in self.cgroup_processes() {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        let _ = self.containerd.kill();
        let _ = self.containerd.wait();
        // shims outlive containerd; ours name our socket
        let socket = self.path("containerd.sock").display().to_string();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_else(|_| vec![]);
            if String::from_utf8_lossy(&command).contains(&socket) && pid != std::process::id() as i32 {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
        }
        for target in ferry_linux::mount::mounts_below(self.directory.path()).unwrap_or_else(|_| vec![]) {
            let _ = ferry_linux::mount::unmount(&target);
        }
        if let Ok(hierarchy) = ferry_linux::cgroup::Hierarchy::detect() {
            let path = ferry_linux::cgroup::Path::new(self.cgroup_root.clone());
            // the kernel takes a moment to let go of killed processes
            for _ in 0..100 {
                if hierarchy.remove(&path).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Asks until the answer is there, within a bound.
pub async fn eventually<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let asked = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer,
        Err(_) => panic!("not within {}s: {what}", PATIENCE.as_secs()),
    }
}
