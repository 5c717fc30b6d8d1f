//! The columns of volumes, claims, and what provides them.

use ferry_api::Object;
use serde_json::Value;

use crate::columns::{AGE, Column, at, field, list_at, or_none, text_at};

pub static PERSISTENT_VOLUME: &[Column] = &[
    Column::at_or("Capacity", "spec.capacity.storage", "0"),
    Column::text("Access Modes", |object, _| access_modes(object, "spec.accessModes").into()),
    Column::at("Reclaim Policy", "spec.persistentVolumeReclaimPolicy"),
    Column::text("Status", |object, _| phase(object)),
    Column::text("Claim", |object, _| match at(object, "spec.claimRef") {
        None => "".into(),
        Some(claim) => format!("{}/{}", field(claim, "namespace"), field(claim, "name")).into(),
    }),
    Column::text("StorageClass", |object, _| class(object)),
    Column::at_or("VolumeAttributesClass", "spec.volumeAttributesClassName", "<unset>"),
    Column::at("Reason", "status.reason"),
    AGE,
    Column::at_or("VolumeMode", "spec.volumeMode", "<unset>").wide(),
];

pub static PERSISTENT_VOLUME_CLAIM: &[Column] = &[
    Column::text("Status", |object, _| phase(object)),
    Column::at("Volume", "spec.volumeName"),
    Column::text("Capacity", |object, _| match text_at(object, "spec.volumeName") {
        "" => "".into(),
        _ => at(object, "status.capacity.storage").cloned().unwrap_or_else(|| "0".into()),
    }),
    Column::text("Access Modes", |object, _| match text_at(object, "spec.volumeName") {
        "" => "".into(),
        _ => access_modes(object, "status.accessModes").into(),
    }),
    Column::text("StorageClass", |object, _| class(object)),
    Column::at_or("VolumeAttributesClass", "spec.volumeAttributesClassName", "<unset>"),
    AGE,
    Column::at_or("VolumeMode", "spec.volumeMode", "<unset>").wide(),
];

pub static STORAGE_CLASS: &[Column] = &[
    Column::text("Name", |class, _| {
        let default = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ]
        .iter()
        .any(|key| class.annotation(key) == Some("true"));
        if default { format!("{} (default)", class.name()).into() } else { class.name().into() }
    })
    .formatted("name"),
    Column::at("Provisioner", "provisioner"),
    Column::at_or("ReclaimPolicy", "reclaimPolicy", "Delete"),
    Column::at_or("VolumeBindingMode", "volumeBindingMode", "Immediate"),
    Column::boolean("AllowVolumeExpansion", "allowVolumeExpansion").typed("string"),
    AGE,
];

pub static VOLUME_ATTRIBUTES_CLASS: &[Column] = &[Column::at("DriverName", "driverName"), AGE];

pub static VOLUME_ATTACHMENT: &[Column] = &[
    Column::at("Attacher", "spec.attacher").formatted("name"),
    Column::at("PV", "spec.source.persistentVolumeName"),
    Column::at("Node", "spec.nodeName"),
    Column::boolean("Attached", "status.attached"),
    AGE,
];

pub static CSI_NODE: &[Column] = &[Column::length("Drivers", "spec.drivers"), AGE];

pub static CSI_DRIVER: &[Column] = &[
    Column::text("AttachRequired", |object, _| {
        at(object, "spec.attachRequired").cloned().unwrap_or(true.into())
    })
    .typed("boolean"),
    Column::boolean("PodInfoOnMount", "spec.podInfoOnMount"),
    Column::boolean("StorageCapacity", "spec.storageCapacity"),
    Column::text("TokenRequests", |object, _| match list_at(object, "spec.tokenRequests") {
        [] => "<unset>".into(),
        list => list.iter().map(|request| field(request, "audience")).collect::<Vec<_>>().join(",").into(),
    }),
    Column::boolean("RequiresRepublish", "spec.requiresRepublish"),
    Column::text("Modes", |object, _| {
        let modes: Vec<&str> =
            list_at(object, "spec.volumeLifecycleModes").iter().filter_map(Value::as_str).collect();
        or_none(modes.join(","))
    }),
    AGE,
];

pub static CSI_STORAGE_CAPACITY: &[Column] =
    &[Column::at("StorageClassName", "storageClassName"), Column::at_or("Capacity", "capacity", "<unset>")];

fn phase(object: &Object) -> Value {
    if object.is_deleting() { "Terminating".into() } else { text_at(object, "status.phase").into() }
}

/// The class was an annotation once, and that one still counts.
fn class(object: &Object) -> Value {
    match object.annotation("volume.beta.kubernetes.io/storage-class") {
        Some(class) => class.into(),
        None => text_at(object, "spec.storageClassName").into(),
    }
}

/// The short forms, in a fixed order and each once.
fn access_modes(object: &Object, path: &str) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let modes = list_at(object, path);
    let held = SHORT.iter().filter(|(mode, _)| modes.iter().any(|have| have == mode));
    held.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}
