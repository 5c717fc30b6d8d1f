//! Kinds whose rules are switches of the pipeline and rows of `rules.txt`: a row each here.

use ferry_api::{Object, Status};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::device_claim;
use super::device_taint;
use super::pod;
use super::rules;
use super::tables::{cluster, network, pods, storage, workloads};
use crate::columns::Column;
use crate::registry::Registry;
use crate::strategy::{NameRule, Relaxed, Rules, Selectable, Strategy, StrategyOptions, TxnPart, Typed};

pub fn strategy(group: &str, kind: &str) -> Option<&'static dyn Strategy> {
    let row = ROWS.iter().find(|row| row.group == group && row.kind == kind)?;
    Some(&row.strategy)
}

struct Row {
    group: &'static str,
    kind: &'static str,
    strategy: Typed<IgnoredAny, Switches>,
}

/// The switches, the fields that selectors may name, what `kubectl get` shows, and defaults that follow from other fields.
#[derive(Clone, Copy)]
struct Switches {
    default: fn(&mut Object),
    strategy_options: StrategyOptions,
    selectable: &'static [Selectable],
    columns: &'static [Column],
    prepare_create: fn(&mut Object),
    prepare_update: fn(&mut Object, &Object),
    prepare_status: fn(&mut Object, &Object),
    /// What other objects have to say about a write.
    allowed: fn(&Registry, &Object, Option<&Object>) -> Result<(), Status>,
}

impl Rules<IgnoredAny> for Switches {
    fn default(&self, object: &mut Object) {
        (self.default)(object);
    }

    fn options(&self) -> StrategyOptions {
        self.strategy_options
    }

    fn prepare_create(&self, object: &mut Object) {
        (self.prepare_create)(object);
    }

    fn prepare_update(&self, new: &mut Object, old: &Object) {
        (self.prepare_update)(new, old);
    }

    fn prepare_status_update(&self, new: &mut Object, old: &Object) {
        (self.prepare_status)(new, old);
    }

    fn selectable(&self) -> &[Selectable] {
        self.selectable
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        self.columns
    }

    fn txn_parts(
        &self,
        registry: &Registry,
        new: Option<&mut Object>,
        old: Option<&Object>,
    ) -> Result<Vec<TxnPart>, Status> {
        if let Some(new) = new {
            (self.allowed)(registry, new, old)?;
        }
        Ok(Vec::new())
    }
}

const fn row(
    group: &'static str,
    kind: &'static str,
    strategy_options: StrategyOptions,
    selectable: &'static [Selectable],
    columns: &'static [Column],
) -> Row {
    own(group, kind, switches(strategy_options, selectable, columns))
}

/// A row with more than switches and lists.
const fn own(group: &'static str, kind: &'static str, switches: Switches) -> Row {
    Row { group, kind, strategy: Typed::new(switches) }
}

const fn switches(
    strategy_options: StrategyOptions,
    selectable: &'static [Selectable],
    columns: &'static [Column],
) -> Switches {
    Switches {
        default: |_| {},
        strategy_options,
        selectable,
        columns,
        prepare_create: |_| {},
        prepare_update: |_, _| {},
        prepare_status: |_, _| {},
        allowed: |_, _, _| Ok(()),
    }
}

/// A kind with claims for devices.
const fn claims(kind: &'static str, columns: &'static [Column]) -> Row {
    let switches = Switches {
        default: default_device_counts,
        prepare_status: device_claim::drop_deallocated,
        allowed: device_claim::administration,
        ..switches(APART, &[], columns)
    };
    own(DRA, kind, switches)
}

/// A kind that taints devices, from the time on when a taint got its effect.
const fn taints(
    kind: &'static str,
    strategy_options: StrategyOptions,
    selectable: &'static [Selectable],
    columns: &'static [Column],
) -> Row {
    let switches = Switches {
        default: device_taint::default_times,
        prepare_update: device_taint::renew_time,
        ..switches(strategy_options, selectable, columns)
    };
    own(DRA, kind, switches)
}

const POD_TEMPLATE: Switches =
    Switches { default: default_template, ..switches(COUNTED, &[], pods::POD_TEMPLATE) };

/// Its status has fields behind gates, too, and one in its spec has a default.
const POD_GROUP: Switches = Switches {
    prepare_create: |object| {
        object.section_mut("spec").insert("disruptionMode".into(), "Pod".into());
    },
    prepare_status: |new, _| rules::close_gates(new),
    ..switches(APART, &[], workloads::POD_GROUP)
};

fn default_template(object: &mut Object) {
    let spec = object.0.get_mut("template").and_then(|template| template.get_mut("spec"));
    if let Some(spec) = spec.and_then(Value::as_object_mut) {
        pod::defaults::spec(spec);
    }
}

/// A request for devices that does not say how many is for one.
fn default_device_counts(object: &mut Object) {
    let spec = object.section_mut("spec");
    // A template has the claim one level below.
    let spec = match spec.get("devices") {
        Some(_) => Some(spec),
        None => spec.get_mut("spec").and_then(Value::as_object_mut),
    };
    let requests = spec
        .and_then(|spec| spec.get_mut("devices"))
        .and_then(|devices| devices.get_mut("requests"))
        .and_then(Value::as_array_mut);
    for request in requests.into_iter().flatten() {
        let Value::Object(request) = request else { continue };
        if let Some(exactly) = request.get_mut("exactly") {
            default_count(exactly);
        }
        let alternatives = request.get_mut("firstAvailable").and_then(Value::as_array_mut);
        alternatives.into_iter().flatten().for_each(default_count);
    }
}

fn default_count(request: &mut Value) {
    let Value::Object(request) = request else { return };
    if request.get("allocationMode").and_then(Value::as_str).unwrap_or("").is_empty() {
        request.insert("allocationMode".into(), "ExactCount".into());
    }
    let none = request.get("count").and_then(Value::as_i64).unwrap_or(0) == 0;
    if none && request["allocationMode"] == "ExactCount" {
        request.insert("count".into(), 1.into());
    }
}

const NONE: StrategyOptions = StrategyOptions::PLAIN;
const COUNTED: StrategyOptions = StrategyOptions { generation: true, ..NONE };
/// A write of the status leaves the rest alone, its metadata too.
const APART: StrategyOptions = StrategyOptions { status_keeps_metadata: true, ..NONE };
const COUNTED_APART: StrategyOptions = StrategyOptions { status_keeps_metadata: true, ..COUNTED };
const CONDITIONAL_APART: StrategyOptions = StrategyOptions { status_keeps_metadata: true, ..CONDITIONAL };
const CONDITIONAL: StrategyOptions = StrategyOptions { unconditional_update: false, ..NONE };
const CONDITIONAL_COUNTED: StrategyOptions =
    StrategyOptions { generation: true, counts_from_zero: true, ..CONDITIONAL };
const ADDRESS: StrategyOptions = StrategyOptions { name: NameRule::IpAddress, ..NONE };
const UPSERT: StrategyOptions = StrategyOptions { create_on_update: true, ..NONE };
const CONDITIONAL_UPSERT: StrategyOptions = StrategyOptions { create_on_update: true, ..CONDITIONAL };
const LEASE_CANDIDATE: StrategyOptions =
    StrategyOptions { relaxed: Relaxed::Always, name: NameRule::ConfigMapKey, ..CONDITIONAL_UPSERT };
const TRUST_BUNDLE: StrategyOptions = StrategyOptions { name: NameRule::AfterSigner, ..CONDITIONAL };
const STORAGE_VERSION: StrategyOptions =
    StrategyOptions { name: NameRule::GroupResource, ..CONDITIONAL_APART };

const RUNTIME_CLASS: StrategyOptions = StrategyOptions { plain_finalizers: true, ..CONDITIONAL_UPSERT };

/// Events go away after a while.
const EVENT: StrategyOptions = StrategyOptions {
    expires: true,
    relaxed: Relaxed::Always,
    create_on_update: true,
    name: NameRule::PathSegment,
    ..NONE
};

const CERTIFICATES: &str = "certificates.k8s.io";
const DRA: &str = "resource.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";
const NETWORK: &str = "networking.k8s.io";
const SCHEDULING: &str = "scheduling.k8s.io";
const STORAGE: &str = "storage.k8s.io";

#[rustfmt::skip]
static ROWS: &[Row] = &[
    row("", "ComponentStatus", NONE, &[], cluster::COMPONENT_STATUS),
    row("", "Endpoints", UPSERT, &[], network::ENDPOINTS),
    row("", "Event", EVENT, EVENT_FIELDS, pods::EVENT),
    row("events.k8s.io", "Event", EVENT, EVENT_FIELDS, pods::EVENT),
    own("", "PodTemplate", POD_TEMPLATE),
    row("", "ResourceQuota", NONE, &[], cluster::RESOURCE_QUOTA),
    row("apps", "ControllerRevision", NONE, &[], workloads::CONTROLLER_REVISION),
    row(CERTIFICATES, "ClusterTrustBundle", TRUST_BUNDLE, TRUST_BUNDLE_FIELDS, cluster::CLUSTER_TRUST_BUNDLE),
    row(CERTIFICATES, "PodCertificateRequest", CONDITIONAL_APART, POD_CERTIFICATE_FIELDS, cluster::POD_CERTIFICATE_REQUEST),
    row("coordination.k8s.io", "LeaseCandidate", LEASE_CANDIDATE, &[], cluster::LEASE_CANDIDATE),
    row(FLOW, "FlowSchema", COUNTED_APART, &[], cluster::FLOW_SCHEMA),
    row(FLOW, "PriorityLevelConfiguration", COUNTED_APART, &[], cluster::PRIORITY_LEVEL),
    row("internal.apiserver.k8s.io", "StorageVersion", STORAGE_VERSION, &[], cluster::STORAGE_VERSION),
    row("metrics.k8s.io", "NodeMetrics", NONE, &[], cluster::NODE_METRICS),
    row("metrics.k8s.io", "PodMetrics", NONE, &[], pods::POD_METRICS),
    row(NETWORK, "IPAddress", ADDRESS, &[], network::IP_ADDRESS),
    row(NETWORK, "IngressClass", COUNTED, &[], network::INGRESS_CLASS),
    row(NETWORK, "ServiceCIDR", NONE, &[], network::SERVICE_CIDR),
    row("node.k8s.io", "RuntimeClass", RUNTIME_CLASS, &[], cluster::RUNTIME_CLASS),
    row(DRA, "DeviceClass", COUNTED, &[], cluster::AGED),
    taints("DeviceTaintRule", COUNTED_APART, &[], cluster::DEVICE_TAINT_RULE),
    claims("ResourceClaim", cluster::RESOURCE_CLAIM),
    claims("ResourceClaimTemplate", cluster::AGED),
    row(DRA, "ResourcePoolStatusRequest", CONDITIONAL_APART, &[], cluster::POOL_STATUS_REQUEST),
    taints("ResourceSlice", COUNTED, RESOURCE_SLICE_FIELDS, cluster::RESOURCE_SLICE),
    own(SCHEDULING, "PodGroup", POD_GROUP),
    row(SCHEDULING, "Workload", NONE, &[], workloads::WORKLOAD),
    row(STORAGE, "CSIDriver", CONDITIONAL_COUNTED, &[], storage::CSI_DRIVER),
    row(STORAGE, "CSINode", CONDITIONAL, &[], storage::CSI_NODE),
    row(STORAGE, "CSIStorageCapacity", CONDITIONAL, &[], storage::CSI_STORAGE_CAPACITY),
    row(STORAGE, "VolumeAttachment", CONDITIONAL_APART, &[], storage::VOLUME_ATTACHMENT),
    row(STORAGE, "VolumeAttributesClass", NONE, &[], storage::VOLUME_ATTRIBUTES_CLASS),
    row("storagemigration.k8s.io", "StorageVersionMigration", CONDITIONAL_APART, &[], cluster::STORAGE_MIGRATION),
];

static EVENT_FIELDS: &[Selectable] = &[
    Selectable::new("involvedObject.kind", "involvedObject.kind", ""),
    Selectable::new("involvedObject.namespace", "involvedObject.namespace", ""),
    Selectable::new("involvedObject.name", "involvedObject.name", ""),
    Selectable::new("involvedObject.uid", "involvedObject.uid", ""),
    Selectable::new("involvedObject.apiVersion", "involvedObject.apiVersion", ""),
    Selectable::new("involvedObject.resourceVersion", "involvedObject.resourceVersion", ""),
    Selectable::new("involvedObject.fieldPath", "involvedObject.fieldPath", ""),
    Selectable::new("reason", "reason", ""),
    Selectable::new("reportingComponent", "reportingComponent", ""),
    Selectable::new("source", "source.component", ""),
    Selectable::new("source", "reportingComponent", ""),
    Selectable::new("type", "type", ""),
    // the names of events.k8s.io/v1, for the same fields
    Selectable::new("regarding.kind", "involvedObject.kind", ""),
    Selectable::new("regarding.namespace", "involvedObject.namespace", ""),
    Selectable::new("regarding.name", "involvedObject.name", ""),
    Selectable::new("regarding.uid", "involvedObject.uid", ""),
    Selectable::new("regarding.apiVersion", "involvedObject.apiVersion", ""),
    Selectable::new("regarding.resourceVersion", "involvedObject.resourceVersion", ""),
    Selectable::new("regarding.fieldPath", "involvedObject.fieldPath", ""),
    Selectable::new("reportingController", "reportingComponent", ""),
];

static TRUST_BUNDLE_FIELDS: &[Selectable] = &[Selectable::new("spec.signerName", "spec.signerName", "")];

static POD_CERTIFICATE_FIELDS: &[Selectable] = &[
    Selectable::new("spec.signerName", "spec.signerName", ""),
    Selectable::new("spec.podName", "spec.podName", ""),
    Selectable::new("spec.nodeName", "spec.nodeName", ""),
];

static RESOURCE_SLICE_FIELDS: &[Selectable] = &[
    Selectable::new("spec.nodeName", "spec.nodeName", ""),
    Selectable::new("spec.driver", "spec.driver", ""),
];
