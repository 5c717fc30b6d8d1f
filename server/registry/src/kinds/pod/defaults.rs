//! Defaults of a pod's spec that depend on other fields; the plain ones are in the table.

use serde_json::{Map, Value, json};

/// Sets them in a pod or in a template.
pub fn spec(spec: &mut Map<String, Value>) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(container) = container {
                default_container(container);
            }
        }
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::Object(volume) = volume {
            default_volume(volume);
        }
    }
    spec.entry("securityContext").or_insert_with(|| json!({}));
    // The old name of the account follows the new one.
    if let Some(account) =
        spec.get("serviceAccountName").cloned().or_else(|| spec.get("serviceAccount").cloned())
    {
        spec.insert("serviceAccountName".into(), account.clone());
        spec.insert("serviceAccount".into(), account);
    }
}

/// What holds for pods and not for templates of them.
pub fn of_pod(spec: &mut Map<String, Value>) {
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds < 0) {
        spec.insert("terminationGracePeriodSeconds".into(), 1.into());
    }
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool) == Some(true);
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(container) = container {
                default_amounts(container, host_network);
            }
        }
    }
}

fn default_container(container: &mut Map<String, Value>) {
    default_pull_policy(container, "image", "imagePullPolicy");
}

fn default_volume(volume: &mut Map<String, Value>) {
    // A volume of which nothing but the name is said is an empty directory.
    if volume.iter().all(|(field, value)| field == "name" || value.is_null()) {
        volume.insert("emptyDir".into(), json!({}));
    }
    if let Some(Value::Object(image)) = volume.get_mut("image") {
        default_pull_policy(image, "reference", "pullPolicy");
    }
}

fn default_pull_policy(holder: &mut Map<String, Value>, image: &str, policy: &str) {
    if !holder.contains_key(policy) {
        let image = holder.get(image).and_then(Value::as_str).unwrap_or("");
        let default = if is_latest(image) { "Always" } else { "IfNotPresent" };
        holder.insert(policy.into(), default.into());
    }
}

/// Requests are the limits where they are not given, and ports of the host the container's own.
fn default_amounts(container: &mut Map<String, Value>, host_network: bool) {
    if let Some(Value::Object(resources)) = container.get_mut("resources")
        && let Some(Value::Object(limits)) = resources.get("limits").cloned()
    {
        let requests = resources.entry("requests").or_insert_with(|| json!({}));
        if let Value::Object(requests) = requests {
            for (name, limit) in limits {
                requests.entry(name).or_insert(limit);
            }
        }
    }
    if host_network {
        for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            let number = port.get("containerPort").cloned();
            if let (Value::Object(port), Some(number)) = (port, number) {
                port.entry("hostPort").or_insert(number);
            }
        }
    }
}

/// An image without a tag or digest, or tagged `latest`, is looked for anew at each start.
fn is_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    name.rsplit_once(':').is_none_or(|(_, tag)| tag == "latest")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_grace_period_of_a_pod_is_one_second() {
        for (given, becomes) in [(-1, 1), (0, 0), (30, 30)] {
            let mut spec = json!({"terminationGracePeriodSeconds": given});
            of_pod(spec.as_object_mut().expect("an object"));
            assert_eq!(spec["terminationGracePeriodSeconds"], becomes);
        }
    }

    #[test]
    fn the_pull_policy_follows_the_tag() {
        for (image, latest) in [
            ("nginx", true),
            ("nginx:latest", true),
            ("nginx:1.29", false),
            ("host:5000/nginx", true),
            ("host:5000/nginx:1", false),
            ("nginx@sha256:abc", false),
        ] {
            assert_eq!(is_latest(image), latest, "{image}");
        }
    }
}
