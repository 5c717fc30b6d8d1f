//! What a node's start leaves for the container runtime: the network configuration and the plugins.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use ferry_linux::net::names;
use ipnet::IpNet;
use serde_json::{Value, json};

/// What a node's pods get. All names derive from the cluster's, so that two clusters can live on one
/// machine.
#[derive(Clone, Debug)]
pub struct NodeNetwork {
    pub cluster: String,
    /// The node's own share of the cluster's pod addresses, one per family.
    pub pod_cidrs: Vec<IpNet>,
    /// What fits into a packet between pods; less than the host's by the overlay's header.
    pub mtu: Option<u32>,
    /// Where leases are kept. A folder that a reboot empties frees them with the pods.
    pub lease_dir: PathBuf,
}

/// What became of [`write_configuration`].
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// Ferry's configuration is in place.
    Ours(PathBuf),
    /// The directory has one by somebody else, which wins; nothing was written.
    Theirs(PathBuf),
}

/// The name of the bridge of a cluster's pods.
pub fn bridge_name(cluster: &str) -> String {
    names::interface(cluster, "br0")
}

/// Where a plugin leaves its spans for the kubelet of the sandbox it was called for.
pub fn trace_dir(lease_dir: &Path) -> PathBuf {
    lease_dir.join("trace")
}

/// The network configuration list. Masquerading is not asked for: the node does it once for all pods,
/// and only for what leaves the cluster, see [`crate::node`].
pub fn configuration(network: &NodeNetwork) -> Value {
    let ranges: Vec<Value> = network.pod_cidrs.iter().map(|cidr| json!([{ "subnet": cidr }])).collect();
    let routes: Vec<Value> = network
        .pod_cidrs
        .iter()
        .map(|cidr| json!({ "dst": if cidr.addr().is_ipv4() { "0.0.0.0/0" } else { "::/0" } }))
        .collect();
    let mut bridge = json!({
        "type": "ferry-bridge",
        "bridge": bridge_name(&network.cluster),
        "isGateway": true,
        "forceAddress": true,
        "hairpinMode": true,
        "capabilities": { "portMappings": true },
        "portMapDir": network.lease_dir.join("portmap"),
        "traceDir": trace_dir(&network.lease_dir),
        "ipam": {
            "type": "host-local",
            "ranges": ranges,
            "routes": routes,
            "dataDir": network.lease_dir.join("leases"),
        },
    });
    if let Some(mtu) = network.mtu {
        bridge["mtu"] = mtu.into();
    }
    json!({ "cniVersion": "1.0.0", "name": network.cluster, "plugins": [bridge] })
}

/// A configuration by somebody else in the runtime's directory: the one a runtime takes first.
pub fn theirs(directory: &Path, cluster: &str) -> io::Result<Option<PathBuf>> {
    let ours = configuration_file(directory, cluster);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let mut others: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()?
        .into_iter()
        .filter(|path| *path != ours && is_configuration(path))
        .collect();
    others.sort();
    Ok(others.into_iter().next())
}

/// Writes the configuration into the runtime's directory, unless somebody else's is there: a user who
/// brings a network of their own has put it there, and it wins.
pub fn write_configuration(directory: &Path, network: &NodeNetwork) -> io::Result<Written> {
    fs::create_dir_all(directory)?;
    let ours = configuration_file(directory, &network.cluster);
    if let Some(theirs) = theirs(directory, &network.cluster)? {
        return Ok(Written::Theirs(theirs));
    }
    let text = serde_json::to_vec_pretty(&configuration(network)).map_err(io::Error::other)?;
    // The runtime watches the directory: it must never see half a file.
    let draft = directory.join(format!(".{}.draft", network.cluster));
    fs::write(&draft, text)?;
    fs::rename(&draft, &ours)?;
    Ok(Written::Ours(ours))
}

pub fn remove_configuration(directory: &Path, cluster: &str) -> io::Result<()> {
    match fs::remove_file(configuration_file(directory, cluster)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Links the plugins into the runtime's plugin directory: `ferry-bridge` and its like always, and the
/// plain names where nobody has them.
pub fn link_plugins(directory: &Path, binary: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for (name, _) in crate::plugin::Plugin::ALL {
        let own = directory.join(format!("ferry-{name}"));
        let draft = directory.join(format!(".ferry-{name}.draft"));
        let _ = fs::remove_file(&draft);
        std::os::unix::fs::symlink(binary, &draft)?;
        fs::rename(&draft, &own)?;
        match std::os::unix::fs::symlink(binary, directory.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes the links [`link_plugins`] made, and nothing that leads elsewhere.
pub fn unlink_plugins(directory: &Path, binary: &Path) -> io::Result<()> {
    for (name, _) in crate::plugin::Plugin::ALL {
        for path in [directory.join(format!("ferry-{name}")), directory.join(name)] {
            if fs::read_link(&path).is_ok_and(|target| target == binary) {
                fs::remove_file(&path)?;
            }
        }
    }
    Ok(())
}

fn configuration_file(directory: &Path, cluster: &str) -> PathBuf {
    directory.join(format!("10-ferry-{cluster}.conflist"))
}

fn is_configuration(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("conf" | "conflist" | "json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(cluster: &str) -> NodeNetwork {
        NodeNetwork {
            cluster: cluster.into(),
            pod_cidrs: vec!["10.244.1.0/24".parse().unwrap()],
            mtu: Some(1450),
            lease_dir: "/run/x".into(),
        }
    }

    #[test]
    fn a_users_own_configuration_wins() {
        let folder = tempfile::tempdir().unwrap();
        let ours = folder.path().join("10-ferry-a.conflist");
        assert_eq!(write_configuration(folder.path(), &network("a")).unwrap(), Written::Ours(ours.clone()));
        assert_eq!(write_configuration(folder.path(), &network("a")).unwrap(), Written::Ours(ours.clone()));
        remove_configuration(folder.path(), "a").unwrap();
        let theirs = folder.path().join("99-theirs.conf");
        fs::write(&theirs, "{}").unwrap();
        assert_eq!(write_configuration(folder.path(), &network("a")).unwrap(), Written::Theirs(theirs));
        assert!(!ours.exists());
    }

    #[test]
    fn names_derive_from_the_cluster() {
        let configuration = configuration(&network("dev"));
        assert_eq!(configuration["name"], "dev");
        assert_eq!(configuration["plugins"][0]["bridge"], "dev-br0");
        assert_eq!(configuration["plugins"][0]["ipam"]["ranges"][0][0]["subnet"], "10.244.1.0/24");
    }

    #[test]
    fn plugin_links_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("bridge"), "theirs").unwrap();
        let binary = Path::new("/opt/ferry");
        link_plugins(folder.path(), binary).unwrap();
        link_plugins(folder.path(), binary).unwrap();
        assert_eq!(fs::read_link(folder.path().join("ferry-bridge")).unwrap(), binary);
        assert_eq!(fs::read_to_string(folder.path().join("bridge")).unwrap(), "theirs");
        unlink_plugins(folder.path(), binary).unwrap();
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["bridge"]);
    }
}
