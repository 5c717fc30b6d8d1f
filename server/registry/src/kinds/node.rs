//! Node: registered by its kubelet, status included.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;

use crate::columns::{AGE, Column};
use crate::strategy::{Rules, Selectable, Traits, Typed};

pub static STRATEGY: Typed<Node, NodeRules> = Typed::new(NodeRules);

pub struct NodeRules;

impl Rules<Node> for NodeRules {
    fn validate_update(&self, new: &Node, old: &Node, errors: &mut FieldErrors) {
        let cidrs =
            |node: &Node| node.spec.as_ref().and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default();
        if !cidrs(old).is_empty() && cidrs(new) != cidrs(old) {
            errors
                .forbidden("spec.podCIDRs", "node updates may not change podCIDR except from \"\" to valid");
        }
        let provider =
            |node: &Node| node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
        if !provider(old).is_empty() && provider(new) != provider(old) {
            errors.forbidden(
                "spec.providerID",
                "node updates may not change providerID except from \"\" to valid",
            );
        }
        let taints = new.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for (index, taint) in taints.enumerate() {
            if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&taint.effect.as_str()) {
                errors.not_supported(
                    format!("metadata.taints[{index}].effect"),
                    taint.effect.as_str(),
                    &["NoSchedule", "PreferNoSchedule", "NoExecute"],
                );
            }
            let key = (taint.key.as_str(), taint.effect.as_str());
            if seen.contains(&key) {
                errors.duplicate(format!("metadata.taints[{index}]"), format!("{}:{}", key.0, key.1));
            }
            seen.push(key);
        }
    }

    fn selectable(&self) -> &'static [Selectable] {
        static FIELDS: &[Selectable] =
            &[Selectable { field: "spec.unschedulable", path: &["spec", "unschedulable"], absent: "false" }];
        FIELDS
    }

    fn columns(&self) -> &'static [Column] {
        const INFO: &[&str] = &["status", "nodeInfo"];
        fn info(object: &Object, field: &str) -> Value {
            let path: Vec<&str> = INFO.iter().copied().chain([field]).collect();
            object.text_at(&path).into()
        }
        fn address(object: &Object, kind: &str) -> Value {
            let list = object.get(&["status", "addresses"]).and_then(Value::as_array);
            list.into_iter()
                .flatten()
                .find(|address| address.get("type").and_then(Value::as_str) == Some(kind))
                .and_then(|address| address.get("address").cloned())
                .unwrap_or_else(|| "<none>".into())
        }
        static COLUMNS: &[Column] = &[
            Column::text("Status", |object, _| status(object).into()),
            Column::text("Roles", |object, _| roles(object).into()),
            AGE,
            Column::text("Version", |object, _| info(object, "kubeletVersion")),
            Column::text("Internal-IP", |object, _| address(object, "InternalIP")).wide(),
            Column::text("External-IP", |object, _| address(object, "ExternalIP")).wide(),
            Column::text("OS-Image", |object, _| info(object, "osImage")).wide(),
            Column::text("Kernel-Version", |object, _| info(object, "kernelVersion")).wide(),
            Column::text("Container-Runtime", |object, _| info(object, "containerRuntimeVersion")).wide(),
        ];
        COLUMNS
    }

    fn traits(&self) -> Traits {
        Traits { created_with_status: true, ..Traits::default() }
    }
}

fn status(node: &Object) -> String {
    let ready = node
        .get(&["status", "conditions"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .find(|condition| condition.get("type").and_then(Value::as_str) == Some("Ready"))
        .and_then(|condition| condition.get("status").and_then(Value::as_str));
    let mut words = vec![match ready {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }];
    if node.get(&["spec", "unschedulable"]).and_then(Value::as_bool) == Some(true) {
        words.push("SchedulingDisabled");
    }
    words.join(",")
}

fn roles(node: &Object) -> String {
    let mut roles: Vec<&str> = node
        .labels()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None => (key == "kubernetes.io/role").then_some(value),
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".into() } else { roles.join(",") }
}
