//! Pods from manifests in a directory: they run whether or not there is an
//! API server.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::CancellationToken;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Toleration};
use tokio_util::task::TaskTracker;

use crate::blocking::blocking;
use crate::directory_watch::{self, DirectoryWatch};
use crate::pod;
use crate::pods::Pods;

/// Keeps the node's static pods in step with the directory. `read_once` is set when all of them are known.
pub async fn run(
    directory: std::path::PathBuf,
    node_name: String,
    period: Duration,
    pods: Pods,
    changed: Arc<tokio::sync::Notify>,
    read_once: CancellationToken,
    stop: CancellationToken,
) {
    let watched = DirectoryWatch::new().and_then(|watch| watch.add(&directory).map(|()| watch));
    let watched = watched.inspect_err(|error| {
        tracing::warn!(directory = %directory.display(), %error, "cannot watch the directory of manifests; polling it");
    });
    let mut watched = watched.ok();
    let mut known: HashMap<String, Arc<Pod>> = HashMap::new();
    loop {
        let (path, node) = (directory.clone(), node_name.clone());
        match blocking(&TaskTracker::new(), move || read(&path, &node)).await {
            Ok(current) => {
                let current: HashMap<String, Arc<Pod>> =
                    current.into_iter().map(|pod| (pod::uid(&pod).to_string(), Arc::new(pod))).collect();
                let mut any = false;
                for uid in known.keys().filter(|uid| !current.contains_key(*uid)) {
                    pods.remove(uid);
                    any = true;
                }
                for (uid, pod) in &current {
                    if !known.contains_key(uid) {
                        pods.apply(pod.clone());
                        any = true;
                    }
                }
                known = current;
                read_once.cancel();
                if any {
                    changed.notify_one();
                }
            }
            // a directory that cannot be read is not an empty one
            Err(error) => {
                tracing::warn!(directory = %directory.display(), %error, "cannot read the manifests")
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = directory_watch::changed(&mut watched) => {}
            () = tokio::time::sleep(period) => {}
        }
    }
}

fn read(directory: &Path, node_name: &str) -> io::Result<Vec<Pod>> {
    let mut pods = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') || !entry.path().is_file() {
            continue;
        }
        match fs::read_to_string(entry.path())
            .map_err(|error| error.to_string())
            .and_then(|text| parse(&text, node_name))
        {
            Ok(pod) => pods.push(pod),
            Err(error) => tracing::warn!(file = name, error, "not a pod's manifest"),
        }
    }
    Ok(pods)
}

/// A manifest as the pod it becomes on this node.
fn parse(text: &str, node_name: &str) -> Result<Pod, String> {
    let value: serde_json::Value = ferry_api::yaml::one(text).map_err(|error| error.to_string())?;
    if value["kind"] != "Pod" {
        return Err(format!("kind is {}", value["kind"]));
    }
    let mut pod: Pod = ferry_api::view::of_value(&value).map_err(|error| error.to_string())?;
    let Some(name) = pod.metadata.name.clone().filter(|name| !name.is_empty()) else {
        return Err("it has no name".into());
    };
    if pod::spec(&pod).containers.is_empty() {
        return Err("it has no containers".into());
    }
    let hash = pod::short_hash(format!("{node_name}\u{0}{text}").as_bytes());
    pod.metadata.name = Some(format!("{name}-{node_name}"));
    pod.metadata.namespace.get_or_insert_with(|| "default".into());
    pod.metadata.uid = Some(hash.clone());
    pod.metadata.creation_timestamp = None;
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(pod::CONFIG_SOURCE.into(), "file".into());
    annotations.insert(pod::CONFIG_HASH.into(), hash);
    annotations.insert(pod::CONFIG_SEEN.into(), Timestamp::now().to_string());
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node_name.into());
    // nothing moves a static pod elsewhere
    let toleration = Toleration {
        operator: Some("Exists".into()),
        effect: Some("NoExecute".into()),
        ..Toleration::default()
    };
    spec.tolerations.get_or_insert_default().push(toleration);
    pod.status = None;
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: c, image: i}\n";

    #[test]
    fn a_manifest_becomes_a_pod_of_this_node() {
        let pod = parse(MANIFEST, "node-1").expect("the manifest is a pod");
        assert_eq!((pod::namespace(&pod), pod::name(&pod)), ("default", "web-node-1"));
        assert!(pod::is_static(&pod) && !pod::is_mirror(&pod));
        assert_eq!(pod::annotation(&pod, pod::CONFIG_HASH), Some(pod::uid(&pod)));
        let again = parse(MANIFEST, "node-1").expect("the manifest is a pod");
        assert_eq!(pod::uid(&again), pod::uid(&pod), "the same manifest is the same pod");
        let changed =
            parse(&MANIFEST.replace("image: i", "image: j"), "node-1").expect("the manifest is a pod");
        assert_ne!(pod::uid(&changed), pod::uid(&pod));
    }

    #[test]
    fn malformed_manifests_are_refused() {
        for text in [
            "",
            "kind: Service",
            "{",
            "kind: Pod\nmetadata: {}\nspec: {containers: [{name: c}]}",
            "kind: Pod\nmetadata: {name: x}\nspec: {containers: []}",
        ] {
            assert!(parse(text, "n").is_err(), "{text:?}");
        }
    }
}
