//! What was acknowledged survives: the server is killed in the middle of writes, again and again.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

/// The binary under test: built by `cargo xtask test` beside this test.
fn binary() -> Option<PathBuf> {
    let mut path = std::env::current_exe().ok()?;
    path.pop();
    path.pop();
    path.push("ferry");
    path.is_file().then_some(path)
}

struct Server {
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL: no chance to tidy up.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(binary: &Path, directory: &Path, port: u16) -> Server {
    let child = Command::new(binary)
        .args(["apiserver", "--bind-address", "127.0.0.1", "--port", &port.to_string(), "--data-dir"])
        .arg(directory)
        .stderr(Stdio::null())
        .spawn()
        .expect("ferry starts");
    Server { child }
}

async fn client(directory: &Path) -> Option<Client> {
    let kubeconfig = Kubeconfig::read_from(directory.join("admin.kubeconfig")).ok()?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.ok()?;
    Client::try_from(config).ok()
}

/// A client of the server, once it answers.
async fn ready(directory: &Path) -> Client {
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(client) = client(directory).await
            && client.apiserver_version().await.is_ok()
            && Api::<ConfigMap>::namespaced(client.clone(), "default").list(&Default::default()).await.is_ok()
        {
            return client;
        }
        assert!(Instant::now() < give_up, "the server does not answer");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

/// Writes until the server dies; the names and revisions that were acknowledged.
async fn write_until_killed(client: Client, round: usize, writer: usize) -> Vec<(String, i64)> {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let mut acknowledged = Vec::new();
    for number in 0.. {
        let name = format!("r{round}-w{writer}-{number}");
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.clone());
        map.data = Some([("name".to_string(), name.repeat(20))].into());
        match api.create(&PostParams::default(), &map).await {
            Ok(created) => {
                let revision = created.metadata.resource_version.and_then(|text| text.parse().ok());
                acknowledged.push((name, revision.expect("a revision")));
            }
            Err(_) => break,
        }
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_in_the_middle_of_writes_loses_nothing_acknowledged() {
    let Some(binary) = binary() else {
        ferry_skip::missing("the ferry binary (cargo build --package ferry)");
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let port = free_port();
    let mut all: Vec<(String, i64)> = Vec::new();
    for round in 0..5 {
        let server = start(&binary, directory.path(), port);
        let client = ready(directory.path()).await;
        let list = Api::<ConfigMap>::namespaced(client.clone(), "default")
            .list(&Default::default())
            .await
            .expect("a list");
        let now: i64 =
            list.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).expect("a revision");
        let newest = all.iter().map(|(_, revision)| *revision).max().unwrap_or(0);
        assert!(now >= newest, "the revision went back from {newest} to {now}");
        for (name, revision) in &all {
            let found = list.items.iter().find(|map| map.metadata.name.as_ref() == Some(name));
            let found = found.unwrap_or_else(|| panic!("{name} of revision {revision} is lost"));
            assert_eq!(found.metadata.resource_version.as_deref(), Some(revision.to_string().as_str()));
            assert_eq!(
                found.data.as_ref().and_then(|data| data.get("name")),
                Some(&name.repeat(20)),
                "{name} is torn"
            );
        }
        let writers: Vec<_> =
            (0..4).map(|writer| tokio::spawn(write_until_killed(client.clone(), round, writer))).collect();
        tokio::time::sleep(Duration::from_millis(150 + 70 * round as u64)).await;
        drop(server);
        for writer in writers {
            all.extend(writer.await.expect("the writer ends"));
        }
    }
    assert!(all.len() > 20, "too few writes to show anything: {}", all.len());
}
