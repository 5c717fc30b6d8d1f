//! The real kubectl on the three processes: what users do with workloads and nodes.

use std::process::Command;

use super::processes::Cluster;
use super::{hollow, until};

struct Kubectl {
    kubeconfig: std::path::PathBuf,
    home: tempfile::TempDir,
}

impl Kubectl {
    /// None, with a note, where there is no kubectl.
    fn of(cluster: &Cluster) -> Option<Self> {
        if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
            ferry_skip::missing("kubectl (Debian: kubernetes-client)");
            return None;
        }
        Some(Kubectl { kubeconfig: cluster.kubeconfig(), home: tempfile::tempdir().expect("a directory") })
    }

    async fn run(&self, line: &str) -> (bool, String) {
        let mut command = Command::new("kubectl");
        command.args(line.split(' ')).env("KUBECONFIG", &self.kubeconfig).env("HOME", self.home.path());
        let output = tokio::task::spawn_blocking(move || command.output()).await.expect("the thread ends");
        let output = output.expect("kubectl starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }

    async fn ok(&self, line: &str, expected: &str) -> String {
        let (success, text) = self.run(line).await;
        assert!(success && text.contains(expected), "kubectl {line}: expected {expected:?}, got {text}");
        text
    }

    /// How many objects a get prints.
    async fn count(&self, line: &str) -> usize {
        let (success, text) = self.run(&format!("get {line} -o name")).await;
        assert!(success, "{text}");
        text.lines().count()
    }

    async fn until_count(&self, line: &str, wanted: usize) {
        until(&format!("{wanted} of {line}"), || async { (self.count(line).await == wanted).then_some(()) })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workloads_roll_out_scale_and_go() {
    let Some(cluster) = Cluster::start().await else { return };
    let Some(kubectl) = Kubectl::of(&cluster) else { return };
    let kubelets = hollow::kubelets(cluster.client.clone());
    hollow::node(&cluster.client, "n", 100).await;
    let (_manager, _scheduler) = (cluster.controller_manager(), cluster.scheduler());

    kubectl.ok("create deployment web --image=one --replicas=3", "created").await;
    kubectl.ok("rollout status deployment/web --timeout=60s", "successfully rolled out").await;
    kubectl.ok("scale deployment/web --replicas=5", "scaled").await;
    kubectl.ok("rollout status deployment/web --timeout=60s", "successfully rolled out").await;
    kubectl.until_count("pods -l app=web", 5).await;
    kubectl.ok("set image deployment/web one=two", "image updated").await;
    kubectl.ok("rollout status deployment/web --timeout=60s", "successfully rolled out").await;
    let history = kubectl.ok("rollout history deployment/web", "REVISION").await;
    assert!(history.lines().any(|line| line.starts_with('2')), "{history}");
    kubectl.ok("rollout history deployment/web --revision=1", "one").await;
    kubectl.ok("rollout pause deployment/web", "paused").await;
    kubectl.ok("set image deployment/web one=three", "image updated").await;
    kubectl.ok("get rs -o jsonpath={.items[*].spec.template.spec.containers[0].image}", "two").await;
    assert_eq!(kubectl.count("rs").await, 2, "a paused deployment makes no new set");
    kubectl.ok("rollout resume deployment/web", "resumed").await;
    kubectl.ok("rollout status deployment/web --timeout=60s", "successfully rolled out").await;
    kubectl.ok("rollout undo deployment/web --to-revision=1", "rolled back").await;
    kubectl.ok("rollout status deployment/web --timeout=60s", "successfully rolled out").await;
    kubectl.ok("get deployment web -o jsonpath={.spec.template.spec.containers[0].image}", "one").await;
    kubectl.ok("rollout restart deployment/web", "restarted").await;
    kubectl.ok("rollout status deployment/web --timeout=60s", "successfully rolled out").await;

    kubectl.ok("delete deployment web --cascade=orphan", "deleted").await;
    assert_eq!(kubectl.count("pods -l app=web").await, 5, "orphans stay");
    let sets = kubectl.ok("get rs -o jsonpath={.items[*].metadata.ownerReferences}", "").await;
    assert_eq!(sets, "", "no one owns them any more");
    kubectl.ok("delete rs -l app=web --cascade=foreground", "deleted").await;
    assert_eq!(kubectl.count("pods -l app=web").await, 0, "the pods went first");
    kubectl.ok("create deployment again --image=one --replicas=2", "created").await;
    kubectl.ok("rollout status deployment/again --timeout=60s", "successfully rolled out").await;
    kubectl.ok("delete deployment again", "deleted").await;
    kubectl.until_count("rs,pods", 0).await;
    kubelets.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_cordoned_tainted_and_drained_and_a_pending_pod_says_why() {
    let Some(cluster) = Cluster::start().await else { return };
    let Some(kubectl) = Kubectl::of(&cluster) else { return };
    let kubelets = hollow::kubelets(cluster.client.clone());
    for name in ["a", "b"] {
        hollow::node(&cluster.client, name, 20).await;
    }
    let (_manager, _scheduler) = (cluster.controller_manager(), cluster.scheduler());
    kubectl.ok("create deployment web --image=one --replicas=6", "created").await;
    kubectl.ok("rollout status deployment/web --timeout=60s", "successfully rolled out").await;
    assert_ne!(kubectl.count("pods --field-selector=spec.nodeName=a").await, 0, "pods spread over nodes");
    kubectl.ok("cordon b", "cordoned").await;
    kubectl.ok("get node b", "SchedulingDisabled").await;
    kubectl.ok("uncordon b", "uncordoned").await;
    kubectl.ok("drain a --ignore-daemonsets --timeout=60s", "drained").await;
    kubectl.until_count("pods --field-selector=spec.nodeName=b", 6).await;
    assert_eq!(kubectl.count("pods --field-selector=spec.nodeName=a").await, 0);
    kubectl.ok("taint node b dedicated=db:NoSchedule", "tainted").await;
    kubectl.ok("scale deployment/web --replicas=7", "scaled").await;
    kubectl.until_count("pods --field-selector=status.phase=Pending", 1).await;
    until("describe tells why", || async {
        let (_, text) = kubectl.run("describe pods --selector=app=web").await;
        let told = text.contains("FailedScheduling")
            && text.contains(
                "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable.",
            );
        told.then_some(())
    })
    .await;
    kubectl.ok("taint node b dedicated-", "untainted").await;
    kubectl.ok("rollout status deployment/web --timeout=60s", "successfully rolled out").await;
    // a taint that evicts: everything moves
    kubectl.ok("uncordon a", "uncordoned").await;
    kubectl.ok("taint node b broken=yes:NoExecute", "tainted").await;
    kubectl.until_count("pods --field-selector=spec.nodeName=b", 0).await;
    kubectl.ok("rollout status deployment/web --timeout=60s", "successfully rolled out").await;
    kubelets.abort();
}
