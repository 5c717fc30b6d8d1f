//! Volumes that are directories of a node: the words that provisioner, kubelet, authorizer and admission share.
//!
//! Such a volume is a PersistentVolume whose source is `csi` with the driver [`DRIVER`]. No path is in it: the handle
//! is the volume's own name, and the kubelet of the node that the attribute [`NODE`] names keeps a directory of that
//! name under its own root. The source of a volume never changes, so neither does its node.

use k8s_openapi::api::core::v1::PersistentVolume;

/// The driver of the source and the provisioner of the class.
pub const DRIVER: &str = "local.ferry.io";
/// The class that a cluster starts with.
pub const CLASS: &str = "local";
/// In the source's attributes: the name of the node that has the directory. As a label it lets that node's kubelet
/// select its volumes.
pub const NODE: &str = "local.ferry.io/node";
/// Set by the kubelet that has made the directory, and removed by it when the directory is gone.
pub const FINALIZER: &str = "local.ferry.io/directory";

/// The node that keeps the volume's directory; `None` for volumes of other kinds.
pub fn node(volume: &PersistentVolume) -> Option<&str> {
    let source = volume.spec.as_ref()?.csi.as_ref().filter(|source| source.driver == DRIVER)?;
    source.volume_attributes.as_ref()?.get(NODE).map(String::as_str).filter(|node| !node.is_empty())
}

/// The name of the volume's directory, which is the volume's own name. A handle that says anything else is refused,
/// and so is a name that would be more than one part of a path.
pub fn directory(volume: &PersistentVolume) -> Option<&str> {
    let name = volume.metadata.name.as_deref()?;
    let source = volume.spec.as_ref()?.csi.as_ref().filter(|source| source.driver == DRIVER)?;
    (source.volume_handle == name && crate::names::dns1123_subdomain(name).is_empty()).then_some(name)
}

/// Whether a kubelet has made the volume's directory.
pub fn is_made(volume: &PersistentVolume) -> bool {
    volume.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn volume(name: &str, handle: &str, driver: &str) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"csi": {
            "driver": driver, "volumeHandle": handle, "volumeAttributes": {NODE: "n1"}}}}))
        .expect("a volume")
    }

    #[test]
    fn a_directory_has_its_volumes_name_and_no_other() {
        for (name, handle, wanted) in [
            ("pvc-1", "pvc-1", Some("pvc-1")),
            ("a.b", "a.b", Some("a.b")),
            ("pvc-1", "pvc-2", None),
            ("pvc-1", "../pvc-1", None),
            ("..", "..", None),
            (".", ".", None),
            ("a/b", "a/b", None),
            ("/etc", "/etc", None),
            ("", "", None),
            ("a\0b", "a\0b", None),
        ] {
            assert_eq!(directory(&volume(name, handle, DRIVER)), wanted, "{name:?} {handle:?}");
        }
        assert_eq!(directory(&volume("pvc-1", "pvc-1", "other.example")), None);
    }

    #[test]
    fn only_volumes_of_this_driver_have_a_node() {
        assert_eq!(node(&volume("v", "v", DRIVER)), Some("n1"));
        assert_eq!(node(&volume("v", "v", "other.example")), None);
        assert_eq!(node(&PersistentVolume::default()), None);
    }
}
