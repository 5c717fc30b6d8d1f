//! A container beside those of the pod, for pods that ask for one by annotation.

use serde_json::{Value, json};

use crate::Decision;

pub const ANNOTATION: &str = "sidecar.example.com/image";

pub fn sidecar(pod: &mut Value) -> Decision {
    let image = pod["metadata"]["annotations"][ANNOTATION].clone();
    if let (Some(image), Some(containers)) = (image.as_str(), pod["spec"]["containers"].as_array_mut()) {
        containers.push(json!({"name": "sidecar", "image": image}));
    }
    Decision::Finished
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pods_that_ask_get_a_sidecar() {
        let containers = |annotations: Value| {
            let mut pod =
                json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "app"}]}});
            assert_eq!(sidecar(&mut pod), Decision::Finished);
            pod["spec"]["containers"].as_array().map(Vec::len)
        };
        assert_eq!(containers(Value::Null), Some(1));
        assert_eq!(containers(json!({ANNOTATION: "proxy:1"})), Some(2));
    }
}
