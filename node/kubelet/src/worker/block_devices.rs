//! Volumes that are devices: handed to the containers that name them in `volumeDevices`.

use k8s_openapi::api::core::v1::Container;

use super::start::absolute;
use crate::cri;
use crate::volumes::MountedVolumes;

/// A container's devices of volumes.
pub(super) fn volume_devices(
    container: &Container,
    volumes: &MountedVolumes,
) -> Result<Vec<cri::Device>, String> {
    let mut devices = Vec::new();
    for wanted in container.volume_devices.iter().flatten() {
        let name = &wanted.name;
        let Some(volume) = volumes.get(name) else {
            return Err(format!(
                "cannot find volume \"{name}\" to pass into container \"{}\"",
                container.name
            ));
        };
        if !volume.is_block {
            return Err(format!(
                "volume {name} has volumeMode Filesystem, but is specified in volumeDevices"
            ));
        }
        devices.push(cri::Device {
            container_path: absolute(&wanted.device_path),
            host_path: volume.path.to_string_lossy().into_owned(),
            permissions: if volume.read_only { "r" } else { "mrw" }.into(),
        });
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::Mounted;
    use serde_json::json;

    #[test]
    fn a_container_gets_the_devices_that_it_names() {
        let container: Container = serde_json::from_value(json!({"name": "c",
            "volumeDevices": [{"name": "disk", "devicePath": "/dev/xvda"}]}))
        .expect("a container");
        let with = |is_block, read_only| {
            let mounted = Mounted { path: "/publish/disk".into(), read_only, is_block };
            volume_devices(&container, &MountedVolumes::from([("disk".into(), mounted)]))
        };
        let devices = with(true, false).expect("it is one");
        let device = &devices[0];
        assert_eq!(
            (device.host_path.as_str(), device.container_path.as_str(), device.permissions.as_str()),
            ("/publish/disk", "/dev/xvda", "mrw")
        );
        assert_eq!(with(true, true).expect("it is one")[0].permissions, "r");
        assert!(with(false, false).is_err());
        assert!(volume_devices(&container, &MountedVolumes::new()).is_err());
    }
}
