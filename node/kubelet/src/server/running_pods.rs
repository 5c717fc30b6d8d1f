//! `/runningpods/`: the pods of which the runtime has a ready sandbox or a running container now, whether or not
//! anybody still wants them. Of their specs it knows names and images of containers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cri;
use crate::runtime::labels;

pub(super) async fn list(runtime: &cri::Client) -> Result<Value, cri::Error> {
    let (sandboxes, containers) =
        tokio::try_join!(runtime.list_pod_sandboxes(None), runtime.list_containers(None))?;
    Ok(pods(&sandboxes, &containers))
}

fn pods(sandboxes: &[cri::PodSandbox], containers: &[cri::Container]) -> Value {
    let mut pods: BTreeMap<[&str; 3], Vec<Value>> = BTreeMap::new();
    for sandbox in sandboxes.iter().filter(|each| each.state == cri::PodSandboxState::SandboxReady as i32) {
        if let Some(pod) = identity(&sandbox.labels) {
            pods.entry(pod).or_default();
        }
    }
    for container in
        containers.iter().filter(|each| each.state == cri::ContainerState::ContainerRunning as i32)
    {
        let name = container.labels.get(labels::CONTAINER_NAME);
        if let (Some(pod), Some(name)) = (identity(&container.labels), name) {
            let image = container.image.as_ref().map_or("", |image| &image.image);
            pods.entry(pod).or_default().push(json!({"name": name, "image": image, "resources": {}}));
        }
    }
    let items: Vec<Value> = pods
        .into_iter()
        .map(|([namespace, name, uid], containers)| {
            json!({
                "metadata": {"name": name, "namespace": namespace, "uid": uid},
                "spec": {"containers": containers},
                "status": {},
            })
        })
        .collect();
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
}

/// Namespace, name and uid; what others run has none.
fn identity(labels: &std::collections::HashMap<String, String>) -> Option<[&str; 3]> {
    let label = |key: &str| labels.get(key).map(String::as_str);
    Some([label(labels::POD_NAMESPACE)?, label(labels::POD_NAME)?, label(labels::POD_UID)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_pod(name: &str, container: Option<&str>) -> std::collections::HashMap<String, String> {
        let mut all = std::collections::HashMap::from([
            (labels::POD_NAME.to_string(), name.to_string()),
            (labels::POD_NAMESPACE.to_string(), "default".to_string()),
            (labels::POD_UID.to_string(), format!("uid-{name}")),
        ]);
        all.extend(container.map(|container| (labels::CONTAINER_NAME.to_string(), container.to_string())));
        all
    }

    #[test]
    fn only_what_runs_is_listed() {
        let sandbox = |name: &str, state: cri::PodSandboxState| cri::PodSandbox {
            labels: of_pod(name, None),
            state: state as i32,
            ..Default::default()
        };
        let container = |pod: &str, name: &str, state: cri::ContainerState| cri::Container {
            labels: of_pod(pod, Some(name)),
            state: state as i32,
            image: Some(cri::ImageSpec { image: "i".into(), ..Default::default() }),
            ..Default::default()
        };
        let sandboxes = [
            sandbox("web", cri::PodSandboxState::SandboxReady),
            sandbox("starting", cri::PodSandboxState::SandboxReady),
            sandbox("ended", cri::PodSandboxState::SandboxNotready),
        ];
        let containers = [
            container("web", "main", cri::ContainerState::ContainerRunning),
            container("web", "first", cri::ContainerState::ContainerExited),
            container("ended", "main", cri::ContainerState::ContainerExited),
            cri::Container { state: cri::ContainerState::ContainerRunning as i32, ..Default::default() },
        ];
        let pod = |name: &str, containers: Value| {
            json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
                "spec": {"containers": containers}, "status": {}})
        };
        assert_eq!(
            pods(&sandboxes, &containers)["items"],
            json!([
                pod("starting", json!([])),
                pod("web", json!([{"name": "main", "image": "i", "resources": {}}])),
            ])
        );
    }
}
