//! A real etcd for a test: one member on free ports of this machine, with a directory of its
//! own, ended with the test.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

pub struct EtcdServer {
    pub endpoint: String,
    port: u16,
    arguments: Vec<String>,
    child: Child,
    _directory: tempfile::TempDir,
}

/// Files that make an etcd serve and demand TLS.
pub struct ServerTls {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl EtcdServer {
    /// Starts an etcd; says so and gives nothing where this machine has none.
    pub async fn start(tls: Option<&ServerTls>, extra: &[&str]) -> Option<Self> {
        let found = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        if found.is_err() {
            ferry_skip::missing("etcd (Debian: etcd-server)");
            return None;
        }
        // A port can be taken between choosing it and using it.
        for _ in 0..5 {
            let directory = tempfile::tempdir().expect("a directory for etcd");
            let (port, peer) = (free_port(), free_port());
            let scheme = if tls.is_some() { "https" } else { "http" };
            let endpoint = format!("{scheme}://127.0.0.1:{port}");
            let peer = format!("http://127.0.0.1:{peer}");
            let data = directory.path().join("etcd");
            let mut arguments: Vec<String> = vec![
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls={endpoint}"),
                format!("--advertise-client-urls={endpoint}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=default={peer}"),
                "--log-level=fatal".into(),
            ];
            if let Some(tls) = tls {
                arguments.push(format!("--cert-file={}", tls.certificate.display()));
                arguments.push(format!("--key-file={}", tls.key.display()));
                arguments.push(format!("--trusted-ca-file={}", tls.ca.display()));
                arguments.push("--client-cert-auth".into());
            }
            arguments.extend(extra.iter().map(|argument| argument.to_string()));
            let child = spawn(&arguments);
            let mut server = EtcdServer { endpoint, port, arguments, child, _directory: directory };
            if server.listens().await {
                return Some(server);
            }
        }
        panic!("etcd does not start");
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("kill etcd");
        self.child.wait().expect("the end of etcd");
    }

    /// Starts it again where it was.
    pub async fn restart(&mut self) {
        self.child = spawn(&self.arguments);
        assert!(self.listens().await, "etcd does not start again");
    }

    async fn listens(&mut self) -> bool {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if TcpStream::connect(address).is_ok() {
                return true;
            }
            if self.child.try_wait().expect("the state of etcd").is_some() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn spawn(arguments: &[String]) -> Child {
    Command::new("etcd")
        .args(arguments)
        .env_clear()
        .envs(std::env::var("PATH").map(|path| ("PATH", path)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start etcd")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its number").port()
}
