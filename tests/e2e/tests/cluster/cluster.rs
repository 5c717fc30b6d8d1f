//! A cluster for a test, driven by the command line alone; it is taken down with everything it made.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::host::{free_port, run};
use crate::images::{self, Access, Registry};

/// What the image's nginx says.
pub const WELCOME: &str = "welcome to nginx";
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Cluster {
    pub binary: PathBuf,
    pub directory: TempDir,
    pub registry: Registry,
    /// What is in the image that pods run.
    pub root: PathBuf,
    port: u16,
    flags: Vec<String>,
    /// Words before each command: into which host's network it goes.
    pub enter: Vec<String>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let down = self.ferry().args(["down", "--purge", "--data-dir"]).arg(self.data_dir()).output();
        if !down.is_ok_and(|output| output.status.success()) {
            eprintln!("the cluster could not be taken down");
        }
    }
}

impl Cluster {
    pub fn new(binary: PathBuf, flags: &[&str]) -> Cluster {
        let directory = tempfile::Builder::new().prefix("ferry-cluster-").tempdir().unwrap();
        let root = images::root_file_system(&directory.path().join("image"));
        let registry = Registry::start(directory.path(), &root, Access::Open);
        let flags = flags.iter().map(ToString::to_string).collect();
        Cluster { binary, directory, registry, root, port: free_port(), flags, enter: Vec::new() }
    }

    pub fn add_flags(&mut self, flags: &[&str]) {
        self.flags.extend(flags.iter().map(ToString::to_string));
    }

    pub fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    /// Commands find neither the user's kubeconfig nor their caches.
    pub fn ferry(&self) -> Command {
        self.command(&self.binary)
    }

    pub fn command(&self, program: &Path) -> Command {
        let mut command = match self.enter.split_first() {
            None => Command::new(program),
            Some((enter, words)) => {
                let mut command = Command::new(enter);
                command.args(words).arg(program);
                command
            }
        };
        command.env("KUBECONFIG", self.kubeconfig()).env("HOME", self.directory.path());
        command
    }

    pub fn up(&self) -> String {
        String::from_utf8(run(&mut self.up_command())).unwrap()
    }

    pub fn up_command(&self) -> Command {
        let port = self.port.to_string();
        let mut command = self.ferry();
        command.args(["up", "--port", &port, "--data-dir"]).arg(self.data_dir()).args(&self.flags);
        command.arg("--registry-config-dir").arg(&self.registry.config_dir);
        command
    }

    pub fn down(&self) -> String {
        String::from_utf8(run(self.ferry().args(["down", "--data-dir"]).arg(self.data_dir()))).unwrap()
    }

    pub fn status(&self) -> Value {
        let printed = run(self.ferry().args(["status", "-o", "json", "--data-dir"]).arg(self.data_dir()));
        serde_json::from_slice(&printed).unwrap()
    }

    /// Ferry's kubectl.
    pub fn kubectl(&self, words: &[&str]) -> String {
        String::from_utf8(run(self.ferry().arg("kubectl").args(words))).unwrap()
    }

    pub fn try_kubectl(&self, words: &[&str]) -> Output {
        self.ferry().arg("kubectl").args(words).output().unwrap()
    }

    /// A pod of one container, made by hand so that its spec can be anything.
    pub fn create_pod(&self, pod: &str, container: &str, spec: &str) {
        let image = if container.contains(r#""image":"#) { "" } else { r#""image":"nginx","# };
        let manifest = format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{pod}"}},
            "spec":{{"containers":[{{"name":"c",{image}{container}}}]{spec}}}}}"#
        );
        let file = self.directory.path().join(format!("{pod}.json"));
        std::fs::write(&file, manifest).unwrap();
        self.kubectl(&["create", "-f", file.to_str().unwrap()]);
    }

    /// One field of a pod, "" when there is none.
    pub fn field(&self, pod: &str, path: &str) -> String {
        let path = format!("jsonpath={{{path}}}");
        self.kubectl(&["get", "pod", pod, "--ignore-not-found", "-o", &path])
    }

    /// Asks until the answer is there, within a bound.
    pub fn until<T>(&self, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
        let give_up = Instant::now() + PATIENCE;
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            if Instant::now() > give_up {
                let show =
                    |words: &[&str]| String::from_utf8_lossy(&self.try_kubectl(words).stdout).into_owned();
                panic!(
                    "never: {what}\n{}\n{}\n{}",
                    show(&["get", "pods,services", "-A", "-o", "wide"]),
                    show(&["get", "events", "-A"]),
                    self.ends_of_logs(),
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What each program of this test said last.
    fn ends_of_logs(&self) -> String {
        let mut ends = String::new();
        for directory in [self.directory.path(), &self.data_dir()] {
            let files = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|file| file.path());
            for file in files.filter(|file| file.extension().is_some_and(|is| is == "log")) {
                let log = std::fs::read_to_string(&file).unwrap_or_else(|error| error.to_string());
                let lines: Vec<&str> = log.lines().collect();
                let last = &lines[lines.len().saturating_sub(20)..];
                ends.push_str(&format!("{}:\n{}\n\n", file.display(), last.join("\n")));
            }
        }
        ends
    }

    /// Whether nginx answers a pod under this name or address.
    pub fn pod_reaches(&self, pod: &str, host: &str) -> Option<()> {
        self.pod_reaches_port(pod, host, "80")
    }

    pub fn pod_reaches_port(&self, pod: &str, host: &str, port: &str) -> Option<()> {
        let script =
            format!("exec 3<>/dev/tcp/{host}/{port} && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3");
        // What is dropped on the way would be waited for.
        let answer = self.try_kubectl(&["exec", pod, "--", "timeout", "5", "bash", "-c", &script]);
        String::from_utf8_lossy(&answer.stdout).contains(WELCOME).then_some(())
    }

    /// Waits until a pod is Ready.
    pub fn ready_pod(&self, pod: &str) {
        self.until(&format!("pod {pod} is Ready"), || {
            let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
            (self.try_kubectl(&["get", "pod", pod, "-o", path]).stdout == b"True").then_some(())
        });
    }

    /// Waits until a Deployment has that many Ready pods.
    pub fn ready_pods(&self, deployment: &str, count: usize) {
        self.until(&format!("{count} Ready pods of {deployment}"), || {
            let answer = self.try_kubectl(&[
                "get",
                "deployment",
                deployment,
                "-o",
                "jsonpath={.status.readyReplicas} {.status.replicas}",
            ]);
            (answer.stdout == format!("{count} {count}").into_bytes()).then_some(())
        });
    }
}
