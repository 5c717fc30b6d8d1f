//! `ferry apiserver`, `controller-manager` and `scheduler` as processes of their own, which a test may
//! kill at any moment.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use k8s_openapi::api::coordination::v1::Lease;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use super::until;

/// Leases short enough for a test to see one run out, and long enough for a leader that a busy machine holds up: one that
/// cannot renew in time ends itself, and nobody starts it again.
const ELECTION: [&str; 6] = [
    "--leader-elect-lease-duration",
    "9s",
    "--leader-elect-renew-deadline",
    "7s",
    "--leader-elect-retry-period",
    "500ms",
];

/// The binary under test: built by `cargo xtask test` beside this test.
fn binary() -> Option<PathBuf> {
    let mut path = std::env::current_exe().ok()?;
    path.pop();
    path.pop();
    path.push("ferry");
    path.is_file().then_some(path)
}

pub struct Cluster {
    binary: PathBuf,
    directory: tempfile::TempDir,
    port: u16,
    server: Option<Process>,
    pub client: Client,
}

impl From<Child> for Process {
    fn from(child: Child) -> Process {
        Process(child)
    }
}

/// A child that does not outlive the test. Dropping kills it: no chance to tidy up.
pub struct Process(Child);

impl Process {
    pub fn of(command: &mut Command) -> Process {
        Process(command.stderr(Stdio::null()).spawn().expect("ferry starts"))
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("it is a child")
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Cluster {
    /// A server alone. None, with a note, where the binary is not built.
    pub async fn start() -> Option<Self> {
        let Some(binary) = binary() else {
            ferry_skip::missing("the ferry binary (cargo build --package ferry)");
            return None;
        };
        let directory = tempfile::tempdir().expect("a directory");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let server = Some(serve(&binary, directory.path(), port));
        let file = directory.path().join("admin.kubeconfig");
        let client = until("the server answers", || async {
            let client = client(&file).await?;
            client.apiserver_version().await.ok().map(|_| client)
        })
        .await;
        Some(Cluster { binary, directory, port, server, client })
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("admin.kubeconfig")
    }

    /// The binary under test, for commands.
    pub fn ferry(&self) -> Command {
        Command::new(&self.binary)
    }

    /// Kills the server without warning, and starts it again on what it left.
    pub async fn restart_server(&mut self) {
        self.server = None;
        self.server = Some(serve(&self.binary, self.directory.path(), self.port));
        let client = self.client.clone();
        until("the server answers again", || async { client.apiserver_version().await.ok() }).await;
    }

    pub fn controller_manager(&self) -> Process {
        self.component("controller-manager", &ELECTION)
    }

    /// One that gives nodes up after so long a silence.
    pub fn controller_manager_with_grace(&self, grace: &str) -> Process {
        let flags = [&ELECTION[..], &["--node-monitor-grace-period", grace]].concat();
        self.component("controller-manager", &flags)
    }

    pub fn controller_manager_without(&self, controller: &str) -> Process {
        let controllers = format!("--controllers=*,-{controller}");
        self.component("controller-manager", &[&ELECTION[..], &[&controllers]].concat())
    }

    /// One that signs certificates with this authority.
    pub fn signing_controller_manager(&self, certificate: &Path, key: &Path) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("controller-manager").arg("--kubeconfig").arg(self.kubeconfig());
        command
            .arg("--cluster-signing-cert-file")
            .arg(certificate)
            .arg("--cluster-signing-key-file")
            .arg(key);
        command.arg("--leader-elect=false").arg("--secure-port=0");
        command
    }

    /// One controller alone, with the rights of its own account and no more, which looks at metrics every second.
    pub fn horizontal_pod_autoscaler(&self) -> Process {
        self.component_as(
            &self.kubeconfig_of("system:serviceaccount:kube-system:horizontal-pod-autoscaler"),
            "controller-manager",
            &[
                "--controllers=horizontal-pod-autoscaler-controller",
                "--leader-elect=false",
                "--horizontal-pod-autoscaler-sync-period=1s",
                "--horizontal-pod-autoscaler-cpu-initialization-period=0s",
            ],
        )
    }

    pub fn scheduler(&self) -> Process {
        self.component("scheduler", &ELECTION)
    }

    /// One with the rights of upstream's scheduler and no more.
    pub fn scheduler_by_its_own_name(&self) -> Process {
        self.component_as(&self.kubeconfig_of("system:kube-scheduler"), "scheduler", &ELECTION)
    }

    fn kubeconfig_of(&self, name: &str) -> PathBuf {
        let mut kubeconfig = Kubeconfig::read_from(self.kubeconfig()).expect("the server wrote it");
        let user = kubeconfig.auth_infos[0].auth_info.as_mut().expect("has credentials");
        user.impersonate = Some(name.into());
        let file = self.directory.path().join(format!("{name}.kubeconfig"));
        std::fs::write(&file, serde_json::to_vec(&kubeconfig).expect("is JSON")).expect("it is written");
        file
    }

    fn component(&self, role: &str, flags: &[&str]) -> Process {
        self.component_as(&self.kubeconfig(), role, flags)
    }

    fn component_as(&self, kubeconfig: &Path, role: &str, flags: &[&str]) -> Process {
        let mut command = Command::new(&self.binary);
        command.arg(role).arg("--kubeconfig").arg(kubeconfig).args(flags);
        Process(command.stderr(Stdio::null()).spawn().expect("ferry starts"))
    }

    /// The process id that holds a lease in kube-system.
    pub async fn leader(&self, lease: &str) -> Option<u32> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let holder = leases.get_opt(lease).await.ok()??.spec?.holder_identity?;
        holder.rsplit('_').next()?.parse().ok()
    }
}

fn serve(binary: &std::path::Path, directory: &std::path::Path, port: u16) -> Process {
    let mut command = Command::new(binary);
    command.args(["apiserver", "--bind-address", "127.0.0.1", "--port", &port.to_string(), "--data-dir"]);
    Process(command.arg(directory).stderr(Stdio::null()).spawn().expect("ferry starts"))
}

async fn client(file: &std::path::Path) -> Option<Client> {
    let kubeconfig = Kubeconfig::read_from(file).ok()?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.ok()?;
    Client::try_from(config).ok()
}
