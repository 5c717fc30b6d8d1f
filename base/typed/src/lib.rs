//! (De)serialization of Kubernetes' Rust types, compiled once for all crates.
//!
//! The code for these types is generic, and by default every crate compiles it again for all types that a Pod consists of.
//! At every optimization level except 2 and 3 the compiler reuses instances from crates below. This crate is below all
//! others and names the types; it contains no logic. Types that are not listed here work as well, but are compiled once
//! for each crate that uses them.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Error, Value};

/// A `T` from JSON text.
pub fn read<T: DeserializeOwned>(json: &str) -> Result<T, Error> {
    serde_json::from_str(json)
}

/// What other crates ask serde for.
struct Compiled<T: 'static> {
    _read: fn(&'static str) -> Result<T, Error>,
    _read_option: fn(&'static str) -> Result<Option<T>, Error>,
    _read_list: fn(&'static str) -> Result<Vec<T>, Error>,
    _write: fn(&T) -> Result<Vec<u8>, Error>,
    _write_text: fn(&T) -> Result<String, Error>,
    _write_value: fn(&'static T) -> Result<Value, Error>,
}

impl<T: DeserializeOwned + Serialize> Compiled<T> {
    const ALL: Compiled<T> = Compiled {
        _read: serde_json::from_str,
        _read_option: serde_json::from_str,
        _read_list: serde_json::from_str,
        _write: serde_json::to_vec,
        _write_text: serde_json::to_string,
        _write_value: serde_json::to_value,
    };
}

macro_rules! compile {
    ($($group:path: $($kind:ident)*;)*) => {
        /// Named so that it is compiled; nothing calls it, and the linker leaves out what nothing else calls.
        #[doc(hidden)]
        #[inline(never)]
        pub fn compiled() -> usize {
            std::hint::black_box(
                [$($({ use $group as group; std::ptr::from_ref(&Compiled::<group::$kind>::ALL).addr() }),*),*],
            ).len()
        }
    };
}

compile! {
    k8s_openapi::api::admissionregistration::v1: ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding;
    k8s_openapi::api::apps::v1: ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet;
    k8s_openapi::api::authentication::v1: TokenRequest TokenReview;
    k8s_openapi::api::authorization::v1: SubjectAccessReview;
    k8s_openapi::api::autoscaling::v1: Scale;
    k8s_openapi::api::autoscaling::v2: HorizontalPodAutoscaler;
    k8s_openapi::api::batch::v1: CronJob Job;
    k8s_openapi::api::certificates::v1: CertificateSigningRequest;
    k8s_openapi::api::coordination::v1: Lease;
    k8s_openapi::api::core::v1: Binding ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume
        PersistentVolumeClaim Pod ReplicationController ResourceQuota Secret Service ServiceAccount;
    k8s_openapi::api::discovery::v1: EndpointSlice;
    k8s_openapi::api::flowcontrol::v1: FlowSchema PriorityLevelConfiguration;
    k8s_openapi::api::networking::v1: IPAddress NetworkPolicy ServiceCIDR;
    k8s_openapi::api::node::v1: RuntimeClass;
    k8s_openapi::api::policy::v1: PodDisruptionBudget;
    k8s_openapi::api::rbac::v1: ClusterRole ClusterRoleBinding Role RoleBinding;
    k8s_openapi::api::resource::v1: DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice;
    k8s_openapi::api::storage::v1: CSIDriver CSINode StorageClass VolumeAttributesClass;
    k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1: CustomResourceDefinition;
    k8s_openapi::apimachinery::pkg::apis::meta::v1: Condition LabelSelector ObjectMeta OwnerReference;
    k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1: APIService;
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn compiled_types_round_trip() {
        let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c"}]}}"#;
        let pod: Pod = read(json).expect("a pod");
        assert_eq!(pod.spec.as_ref().expect("a spec").containers[0].name, "c");
        assert_eq!((Compiled::<Pod>::ALL._write_text)(&pod).expect("JSON"), json);
        assert!(read::<Pod>(r#"{"spec":7}"#).is_err());
        assert!(compiled() > 50);
    }
}
