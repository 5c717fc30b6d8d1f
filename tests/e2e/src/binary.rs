//! `ferry apiserver` as a process of its own, with the flags of a test.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferry_testkit::outside::Outside;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// The binary under test, built by `cargo xtask test` beside these tests.
pub fn ferry() -> Option<PathBuf> {
    let mut path = std::env::current_exe().ok()?;
    path.pop();
    path.pop();
    path.push("ferry");
    if !path.is_file() {
        ferry_testkit::skip::missing("the ferry binary (cargo build --package ferry)");
        return None;
    }
    Some(path)
}

pub struct Process {
    command: Command,
    child: Child,
    port: u16,
    directory: tempfile::TempDir,
}

impl Process {
    /// Starts `ferry apiserver` in a directory of its own and waits until it is ready. `flags` is told the
    /// directory, for files that it writes there first.
    pub async fn apiserver(binary: &Path, flags: impl FnOnce(&Path) -> Vec<String>) -> Process {
        Process::apiserver_at(binary, Ipv4Addr::LOCALHOST, flags).await
    }

    /// The same on another address of the loopback interface: servers of one cluster are told apart by it.
    pub async fn apiserver_at(
        binary: &Path,
        address: Ipv4Addr,
        flags: impl FnOnce(&Path) -> Vec<String>,
    ) -> Process {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = TcpListener::bind((address, 0)).expect("a free port");
        let port = listener.local_addr().expect("it listens").port();
        drop(listener);
        let mut command = Command::new(binary);
        command
            .args(["apiserver", "--bind-address", &address.to_string()])
            .args(["--advertise-address", &address.to_string()])
            .args(["--port", &port.to_string(), "--data-dir"])
            .arg(directory.path())
            .args(flags(directory.path()))
            .stderr(Stdio::inherit());
        let child = command.spawn().expect("ferry starts");
        let mut process = Process { command, child, port, directory };
        process.ready().await;
        process
    }

    /// Kills the server, if it runs, and starts it again on its directory.
    pub async fn restart(&mut self) {
        self.kill();
        self.child = self.command.spawn().expect("ferry starts");
        self.ready().await;
    }

    async fn ready(&mut self) {
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(client) = self.try_admin().await
                && client.apiserver_version().await.is_ok()
            {
                return;
            }
            assert!(Instant::now() < give_up, "the server does not answer");
            let ended = self.child.try_wait().expect("our child");
            assert!(ended.is_none(), "the server ended: {ended:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    async fn config(&self) -> Option<Config> {
        let kubeconfig = Kubeconfig::read_from(self.directory.path().join("admin.kubeconfig")).ok()?;
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.ok()
    }

    async fn try_admin(&self) -> Option<Client> {
        Client::try_from(self.config().await?).ok()
    }

    pub async fn admin(&self) -> Client {
        self.try_admin().await.expect("the administrator's kubeconfig")
    }

    /// A client that sends each request once: another would send a write again that may have been carried out.
    pub async fn admin_without_retries(&self) -> Client {
        let mut config = self.config().await.expect("the administrator's kubeconfig");
        config.default_retry = false;
        Client::try_from(config).expect("a client")
    }

    /// A client with nothing but this token.
    pub async fn with_token(&self, token: &str) -> Client {
        let mut config = self.config().await.expect("the administrator's kubeconfig");
        config.auth_info =
            kube::config::AuthInfo { token: Some(token.to_string().into()), ..Default::default() };
        Client::try_from(config).expect("a client")
    }

    /// A client over the network that says what it likes, and is nobody.
    pub fn outside(&self) -> Outside {
        let authority =
            std::fs::read_to_string(self.directory.path().join("pki/ca.crt")).expect("the authority");
        Outside::new(SocketAddr::from(([127, 0, 0, 1], self.port)), &authority, None)
    }

    /// The memory that the server has in use.
    pub fn resident_bytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        let kilobytes = line.trim().trim_end_matches(" kB").parse::<usize>();
        kilobytes.expect("a number") * 1024
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the server, without a chance to tidy up; its directory stays.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
