//! The machine: what it has, and what it says about itself.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use k8s_openapi::api::core::v1::NodeSystemInfo;

#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub cpus: BTreeSet<u32>,
    pub memory_bytes: i64,
    pub host_name: String,
    pub info: NodeSystemInfo,
}

/// Reads what does not change while the machine runs.
pub fn read() -> Machine {
    let trimmed = |file: &str| fs::read_to_string(file).map(|text| text.trim().to_string()).ok();
    let cpus = trimmed("/sys/devices/system/cpu/online")
        .and_then(|list| crate::cpu_manager::parse_list(&list).ok())
        .filter(|cpus| !cpus.is_empty())
        .unwrap_or_else(|| [0].into());
    let release = fs::read_to_string("/etc/os-release").unwrap_or_else(|_| String::new());
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let info = NodeSystemInfo {
        architecture: crate::images::oci::architecture().into(),
        boot_id: trimmed("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
        kernel_version: trimmed("/proc/sys/kernel/osrelease").unwrap_or_default(),
        machine_id: trimmed("/etc/machine-id").unwrap_or_default(),
        system_uuid: trimmed("/sys/class/dmi/id/product_uuid")
            .or_else(|| trimmed("/etc/machine-id"))
            .unwrap_or_default(),
        operating_system: "linux".into(),
        os_image: name.unwrap_or("Linux").trim_matches('"').to_string(),
        kubelet_version: crate::KUBERNETES_VERSION.into(),
        kube_proxy_version: String::new(),
        container_runtime_version: String::new(),
        ..NodeSystemInfo::default()
    };
    Machine {
        cpus,
        memory_bytes: memory_info("MemTotal:").unwrap_or(0),
        host_name: trimmed("/proc/sys/kernel/hostname").unwrap_or_else(|| "localhost".into()),
        info,
    }
}

/// A line of `/proc/meminfo` in bytes.
pub fn memory_info(key: &str) -> Option<i64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: i64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// The address this machine uses towards others: that of its default route.
/// Asking the kernel for a route sends nothing.
pub fn default_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
}

/// Processes there are, and may be.
pub fn process_ids() -> Option<(u64, u64)> {
    let limit = |file: &str| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let max =
        limit("/proc/sys/kernel/pid_max")?.min(limit("/proc/sys/kernel/threads-max").unwrap_or(u64::MAX));
    // "running/all" is the fourth field
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let running = load.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()?;
    Some((running, max))
}

/// Bytes of the file system a directory is on.
pub fn disk_bytes(directory: &Path) -> i64 {
    match ferry_linux::disk::space(directory) {
        Ok(space) => i64::try_from(space.capacity_bytes).unwrap_or(i64::MAX),
        Err(error) => {
            tracing::warn!(directory = %directory.display(), %error, "disk size unknown");
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_read() {
        let machine = read();
        assert!(!machine.cpus.is_empty());
        assert!(machine.memory_bytes > 0);
        assert!(!machine.info.kernel_version.is_empty());
        let (running, max) = process_ids().expect("the kernel counts processes");
        assert!(running > 0 && running <= max);
    }
}
