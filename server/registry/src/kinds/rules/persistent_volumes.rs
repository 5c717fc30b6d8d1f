//! PersistentVolumes and the claims to them.

use ferry_api::{FieldErrors, names};
use serde_json::{Value, json};

use super::field::{self, Context, Field};
use super::volume_source::{ONE_TYPE, Source, source};
use super::{placement, resources};

/// The sources of a PersistentVolume, in the order in which upstream validates them.
const SOURCES: &[Source] = &[
    source("hostPath", "core.v1.HostPathVolumeSource"),
    source("gcePersistentDisk", "core.v1.GCEPersistentDiskVolumeSource")
        .shown_as("gcePersistentDisk", "persistentDisk"),
    source("awsElasticBlockStore", "core.v1.AWSElasticBlockStoreVolumeSource"),
    source("glusterfs", "core.v1.GlusterfsPersistentVolumeSource"),
    source("flocker", "core.v1.FlockerVolumeSource"),
    source("nfs", "core.v1.NFSVolumeSource"),
    source("rbd", "core.v1.RBDPersistentVolumeSource"),
    source("quobyte", "core.v1.QuobyteVolumeSource"),
    source("cephfs", "core.v1.CephFSPersistentVolumeSource").shown_as("cephFS", "cephfs"),
    source("iscsi", "core.v1.ISCSIPersistentVolumeSource"),
    source("cinder", "core.v1.CinderPersistentVolumeSource"),
    source("fc", "core.v1.FCVolumeSource"),
    source("flexVolume", "core.v1.FlexPersistentVolumeSource"),
    source("azureFile", "core.v1.AzureFilePersistentVolumeSource"),
    source("vsphereVolume", "core.v1.VsphereVirtualDiskVolumeSource"),
    source("photonPersistentDisk", "core.v1.PhotonPersistentDiskVolumeSource"),
    source("portworxVolume", "core.v1.PortworxVolumeSource"),
    source("azureDisk", "core.v1.AzureDiskVolumeSource"),
    source("scaleIO", "core.v1.ScaleIOPersistentVolumeSource"),
    source("local", "core.v1.LocalVolumeSource"),
    source("storageos", "core.v1.StorageOSPersistentVolumeSource"),
    source("csi", "core.v1.CSIPersistentVolumeSource"),
];

const INLINE: &str = "may not be specified in the context of inline volumes";

/// The spec of a PersistentVolume.
pub fn persistent(field: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    persistent_spec(field, context, false, errors);
}

/// The spec of a PersistentVolume; an `inline` one stands in a VolumeAttachment.
pub fn persistent_spec(spec: Field<'_>, context: &Context<'_>, inline: bool, errors: &mut FieldErrors) {
    if inline {
        inline_fields(spec, errors);
    }
    let modes = spec.child("accessModes");
    modes.required("", errors);
    access_modes(modes, context, errors);
    if !inline {
        capacity(spec.child("capacity"), errors);
    }
    reclaim_policy(spec.child("persistentVolumeReclaimPolicy"), inline, errors);
    node_affinity(spec.child("nodeAffinity"), inline, errors);
    volume_source(spec, context, inline, errors);
    recycled_root(spec, errors);
    storage_class(spec.child("storageClassName"), inline, errors);
    volume_mode(spec.child("volumeMode"), inline, errors);
    if !inline {
        attributes_class(spec, errors);
    }
}

fn inline_fields(spec: Field<'_>, errors: &mut FieldErrors) {
    for field in ["claimRef", "capacity"] {
        if !spec.child(field).is_empty() {
            errors.forbidden(spec.path.child(field), INLINE);
        }
    }
    if !spec.has("csi") {
        errors.required(spec.path.child("csi"), "has to be specified in the context of inline volumes");
    }
}

fn capacity(capacity: Field<'_>, errors: &mut FieldErrors) {
    capacity.required("", errors);
    if !capacity.has("storage") || capacity.entries().count() > 1 {
        errors.not_supported(capacity.path, capacity.json(), &["storage"]);
    }
    capacity.each_entry(|_, amount| {
        if let Some(quantity) = amount.quantity().filter(|quantity| quantity.value() < 0) {
            errors.invalid(amount.path, quantity.value(), "must be a valid resource quantity");
        }
        resources::positive(amount, errors);
    });
}

fn reclaim_policy(policy: Field<'_>, inline: bool, errors: &mut FieldErrors) {
    if policy.is_empty() {
        return;
    }
    match inline {
        true if policy.text() != "Retain" => {
            errors.forbidden(policy.path, "may only be Retain in the context of inline volumes");
        }
        true => {}
        false => policy.one_of(&["Delete", "Recycle", "Retain"], errors),
    }
}

fn node_affinity(affinity: Field<'_>, inline: bool, errors: &mut FieldErrors) {
    if !affinity.is_given() {
        return;
    }
    let required = affinity.child("required");
    if inline {
        errors.forbidden(affinity.path, INLINE);
    } else if required.is_given() {
        placement::node_selector_terms(required, errors);
    } else {
        errors.required(required.path, "must specify required node constraints");
    }
}

fn volume_source(spec: Field<'_>, context: &Context<'_>, inline: bool, errors: &mut FieldErrors) {
    let affinity = spec.child("nodeAffinity");
    let mut found = false;
    for Source { field, type_name, shown_first, shown_second } in SOURCES {
        let given = spec.child_shown(field, shown_first);
        if !given.is_given() {
            continue;
        }
        // Upstream validates a flexVolume even as a second source.
        if std::mem::replace(&mut found, true) && *field != "flexVolume" {
            errors.forbidden(spec.path.child(shown_second), ONE_TYPE);
            continue;
        }
        context.judge(type_name, given, errors);
        if *field == "local" && (inline || !affinity.is_given()) {
            errors.required(affinity.path, "Local volume requires node affinity");
        }
    }
    if !found {
        errors.required(spec.path, "must specify a volume type");
    }
}

fn recycled_root(spec: Field<'_>, errors: &mut FieldErrors) {
    let (host, policy) = (spec.child("hostPath"), spec.child("persistentVolumeReclaimPolicy"));
    let path = host.child("path");
    let is_root = !path.is_empty() && path.text().split('/').all(|part| matches!(part, "" | "."));
    if is_root && policy.text() == "Recycle" {
        errors.forbidden(policy.path, "may not be 'recycle' for a hostPath mount of '/'");
    }
}

fn storage_class(class: Field<'_>, inline: bool, errors: &mut FieldErrors) {
    if !class.is_empty() {
        match inline {
            true => errors.forbidden(class.path, INLINE),
            false => class.named(names::dns1123_subdomain, errors),
        }
    }
}

fn volume_mode(mode: Field<'_>, inline: bool, errors: &mut FieldErrors) {
    if !mode.is_given() {
        return;
    }
    match inline {
        true if mode.text() != "Filesystem" => errors.forbidden(
            mode.path,
            "may not specify volumeMode other than Filesystem in the context of inline volumes",
        ),
        true => {}
        false => mode.one_of(&["Block", "Filesystem"], errors),
    }
}

fn attributes_class(spec: Field<'_>, errors: &mut FieldErrors) {
    let class = spec.child("volumeAttributesClassName");
    if !class.is_given() {
        return;
    }
    if class.is_empty() {
        errors.required(class.path, "an empty string is disallowed");
    } else {
        class.named(names::dns1123_subdomain, errors);
    }
    if !spec.has("csi") {
        errors.required(spec.path.child("csi"), "has to be specified when using volumeAttributesClassName");
    }
}

const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// How a volume may be mounted.
pub fn access_modes(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let modes: Vec<&str> = field.items().iter().filter_map(Value::as_str).collect();
    for mode in &modes {
        if !ACCESS_MODES.contains(mode) {
            errors.not_supported(field.path, *mode, ACCESS_MODES);
        }
    }
    let (mut alone, mut others) = (false, false);
    for mode in modes {
        alone |= mode == "ReadWriteOncePod";
        others |= mode != "ReadWriteOncePod" && ACCESS_MODES.contains(&mode);
    }
    if alone && others {
        errors.forbidden(field.path, "may not use ReadWriteOncePod with other access modes");
    }
}

/// What a claim asks for.
pub fn claim_storage(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let requests = field.child("requests");
    let storage = Field { value: requests.get("storage"), path: field.path.key("storage") };
    if !storage.is_given() {
        return errors.required(storage.path, "");
    }
    resources::positive(storage, errors);
}

/// Where the data of a claim comes from.
pub fn data_source(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if !field.is_given() {
        return;
    }
    let (kind, group) = (field.child("kind"), field.child("apiGroup"));
    field.child("name").required("", errors);
    kind.required("", errors);
    if group.text().is_empty() && kind.text() != "PersistentVolumeClaim" {
        errors.invalid(
            field.path,
            kind.text(),
            "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
        );
    }
    group.optional_name(names::dns1123_subdomain, errors);
    field.child("namespace").optional_name(names::dns1123_label, errors);
}

/// The old and the new way of naming the source of a claim's data agree.
pub fn same_data_source(_: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let Some(path) = context.holder_path else { return };
    let (Some(old), Some(new)) = (context.sibling("dataSource"), context.sibling("dataSourceRef")) else {
        return;
    };
    // Upstream hands the path itself in as the value, whose fields are private.
    let why = if !field::text(new, "namespace").is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if ["apiGroup", "kind", "name"].iter().any(|part| old.get(part) != new.get(part)) {
        "must match dataSourceRef"
    } else {
        return;
    };
    errors.invalid(path, json!({}), why);
}

/// A template's metadata has labels and annotations, and nothing else.
pub fn template_metadata(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let annotations = field.child("annotations");
    for (key, _) in annotations.entries() {
        for why in names::qualified_name(&key.to_lowercase()) {
            errors.invalid(annotations.path, key, &why);
        }
    }
    super::walk::labels(field.child("labels"), errors);
    const OTHERS: &[(&str, &str)] = &[
        ("name", "name"),
        ("generateName", "generateName"),
        ("namespace", "namespace"),
        ("selfLink", "selfLink"),
        ("uid", "uID"),
        ("resourceVersion", "resourceVersion"),
        ("generation", "generation"),
        ("creationTimestamp", "creationTimestamp"),
        ("deletionTimestamp", "deletionTimestamp"),
        ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"),
        ("ownerReferences", "ownerReferences"),
        ("finalizers", "finalizers"),
        ("managedFields", "managedFields"),
    ];
    for (name, shown) in OTHERS {
        if !field.child(name).is_empty() {
            errors.forbidden(field.path.child(shown), "cannot be set");
        }
    }
}
