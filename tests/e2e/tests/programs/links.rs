//! A directory with Ferry under the names of upstream's programs, and processes started from it.

use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use ferry_e2e::binary::ferry;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Links {
    directory: tempfile::TempDir,
}

impl Links {
    /// Nothing where there is no binary.
    pub fn make() -> Option<Links> {
        let ferry = ferry()?;
        let directory = tempfile::tempdir().expect("a directory");
        let components = ["kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet"];
        for name in ["etcd", "kube-apiserver", "kubectl"].into_iter().chain(components) {
            symlink(&ferry, directory.path().join(name)).expect("a link");
        }
        Some(Links { directory })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn start(&self, name: &str, arguments: &[String]) -> Program {
        let child = Command::new(self.path().join(name))
            .args(arguments)
            .stderr(Stdio::inherit())
            .stdout(Stdio::inherit())
            .spawn()
            .expect("a program starts");
        Program { name: name.to_owned(), child }
    }

    pub fn output(&self, name: &str, arguments: &[&str]) -> Output {
        Command::new(self.path().join(name)).args(arguments).output().expect("a program runs")
    }

    /// Starts etcd in a directory, and waits until it is healthy.
    pub fn etcd(&self, data: &Path, extra: &[&str]) -> (Program, String) {
        let endpoint = format!("http://127.0.0.1:{}", free_port());
        let mut arguments = vec![
            format!("--advertise-client-urls={endpoint}"),
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls={endpoint}"),
            "--listen-peer-urls=http://127.0.0.1:0".into(),
            "--unsafe-no-fsync=true".into(),
        ];
        arguments.extend(extra.iter().map(|argument| argument.to_string()));
        let mut etcd = self.start("etcd", &arguments);
        etcd.wait_for(|| {
            http_get(&endpoint, "/health").is_some_and(|page| page.contains("\"health\":\"true\""))
        });
        (etcd, endpoint)
    }
}

pub struct Program {
    name: String,
    child: Child,
}

impl Program {
    /// Waits for a condition, for as long as the program runs.
    pub fn wait_for(&mut self, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            let ended = self.child.try_wait().expect("the state of a child");
            assert!(ended.is_none(), "{} ended: {ended:?}", self.name);
            assert!(Instant::now() < deadline, "{} is not ready in time", self.name);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// SIGTERM, as whoever starts a program stops it.
    pub fn terminate(mut self) -> ExitStatus {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).expect("a signal");
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("the state of a child") {
                return status;
            }
            assert!(Instant::now() < deadline, "{} does not stop", self.name);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its number").port()
}

/// The page, head and all; nothing if nobody answers.
pub fn http_get(endpoint: &str, path: &str) -> Option<String> {
    use std::io::{Read, Write};
    let address = endpoint.strip_prefix("http://")?;
    let mut stream = std::net::TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    Some(page)
}

/// A program of this machine, if it has it.
pub fn installed(program: &str, package: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found =
        std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file());
    if found.is_none() {
        ferry_skip::missing(&format!("{program} (Debian: {package})"));
    }
    found
}
