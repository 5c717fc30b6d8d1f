//! The pods of this node and their workers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::{CancellationToken, EventType, NamespacedName};
use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::admit::{self, GrantedPod, NodeFacts, admit};
use crate::context::Context;
use crate::node::status::NodeStatusSource;
use crate::pod;
use crate::resize::{self, Pending};
use crate::resources::{Asks, QosClass};
use crate::status::Ending;
use crate::status::patch::OWN_CONDITIONS;
use crate::worker::{Orders, Worker};

/// What the runtime is at when the kubelet stops gets this long: the next kubelet finds whole things.
const LET_FINISH: Duration = Duration::from_secs(5);
/// A node that is not answered within this is judged as it was last seen.
const READ_NODE: Duration = Duration::from_secs(10);

/// Cloning shares.
#[derive(Clone)]
pub struct Pods {
    shared: Arc<Shared>,
}

struct Shared {
    context: Arc<Context>,
    node: Arc<NodeStatusSource>,
    has_apparmor: bool,
    /// By uid.
    entries: Mutex<HashMap<String, RunningPod>>,
    /// The API's copies of static pods, by name.
    mirrors: Mutex<HashMap<NamespacedName, Arc<Pod>>>,
    workers: TaskTracker,
    stop: CancellationToken,
}

struct RunningPod {
    orders: watch::Sender<Orders>,
    done: CancellationToken,
}

impl Pods {
    pub fn new(context: Arc<Context>, node: Arc<NodeStatusSource>, stop: CancellationToken) -> Self {
        let has_apparmor = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled")
            .is_ok_and(|enabled| enabled.trim() == "Y");
        let shared = Shared {
            context,
            node,
            has_apparmor,
            entries: Mutex::default(),
            mirrors: Mutex::default(),
            workers: TaskTracker::new(),
            stop,
        };
        Self { shared: Arc::new(shared) }
    }

    /// A pod is new at its source, or changed there.
    pub fn apply(&self, pod: Arc<Pod>) {
        let uid = pod::uid(&pod).to_string();
        let mut entries = self.shared.entries.lock();
        if let Some(running) = entries.get(&uid) {
            self.shared.update(&pod, running, &entries);
            return;
        }
        let (orders, doubted) = self.shared.admit(&pod, &entries);
        // a static pod that changed is a new pod of the old name
        let before = entries
            .values()
            .filter(|entry| pod::is_static(&pod) && pod::key(&entry.orders.borrow().pod) == pod::key(&pod))
            .map(|entry| entry.done.clone())
            .collect::<Vec<_>>();
        let orders = watch::Sender::new(orders);
        let done = CancellationToken::new();
        let worker = Worker::new(self.shared.context.clone(), orders.clone(), done.clone());
        let begun = worker.work();
        entries.insert(uid.clone(), RunningPod { orders: orders.clone(), done });
        self.shared.weigh(&entries);
        drop(entries);
        let shared = self.shared.clone();
        self.shared.workers.spawn(async move {
            let work = async {
                for predecessor in before {
                    predecessor.cancelled().await;
                }
                if let Err(ending) = shared.settle(&pod, &orders, doubted).await {
                    shared.tell_rejected(&pod, &ending);
                    orders.send_modify(|orders| orders.ending = Some(ending));
                }
                worker.run().await;
            };
            tokio::select! {
                // containers stay; the next kubelet takes them over
                () = shared.stop.cancelled() => {
                    if tokio::time::timeout(LET_FINISH, begun.wait()).await.is_err() {
                        tracing::warn!(uid, "the runtime has not finished a pod's operation; stopping anyway");
                    }
                }
                () = work => {
                    let mut entries = shared.entries.lock();
                    entries.remove(&uid);
                    shared.grant_deferred(&entries);
                    shared.weigh(&entries);
                }
            }
        });
    }

    /// A pod is gone from its source.
    pub fn remove(&self, uid: &str) {
        self.order(uid, |orders| orders.gone = true);
    }

    pub fn set_mirror(&self, key: &NamespacedName, mirror: Option<Arc<Pod>>) {
        match &mirror {
            Some(mirror) => self.shared.mirrors.lock().insert(key.clone(), mirror.clone()),
            None => self.shared.mirrors.lock().remove(key),
        };
        for entry in self.shared.entries.lock().values() {
            let is_meant = {
                let orders = entry.orders.borrow();
                pod::is_static(&orders.pod) && pod::key(&orders.pod) == *key
            };
            if is_meant {
                entry.orders.send_modify(|orders| orders.mirror = mirror.clone());
            }
        }
    }

    pub fn mirror(&self, key: &NamespacedName) -> Option<Arc<Pod>> {
        self.shared.mirrors.lock().get(key).cloned()
    }

    pub fn mirrors(&self) -> Vec<Arc<Pod>> {
        self.shared.mirrors.lock().values().cloned().collect()
    }

    /// Something that concerns every pod changed.
    pub fn wake_all(&self) {
        for entry in self.shared.entries.lock().values() {
            entry.orders.send_modify(|orders| orders.wakes += 1);
        }
    }

    /// Something about the pod changed outside its source.
    pub fn wake(&self, uid: &str) {
        self.order(uid, |orders| orders.wakes += 1);
    }

    /// Ends a pod for the node's sake.
    pub fn end(&self, uid: &str, ending: Ending, grace: Option<Duration>) {
        self.order(uid, |orders| {
            orders.ending.get_or_insert(ending);
            orders.grace = grace;
        });
    }

    fn order(&self, uid: &str, change: impl FnOnce(&mut Orders)) {
        if let Some(entry) = self.shared.entries.lock().get(uid) {
            entry.orders.send_modify(change);
        }
    }

    /// Every pod that has a worker.
    pub fn list(&self) -> Vec<Arc<Pod>> {
        self.shared.entries.lock().values().map(|entry| entry.orders.borrow().pod.clone()).collect()
    }

    /// Every pod that is still in its source.
    pub fn present(&self) -> Vec<Arc<Pod>> {
        let entries = self.shared.entries.lock();
        let orders = entries.values().map(|entry| entry.orders.borrow());
        orders.filter(|orders| !orders.gone).map(|orders| orders.pod.clone()).collect()
    }

    /// Pods that use the node's resources.
    pub fn active(&self) -> Vec<Arc<Pod>> {
        let entries = self.shared.entries.lock();
        let placed = entries.values().filter_map(|entry| active(&entry.orders.borrow()));
        placed.map(|placed| placed.pod).collect()
    }

    pub fn is_known(&self, uid: &str) -> bool {
        self.shared.entries.lock().contains_key(uid)
    }

    /// The pod of a name. Of several the one that is not on its way out.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let mut found: Vec<Arc<Pod>> = self
            .list()
            .into_iter()
            .filter(|pod| pod::namespace(pod) == namespace && pod::name(pod) == name)
            .collect();
        found.sort_by_key(|pod| pod.metadata.deletion_timestamp.is_some());
        found.into_iter().next()
    }

    /// Waits until every worker has let go; call after the stop.
    pub async fn stopped(&self) {
        self.shared.workers.close();
        self.shared.workers.wait().await;
    }
}

impl Shared {
    /// Hands a pod that runs its new definition.
    fn update(&self, pod: &Arc<Pod>, running: &RunningPod, entries: &HashMap<String, RunningPod>) {
        let before = running.orders.borrow().clone();
        let (granted, pending) = self.grant(pod, &before, entries);
        let makes_room =
            !resize::is_same(&granted, &before.pod) || pod::is_terminal(pod::status(pod).phase.as_deref());
        running.orders.send_if_modified(|orders| {
            let is_news = is_news(&orders.pod, &granted) || orders.pending_resize != pending;
            orders.grant(granted);
            orders.wanted = pending.is_some().then(|| pod.clone());
            orders.pending_resize = pending;
            orders.wakes += u64::from(is_news);
            is_news
        });
        if makes_room {
            self.grant_deferred(entries);
            self.weigh(entries);
        }
    }

    /// What a new pod's worker is told first, and the refusal that has to be looked at again: the node may have got the
    /// label since.
    fn admit(&self, pod: &Arc<Pod>, entries: &HashMap<String, RunningPod>) -> (Orders, Option<Ending>) {
        // what a former kubelet granted holds until something else is
        let mut orders = Orders::new(resize::as_shown(pod));
        let (granted, pending) = self.grant(pod, &orders, entries);
        orders.grant(granted);
        orders.pending_resize = pending;
        orders.wanted = orders.pending_resize.is_some().then(|| pod.clone());
        orders.mirror = self.mirrors.lock().get(&pod::key(pod)).cloned();
        // On the informer's task, whose own span is about reading and not recorded.
        let mut span = ferry_trace::Span::root("kubelet.admit", None);
        span.object("pods", pod::namespace(pod), pod::name(pod));
        if let Some(revision) = ferry_client::name::revision(&**pod) {
            span.caused_by(revision);
        }
        match self.check(pod, &orders.asks, entries) {
            Err(ending) if admit::is_doubtful(&ending) => return (orders, Some(ending)),
            Err(ending) => {
                span.fail(&ending.message);
                self.tell_rejected(pod, &ending);
                orders.ending = Some(ending);
            }
            Ok(()) => {}
        }
        (orders, None)
    }

    /// A pod that runs already stays, whatever the node now thinks of it.
    fn check(&self, pod: &Pod, asks: &Asks, entries: &HashMap<String, RunningPod>) -> Result<(), Ending> {
        if has_run(pod) {
            return Ok(());
        }
        let node = self.node.seen.borrow().clone();
        let facts = NodeFacts {
            allocatable: self.node.allocatable,
            node: node.as_deref(),
            pressure: *self.node.pressure.borrow(),
            allowed_unsafe_sysctls: &self.context.config.allowed_unsafe_sysctls,
            has_apparmor: self.has_apparmor,
            is_of_plugin: &|resource| self.context.device_plugins.has(resource),
        };
        admit(pod, asks, &beside(pod::uid(pod), entries), &facts)
    }

    /// Judges by the node as the API has it now a pod that did not fit the node as it was seen last. `ending` holds
    /// where the API cannot be asked.
    async fn check_again(&self, pod: &Pod, ending: Ending) -> Result<(), Ending> {
        let Some(client) = self.context.client.clone() else { return Err(ending) };
        let mut span = ferry_trace::span("kubelet.read_node");
        span.object("pods", pod::namespace(pod), pod::name(pod));
        let nodes: kube::Api<Node> = kube::Api::all(client);
        let read = span.in_scope(nodes.get(&self.context.config.node_name));
        match tokio::time::timeout(READ_NODE, read).await {
            Ok(Ok(node)) => self.node.follow(Arc::new(node)),
            Ok(Err(error)) => {
                span.fail(&error);
                return Err(ending);
            }
            Err(_) => return Err(ending),
        }
        self.check(pod, &Asks::of(pod), &self.entries.lock())
    }

    /// What of an admission takes time: a refusal that is looked at again, and the devices of plugins.
    async fn settle(
        &self,
        pod: &Pod,
        orders: &watch::Sender<Orders>,
        doubted: Option<Ending>,
    ) -> Result<(), Ending> {
        if let Some(ending) = doubted {
            self.check_again(pod, ending).await?;
        }
        if has_run(pod) || orders.borrow().ending.is_some() {
            return Ok(());
        }
        let allocated = self.context.device_plugins.allocate(pod).await;
        allocated.map_err(|error| admit::unexpected(&error))
    }

    fn tell_rejected(&self, pod: &Pod, ending: &Ending) {
        let note = admit::why(ending).to_string();
        self.context.events.event(pod, EventType::Warning, &ending.reason, "Admitting", note);
    }

    /// The pod with what it is granted, and what it is not. `before` has what
    /// was granted so far.
    fn grant(
        &self,
        pod: &Arc<Pod>,
        before: &Orders,
        entries: &HashMap<String, RunningPod>,
    ) -> (Arc<Pod>, Option<Pending>) {
        if resize::is_same(pod, &before.pod) {
            return (pod.clone(), None);
        }
        let uid = pod::uid(pod);
        let (others, has_own_cpus) = (beside(uid, entries), self.context.cpus.has_own(uid));
        let pending = match resize::decide(pod, &others, self.node.allocatable, has_own_cpus) {
            Ok(()) => {
                let note = "Pod resize started".to_string();
                self.context.events.event(&**pod, EventType::Normal, "ResizeStarted", "Resizing", note);
                return (pod.clone(), None);
            }
            Err(pending) => pending,
        };
        if before.pending_resize.as_ref() != Some(&pending) {
            let reason = format!("Resize{}", pending.reason.as_str());
            let note = pending.message.clone();
            self.context.events.event(&**pod, EventType::Warning, &reason, "Resizing", note);
        }
        (Arc::new(resize::with_resources_of(pod, &before.pod)), Some(pending))
    }

    /// Room was made: those who wait for it are looked at again.
    fn grant_deferred(&self, entries: &HashMap<String, RunningPod>) {
        for entry in entries.values() {
            let before = entry.orders.borrow().clone();
            let Some(wanted) = &before.wanted else { continue };
            let (granted, pending) = self.grant(wanted, &before, entries);
            if pending.is_none() {
                entry.orders.send_modify(|orders| {
                    orders.grant(granted);
                    orders.pending_resize = None;
                    orders.wanted = None;
                    orders.wakes += 1;
                });
            }
        }
    }

    /// A pod came, went or changed: what burstable pods weigh together follows.
    fn weigh(&self, entries: &HashMap<String, RunningPod>) {
        let placed = entries.values().filter_map(|entry| active(&entry.orders.borrow()));
        let burstable = placed.filter(|placed| placed.asks.class == QosClass::Burstable);
        self.context.cgroups.weigh_burstable(burstable.map(|placed| placed.asks.request("cpu")).sum());
    }
}

/// Whether a pod was admitted before, or is on its way out.
fn has_run(pod: &Pod) -> bool {
    let phase = pod::status(pod).phase.as_deref();
    phase == Some("Running") || pod::is_terminal(phase) || pod.metadata.deletion_timestamp.is_some()
}

/// Whether a new version of a pod is news to its worker. Most are echoes of
/// the statuses that it wrote itself, and cost a look at the runtime each.
fn is_news(before: &Pod, after: &Pod) -> bool {
    let (old, new) = (&before.metadata, &after.metadata);
    let is_same_head = old.labels == new.labels
        && old.annotations == new.annotations
        && old.deletion_timestamp == new.deletion_timestamp
        && old.deletion_grace_period_seconds == new.deletion_grace_period_seconds;
    // readiness gates are conditions that others set
    fn of_others(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
        let conditions = pod::status(pod).conditions.iter().flatten();
        let of_others = conditions.filter(|condition| !OWN_CONDITIONS.contains(&condition.type_.as_str()));
        of_others.map(|condition| (condition.type_.as_str(), condition.status.as_str()))
    }
    // others may end a pod, but not begin it
    let is_ended = |pod: &Pod| pod::is_terminal(pod::status(pod).phase.as_deref());
    before.spec != after.spec
        || !is_same_head
        || is_ended(before) != is_ended(after)
        || !of_others(before).eq(of_others(after))
}

/// Pods that use the node's resources, without the one of this uid.
fn beside(uid: &str, entries: &HashMap<String, RunningPod>) -> Vec<GrantedPod> {
    let others = entries.iter().filter(|(other, _)| *other != uid);
    others.filter_map(|(_, entry)| active(&entry.orders.borrow())).collect()
}

fn active(orders: &Orders) -> Option<GrantedPod> {
    let ended =
        orders.gone || orders.ending.is_some() || pod::is_terminal(pod::status(&orders.pod).phase.as_deref());
    (!ended).then(|| GrantedPod { pod: orders.pod.clone(), asks: orders.asks.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Parts;
    use serde_json::{Value, json};

    #[test]
    fn echoes_of_its_own_status_are_no_news_to_a_worker() {
        let pod = |version: &str, labels: Value, conditions: Value, deleted: Option<&str>| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"resourceVersion": version, "labels": labels, "deletionTimestamp": deleted},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
                "status": {"phase": "Running", "podIP": version, "conditions": conditions},
            }))
            .expect("the pod is well formed")
        };
        let ready = |status: &str| json!([{"type": "Ready", "status": status}]);
        let gate = |status: &str| json!([{"type": "example.com/gate", "status": status}]);
        let before = pod("1", json!({}), ready("False"), None);
        assert!(!is_news(&before, &pod("2", json!({}), ready("True"), None)));
        assert!(is_news(&before, &pod("2", json!({"a": "b"}), ready("True"), None)));
        assert!(is_news(&before, &pod("2", json!({}), ready("True"), Some("2026-01-01T00:00:00Z"))));
        let gated = pod("1", json!({}), gate("False"), None);
        assert!(is_news(&gated, &pod("2", json!({}), gate("True"), None)));
        let mut other = before.clone();
        other.spec.as_mut().expect("has a spec").containers[0].image = Some("j".into());
        assert!(is_news(&before, &other));
    }

    /// The reason a pod is rejected for, by a kubelet that last saw its node without labels, where the API has some.
    /// There is no runtime: what is admitted does not start either.
    async fn rejected_where_the_api_shows(labels: Value, pod: &Arc<Pod>) -> Option<String> {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}});
        let answer = move |_: http::Request<kube::client::Body>| {
            let body = kube::client::Body::from(node.to_string().into_bytes());
            std::future::ready(Ok::<_, std::convert::Infallible>(http::Response::new(body)))
        };
        let directory = tempfile::tempdir().expect("a directory can be made");
        let mut config = crate::Config::new("n");
        config.root_dir = directory.path().into();
        (config.address, config.port) = (std::net::IpAddr::from([127, 0, 0, 1]), 0);
        config.cgroup_root = format!("/ferry-kubelet-admit-{}", std::process::id());
        let group = ferry_linux::cgroup::Path::new(config.cgroup_root.clone());
        let runtime = crate::cri::Client::new("/nowhere").expect("a path");
        let client = kube::Client::new(tower::service_fn(answer), "default");
        let parts = Parts::new(Some(client), config, runtime, &Default::default(), CancellationToken::new());
        let parts = parts.expect("nothing has to be there");
        let seen: Node = serde_json::from_value(json!({"metadata": {"name": "n"}})).expect("a node");
        parts.node.follow(Arc::new(seen));

        let shared = &parts.pods.shared;
        let doubted =
            shared.check(pod, &Asks::of(pod), &shared.entries.lock()).expect_err("as it was last seen");
        assert_eq!(doubted.reason, "NodeAffinity");
        let rejected = shared.check_again(pod, doubted).await.err();
        if let Some(hierarchy) = parts.context.cgroups.hierarchy() {
            hierarchy.remove(&group).expect("nothing runs in it");
        }
        rejected.map(|ending| ending.reason)
    }

    #[tokio::test]
    async fn a_label_set_a_moment_ago_keeps_no_pod_out() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {"nodeSelector": {"disk": "fast"}, "containers": [{"name": "c", "image": "i"}]},
        }))
        .expect("the pod is well formed");
        let pod = Arc::new(pod);
        assert_eq!(rejected_where_the_api_shows(json!({"disk": "fast"}), &pod).await, None);
        let rejected = rejected_where_the_api_shows(json!({"disk": "slow"}), &pod).await;
        assert_eq!(rejected.as_deref(), Some("NodeAffinity"));
    }
}
