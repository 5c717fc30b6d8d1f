//! The paths and names that a cluster uses on this host.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ferry_containerd::Containerd;
use ferry_linux::net::names;
use nix::fcntl::{Flock, FlockArg};

const DEFAULT_CLUSTER: &str = "ferry";
pub const DEFAULT_DATA_DIR: &str = "/var/lib/ferry";

#[derive(Clone, Debug)]
pub struct Layout {
    /// Names of interfaces, tables and cgroups derive from it.
    pub cluster: String,
    pub data_dir: PathBuf,
    /// What a reboot may empty.
    pub run_dir: PathBuf,
}

impl Layout {
    /// The directory need not exist yet.
    pub fn of(data_dir: &Path) -> anyhow::Result<Layout> {
        let absolute =
            std::path::absolute(data_dir).with_context(|| format!("understand {}", data_dir.display()))?;
        // One directory under two names is one cluster, also before it is made.
        let data_dir = real(&absolute)?;
        let cluster = if data_dir == Path::new(DEFAULT_DATA_DIR) {
            DEFAULT_CLUSTER.to_owned()
        } else {
            // Short: with a suffix it must fit into the name of an interface. The digest's end differs most
            // between directories that lie side by side.
            format!("ferry-{}", &names::hex(&data_dir.to_string_lossy())[12..])
        };
        let run_dir = Path::new("/run/ferry").join(&cluster);
        Ok(Layout { cluster, data_dir, run_dir })
    }

    pub fn make(&self) -> anyhow::Result<()> {
        for directory in [&self.data_dir, &self.run_dir] {
            std::fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        }
        // By this the clusters of one host find each other.
        let link = self.run_dir.join("data");
        match std::os::unix::fs::symlink(&self.data_dir, &link) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(error).with_context(|| format!("make {}", link.display()))
            }
            _ => Ok(()),
        }
    }

    /// Held for as long as a process works on this data directory; two would spoil each other's work.
    pub fn lock(&self) -> anyhow::Result<Flock<File>> {
        let path = self.data_dir.join("ferry.lock");
        let file = File::create(&path).with_context(|| format!("write {}", path.display()))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(lock),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => bail!(
                "a cluster is running in {} already; `ferry status --data-dir {0}` shows it",
                self.data_dir.display()
            ),
            Err((_, error)) => Err(error).with_context(|| format!("lock {}", path.display())),
        }
    }

    pub fn log(&self) -> PathBuf {
        self.data_dir.join("ferry.log")
    }

    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.data_dir.join("admin.kubeconfig")
    }

    /// What was chosen for this cluster when it first started.
    pub fn choices(&self) -> PathBuf {
        self.data_dir.join("cluster.json")
    }

    /// The state of each part, kept while the cluster runs.
    pub fn state(&self) -> PathBuf {
        self.run_dir.join("state.json")
    }

    /// The cluster's keys and certificates.
    pub fn pki(&self) -> PathBuf {
        self.data_dir.join("pki")
    }

    /// What further servers of the cluster have to show.
    pub fn server_token(&self) -> PathBuf {
        self.data_dir.join("server-token")
    }

    pub fn kubelet(&self) -> PathBuf {
        self.data_dir.join("kubelet")
    }

    pub fn pod_logs(&self) -> PathBuf {
        self.data_dir.join("log/pods")
    }

    pub fn leases(&self) -> PathBuf {
        self.run_dir.join("cni")
    }

    pub fn cgroup_root(&self) -> String {
        format!("/{}", self.cluster)
    }

    /// A containerd of the cluster's own, whether it runs or not.
    pub fn containerd(&self) -> Containerd {
        Containerd {
            cluster: self.cluster.clone(),
            directory: self.data_dir.join("containerd"),
            run_dir: self.run_dir.clone(),
        }
    }
}

/// The path without links, of what need not be there yet.
fn real(path: &Path) -> anyhow::Result<PathBuf> {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Err(error), Some(parent), Some(name)) if error.kind() == std::io::ErrorKind::NotFound => {
            Ok(real(parent)?.join(name))
        }
        (found, ..) => found.with_context(|| format!("find {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_behind_a_link_is_the_same_cluster_before_and_after_it_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let before = Layout::of(&link.join("a/data")).unwrap();
        std::fs::create_dir_all(real.join("a/data")).unwrap();
        let after = Layout::of(&link.join("a/data")).unwrap();
        assert_eq!((before.cluster, before.data_dir), (after.cluster, after.data_dir));
    }

    #[test]
    fn each_data_directory_is_a_cluster_of_its_own() {
        let name = |path: &str| Layout::of(Path::new(path)).unwrap().cluster;
        assert_eq!(name("/var/lib/ferry"), "ferry");
        assert_ne!(name("/srv/a"), name("/srv/b"));
        assert_eq!(names::interface(&name("/srv/a"), "br0").len(), "ferry-xxxx-br0".len());
    }

    #[test]
    fn a_data_directory_has_one_master() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::of(folder.path()).unwrap();
        let held = layout.lock().unwrap();
        let refused = layout.lock().unwrap_err().to_string();
        assert!(refused.contains("running in"), "{refused}");
        drop(held);
        layout.lock().unwrap();
    }
}
