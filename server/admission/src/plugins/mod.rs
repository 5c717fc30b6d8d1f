//! The table of plugins, in the order in which they run.

mod always;
mod certificates;
mod default_class;
mod default_toleration_seconds;
mod deny_service_external_ips;
mod event_rate_limit;
mod extended_resource_toleration;
pub mod initial_resources;
mod limit_pod_hard_anti_affinity_topology;
mod limit_ranger;
mod namespace_exists;
mod namespace_lifecycle;
mod node_declared_feature_validator;
mod node_restriction;
mod owner_references;
mod persistent_volume_claim_resize;
mod pod_resize_validator;
mod pod_security;
mod pod_topology_labels;
mod priority;
mod resource_quota;
mod runtime_class;
mod service_account;
mod storage_object_in_use_protection;
mod taint_nodes_by_condition;

use std::sync::Arc;

use ferry_auth::Authorization;
use ferry_registry::Registry;

use crate::chain::Plugin;
use crate::configuration::{BadConfiguration, Configuration};
use crate::usage_history::UsageHistory;
use crate::{initializers, policy, webhook};

/// What plugins are made from.
pub struct Context {
    pub registry: Arc<Registry>,
    pub authorization: Authorization,
    pub configuration: Configuration,
    /// What containers used in the past.
    pub usage: Arc<UsageHistory>,
}

pub struct Row {
    pub name: &'static str,
    pub by_default: bool,
    make: Make,
}

/// A plugin that is told nothing cannot fail to be made.
enum Make {
    Plain(fn(&Context) -> Arc<dyn Plugin>),
    Configured(fn(&Context) -> Result<Arc<dyn Plugin>, BadConfiguration>),
}

impl Row {
    pub fn make(&self, context: &Context) -> Result<Arc<dyn Plugin>, BadConfiguration> {
        match self.make {
            Make::Plain(make) => Ok(make(context)),
            Make::Configured(make) => make(context),
        }
    }
}

const fn row(name: &'static str, by_default: bool, make: fn(&Context) -> Arc<dyn Plugin>) -> Row {
    Row { name, by_default, make: Make::Plain(make) }
}

const fn configured(
    name: &'static str,
    by_default: bool,
    make: fn(&Context) -> Result<Arc<dyn Plugin>, BadConfiguration>,
) -> Row {
    Row { name, by_default, make: Make::Configured(make) }
}

/// Upstream's order. NodeRestriction is on by default here, unlike upstream: the Node authorizer is, and needs
/// it.
pub static TABLE: &[Row] = &[
    row("AlwaysAdmit", false, always::make_admit),
    row("NamespaceLifecycle", true, namespace_lifecycle::make),
    row("NamespaceExists", false, namespace_exists::make),
    row("LimitPodHardAntiAffinityTopology", false, limit_pod_hard_anti_affinity_topology::make),
    configured(initial_resources::NAME, false, initial_resources::make),
    row("LimitRanger", true, limit_ranger::make),
    row("ServiceAccount", true, service_account::make),
    row("NodeRestriction", true, node_restriction::make),
    row("TaintNodesByCondition", true, taint_nodes_by_condition::make),
    row("AlwaysPullImages", false, always::make_pull_images),
    configured("PodSecurity", true, pod_security::make),
    row("Priority", true, priority::make),
    row("DefaultTolerationSeconds", true, default_toleration_seconds::make),
    configured("EventRateLimit", false, event_rate_limit::make),
    row("ExtendedResourceToleration", false, extended_resource_toleration::make),
    row("DefaultStorageClass", true, default_class::make_storage),
    row("StorageObjectInUseProtection", true, storage_object_in_use_protection::make),
    row("OwnerReferencesPermissionEnforcement", false, owner_references::make),
    row("PersistentVolumeClaimResize", true, persistent_volume_claim_resize::make),
    row("RuntimeClass", true, runtime_class::make),
    row("CertificateApproval", true, certificates::make_approval),
    row("CertificateSigning", true, certificates::make_signing),
    row("ClusterTrustBundleAttest", true, certificates::make_attest),
    row("CertificateSubjectRestriction", true, certificates::make_subject_restriction),
    row("DefaultIngressClass", true, default_class::make_ingress),
    row("DenyServiceExternalIPs", false, deny_service_external_ips::make),
    row("PodTopologyLabels", true, pod_topology_labels::make),
    row("NodeDeclaredFeatureValidator", true, node_declared_feature_validator::make),
    row("PodResizeValidator", true, pod_resize_validator::make),
    row("Initializers", true, initializers::make),
    row("MutatingAdmissionPolicy", true, policy::mutating::make),
    row("MutatingAdmissionWebhook", true, webhook::mutating::make),
    row("ValidatingAdmissionPolicy", true, policy::validating::make),
    row("ValidatingAdmissionWebhook", true, webhook::validating::make),
    configured("ResourceQuota", true, resource_quota::make),
    row("AlwaysDeny", false, always::make_deny),
];
