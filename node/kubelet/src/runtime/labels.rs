//! What the kubelet writes on sandboxes and containers so that it, or another
//! kubelet after it, finds out whose they are. The keys are Kubernetes' own,
//! which `crictl` and monitoring agents read too.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;

use crate::pod::{self, ContainerOf};

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";

pub fn for_sandbox(pod: &Pod) -> HashMap<String, String> {
    let mut labels: HashMap<String, String> =
        pod.metadata.labels.iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
    labels.extend(identity(pod));
    labels
}

pub fn for_container(pod: &Pod, name: &str) -> HashMap<String, String> {
    let mut labels = HashMap::from(identity(pod));
    labels.insert(CONTAINER_NAME.into(), name.into());
    labels
}

pub fn container_annotations(
    pod: &Pod,
    each: &ContainerOf<'_>,
    restart_count: u32,
) -> HashMap<String, String> {
    let container = &each.container;
    HashMap::from([
        (CONTAINER_HASH.into(), pod::container_hash(container)),
        (RESTART_COUNT.into(), restart_count.to_string()),
        (
            TERMINATION_MESSAGE_PATH.into(),
            container.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".into()),
        ),
        (
            TERMINATION_MESSAGE_POLICY.into(),
            container.termination_message_policy.clone().unwrap_or_else(|| "File".into()),
        ),
        (GRACE_PERIOD.into(), pod::grace_period(pod).as_secs().to_string()),
    ])
}

fn identity(pod: &Pod) -> [(String, String); 3] {
    [
        (POD_NAME.into(), pod::name(pod).into()),
        (POD_NAMESPACE.into(), pod::namespace(pod).into()),
        (POD_UID.into(), pod::uid(pod).into()),
    ]
}
