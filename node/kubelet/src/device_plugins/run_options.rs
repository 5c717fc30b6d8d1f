//! What plugins answered to Allocate, put into a container's configuration.

use std::collections::BTreeSet;

use super::allocations::Allocation;
use crate::cri;

/// Adds what a container's devices ask for; the container's own settings win over it. Gives the names of CDI devices,
/// which not every runtime knows.
pub fn apply<'a>(
    allocations: impl IntoIterator<Item = &'a Allocation>,
    config: &mut cri::ContainerConfig,
) -> Vec<String> {
    let mut names = Vec::new();
    let mut mounts: Vec<cri::Mount> = Vec::new();
    for Allocation { answer, .. } in allocations {
        // what two plugins ask for differently is the first one's
        let own: BTreeSet<&str> = config.envs.iter().map(|each| each.key.as_str()).collect();
        let envs = answer.envs.iter().filter(|(key, _)| !own.contains(key.as_str()));
        let envs: Vec<_> = envs
            .map(|(key, value)| cri::KeyValue { key: key.clone(), value: value.clone().into() })
            .collect();
        config.envs.splice(0..0, envs);
        for device in &answer.devices {
            if config.devices.iter().all(|each| each.container_path != device.container_path) {
                config.devices.push(cri::Device {
                    container_path: device.container_path.clone(),
                    host_path: device.host_path.clone(),
                    permissions: device.permissions.clone(),
                });
            }
        }
        for mount in &answer.mounts {
            if mounts.iter().all(|each| each.container_path != mount.container_path) {
                mounts.push(cri::Mount {
                    container_path: mount.container_path.clone(),
                    host_path: mount.host_path.clone(),
                    readonly: mount.read_only,
                    ..Default::default()
                });
            }
        }
        for (key, value) in &answer.annotations {
            config.annotations.entry(key.clone()).or_insert_with(|| value.clone());
        }
        for device in &answer.cdi_devices {
            if !names.contains(&device.name) {
                names.push(device.name.clone());
            }
        }
    }
    // volumes are mounted over what plugins mount, as upstream does
    config.mounts.splice(0..0, mounts);
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_plugins_api::deviceplugin::{CdiDevice, ContainerAllocateResponse, DeviceSpec, Mount};

    fn allocation(value: &str) -> Allocation {
        let pair = |key: &str| (key.to_owned(), value.to_owned());
        let answer = ContainerAllocateResponse {
            envs: [pair("DEVICE"), pair("OWN")].into(),
            mounts: vec![Mount { container_path: "/m".into(), host_path: value.into(), read_only: true }],
            devices: vec![DeviceSpec {
                container_path: "/dev/d".into(),
                host_path: value.into(),
                permissions: "rw".into(),
            }],
            annotations: [pair("note"), pair("io.kubernetes.own")].into(),
            cdi_devices: vec![CdiDevice { name: "v/c=1".into() }],
        };
        Allocation { devices: [].into(), answer }
    }

    #[test]
    fn the_containers_own_settings_win_and_then_the_first_plugins() {
        let mut config = cri::ContainerConfig {
            envs: vec![cri::KeyValue { key: "OWN".into(), value: "mine".into() }],
            mounts: vec![cri::Mount { container_path: "/volume".into(), ..Default::default() }],
            annotations: [("io.kubernetes.own".to_owned(), "mine".to_owned())].into(),
            ..Default::default()
        };
        let names = apply([&allocation("/one"), &allocation("/two")], &mut config);
        assert_eq!(names, ["v/c=1"]);
        let envs: Vec<_> =
            config.envs.iter().map(|each| (each.key.as_str(), each.value.as_slice())).collect();
        assert_eq!(envs, [("DEVICE", &b"/one"[..]), ("OWN", b"mine")]);
        let mounts: Vec<_> =
            config.mounts.iter().map(|each| (each.container_path.as_str(), each.readonly)).collect();
        assert_eq!(mounts, [("/m", true), ("/volume", false)]);
        assert_eq!(config.devices.len(), 1);
        assert_eq!(
            (config.devices[0].host_path.as_str(), config.devices[0].permissions.as_str()),
            ("/one", "rw")
        );
        assert_eq!(config.annotations["note"], "/one");
        assert_eq!(config.annotations["io.kubernetes.own"], "mine");
    }
}
