//! `ferry why` asked for a dozen causes after they happened, at each of three servers of one cluster; then without the
//! server that took most of the writes, and when that one is back.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferry_e2e::binary::{self, Process};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);

/// A child that does not outlive the test.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < give_up, "{what} did not come about");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn etcd(directory: &Path) -> (Child, String) {
    let free = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        format!("http://{}", listener.local_addr().expect("it listens"))
    };
    let (client, peer) = (free(), free());
    let child = Command::new("etcd")
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--data-dir"])
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd starts");
    (Child(child), client)
}

struct Cluster {
    binary: PathBuf,
    servers: Vec<Process>,
    // Ended after the servers that use it.
    _etcd: Child,
    _directory: tempfile::TempDir,
}

const USERS: [(&str, &str); 6] = [
    ("alice", "system:masters"),
    ("bob", "system:masters"),
    ("carol", "system:masters"),
    ("system:node:n1", "system:nodes"),
    ("system:node:n2", "system:nodes"),
    ("system:node:n3", "system:nodes"),
];

impl Cluster {
    /// Three servers on one etcd, with the keys of the first.
    async fn start(binary: PathBuf) -> Cluster {
        let directory = tempfile::tempdir().expect("a directory");
        let (etcd, endpoint) = etcd(directory.path());
        let mut servers: Vec<Process> = Vec::new();
        for number in 1..=3 {
            let keys = servers.first().map(|first| first.directory().join("pki"));
            let server = Process::apiserver_at(&binary, Ipv4Addr::new(127, 0, 0, number), |own| {
                if let Some(keys) = keys {
                    std::fs::create_dir(own.join("pki")).expect("made");
                    for file in ferry_auth::pki::SHARED_FILES {
                        std::fs::copy(keys.join(file), own.join("pki").join(file)).expect("copied");
                    }
                }
                let tokens = USERS.map(|(name, group)| format!("{name}-token,{name},{name},{group}"));
                std::fs::write(own.join("tokens.csv"), tokens.join("\n")).expect("written");
                let tokens = own.join("tokens.csv").display().to_string();
                vec!["--token-auth-file".into(), tokens, "--etcd-servers".into(), endpoint.clone()]
            });
            servers.push(server.await);
        }
        Cluster { binary, servers, _etcd: etcd, _directory: directory }
    }

    fn component(&self, server: usize, words: &[&str]) -> Child {
        let mut command = Command::new(&self.binary);
        command
            .args(words)
            .arg("--kubeconfig")
            .arg(self.servers[server].directory().join("admin.kubeconfig"));
        Child(command.args(["--leader-elect=false", "--secure-port=0"]).spawn().expect("ferry starts"))
    }

    async fn user(&self, server: usize, name: &str) -> Client {
        self.servers[server].with_token(&format!("{name}-token")).await
    }

    /// Spans take a second from server to server: asked again until the answer has all of it.
    async fn told(&self, server: usize, (words, expected): &(Vec<String>, Vec<String>)) {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let mut ask = Command::new(&self.binary);
            ask.arg("why").args(words).arg("--data-dir").arg(self.servers[server].directory());
            let output = ask.output().expect("ferry runs");
            let told = String::from_utf8_lossy(&output.stdout);
            if expected.iter().all(|expected| told.contains(expected)) {
                return;
            }
            assert!(
                Instant::now() < give_up,
                "server {server}: {words:?} does not say {expected:?}:\n{told}{}",
                String::from_utf8_lossy(&output.stderr)
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn all_told(&self, servers: &[usize], questions: &[(Vec<String>, Vec<String>)]) {
        for &server in servers {
            for question in questions {
                self.told(server, question).await;
            }
        }
    }
}

fn question(words: &str, expected: &[&str]) -> (Vec<String>, Vec<String>) {
    let owned = |text: &str| text.to_owned();
    (words.split(' ').map(owned).collect(), expected.iter().copied().map(owned).collect())
}

fn of<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("fits its kind")
}

/// A node without a kubelet, with room for four pods of 100m each, that says it is ready.
async fn node(client: &Client, name: &str) {
    let resources = json!({"cpu": "400m", "memory": "4Gi", "pods": "110"});
    let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady"});
    let node = of(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": resources, "allocatable": resources, "conditions": [ready]},
    }));
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await.expect("the node is made");
}

/// Renews the nodes' leases: they are alive, whatever they say of themselves.
async fn heartbeats(client: Client, nodes: [&'static str; 3]) {
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    loop {
        for name in nodes {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now()},
            });
            // The namespace is made by the servers, and any beat may be lost.
            let _ = leases.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(lease)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn now() -> String {
    let now = k8s_openapi::jiff::Timestamp::now();
    format!("{now:.6}")
}

fn pod(name: &str, spec: Value) -> Pod {
    let mut pod = json!({"metadata": {"name": name}, "spec": spec});
    pod["spec"]["containers"] =
        json!([{"name": "c", "image": "none", "resources": pod["spec"]["resources"].take()}]);
    pod["spec"].as_object_mut().expect("a map").remove("resources");
    of(pod)
}

fn on(node: &str) -> Value {
    json!({"nodeName": node})
}

/// What asks for room on a node and is placed there by the scheduler.
fn asking(cpu: &str, priority: Option<&str>) -> Value {
    json!({"nodeSelector": {"kubernetes.io/hostname": "n1"}, "priorityClassName": priority,
        "resources": {"requests": {"cpu": cpu}}})
}

async fn status(pods: &Api<Pod>, name: &str, status: Value) {
    let patch = Patch::Strategic(json!({"status": status}));
    pods.patch_status(name, &PatchParams::default(), &patch).await.expect("the status is written");
}

/// What a kubelet says of a pod's only container.
fn container(is_ready: bool, restarts: u32) -> Value {
    let ready = if is_ready { "True" } else { "False" };
    let ended = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
    json!({
        "phase": "Running", "conditions": [{"type": "Ready", "status": ready}],
        "containerStatuses": [{"name": "c", "image": "none", "imageID": "", "ready": is_ready,
            "restartCount": restarts, "lastState": if restarts > 0 { ended } else { json!({}) }}],
    })
}

/// The kubelet's part in the end of a pod.
async fn ends(pods: &Api<Pod>, name: &str) {
    until(&format!("{name} is told to end"), async || {
        pods.get(name).await.ok().filter(|pod| pod.metadata.deletion_timestamp.is_some())
    })
    .await;
    pods.delete(name, &DeleteParams::default().grace_period(0)).await.expect("the pod ends");
}

async fn condition_of(nodes: &Api<Node>, name: &str, wanted: &str) {
    until(&format!("{name} is {wanted}"), async || {
        let node = nodes.get(name).await.ok()?;
        let conditions = node.status?.conditions?;
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
        (ready.status == wanted).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_dozen_causes_are_told_by_each_of_three_servers_and_after_one_died() {
    let Some(binary) = binary::ferry() else { return };
    if Command::new("etcd").arg("--version").output().is_err() {
        ferry_skip::missing("etcd (Debian: etcd-server)");
        return;
    }
    let mut cluster = Cluster::start(binary).await;
    let controllers = cluster.component(0, &["controller-manager", "--node-monitor-grace-period", "15s"]);
    let scheduler = cluster.component(1, &["scheduler"]);
    let alice = cluster.user(0, "alice").await;
    let (bob, carol) = (cluster.user(1, "bob").await, cluster.user(2, "carol").await);
    let pods = |client: &Client| Api::<Pod>::namespaced(client.clone(), "default");
    let kubelets = [cluster.user(0, "system:node:n1").await, cluster.user(1, "system:node:n2").await];
    let [n1, n2] = kubelets.each_ref().map(pods);
    let third = cluster.user(2, "system:node:n3").await;

    // Nobody renews the lease of `lost`: the controllers will give it up.
    for name in ["n1", "n2", "n3", "lost"] {
        node(&alice, name).await;
    }
    let beats = tokio::spawn(heartbeats(bob.clone(), ["n1", "n2", "n3"]));
    let accounts: Api<ServiceAccount> = Api::namespaced(alice.clone(), "default");
    until("the account of pods", async || accounts.get("default").await.ok()).await;
    let nodes: Api<Node> = Api::all(alice.clone());

    let mut questions = Vec::new();
    let mut ask = |words: &str, expected: &[&str]| questions.push(question(words, expected));
    let create = async |client: &Client, pod: Pod| {
        pods(client).create(&PostParams::default(), &pod).await.expect("the pod is made")
    };

    // Deleted by a person; evicted by the API, by the kubelet, by a taint.
    for name in ["gone", "evicted", "squeezed", "restarted", "flaky"] {
        create(&alice, pod(name, on("n1"))).await;
    }
    pods(&bob).delete("gone", &DeleteParams::default().grace_period(0)).await.expect("deleted");
    ask("pod/gone", &["pods/default/gone was deleted", "by bob"]);
    pods(&carol).evict("evicted", &EvictParams::default()).await.expect("evicted");
    ends(&n1, "evicted").await;
    ask("pod/evicted", &["pods/default/evicted was evicted", "EvictionByEvictionAPI", "by carol"]);
    status(&n1, "squeezed", json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}))
        .await;
    ask("pod/squeezed evicted", &["pods/default/squeezed was evicted", "by the kubelet of n1"]);
    create(&alice, pod("tainted", on("n2"))).await;
    let taint = Patch::Merge(json!({"spec": {"taints": [{"key": "broken", "effect": "NoExecute"}]}}));
    Api::<Node>::all(carol.clone()).patch("n2", &PatchParams::default(), &taint).await.expect("tainted");
    ends(&n2, "tainted").await;
    ask(
        "pod/tainted",
        &[
            "pods/default/tainted was evicted",
            "by the taint-eviction controller",
            "nodes/n2: spec.taints",
            "by carol",
        ],
    );

    // Restarted and not ready by a kubelet's word; a node that says it is not ready.
    status(&n1, "restarted", container(true, 0)).await;
    status(&n1, "restarted", container(true, 1)).await;
    ask("pod/restarted", &["was restarted", "exit code 137 (OOMKilled)", "by the kubelet of n1"]);
    status(&n1, "flaky", container(true, 0)).await;
    status(&n1, "flaky", container(false, 0)).await;
    ask("pod/flaky not-ready", &["pods/default/flaky became not ready", "by the kubelet of n1"]);
    let unwell = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]}});
    let own: Api<Node> = Api::all(third);
    own.patch_status("n3", &PatchParams::default(), &Patch::Strategic(unwell)).await.expect("told");
    ask("node/n3 not-ready", &["nodes/n3 became not ready", "True→False", "by the kubelet of n3"]);

    // Pending, and preempted.
    create(&bob, pod("big", asking("9", None))).await;
    ask("pod/big pending", &["pods/default/big is pending", "Insufficient cpu", "n1", "by the scheduler"]);
    let class = json!({"metadata": {"name": "urgent"}, "value": 1000});
    let classes: Api<PriorityClass> = Api::all(alice.clone());
    classes.create(&PostParams::default(), &of(class)).await.expect("the class is made");
    create(&alice, pod("low", asking("300m", None))).await;
    until("low has a node", async || pods(&bob).get("low").await.ok()?.spec?.node_name).await;
    create(&carol, pod("high", asking("300m", Some("urgent")))).await;
    ends(&n1, "low").await;
    ask(
        "pod/low",
        &["pods/default/low was preempted", "to make room for pods/default/high", "by the scheduler"],
    );
    until("high has a node", async || pods(&bob).get("high").await.ok()?.spec?.node_name).await;
    ask("pod/high pending", &["pods/default/high was pending", "until", "Insufficient cpu"]);

    // Scaled, changed field by field, and what came of it.
    let deployments = |client: &Client| Api::<Deployment>::namespaced(client.clone(), "default");
    let template = |app: &str, image: &str| {
        json!({"metadata": {"labels": {"app": app}}, "spec": {"nodeSelector": {"no": "where"},
            "containers": [{"name": "web", "image": image}]}})
    };
    let web = json!({"metadata": {"name": "web"}, "spec": {"replicas": 2,
        "selector": {"matchLabels": {"app": "web"}}, "strategy": {"type": "Recreate"}, "template": template("web", "web:1")}});
    deployments(&alice).create(&PostParams::default(), &of(web)).await.expect("the deployment is made");
    let of_web = async |count: usize| {
        until(&format!("web has {count} pods"), async || {
            let found = pods(&bob).list(&ListParams::default().labels("app=web")).await.ok()?;
            let seen = deployments(&bob).get("web").await.ok()?;
            let status = seen.status?;
            // Nothing else is going on when the next write comes: what follows from it has one cause.
            let is_seen = status.observed_generation == seen.metadata.generation
                && status.replicas.unwrap_or_default() as usize == count;
            let names: Vec<String> = found.items.iter().map(ResourceExt::name_any).collect();
            (is_seen && names.len() == count).then_some(names)
        })
        .await
    };
    let before = of_web(2).await;
    let patch = async |client: &Client, patch: Value| {
        let patched = deployments(client).patch("web", &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.expect("patched").resource_version().expect("a revision")
    };
    let revision = patch(&alice, json!({"spec": {"replicas": 1}})).await;
    let after = of_web(1).await;
    let surplus = before.iter().find(|pod| !after.contains(pod)).expect("one of the two went");
    let scaled = format!("deployments.apps/default/web: spec.replicas 2→1 (r{revision}), by alice");
    ask("deployment/web scaled", &["was scaled: spec.replicas 2→1", "by alice"]);
    ask("deployment/web --field spec.replicas", &["spec.replicas 2→1", &format!("r{revision}"), "by alice"]);
    ask(&format!("pod/{surplus}"), &["was deleted", "by the replicaset controller", &scaled]);
    patch(&bob, json!({"spec": {"template": template("web", "web:2")}})).await;
    ask("deployment/web changed", &["web:1→web:2", "by bob"]);

    // Deleted for its owner's sake.
    let sets: Api<ReplicaSet> = Api::namespaced(carol.clone(), "default");
    let other = json!({"metadata": {"name": "other"}, "spec": {"replicas": 0,
        "selector": {"matchLabels": {"app": "other"}}, "template": template("other", "web:1")}});
    deployments(&bob).create(&PostParams::default(), &of(other)).await.expect("the deployment is made");
    let of_other = async || {
        let sets = sets.list(&ListParams::default()).await.ok()?;
        sets.items.iter().map(ResourceExt::name_any).find(|name| name.starts_with("other-"))
    };
    let set = until("other has a set", of_other).await;
    deployments(&carol).delete("other", &DeleteParams::background()).await.expect("deleted");
    let because = "because deployments.apps/default/other was deleted";
    let collected = ["was deleted", "by the garbage-collector controller", because, "by carol"];
    ask(&format!("replicaset/{set}"), &collected);

    // A node that nobody hears of any more.
    condition_of(&nodes, "lost", "Unknown").await;
    ask("node/lost", &["nodes/lost became unreachable", "True→Unknown", "by the node-lifecycle controller"]);

    cluster.all_told(&[0, 1, 2], &questions).await;

    // The server dies that took most of it; the others have heard.
    cluster.servers[0].kill();
    cluster.all_told(&[1, 2], &questions).await;

    // What happens while it is away it is told when it is back; the rest it finds on its disk.
    deployments(&carol).delete("web", &DeleteParams::background()).await.expect("deleted");
    cluster.servers[0].restart().await;
    questions.push(question("deployment/web", &["deployments.apps/default/web was deleted", "by carol"]));
    cluster.all_told(&[0, 1, 2], &questions).await;
    drop((controllers, scheduler));
    beats.abort();
}
