//! A volume with test certificates in every container of the pods of a namespace.

use serde_json::{Value, json};

use crate::Decision;

pub const VOLUME: &str = "test-certificates";
pub const MOUNT_PATH: &str = "/var/run/test-certificates";

pub fn test_certificates(namespace: &str) -> impl Fn(&mut Value) -> Decision + use<> {
    let namespace = namespace.to_string();
    move |pod| {
        if pod["metadata"]["namespace"] == namespace.as_str() {
            add(&mut pod["spec"]["volumes"], json!({"name": VOLUME, "secret": {"secretName": VOLUME}}));
            for container in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
                let mount = json!({"name": VOLUME, "mountPath": MOUNT_PATH, "readOnly": true});
                add(&mut container["volumeMounts"], mount);
            }
        }
        Decision::Finished
    }
}

fn add(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        other => *other = Value::Array(vec![item]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_container_of_the_namespace_sees_the_certificates() {
        let pod = |namespace| json!({"metadata": {"namespace": namespace}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
        let (mut inside, mut outside) = (pod("tests"), pod("other"));
        let decide = test_certificates("tests");
        decide(&mut inside);
        decide(&mut outside);
        assert_eq!(inside["spec"]["volumes"][0]["secret"]["secretName"], VOLUME);
        assert_eq!(inside["spec"]["containers"][1]["volumeMounts"][0]["mountPath"], MOUNT_PATH);
        assert_eq!(outside, pod("other"));
    }
}
