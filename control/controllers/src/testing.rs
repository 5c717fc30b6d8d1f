//! Small objects for table tests.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::Resource;

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).expect("is within range")
}

pub fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// An object `default/NAME` with uid `uid-NAME`.
pub fn named<K: Resource + Default>(name: &str) -> K {
    let mut object = K::default();
    let meta = object.meta_mut();
    meta.name = Some(name.into());
    meta.namespace = Some("default".into());
    meta.uid = Some(format!("uid-{name}"));
    meta.creation_timestamp = Some(Time(at(0)));
    object
}

pub fn deleting<K: Resource>(mut object: K) -> K {
    object.meta_mut().deletion_timestamp = Some(Time(at(0)));
    object
}

pub fn owned_by<K: Resource>(mut object: K, uid: &str) -> K {
    let owner = OwnerReference { uid: uid.into(), controller: Some(true), ..Default::default() };
    object.meta_mut().owner_references = Some(vec![owner]);
    object
}

/// A pod on a node in a phase; `ready` since a time.
pub fn pod(name: &str, node: &str, phase: &str, ready: Option<i64>) -> Pod {
    let mut pod: Pod = named(name);
    pod.spec = Some(PodSpec { node_name: (!node.is_empty()).then(|| node.into()), ..Default::default() });
    pod.status = Some(PodStatus { phase: Some(phase.into()), ..Default::default() });
    if let Some(since) = ready {
        let condition = PodCondition {
            type_: "Ready".into(),
            status: "True".into(),
            last_transition_time: Some(Time(at(since))),
            ..Default::default()
        };
        pod.status.get_or_insert_default().conditions = Some(vec![condition]);
    }
    pod
}
