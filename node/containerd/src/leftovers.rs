//! What a cluster's own containerd keeps on the host beside its containers, for whoever takes the cluster down.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::{Containerd, Error};

impl Containerd {
    /// The network namespaces of its containers, running or left behind: what it starts a container from names its
    /// namespace. Others of the host are not ours to touch.
    pub fn network_namespaces(&self) -> Result<BTreeSet<PathBuf>, Error> {
        let bundles = self.state().join("io.containerd.runtime.v2.task/k8s.io");
        let unreadable = || format!("read {}", bundles.display());
        let entries = match std::fs::read_dir(&bundles) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(Error::system(unreadable())(error)),
        };
        let mut found = BTreeSet::new();
        for entry in entries {
            let file = entry.map_err(Error::system(unreadable()))?.path().join("config.json");
            // A container that went meanwhile took it along.
            let Ok(bytes) = std::fs::read(&file) else { continue };
            let spec: Value = serde_json::from_slice(&bytes)
                .map_err(|source| Error::Malformed { what: file.display().to_string(), source })?;
            found.extend(network_namespace(&spec));
        }
        Ok(found)
    }

    /// Ends the shims of pods that could not be removed in order. A shim is told whose it is by the socket among its
    /// words.
    pub fn end_shims(&self) -> Result<(), Error> {
        let socket = self.socket();
        let processes = std::fs::read_dir("/proc").map_err(Error::system("list the processes"))?;
        for entry in processes.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // One that ended meanwhile is no matter.
            let Ok(words) = std::fs::read(entry.path().join("cmdline")) else { continue };
            if is_shim_of(&words, &socket) {
                match kill(Pid::from_raw(pid), Signal::SIGKILL) {
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(error) => return Err(Error::system(format!("kill process {pid}"))(error)),
                }
            }
        }
        Ok(())
    }
}

/// A pod's own namespace is a file that containerd made. One on the host's network names none, or a process's.
fn network_namespace(spec: &Value) -> Option<PathBuf> {
    let namespaces = spec["linux"]["namespaces"].as_array()?;
    let network = namespaces.iter().find(|namespace| namespace["type"] == "network")?;
    let path = Path::new(network["path"].as_str()?);
    let name = path.file_name()?;
    let is_containerds = name.to_str()?.starts_with("cni-");
    // By its real name, as mounts are listed.
    let directory = path.parent()?.canonicalize().ok()?;
    is_containerds.then(|| directory.join(name))
}

fn is_shim_of(words: &[u8], socket: &Path) -> bool {
    let mut words = words.split(|byte| *byte == 0);
    let program = words.next().map(|word| Path::new(OsStr::from_bytes(word)));
    let is_shim =
        program.and_then(Path::file_name).is_some_and(|name| name.as_bytes().starts_with(b"containerd-shim"));
    is_shim && words.any(|word| word == socket.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_shim_is_known_by_its_socket() {
        let socket = Path::new("/run/ferry/a/containerd.sock");
        let ours = b"/usr/bin/containerd-shim-runc-v2\0-id\0x\0-address\0/run/ferry/a/containerd.sock\0";
        assert!(is_shim_of(ours, socket));
        assert!(!is_shim_of(ours, Path::new("/run/ferry/b/containerd.sock")));
        assert!(!is_shim_of(b"ctr\0-address\0/run/ferry/a/containerd.sock\0", socket));
        assert!(!is_shim_of(b"", socket));
    }

    #[test]
    fn a_pods_namespace_is_known_by_its_containers() {
        let spec = |path: Value| json!({"linux": {"namespaces": [{"type": "pid"}, {"type": "network", "path": path}]}});
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let file = folder.join("cni-1");
        assert_eq!(network_namespace(&spec(file.to_str().into())), Some(file));
        assert_eq!(network_namespace(&spec(folder.join("theirs").to_str().into())), None);
        assert_eq!(network_namespace(&spec("/proc/7/ns/net".into())), None);
        assert_eq!(network_namespace(&spec(Value::Null)), None);
        assert_eq!(network_namespace(&json!({})), None);
    }
}
