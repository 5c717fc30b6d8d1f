//! Kinds whose rules are switches of the pipeline and nothing more.

use std::time::Duration;

use serde_json::Value;

use crate::strategy::{NameRule, Rules, Selectable, Strategy, Traits, Typed};

/// A row: the switches, and the fields that selectors may name.
struct Switches {
    traits: Traits,
    selectable: &'static [Selectable],
}

impl Rules<Value> for Switches {
    fn traits(&self) -> Traits {
        self.traits
    }

    fn selectable(&self) -> &'static [Selectable] {
        self.selectable
    }
}

const fn row(traits: Traits) -> Typed<Value, Switches> {
    Typed::new(Switches { traits, selectable: &[] })
}

const fn selectable(traits: Traits, selectable: &'static [Selectable]) -> Typed<Value, Switches> {
    Typed::new(Switches { traits, selectable })
}

const NONE: Traits = Traits::PLAIN;
const COUNTED: Traits = Traits { generation: true, ..NONE };
const ROLE: Traits = Traits { name: NameRule::PathSegment, create_on_update: true, ..NONE };
const CONDITIONAL: Traits = Traits { unconditional_update: false, ..NONE };
const COUNTED_CONDITIONAL: Traits = Traits { unconditional_update: false, ..COUNTED };
const ANSWERS: Traits = Traits { answers_deleted: true, ..NONE };

/// Events go away after an hour.
const EVENT: Traits = Traits {
    ttl: Some(Duration::from_secs(3600)),
    relaxed: true,
    create_on_update: true,
    name: NameRule::DnsSubdomain,
    ..NONE
};

static EVENT_FIELDS: &[Selectable] = &[
    Selectable { field: "involvedObject.kind", path: &["involvedObject", "kind"], absent: "" },
    Selectable { field: "involvedObject.namespace", path: &["involvedObject", "namespace"], absent: "" },
    Selectable { field: "involvedObject.name", path: &["involvedObject", "name"], absent: "" },
    Selectable { field: "involvedObject.uid", path: &["involvedObject", "uid"], absent: "" },
    Selectable { field: "involvedObject.apiVersion", path: &["involvedObject", "apiVersion"], absent: "" },
    Selectable {
        field: "involvedObject.resourceVersion",
        path: &["involvedObject", "resourceVersion"],
        absent: "",
    },
    Selectable { field: "involvedObject.fieldPath", path: &["involvedObject", "fieldPath"], absent: "" },
    Selectable { field: "reason", path: &["reason"], absent: "" },
    Selectable { field: "reportingComponent", path: &["reportingComponent"], absent: "" },
    Selectable { field: "source", path: &["source", "component"], absent: "" },
    Selectable { field: "type", path: &["type"], absent: "" },
];

static JOB_FIELDS: &[Selectable] =
    &[Selectable { field: "status.successful", path: &["status", "succeeded"], absent: "0" }];

static CSR_FIELDS: &[Selectable] =
    &[Selectable { field: "spec.signerName", path: &["spec", "signerName"], absent: "" }];

static RESOURCE_SLICE_FIELDS: &[Selectable] = &[
    Selectable { field: "spec.nodeName", path: &["spec", "nodeName"], absent: "" },
    Selectable { field: "spec.driver", path: &["spec", "driver"], absent: "" },
];

static RC_FIELDS: &[Selectable] =
    &[Selectable { field: "status.replicas", path: &["status", "replicas"], absent: "0" }];

pub fn strategy(group: &str, kind: &str) -> Option<&'static dyn Strategy> {
    Some(match (group, kind) {
        ("", "Event") => {
            static S: Typed<Value, Switches> = selectable(EVENT, EVENT_FIELDS);
            &S
        }
        ("batch", "Job") => {
            static S: Typed<Value, Switches> = selectable(COUNTED, JOB_FIELDS);
            &S
        }
        ("", "ReplicationController") => {
            static S: Typed<Value, Switches> = selectable(COUNTED, RC_FIELDS);
            &S
        }
        ("certificates.k8s.io", "CertificateSigningRequest") => {
            static S: Typed<Value, Switches> = selectable(NONE, CSR_FIELDS);
            &S
        }
        ("resource.k8s.io", "ResourceSlice") => {
            static S: Typed<Value, Switches> =
                selectable(Traits { answers_deleted: true, ..COUNTED }, RESOURCE_SLICE_FIELDS);
            &S
        }
        ("coordination.k8s.io", "Lease" | "LeaseCandidate") => {
            static S: Typed<Value, Switches> =
                row(Traits { create_on_update: true, relaxed: true, ..CONDITIONAL });
            &S
        }
        ("rbac.authorization.k8s.io", _) => {
            static S: Typed<Value, Switches> = row(ROLE);
            &S
        }
        ("", "LimitRange" | "Endpoints") => {
            static S: Typed<Value, Switches> = row(Traits { create_on_update: true, ..NONE });
            &S
        }
        ("node.k8s.io", "RuntimeClass") => {
            static S: Typed<Value, Switches> = row(Traits { create_on_update: true, ..CONDITIONAL });
            &S
        }
        ("policy", "PodDisruptionBudget") | ("admissionregistration.k8s.io", _) => {
            static S: Typed<Value, Switches> = row(COUNTED_CONDITIONAL);
            &S
        }
        ("storage.k8s.io", "CSIDriver" | "CSINode" | "VolumeAttachment") => {
            static S: Typed<Value, Switches> = row(Traits { answers_deleted: true, ..CONDITIONAL });
            &S
        }
        ("storage.k8s.io", "CSIStorageCapacity") | ("certificates.k8s.io", _) => {
            static S: Typed<Value, Switches> = row(CONDITIONAL);
            &S
        }
        ("storage.k8s.io", _)
        | ("", "ResourceQuota" | "PersistentVolume" | "PersistentVolumeClaim" | "ServiceAccount") => {
            static S: Typed<Value, Switches> = row(ANSWERS);
            &S
        }
        ("resource.k8s.io", "DeviceClass" | "DeviceTaintRule") | ("", "PodTemplate") => {
            static S: Typed<Value, Switches> = row(Traits { answers_deleted: true, ..COUNTED });
            &S
        }
        ("resource.k8s.io", _) => {
            static S: Typed<Value, Switches> = row(ANSWERS);
            &S
        }
        ("apps", "DaemonSet" | "StatefulSet")
        | ("batch", "CronJob")
        | ("networking.k8s.io", "IngressClass" | "NetworkPolicy" | "Ingress")
        | ("discovery.k8s.io", "EndpointSlice")
        | ("scheduling.k8s.io", _)
        | ("flowcontrol.apiserver.k8s.io", _)
        | ("apiextensions.k8s.io", _) => {
            static S: Typed<Value, Switches> = row(COUNTED);
            &S
        }
        _ => return None,
    })
}
