//! The volumes of a pod: a name and exactly one source each.

use std::collections::HashSet;

use ferry_api::{FieldErrors, names};
use k8s_openapi::api::core::v1::Volume;

use super::super::checks::{self, Path};

/// Answers with the names that mounts may use.
pub fn validate<'a>(volumes: &'a [Volume], path: Path<'_>, errors: &mut FieldErrors) -> HashSet<&'a str> {
    let mut seen = HashSet::with_capacity(volumes.len());
    for (index, volume) in volumes.iter().enumerate() {
        let path = path.index(index);
        validate_source(volume, path, errors);
        checks::required_name(errors, path.child("name"), &volume.name, names::dns1123_label);
        if !volume.name.is_empty() && !seen.insert(volume.name.as_str()) {
            errors.duplicate(path.child("name"), volume.name.as_str());
        }
    }
    seen
}

fn validate_source(volume: &Volume, path: Path<'_>, errors: &mut FieldErrors) {
    let sources = [
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("csi", volume.csi.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("emptyDir", volume.empty_dir.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("image", volume.image.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("projected", volume.projected.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("secret", volume.secret.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
    ];
    let mut given = sources.iter().filter(|(_, given)| *given);
    if given.next().is_none() {
        errors.required(path, "must specify a volume type");
    }
    for (name, _) in given {
        errors.forbidden(path.child(name), "may not specify more than 1 volume type");
    }
    let required = [
        ("hostPath", "path", volume.host_path.as_ref().map(|source| source.path.as_str())),
        ("configMap", "name", volume.config_map.as_ref().map(|source| source.name.as_str())),
        (
            "secret",
            "secretName",
            volume.secret.as_ref().map(|source| source.secret_name.as_deref().unwrap_or("")),
        ),
        (
            "persistentVolumeClaim",
            "claimName",
            volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.as_str()),
        ),
        ("nfs", "server", volume.nfs.as_ref().map(|source| source.server.as_str())),
        ("nfs", "path", volume.nfs.as_ref().map(|source| source.path.as_str())),
        ("csi", "driver", volume.csi.as_ref().map(|source| source.driver.as_str())),
    ];
    for (source, field, value) in required {
        if value == Some("") {
            let source = path.child(source);
            errors.required(source.child(field), "");
        }
    }
    if let Some(host) = volume.host_path.as_ref()
        && host.path.split('/').any(|part| part == "..")
    {
        let source = path.child("hostPath");
        errors.invalid(source.child("path"), host.path.as_str(), "must not contain '..'");
    }
}
