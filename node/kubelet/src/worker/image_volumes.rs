//! Volumes that are images: pulled like a container's own, mounted by the
//! runtime, which must be able to (KEP-4639).

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, Secret, VolumeMount};

use super::Worker;
use super::start::{Held, absolute, held};
use crate::cri;
use crate::pod::{self, ContainerOf};

/// References of pulled images, by volume.
pub(super) type ImageVolumes = HashMap<String, String>;

impl Worker {
    /// Pulls the images that a container mounts.
    pub(super) async fn image_volumes(
        &self,
        pod: &Pod,
        each: &ContainerOf<'_>,
        secrets: &[Arc<Secret>],
        sandbox_config: &cri::PodSandboxConfig,
    ) -> Result<ImageVolumes, Held> {
        let mut pulled = ImageVolumes::new();
        for volume in pod::spec(pod).volumes.iter().flatten() {
            let Some(source) = &volume.image else { continue };
            let mounts = each.container.volume_mounts.iter().flatten();
            if mounts.filter(|mount| mount.name == volume.name).count() == 0 {
                continue;
            }
            let runtime = &self.context.runtime_version;
            if !can_mount_images(runtime) {
                let message = format!(
                    "image volume \"{}\": {} {} cannot mount images, containerd 2.1 and CRI-O 1.31 can",
                    volume.name, runtime.runtime_name, runtime.runtime_version
                );
                self.event(
                    pod,
                    &each.container.name,
                    ferry_client::EventType::Warning,
                    "Failed",
                    message.clone(),
                );
                return Err(held("CreateContainerConfigError", message));
            }
            let container = Container {
                name: each.container.name.clone(),
                image: source.reference.clone(),
                image_pull_policy: source.pull_policy.clone(),
                ..Container::default()
            };
            let image = self.ensure_image(pod, &container, secrets, sandbox_config).await?;
            pulled.insert(volume.name.clone(), image.reference);
        }
        Ok(pulled)
    }
}

pub(super) fn mount(wanted: &VolumeMount, image: &str) -> cri::Mount {
    cri::Mount {
        container_path: absolute(&wanted.mount_path),
        readonly: true,
        image: Some(cri::ImageSpec { image: image.into(), ..Default::default() }),
        image_sub_path: wanted.sub_path.clone().unwrap_or_default(),
        ..Default::default()
    }
}

/// A runtime that knows nothing of image mounts would mount an empty path.
fn can_mount_images(runtime: &cri::VersionResponse) -> bool {
    let mut numbers = runtime.runtime_version.trim_start_matches('v').split('.').map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return true };
    match runtime.runtime_name.as_str() {
        "containerd" => (major, minor) >= (2, 1),
        "cri-o" => (major, minor) >= (1, 31),
        // others are asked, and say so themselves
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_that_cannot_mount_images_are_known() {
        let check = |name: &str, version: &str, expected: bool| {
            let runtime = cri::VersionResponse {
                runtime_name: name.into(),
                runtime_version: version.into(),
                ..Default::default()
            };
            assert_eq!(can_mount_images(&runtime), expected, "{name} {version}");
        };
        check("containerd", "1.6.20~ds1", false);
        check("containerd", "v2.0.5", false);
        check("containerd", "v2.1.0", true);
        check("cri-o", "1.30.4", false);
        check("cri-o", "1.31.0", true);
        check("other", "nightly", true);
    }
}
