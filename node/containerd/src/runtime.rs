//! Which runtime serves a cluster's node.

use std::path::{Path, PathBuf};

use ferry_kubelet::config::CgroupDriver;
use ferry_kubelet::cri;
use serde_json::Value;

use crate::{Containerd, Error, configuration};

/// Where runtimes listen by custom.
const SOCKETS: [&str; 2] = ["/run/containerd/containerd.sock", "/run/crio/crio.sock"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    pub endpoint: String,
    /// Where it looks for network configurations and plugins.
    pub cni_configuration: PathBuf,
    pub cni_plugins: PathBuf,
    pub cgroup_driver: CgroupDriver,
    /// What the user is told.
    pub description: String,
}

/// The runtime the user named; else the cluster's own containerd if it runs; else the host's; else a
/// containerd of the cluster's own is started.
pub async fn find_or_start(
    containerd: &Containerd,
    endpoint: Option<&str>,
    registries: &Path,
) -> Result<Runtime, Error> {
    let span = ferry_trace::span("cluster.runtime");
    let look = async {
        match find(containerd, endpoint).await? {
            Some(found) => Ok(found),
            None => containerd.start(registries).await,
        }
    };
    span.in_scope(look).await
}

/// The runtime of this cluster among those that run.
pub async fn find(containerd: &Containerd, endpoint: Option<&str>) -> Result<Option<Runtime>, Error> {
    if let Some(endpoint) = endpoint {
        return ask(endpoint).await.map(Some);
    }
    let own = containerd.socket();
    if own.exists()
        && let Ok(found) = ask(&own.display().to_string()).await
    {
        return Ok(Some(found));
    }
    for socket in SOCKETS.iter().filter(|socket| Path::new(socket).exists()) {
        match ask(socket).await {
            Ok(found) if !serves_another_cluster(&found, &containerd.cluster) => return Ok(Some(found)),
            Ok(_) => tracing::info!(socket, "the container runtime belongs to another cluster"),
            Err(error) => tracing::info!(socket, %error, "no container runtime responds at the socket"),
        }
    }
    Ok(None)
}

impl Runtime {
    /// The image that sandboxes are started from, where it is known from elsewhere: containerd 2 does not say.
    pub fn sandbox_image(&self, containerd: &Containerd) -> Option<&'static str> {
        let is_own = self.endpoint == containerd.socket().display().to_string();
        is_own.then_some(configuration::SANDBOX_IMAGE)
    }

    /// The cluster's own containerd, whether it runs or not.
    pub fn own(containerd: &Containerd) -> Runtime {
        Runtime {
            endpoint: containerd.socket().display().to_string(),
            cni_configuration: containerd.network_configurations(),
            cni_plugins: containerd.network_plugins(),
            cgroup_driver: CgroupDriver::Cgroupfs,
            description: String::new(),
        }
    }
}

/// Asks a runtime who it is and how it is set up.
pub(crate) async fn ask(endpoint: &str) -> Result<Runtime, Error> {
    let no_answer = |source| Error::NoAnswer { endpoint: endpoint.to_owned(), source };
    let client = cri::Client::new(endpoint).map_err(no_answer)?;
    let version = client.version().await.map_err(no_answer)?;
    let status = client.status(true).await.map_err(no_answer)?;
    let config: Value = match status.info.get("config") {
        Some(text) => serde_json::from_str(text)
            .map_err(|source| Error::Malformed { what: "the runtime's configuration".into(), source })?,
        None => Value::Null,
    };
    let (cni_configuration, cni_plugins) = network_directories(&config);
    Ok(Runtime {
        endpoint: endpoint.to_owned(),
        cni_configuration,
        cni_plugins,
        cgroup_driver: cgroup_driver(&config),
        description: format!("{} {} at {endpoint}", version.runtime_name, version.runtime_version),
    })
}

/// Where the runtime looks for network configurations and plugins. Since 2.1 containerd has several directories of plugins, and
/// leaves the one that it had before empty.
fn network_directories(config: &Value) -> (PathBuf, PathBuf) {
    let cni = &config["cni"];
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(PathBuf::from);
    let plugins = text(&cni["binDir"]).or_else(|| text(&cni["binDirs"][0]));
    (
        text(&cni["confDir"]).unwrap_or_else(|| "/etc/cni/net.d".into()),
        plugins.unwrap_or_else(|| "/opt/cni/bin".into()),
    )
}

fn cgroup_driver(config: &Value) -> CgroupDriver {
    let name = config["containerd"]["defaultRuntimeName"].as_str().unwrap_or("runc");
    match config["containerd"]["runtimes"][name]["options"]["SystemdCgroup"].as_bool() {
        Some(true) => CgroupDriver::Systemd,
        _ => CgroupDriver::Cgroupfs,
    }
}

/// A runtime reads one network configuration, so it can serve the pods of one cluster.
fn serves_another_cluster(runtime: &Runtime, cluster: &str) -> bool {
    let own = format!("10-ferry-{cluster}.conflist");
    let Ok(entries) = std::fs::read_dir(&runtime.cni_configuration) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("10-ferry-") && *name != *own
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_runtime_says_who_makes_cgroups() {
        let config = |systemd: Value| json!({"containerd": {"runtimes": {"runc": {"options": systemd}}}});
        assert_eq!(cgroup_driver(&config(json!({"SystemdCgroup": true}))), CgroupDriver::Systemd);
        assert_eq!(cgroup_driver(&config(json!({}))), CgroupDriver::Cgroupfs);
        assert_eq!(cgroup_driver(&Value::Null), CgroupDriver::Cgroupfs);
    }

    #[test]
    fn plugins_are_where_the_runtime_looks_for_them() {
        for (cni, configuration, plugins) in [
            (json!({"confDir": "/a", "binDir": "/b"}), "/a", "/b"),
            (json!({"confDir": "/a", "binDir": "", "binDirs": ["/c", "/d"]}), "/a", "/c"),
            (json!({"binDirs": null}), "/etc/cni/net.d", "/opt/cni/bin"),
        ] {
            let found = network_directories(&json!({ "cni": cni }));
            assert_eq!(found, (configuration.into(), plugins.into()));
        }
    }

    #[test]
    fn a_runtime_serves_one_cluster() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime {
            endpoint: String::new(),
            cni_configuration: folder.path().to_owned(),
            cni_plugins: PathBuf::new(),
            cgroup_driver: CgroupDriver::Cgroupfs,
            description: String::new(),
        };
        assert!(!serves_another_cluster(&runtime, "ferry-1a2b"));
        std::fs::write(folder.path().join("10-ferry-ferry-1a2b.conflist"), "").unwrap();
        assert!(!serves_another_cluster(&runtime, "ferry-1a2b"));
        std::fs::write(folder.path().join("10-ferry-other.conflist"), "").unwrap();
        assert!(serves_another_cluster(&runtime, "ferry-1a2b"));
    }
}
