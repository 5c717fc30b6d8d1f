//! The controllers, one row each, under the names of upstream's `--controllers`.

use crate::context::{Context, Running};
use crate::{
    attach_detach, bootstrap_tokens, certificates, cluster_role_aggregation, cron_job, daemon_set,
    deployment, device_taint_eviction, disruption, endpoint_slice, endpoint_slice_mirroring, endpoints,
    ephemeral_volume, garbage_collector, horizontal_pod_autoscaler, job, legacy_token_cleaner, local_volume,
    namespace, node_ipam, node_lifecycle, persistent_volume, pod_gc, policy_status, replica_set,
    resource_claim, resource_quota, root_ca, service_account, service_account_token, service_cidr,
    stateful_set, storage_protection, taint_eviction, ttl, ttl_after_finished, volume_expansion,
};

pub struct Row {
    pub name: &'static str,
    /// What it was called before upstream renamed them all.
    pub alias: &'static str,
    /// The ServiceAccount in kube-system whose permissions it needs; empty for the manager's own.
    pub account: &'static str,
    pub on_by_default: bool,
    pub(crate) start: fn(&Context) -> Running,
}

const fn row(
    name: &'static str,
    alias: &'static str,
    account: &'static str,
    start: fn(&Context) -> Running,
) -> Row {
    Row { name, alias, account, on_by_default: true, start }
}

/// A row that runs only when named.
const fn off(
    name: &'static str,
    alias: &'static str,
    account: &'static str,
    start: fn(&Context) -> Running,
) -> Row {
    Row { name, alias, account, on_by_default: false, start }
}

/// Upstream's other controllers and what they were called before: they can be left out, which they are, and not be asked for.
pub static ABSENT: &[(&str, &str)] = &[
    ("cloud-node-controller", "cloud-node"),
    ("cloud-node-lifecycle-controller", "cloud-node-lifecycle"),
    ("kube-apiserver-serving-clustertrustbundle-publisher-controller", ""),
    ("node-route-controller", "route"),
    ("podcertificaterequest-cleaner-controller", ""),
    ("podgroup-protection-controller", ""),
    ("resourcepoolstatusrequest-controller", ""),
    ("selinux-warning-controller", ""),
    ("service-lb-controller", "service"),
    ("storage-version-migrator-controller", ""),
    ("storageversion-garbage-collector-controller", "storage-version-gc"),
];

pub static ROWS: &[Row] = &[
    row("deployment-controller", "deployment", "deployment-controller", deployment::start),
    row("replicaset-controller", "replicaset", "replicaset-controller", replica_set::start_replica_set),
    row(
        "replicationcontroller-controller",
        "replicationcontroller",
        "replication-controller",
        replica_set::start_replication_controller,
    ),
    row("endpointslice-controller", "endpointslice", "endpointslice-controller", endpoint_slice::start),
    row("endpoints-controller", "endpoint", "endpoint-controller", endpoints::start),
    row("serviceaccount-controller", "serviceaccount", "service-account-controller", service_account::start),
    row(
        "root-ca-certificate-publisher-controller",
        "root-ca-cert-publisher",
        "root-ca-cert-publisher",
        root_ca::start,
    ),
    row("namespace-controller", "namespace", "namespace-controller", namespace::start),
    row(
        "garbage-collector-controller",
        "garbagecollector",
        "generic-garbage-collector",
        garbage_collector::start,
    ),
    row("node-ipam-controller", "nodeipam", "node-controller", node_ipam::start),
    row("node-lifecycle-controller", "nodelifecycle", "node-controller", node_lifecycle::start),
    row("taint-eviction-controller", "taint-eviction", "node-controller", taint_eviction::start),
    row(
        "device-taint-eviction-controller",
        "device-taint-eviction",
        "device-taint-eviction-controller",
        device_taint_eviction::start,
    ),
    row(
        "resourceclaim-controller",
        "resource-claim-controller",
        "resource-claim-controller",
        resource_claim::start,
    ),
    row(
        "validatingadmissionpolicy-status-controller",
        "validatingadmissionpolicy-status",
        "validatingadmissionpolicy-status-controller",
        policy_status::start,
    ),
    row("pod-garbage-collector-controller", "podgc", "pod-garbage-collector", pod_gc::start),
    row(
        "ttl-after-finished-controller",
        "ttl-after-finished",
        "ttl-after-finished-controller",
        ttl_after_finished::start,
    ),
    row("job-controller", "job", "job-controller", job::start),
    row("cronjob-controller", "cronjob", "cronjob-controller", cron_job::start),
    row("daemonset-controller", "daemonset", "daemon-set-controller", daemon_set::start),
    row("statefulset-controller", "statefulset", "statefulset-controller", stateful_set::start),
    row(
        "horizontal-pod-autoscaler-controller",
        "horizontalpodautoscaling",
        "horizontal-pod-autoscaler",
        horizontal_pod_autoscaler::start,
    ),
    row("disruption-controller", "disruption", "disruption-controller", disruption::start),
    row("resourcequota-controller", "resourcequota", "resourcequota-controller", resource_quota::start),
    row(
        "clusterrole-aggregation-controller",
        "clusterrole-aggregation",
        "clusterrole-aggregation-controller",
        cluster_role_aggregation::start,
    ),
    row(
        "certificatesigningrequest-approving-controller",
        "csrapproving",
        "certificate-controller",
        certificates::start_approving,
    ),
    row(
        "certificatesigningrequest-signing-controller",
        "csrsigning",
        "certificate-controller",
        certificates::start_signing,
    ),
    row(
        "certificatesigningrequest-cleaner-controller",
        "csrcleaner",
        "certificate-controller",
        certificates::start_cleaning,
    ),
    off("bootstrap-signer-controller", "bootstrapsigner", "bootstrap-signer", bootstrap_tokens::start_signer),
    off("token-cleaner-controller", "tokencleaner", "token-cleaner", bootstrap_tokens::start_cleaner),
    row(
        "persistentvolumeclaim-protection-controller",
        "pvc-protection",
        "pvc-protection-controller",
        storage_protection::start_claims,
    ),
    row(
        "persistentvolume-protection-controller",
        "pv-protection",
        "pv-protection-controller",
        storage_protection::start_volumes,
    ),
    row(
        "volumeattributesclass-protection-controller",
        "volumeattributesclass-protection-controller",
        "volumeattributesclass-protection-controller",
        storage_protection::start_attributes_classes,
    ),
    row(
        "ephemeral-volume-controller",
        "ephemeral-volume",
        "ephemeral-volume-controller",
        ephemeral_volume::start,
    ),
    row(
        "service-cidr-controller",
        "service-cidr-controller",
        "service-cidrs-controller",
        service_cidr::start,
    ),
    row("ttl-controller", "ttl", "ttl-controller", ttl::start),
    row(
        "endpointslice-mirroring-controller",
        "endpointslicemirroring",
        "endpointslicemirroring-controller",
        endpoint_slice_mirroring::start,
    ),
    row(
        "persistentvolume-binder-controller",
        "persistentvolume-binder",
        "persistent-volume-binder",
        persistent_volume::start,
    ),
    row(
        "persistentvolume-attach-detach-controller",
        "attachdetach",
        "attachdetach-controller",
        attach_detach::start,
    ),
    row(
        "persistentvolume-expander-controller",
        "persistentvolume-expander",
        "expand-controller",
        volume_expansion::start,
    ),
    // Ferry's own, and no name of upstream's.
    row(
        "local-volume-provisioner-controller",
        "local-volume-provisioner",
        "persistent-volume-binder",
        local_volume::start,
    ),
    row(
        "legacy-serviceaccount-token-cleaner-controller",
        "legacy-service-account-token-cleaner",
        "legacy-service-account-token-cleaner",
        legacy_token_cleaner::start,
    ),
    row("serviceaccount-token-controller", "serviceaccount-token", "", service_account_token::start),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream's own list, `kube-controller-manager --help` of v1.36.4.
    const UPSTREAM: &str = "bootstrap-signer-controller certificatesigningrequest-approving-controller \
        certificatesigningrequest-cleaner-controller certificatesigningrequest-signing-controller \
        cloud-node-lifecycle-controller clusterrole-aggregation-controller cronjob-controller daemonset-controller \
        deployment-controller device-taint-eviction-controller disruption-controller endpoints-controller \
        endpointslice-controller endpointslice-mirroring-controller ephemeral-volume-controller \
        garbage-collector-controller horizontal-pod-autoscaler-controller job-controller \
        kube-apiserver-serving-clustertrustbundle-publisher-controller legacy-serviceaccount-token-cleaner-controller \
        namespace-controller node-ipam-controller node-lifecycle-controller node-route-controller \
        persistentvolume-attach-detach-controller persistentvolume-binder-controller \
        persistentvolume-expander-controller persistentvolume-protection-controller \
        persistentvolumeclaim-protection-controller pod-garbage-collector-controller \
        podcertificaterequest-cleaner-controller podgroup-protection-controller replicaset-controller \
        replicationcontroller-controller resourceclaim-controller resourcepoolstatusrequest-controller \
        resourcequota-controller root-ca-certificate-publisher-controller selinux-warning-controller \
        service-cidr-controller service-lb-controller serviceaccount-controller serviceaccount-token-controller \
        statefulset-controller storage-version-migrator-controller storageversion-garbage-collector-controller \
        taint-eviction-controller token-cleaner-controller ttl-after-finished-controller ttl-controller \
        validatingadmissionpolicy-status-controller volumeattributesclass-protection-controller";

    #[test]
    fn every_controller_of_upstream_runs_or_is_explained() {
        let page = include_str!("../../../docs/control.md");
        let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '-';
        let words = |text: &'static str| text.split(move |letter| !is_part(letter));
        let explained: Vec<&str> =
            page.lines().filter(|line| line.starts_with("| ")).flat_map(words).collect();
        for name in UPSTREAM.split_whitespace() {
            let runs = ROWS.iter().any(|row| row.name == name);
            assert!(
                runs != explained.contains(&name),
                "{name} runs: {runs}; the table of others must say the opposite"
            );
            assert!(words(page).any(|word| word == name), "{name} is not on the page");
        }
    }
}
