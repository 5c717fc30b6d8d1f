//! Static defaults: what a field is when nobody gave it a value, read off the rows. Defaults that
//! depend on other fields belong to the strategies of the registry.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use crate::object::Object;
use crate::quantity::{Format, Quantity};
use crate::types::{Field, Schema, Shape, Type, TypeId, Types};
use crate::zero;

/// Sets the defaults of an object that came through [`json::decode`](crate::json::decode) or its like.
pub fn apply(object: &mut Object, schema: &Schema) {
    let ty = schema.root();
    for (path, value) in &ty.assumptions {
        assume(&mut object.0, path, value, ty, &schema.types);
    }
    structure(&mut object.0, schema.root, &schema.types);
}

/// Walks the fields of the type and those of the object side by side; both are in the order of their names.
fn structure(map: &mut Map<String, Value>, id: TypeId, types: &Types) {
    let ty = types.get(id);
    let mut missing = Vec::new();
    let mut given = map.iter_mut();
    let mut next = given.next();
    for defaulted in &ty.defaulted {
        let field = &ty.fields[defaulted.index as usize];
        let order = loop {
            match &next {
                None => break Ordering::Greater,
                Some((name, _)) => match name.as_str().cmp(&field.name) {
                    Ordering::Less => next = given.next(),
                    order => break order,
                },
            }
        };
        match &mut next {
            Some((_, value)) if order.is_eq() => {
                if defaulted.itself {
                    itself(value, field, types);
                }
                if defaulted.below {
                    nested(value, &field.shape, types);
                }
            }
            _ => missing.extend(default_of(field).map(|default| (defaulted, default))),
        }
    }
    for (defaulted, default) in missing {
        let field = &ty.fields[defaulted.index as usize];
        let mut value = completed(default, field, types);
        if defaulted.below {
            nested(&mut value, &field.shape, types);
        }
        map.insert(field.name.as_ref().to_owned(), value);
    }
}

/// The default of a field, where it is not the same as none.
fn default_of(field: &Field) -> Option<&Value> {
    let default = field.default.as_ref().or(field.assume.as_ref())?;
    (!zero::is_left_out(field, default)).then_some(default)
}

/// Gives a field that is there its default, where its value is a zero one that cannot be told from none.
fn itself(value: &mut Value, field: &Field, types: &Types) {
    if !is_given(value, field)
        && let Some(default) = default_of(field)
    {
        *value = completed(default, field, types);
    }
    if field.milli
        && let Value::Object(quantities) = value
    {
        quantities.values_mut().for_each(round_up_to_milli);
    }
}

fn is_given(value: &Value, field: &Field) -> bool {
    match value {
        Value::Null => false,
        _ if field.pointer => true,
        value => !is_zero(value),
    }
}

fn completed(default: &Value, field: &Field, types: &Types) -> Value {
    let mut value = default.clone();
    complete(&mut value, &field.shape, types);
    value
}

fn nested(value: &mut Value, shape: &Shape, types: &Types) {
    match (shape, value) {
        (Shape::Struct(id), Value::Object(map)) => structure(map, *id, types),
        (Shape::List(element), Value::Array(items)) => {
            items.iter_mut().for_each(|item| nested(item, element, types));
        }
        (Shape::Map(element), Value::Object(entries)) => {
            entries.values_mut().for_each(|entry| nested(entry, element, types));
        }
        _ => {}
    }
}

fn assume(map: &mut Map<String, Value>, path: &[Box<str>], value: &Value, ty: &Type, types: &Types) {
    let Some((first, rest)) = path.split_first() else { return };
    let Some(field) = ty.field(first) else { return };
    match (rest.is_empty(), &field.shape) {
        (true, _) => {
            let given = map.get(first.as_ref()).is_some_and(|value| is_given(value, field));
            if !given && !zero::is_left_out(field, value) {
                map.insert(first.as_ref().to_owned(), completed(value, field, types));
            }
        }
        (false, Shape::Struct(id)) => {
            if let Some(Value::Object(inner)) = map.get_mut(first.as_ref()) {
                assume(inner, rest, value, types.get(*id), types);
            }
        }
        _ => {}
    }
}

/// A default that is a struct gets the fields that are written even when empty, as one read would have.
fn complete(value: &mut Value, shape: &Shape, types: &Types) {
    match (shape, value) {
        (Shape::Struct(id), Value::Object(map)) => {
            let ty = types.get(*id);
            for field in &ty.fields {
                if let Some(inner) = map.get_mut(field.name.as_ref()) {
                    complete(inner, &field.shape, types);
                }
            }
            zero::fill(map, ty, types);
        }
        (Shape::List(element), Value::Array(items)) => {
            items.iter_mut().for_each(|item| complete(item, element, types));
        }
        _ => {}
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(given) => !given,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) => false,
    }
}

/// Nothing is finer than a thousandth of a CPU or a byte.
fn round_up_to_milli(value: &mut Value) {
    let Some(quantity) = value.as_str().and_then(|text| Quantity::parse(text).ok()) else { return };
    let rounded = Quantity::from_milli(quantity.milli(), quantity.format());
    let representable = quantity.milli() < i64::MAX && quantity.milli() > i64::MIN;
    if representable && rounded != quantity {
        let format =
            if quantity.format() == Format::BinarySi { Format::DecimalSi } else { quantity.format() };
        *value = Quantity::from_milli(quantity.milli(), format).to_string().into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{self, FieldValidation};
    use crate::kinds::GroupVersionKind;
    use serde_json::json;

    fn defaulted(value: Value) -> Value {
        let api_version = value["apiVersion"].as_str().expect("apiVersion").to_string();
        let gvk = GroupVersionKind::from_api_version(&api_version, value["kind"].as_str().expect("kind"));
        let schema = Schema::builtin(&gvk).expect("a built-in kind");
        let mut object = json::decode_value(value, &schema, FieldValidation::Strict).expect("fits").object;
        apply(&mut object, &schema);
        let once = object.clone();
        apply(&mut object, &schema);
        assert_eq!(object, once, "defaults are set once");
        object.into_value()
    }

    #[test]
    fn a_pod_gets_what_users_see() {
        let pod = defaulted(json!({"apiVersion": "v1", "kind": "Pod", "spec": {
            "containers": [{"name": "a", "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "0.0001", "memory": "1.5"}},
                "livenessProbe": {"httpGet": {"port": 80}}, "env": [{"name": "A", "valueFrom":
                    {"fieldRef": {"fieldPath": "metadata.name"}}}]}],
            "volumes": [{"name": "s", "secret": {"secretName": "s"}}, {"name": "h", "hostPath": {"path": "/"}}]}}));
        assert_eq!(
            pod["spec"],
            json!({"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "securityContext": {},
                "terminationGracePeriodSeconds": 30, "schedulerName": "default-scheduler",
                "enableServiceLinks": true,
                "containers": [{"name": "a", "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "resources": {"limits": {"cpu": "1m", "memory": "1500m"}},
                    "ports": [{"containerPort": 80, "protocol": "TCP"}],
                    "livenessProbe": {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                        "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
                    "env": [{"name": "A", "valueFrom":
                        {"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v1"}}}]}],
                "volumes": [{"name": "s", "secret": {"secretName": "s", "defaultMode": 420}},
                    {"name": "h", "hostPath": {"path": "/", "type": ""}}]})
        );
    }

    #[test]
    fn a_template_has_the_defaults_of_a_pod_spec_but_not_of_a_pod() {
        let deployment = defaulted(json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "spec": {"replicas": 0, "template": {"spec": {"containers": [{"name": "a"}]}}}}));
        assert_eq!(deployment["spec"]["replicas"], json!(0));
        assert_eq!(deployment["spec"]["strategy"], json!({"type": "RollingUpdate"}));
        let template = &deployment["spec"]["template"]["spec"];
        assert_eq!(template["restartPolicy"], json!("Always"));
        assert_eq!(template.get("enableServiceLinks"), None);
    }

    #[test]
    fn defaults_inside_defaults_are_set_too() {
        let set = defaulted(json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {}}));
        assert_eq!(
            set["spec"]["persistentVolumeClaimRetentionPolicy"],
            json!({"whenDeleted": "Retain", "whenScaled": "Retain"})
        );
        let driver = defaulted(json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "spec": {}}));
        assert_eq!(driver["spec"]["volumeLifecycleModes"], json!(["Persistent"]));
        let job = defaulted(json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {}}}));
        assert_eq!(job["spec"]["completionMode"], json!("NonIndexed"));
        let cron =
            defaulted(json!({"apiVersion": "batch/v1", "kind": "CronJob", "spec": {"jobTemplate": {}}}));
        assert_eq!(cron["spec"]["jobTemplate"]["spec"].get("completionMode"), None);
        assert_eq!(cron["spec"]["suspend"], json!(false));
    }
}
