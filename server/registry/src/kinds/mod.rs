//! A strategy per kind: only what differs from a plain kind. The table below is the only place that binds
//! a kind to its rules.

mod admission;
mod api_service;
mod certificate_signing_request;
mod checks;
mod config_map;
mod cron_job;
mod custom_resource_definition;
mod daemon_set;
mod deployment;
mod device_claim;
mod device_taint;
mod endpoint_slice;
mod horizontal_pod_autoscaler;
mod ingress;
mod job;
mod lease;
mod limit_range;
mod namespace;
mod network_policy;
mod node;
mod persistent_volume;
mod persistent_volume_claim;
mod plain;
mod pod;
mod pod_disruption_budget;
mod priority_class;
mod replica_set;
mod replication_controller;
mod role;
mod role_binding;
pub(crate) mod rules;
mod secret;
mod service;
mod service_account;
mod stateful_set;
mod storage_class;
mod tables;
pub(crate) mod warnings;
mod workload;

use ferry_api::Kind;

use crate::strategy::{PLAIN, Strategy};

/// The rules of a built-in kind.
pub fn strategy(kind: &Kind) -> &'static dyn Strategy {
    match (&*kind.group, &*kind.kind) {
        ("", "ConfigMap") => &config_map::STRATEGY,
        ("", "LimitRange") => &limit_range::STRATEGY,
        ("", "Namespace") => &namespace::STRATEGY,
        ("", "Node") => &node::STRATEGY,
        ("", "PersistentVolume") => &persistent_volume::STRATEGY,
        ("", "PersistentVolumeClaim") => &persistent_volume_claim::STRATEGY,
        ("", "Pod") => &pod::STRATEGY,
        ("", "ReplicationController") => &replication_controller::STRATEGY,
        ("", "Secret") => &secret::STRATEGY,
        ("", "Service") => &service::STRATEGY,
        ("", "ServiceAccount") => &service_account::STRATEGY,
        ("admissionregistration.k8s.io", "InitializerConfiguration") => {
            &admission::initializer_configuration::STRATEGY
        }
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicy") => {
            &admission::mutating_admission_policy::STRATEGY
        }
        ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding") => {
            &admission::policy_binding::MUTATING
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding") => {
            &admission::policy_binding::VALIDATING
        }
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration") => {
            &admission::webhook_configuration::MUTATING
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => {
            &admission::validating_admission_policy::STRATEGY
        }
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration") => {
            &admission::webhook_configuration::VALIDATING
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => &custom_resource_definition::STRATEGY,
        ("apiregistration.k8s.io", "APIService") => &api_service::STRATEGY,
        ("apps", "DaemonSet") => &daemon_set::STRATEGY,
        ("apps", "Deployment") => &deployment::STRATEGY,
        ("apps", "ReplicaSet") => &replica_set::STRATEGY,
        ("apps", "StatefulSet") => &stateful_set::STRATEGY,
        ("autoscaling", "HorizontalPodAutoscaler") => &horizontal_pod_autoscaler::STRATEGY,
        ("batch", "CronJob") => &cron_job::STRATEGY,
        ("batch", "Job") => &job::STRATEGY,
        ("certificates.k8s.io", "CertificateSigningRequest") => &certificate_signing_request::STRATEGY,
        ("coordination.k8s.io", "Lease") => &lease::STRATEGY,
        ("discovery.k8s.io", "EndpointSlice") => &endpoint_slice::STRATEGY,
        ("networking.k8s.io", "Ingress") => &ingress::STRATEGY,
        ("networking.k8s.io", "NetworkPolicy") => &network_policy::STRATEGY,
        ("policy", "PodDisruptionBudget") => &pod_disruption_budget::STRATEGY,
        ("rbac.authorization.k8s.io", "ClusterRole") => &role::CLUSTER_STRATEGY,
        ("rbac.authorization.k8s.io", "ClusterRoleBinding") => &role_binding::CLUSTER_STRATEGY,
        ("rbac.authorization.k8s.io", "Role") => &role::STRATEGY,
        ("rbac.authorization.k8s.io", "RoleBinding") => &role_binding::STRATEGY,
        ("scheduling.k8s.io", "PriorityClass") => &priority_class::STRATEGY,
        ("storage.k8s.io", "StorageClass") => &storage_class::STRATEGY,
        (group, kind) => plain::strategy(group, kind).unwrap_or(&PLAIN),
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::kinds::builtin;

    #[test]
    fn selectors_name_upstreams_fields() {
        let events = ["kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"];
        let upstream = |kind: &str| -> Vec<String> {
            let fields: &[&str] = match kind {
                "CertificateSigningRequest" | "ClusterTrustBundle" => &["spec.signerName"],
                "Job" => &["status.successful"],
                "Namespace" => &["status.phase"],
                "Node" => &["spec.unschedulable"],
                "Pod" => &[
                    "spec.host",
                    "spec.hostNetwork",
                    "spec.nodeName",
                    "spec.restartPolicy",
                    "spec.schedulerName",
                    "spec.serviceAccountName",
                    "status.nominatedNodeName",
                    "status.phase",
                    "status.podIP",
                    "status.podIPs",
                ],
                "PodCertificateRequest" => &["spec.nodeName", "spec.podName", "spec.signerName"],
                "ReplicationController" => &["status.replicas"],
                "ResourceSlice" => &["spec.driver", "spec.nodeName"],
                "Secret" => &["type"],
                "Service" => &["spec.clusterIP", "spec.type"],
                // Both groups take the names of both.
                "Event" => {
                    let of = |object: &'static str| events.map(|field| format!("{object}.{field}"));
                    let own = ["reason", "reportingComponent", "reportingController", "source", "type"];
                    let mut fields: Vec<String> =
                        of("involvedObject").into_iter().chain(of("regarding")).collect();
                    fields.extend(own.map(str::to_owned));
                    fields.sort();
                    return fields;
                }
                _ => &[],
            };
            fields.iter().map(ToString::to_string).collect()
        };
        for kind in builtin().iter().filter(|kind| !kind.is_virtual()) {
            let mut fields: Vec<String> =
                super::strategy(kind).selectable().iter().map(|field| field.field.to_string()).collect();
            fields.sort();
            fields.dedup();
            assert_eq!(fields, upstream(&kind.kind), "{}/{}", kind.api_version(), kind.kind);
        }
    }
}
