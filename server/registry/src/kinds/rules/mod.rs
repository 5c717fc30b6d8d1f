//! The rules of fields, read from `rules.txt` and walked over an object in one pass: formats, bounds, words out of a
//! few, sizes, what must be there and what may not change. Rows stand in the order in which upstream reports. What a
//! row cannot say is a function in one of the files here, and a row names it.

mod autoscaling;
pub mod certificates;
mod code;
mod conditions;
mod containers;
mod devices;
mod events;
pub mod field;
mod flow_control;
pub mod format;
mod gates;
mod go_value;
mod jobs;
mod limits;
mod network;
mod nodes;
mod persistent_volumes;
mod placement;
mod pod_status;
mod pods;
mod resources;
mod services;
mod statuses;
mod storage;
mod table;
mod versions;
mod volume_source;
mod volumes;
mod walk;
mod workloads;

use std::sync::LazyLock;

use ferry_api::{FieldErrors, Object, Types};
use field::Field;
use serde_json::Value;
use table::Table;

use super::checks::Path;
use crate::strategy::UpdateScope;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    table::parse(include_str!("rules.txt"), Types::builtin())
        .expect("the table is part of the program and a test reads it")
});

pub use gates::close as close_gates;

/// What the rows of its kind find wrong with a new object. `group` is the one that the client asked for the kind.
pub fn validate(object: &Object, group: &str, errors: &mut FieldErrors) {
    walk::judge(&TABLE, object, None, group, UpdateScope::Main, errors);
}

/// What a certificate may be used for.
pub fn certificate_usages(usages: &Value, errors: &mut FieldErrors) {
    let spec = Path::root("spec");
    nodes::certificate_usages(Field::of(usages, spec.child("usages")), errors);
}

/// Who is to sign a certificate.
pub fn signer_name(name: &str, errors: &mut FieldErrors) {
    let spec = Path::root("spec");
    format::signer(name, spec.child("signerName"), errors);
}

/// What they find wrong with a changed one.
pub fn validate_update(
    new: &Object,
    old: &Object,
    group: &str,
    scope: UpdateScope<'_>,
    errors: &mut FieldErrors,
) {
    walk::judge(&TABLE, new, Some(old), group, scope, errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn group_of(object: &Object) -> &str {
        object.api_version().split_once('/').map_or("", |(group, _)| group)
    }

    fn faults(value: Value) -> Vec<String> {
        let mut errors = FieldErrors::default();
        let object = Object::from_value(value).expect("an object");
        validate(&object, group_of(&object), &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    fn changed(new: Value, old: Value) -> Vec<String> {
        let object = |value: Value| Object::from_value(value).expect("an object");
        let (new, old) = (object(new), object(old));
        let mut errors = FieldErrors::default();
        validate_update(&new, &old, group_of(&new), UpdateScope::Main, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_pod_is_told_everything_that_is_wrong_with_it() {
        let found = faults(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
            "restartPolicy": "Sometimes", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30,
            "containers": [
                {"name": "a", "imagePullPolicy": "Always", "terminationMessagePolicy": "File",
                 "ports": [{"containerPort": 70000, "protocol": "TCP"}],
                 "volumeMounts": [{"name": "none", "mountPath": "/x"}],
                 "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
                {"name": "a", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"},
            ],
            "securityContext": {"sysctls": [{"name": "net.ipv4..x", "value": "1"}]},
            "tolerations": [{"operator": "Exists", "value": "v"}],
            "volumes": [{"name": "v"}, {"name": "w", "nfs": {"server": "s", "path": "relative"}, "hostPath": {"path": "/"}}],
        }}));
        assert_eq!(
            found,
            [
                "spec.volumes[0]: Required value: must specify a volume type",
                "spec.volumes[1].nfs: Forbidden: may not specify more than 1 volume type",
                "spec.containers[0].image: Required value",
                "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
                "spec.containers[0].volumeMounts[0].name: Not found: \"none\"",
                "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
                "spec.containers[1].name: Duplicate value: \"a\"",
                "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
                "spec.securityContext.sysctls[0].name: Invalid value: \"net.ipv4..x\": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
                "spec.tolerations[0].operator: Invalid value: \"v\": value must be empty when `operator` is 'Exists'",
            ]
        );
    }

    #[test]
    fn immutable_fields_may_not_change() {
        let class = |handler: &str| json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "r"}, "handler": handler});
        assert!(changed(class("a"), class("a")).is_empty());
        assert_eq!(changed(class("b"), class("a")), ["handler: Invalid value: \"b\": field is immutable"]);
        let address = |name: &str| {
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "10.0.0.1"},
                "spec": {"parentRef": {"resource": "services", "name": name}}})
        };
        assert_eq!(
            changed(address("b"), address("a")),
            [
                r#"spec.parentRef: Invalid value: {"Group":"","Resource":"services","Namespace":"","Name":"b"}: field is immutable"#
            ]
        );
    }
}
