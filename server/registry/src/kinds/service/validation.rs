//! What of a service may not change once it is set.

use ferry_api::FieldErrors;
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use serde_json::json;

const IMMUTABLE_ADDRESS: &str = "may not change once set";

pub fn validate_update(new: &Service, old: &Service, errors: &mut FieldErrors) {
    let (Some(new), Some(old)) = (&new.spec, &old.spec) else { return };
    // Addresses that cannot be are told alone.
    let about_addresses =
        |path: &str| path.starts_with("spec.clusterIPs") || path.starts_with("spec.ipFamil");
    if errors.0.iter().any(|error| about_addresses(&error.path)) {
        return;
    }
    let needs_address = |spec: &ServiceSpec| spec.type_.as_deref() != Some("ExternalName");
    if !needs_address(new) || !needs_address(old) {
        return;
    }
    let first = |spec: &ServiceSpec| spec.cluster_ips.as_ref().and_then(|list| list.first().cloned());
    if let Some(before) = first(old)
        && first(new) != Some(before)
    {
        errors.invalid("spec.clusterIPs[0]", json!(new.cluster_ips), IMMUTABLE_ADDRESS);
    }
    let families = |spec: &ServiceSpec| spec.ip_families.as_ref().and_then(|list| list.first().cloned());
    if families(old).is_some() && families(new) != families(old) {
        errors.invalid("spec.ipFamilies[0]", json!(new.ip_families), IMMUTABLE_ADDRESS);
    }
    let balancer = |spec: &ServiceSpec| spec.type_.as_deref() == Some("LoadBalancer");
    if balancer(new) && balancer(old) && new.load_balancer_class != old.load_balancer_class {
        errors.invalid("spec.loadBalancerClass", json!(new.load_balancer_class), IMMUTABLE_ADDRESS);
    }
}
