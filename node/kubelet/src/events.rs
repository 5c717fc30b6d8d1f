//! How the kubelet's events refer to what they are about.

use ferry_client::events::reference;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};

use crate::pod;

/// One container of a pod.
pub fn container_reference(pod: &Pod, container: &str) -> ObjectReference {
    let spec = pod::spec(pod);
    let list = if spec.init_containers.iter().flatten().any(|each| each.name == container) {
        "spec.initContainers"
    } else if spec.ephemeral_containers.iter().flatten().any(|each| each.name == container) {
        "spec.ephemeralContainers"
    } else {
        "spec.containers"
    };
    ObjectReference { field_path: Some(format!("{list}{{{container}}}")), ..reference(pod) }
}
