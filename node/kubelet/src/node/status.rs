//! The node's status: capacity, conditions, addresses, images.

use std::net::IpAddr;
use std::sync::Arc;

use ferry_api::declared_features;
use ferry_client::name::revision;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeFeatures,
    NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::RwLock;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::capacity::{Capacity, quantities};
use super::machine::Machine;
use crate::config::Config;
use crate::cri;
use crate::device_plugins::DevicePlugins;
use crate::volumes::csi::in_use::InUse;

/// More images would make a node's status heavier than it is useful.
const MAX_IMAGES: usize = 50;
/// What this kubelet can do that not every one of a supported version can, sorted.
const DECLARED_FEATURES: [&str; 3] = [
    declared_features::EXTEND_WEBSOCKETS_TO_KUBELET,
    declared_features::POD_LEVEL_RESIZE,
    declared_features::INIT_CONTAINER_RESIZE,
];
const MAX_NAMES: usize = 5;

/// What evictions say about the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pids: bool,
}

/// Where a node's status comes from.
pub struct NodeStatusSource {
    pub config: Config,
    pub machine: Machine,
    pub capacity: Capacity,
    pub allocatable: Capacity,
    pub runtime: cri::Client,
    pub runtime_version: String,
    pub addresses: Vec<IpAddr>,
    pub port: u16,
    /// Whether the runtime answers, as its watcher last found.
    pub runtime_health: watch::Receiver<Result<(), String>>,
    pub pressure: watch::Receiver<Pressure>,
    pub device_plugins: Arc<DevicePlugins>,
    /// Set while pods cannot get a network.
    pub network_problem: Arc<RwLock<Option<String>>>,
    /// The node as the API last had it.
    pub seen: watch::Sender<Option<Arc<Node>>>,
    /// Volumes that must not be detached.
    pub volumes_in_use: InUse,
}

impl NodeStatusSource {
    /// Fires when something changed that should be told at once.
    pub fn changes(&self) -> watch::Receiver<Result<(), String>> {
        self.runtime_health.clone()
    }

    /// Takes the node as somebody found it, unless a newer one is known: who asked may be slower than who was told.
    pub fn follow(&self, node: Arc<Node>) {
        self.seen.send_if_modified(|seen| {
            let is_older = seen.as_deref().is_some_and(|seen| revision(&*node) < revision(seen));
            if !is_older {
                *seen = Some(node);
            }
            !is_older
        });
    }

    pub async fn status(&self, node: &Node, now: Timestamp) -> NodeStatus {
        let runtime = self.runtime_state().await;
        let old = node.status.clone().unwrap_or_default();
        let pressure = *self.pressure.borrow();
        let mut info = self.machine.info.clone();
        info.container_runtime_version = self.runtime_version.clone();
        let (mut capacity, mut allocatable) =
            (quantities(&self.capacity, true), quantities(&self.allocatable, false));
        self.device_plugins.add_to(&mut capacity, &mut allocatable);
        let mut status = NodeStatus {
            capacity: Some(capacity),
            allocatable: Some(allocatable),
            addresses: Some(self.addresses()),
            daemon_endpoints: Some(NodeDaemonEndpoints {
                kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(self.port) }),
            }),
            node_info: Some(info),
            images: self.images().await.or_else(|| old.images.clone()),
            runtime_handlers: Some(runtime.handlers),
            volumes_in_use: Some(self.volumes_in_use.names()).filter(|names| !names.is_empty()),
            features: match runtime.has_group_policy {
                None => old.features.clone(),
                known => Some(NodeFeatures { supplemental_groups_policy: known }),
            },
            declared_features: Some(DECLARED_FEATURES.map(str::to_owned).to_vec()),
            ..NodeStatus::default()
        };
        status.conditions = Some(conditions(&old, &runtime.problem, pressure, now));
        status
    }

    async fn runtime_state(&self) -> RuntimeState {
        let mut problems = Vec::new();
        let (mut handlers, mut has_group_policy) = (Vec::new(), None);
        match self.runtime.status(false).await {
            Ok(answer) => {
                let conditions = answer.status.map(|status| status.conditions).unwrap_or_default();
                let mut network = None;
                for condition in conditions.into_iter().filter(|condition| !condition.status) {
                    let text = format!(
                        "container runtime network not ready: {}={} reason:{} message:{}",
                        condition.r#type, condition.status, condition.reason, condition.message
                    );
                    if condition.r#type == "NetworkReady" {
                        network = Some(text.clone());
                    }
                    problems.push(text);
                }
                *self.network_problem.write() = network;
                handlers = answer.runtime_handlers.iter().map(handler).collect();
                let features = answer.features.unwrap_or_default();
                has_group_policy = Some(features.supplemental_groups_policy);
            }
            Err(error) => problems.push(format!("container runtime is down: {error}")),
        }
        let problem = Some(problems.join(", ")).filter(|text| !text.is_empty());
        RuntimeState { problem, handlers, has_group_policy }
    }

    fn addresses(&self) -> Vec<NodeAddress> {
        let internal = self
            .addresses
            .iter()
            .map(|address| NodeAddress { type_: "InternalIP".into(), address: address.to_string() });
        let name = NodeAddress { type_: "Hostname".into(), address: self.config.node_name.clone() };
        internal.chain([name]).collect()
    }

    /// `None` when the runtime does not tell.
    async fn images(&self) -> Option<Vec<ContainerImage>> {
        let mut images = match self.runtime.list_images().await {
            Ok(images) => images,
            Err(error) => {
                tracing::debug!(%error, "images not listed");
                return None;
            }
        };
        images.sort_by(|left, right| right.size.cmp(&left.size).then_with(|| left.id.cmp(&right.id)));
        let described = images.into_iter().take(MAX_IMAGES).map(|image| {
            let mut names = image.repo_digests;
            names.extend(image.repo_tags);
            names.truncate(MAX_NAMES);
            ContainerImage { names: Some(names), size_bytes: i64::try_from(image.size).ok() }
        });
        Some(described.collect())
    }
}

pub fn is_ready(status: &NodeStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

struct RuntimeState {
    problem: Option<String>,
    handlers: Vec<NodeRuntimeHandler>,
    /// Whether it keeps to `supplementalGroupsPolicy`. Not known while it does not answer.
    has_group_policy: Option<bool>,
}

fn handler(handler: &cri::RuntimeHandler) -> NodeRuntimeHandler {
    let features = handler.features.as_ref();
    NodeRuntimeHandler {
        name: Some(handler.name.clone()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: features.map(|features| features.recursive_read_only_mounts),
            user_namespaces: features.map(|features| features.user_namespaces),
        }),
    }
}

/// A condition of the node that says whether it runs out of something.
struct PressureCondition {
    kind: &'static str,
    under: fn(&Pressure) -> bool,
    /// Reason and message while it does, and while it does not.
    pressed: (&'static str, &'static str),
    free: (&'static str, &'static str),
}

const PRESSURES: [PressureCondition; 3] = [
    PressureCondition {
        kind: "MemoryPressure",
        under: |pressure| pressure.memory,
        pressed: ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
        free: ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    },
    PressureCondition {
        kind: "DiskPressure",
        under: |pressure| pressure.disk,
        pressed: ("KubeletHasDiskPressure", "kubelet has disk pressure"),
        free: ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    },
    PressureCondition {
        kind: "PIDPressure",
        under: |pressure| pressure.pids,
        pressed: ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
        free: ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    },
];

fn conditions(
    old: &NodeStatus,
    problem: &Option<String>,
    pressure: Pressure,
    now: Timestamp,
) -> Vec<NodeCondition> {
    let pressures = PRESSURES.map(|row| {
        let under = (row.under)(&pressure);
        let (reason, message) = if under { row.pressed } else { row.free };
        (row.kind, under, reason, message.to_string())
    });
    let ready = match problem {
        Some(problem) => ("Ready", false, "KubeletNotReady", problem.clone()),
        None => ("Ready", true, "KubeletReady", "kubelet is posting ready status".into()),
    };
    let all = pressures.into_iter().chain([ready]);
    all.map(|(kind, is_true, reason, message)| {
        let status = if is_true { "True" } else { "False" };
        let before = old.conditions.iter().flatten().find(|each| each.type_ == kind && each.status == status);
        NodeCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: before
                .and_then(|each| each.last_transition_time.clone())
                .or(Some(Time(now))),
        }
    })
    .collect()
}

/// What makes a status worth writing: everything but the heartbeat.
pub fn essence(status: &NodeStatus) -> Value {
    let mut value = patch(status);
    for condition in value["conditions"].as_array_mut().into_iter().flatten() {
        if let Some(fields) = condition.as_object_mut() {
            fields.remove("lastHeartbeatTime");
            fields.remove("lastTransitionTime");
        }
    }
    value
}

/// Whether the conditions in the API are still ours.
pub fn holds(node: &Node, status: &NodeStatus) -> bool {
    let told = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    status.conditions.iter().flatten().all(|own| {
        told.into_iter().flatten().any(|told| told.type_ == own.type_ && told.status == own.status)
    })
}

/// A strategic merge patch. Addresses merge by type there, which cannot hold
/// two of one type: they are replaced whole.
pub fn patch(status: &NodeStatus) -> Value {
    let addresses =
        status.addresses.iter().flatten().map(|each| json!({"type": each.type_, "address": each.address}));
    let addresses: Vec<Value> = addresses.chain([json!({"$patch": "replace"})]).collect();
    json!({
        "capacity": status.capacity,
        "allocatable": status.allocatable,
        "addresses": addresses,
        "conditions": status.conditions,
        "daemonEndpoints": status.daemon_endpoints,
        "nodeInfo": status.node_info,
        "images": status.images,
        "runtimeHandlers": status.runtime_handlers,
        "volumesInUse": status.volumes_in_use,
        "features": status.features,
        "declaredFeatures": status.declared_features,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_written_again() {
        let declared = Some(DECLARED_FEATURES.map(str::to_owned).to_vec());
        let features = Some(NodeFeatures { supplemental_groups_policy: Some(true) });
        let patch = patch(&NodeStatus { features, declared_features: declared, ..NodeStatus::default() });
        assert_eq!(patch["features"], json!({"supplementalGroupsPolicy": true}));
        assert_eq!(patch["declaredFeatures"], json!(DECLARED_FEATURES));
    }

    #[test]
    fn a_node_that_was_taken_for_lost_says_otherwise() {
        let now = Timestamp::UNIX_EPOCH;
        let status = NodeStatus {
            conditions: Some(conditions(&NodeStatus::default(), &None, Pressure::default(), now)),
            ..NodeStatus::default()
        };
        let mut node = Node { status: Some(status.clone()), ..Node::default() };
        assert!(holds(&node, &status));
        for condition in node.status.iter_mut().flat_map(|status| status.conditions.iter_mut().flatten()) {
            condition.status = "Unknown".into();
        }
        assert!(!holds(&node, &status));
        assert!(!holds(&Node::default(), &status));
    }

    #[test]
    fn a_node_is_ready_when_nothing_is_wrong() {
        let now = Timestamp::UNIX_EPOCH;
        let shown = |problem: Option<String>, pressure| -> Vec<String> {
            let all = conditions(&NodeStatus::default(), &problem, pressure, now);
            all.iter().map(|each| format!("{}={}", each.type_, each.status)).collect()
        };
        let quiet = Pressure::default();
        assert_eq!(
            shown(None, quiet),
            ["MemoryPressure=False", "DiskPressure=False", "PIDPressure=False", "Ready=True"]
        );
        let pressed = Pressure { memory: true, disk: true, pids: false };
        assert_eq!(
            shown(Some("down".into()), pressed),
            ["MemoryPressure=True", "DiskPressure=True", "PIDPressure=False", "Ready=False"]
        );
    }

    #[test]
    fn a_heartbeat_alone_is_no_change() {
        let status = |second| {
            let now = Timestamp::from_second(second).expect("a time");
            let conditions = Some(conditions(&NodeStatus::default(), &None, Pressure::default(), now));
            NodeStatus { conditions, ..NodeStatus::default() }
        };
        assert_eq!(essence(&status(1)), essence(&status(2)));
        assert_ne!(patch(&status(1)), patch(&status(2)));
    }
}
