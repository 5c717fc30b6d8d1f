//! Volumes of CSI drivers: the names under which those that attach and those that mount them speak of them.

use sha2::{Digest, Sha256};

/// As `volumesInUse` and `volumesAttached` of a node's status name a volume.
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The name of the VolumeAttachment that attaches a volume to a node.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", hash(&[handle, driver, node]))
}

/// What an inline volume of a pod is called at its driver.
pub fn ephemeral_handle(uid: &str, name: &str) -> String {
    format!("csi-{}", hash(&[uid, name]))
}

/// SHA-256 in hexadecimal digits, of texts one after the other.
pub fn hash(texts: &[&str]) -> String {
    Sha256::digest(texts.concat()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hashes_of_what_is_told_apart() {
        assert_eq!(hash(&[""]), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hash(&["a", "bc"]), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(attachment_name("a", "b", "c"), format!("csi-{}", hash(&["abc"])));
        assert_eq!(ephemeral_handle("a", "bc"), attachment_name("a", "b", "c"));
        assert_eq!(unique_name("d", "h"), "kubernetes.io/csi/d^h");
    }
}
