//! The container runtime of a node: finds a running one, or starts, supervises and stops its own containerd.
//!
//! This crate knows sockets, processes and files, but no pods: the kubelet manages what runs in the runtime.
//!
//! Start reading at [`find_or_start`].

mod configuration;
mod error;
mod leftovers;
mod own;
mod runtime;

use std::path::PathBuf;

pub use error::Error;
pub use own::RestartOutcome;
pub use runtime::{Runtime, find, find_or_start};

/// Where a cluster's own containerd keeps its things, whether it runs or not.
#[derive(Clone, Debug)]
pub struct Containerd {
    pub cluster: String,
    /// What stays: images, containers, settings.
    pub directory: PathBuf,
    /// What a reboot may empty: socket, process id, state of containers.
    pub run_dir: PathBuf,
}

impl Containerd {
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join("containerd.sock")
    }

    fn settings(&self) -> PathBuf {
        self.directory.join("config.toml")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("containerd.log")
    }

    fn pid_file(&self) -> PathBuf {
        self.run_dir.join("containerd.pid")
    }

    fn state(&self) -> PathBuf {
        self.run_dir.join("containerd")
    }

    fn network_configurations(&self) -> PathBuf {
        self.directory.join("cni/conf")
    }

    fn network_plugins(&self) -> PathBuf {
        self.directory.join("cni/bin")
    }
}
