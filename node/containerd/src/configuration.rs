//! The configuration file of a containerd of the cluster's own.

use std::path::Path;

use serde_json::Value;

use crate::Containerd;

/// What its sandboxes are started from. The kubelet brings it.
pub const SANDBOX_IMAGE: &str = "localhost/ferry/pause:1";

/// As TOML. `registries` holds how registries are reached, in containerd's own layout.
pub fn of(containerd: &Containerd, registries: &Path, may_lower_scores: bool) -> String {
    let text = |path: &Path| Value::from(path.to_string_lossy()).to_string();
    format!(
        "version = 2\nroot = {root}\nstate = {state}\n\
         disabled_plugins = [\"io.containerd.snapshotter.v1.aufs\", \"io.containerd.snapshotter.v1.btrfs\", \
         \"io.containerd.snapshotter.v1.devmapper\", \"io.containerd.snapshotter.v1.zfs\"]\n\
         [grpc]\naddress = {socket}\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{SANDBOX_IMAGE}\"\n\
         restrict_oom_score_adj = {restrict}\nnetns_mounts_under_state_dir = true\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = {plugins}\nconf_dir = {configuration}\n\
         [plugins.\"io.containerd.grpc.v1.cri\".registry]\nconfig_path = {registries}\n",
        root = text(&containerd.directory.join("root")),
        state = text(&containerd.state()),
        socket = text(&containerd.socket()),
        restrict = !may_lower_scores,
        plugins = text(&containerd.network_plugins()),
        configuration = text(&containerd.network_configurations()),
        registries = text(registries),
    )
}

/// Without CAP_SYS_RESOURCE no process's OOM score can be lowered, and containerd must not try.
pub fn may_lower_scores() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    // Where it cannot be told, containerd does without.
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits & (1 << CAP_SYS_RESOURCE) != 0)
}
