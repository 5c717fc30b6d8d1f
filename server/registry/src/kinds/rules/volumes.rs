//! Volumes of pods, and the persistent ones.

use std::collections::HashSet;

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, names};
use serde_json::{Value, json};

use super::field::{self, Context, Field};
use super::{format, placement, resources};
use crate::kinds::checks;

const ONE_TYPE: &str = "may not specify more than 1 volume type";
const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// The sources of a pod's volume in the order in which they are looked at: field, its type, and the names under which
/// a second one and the faults of the first are told.
const POD_SOURCES: &[(&str, &str, &str, &str)] = &[
    ("emptyDir", "", "emptyDir", "emptyDir"),
    ("hostPath", "core.v1.HostPathVolumeSource", "hostPath", "hostPath"),
    ("gitRepo", "core.v1.GitRepoVolumeSource", "gitRepo", "gitRepo"),
    ("gcePersistentDisk", "core.v1.GCEPersistentDiskVolumeSource", "gcePersistentDisk", "persistentDisk"),
    (
        "awsElasticBlockStore",
        "core.v1.AWSElasticBlockStoreVolumeSource",
        "awsElasticBlockStore",
        "awsElasticBlockStore",
    ),
    ("secret", "core.v1.SecretVolumeSource", "secret", "secret"),
    ("nfs", "core.v1.NFSVolumeSource", "nfs", "nfs"),
    ("iscsi", "core.v1.ISCSIVolumeSource", "iscsi", "iscsi"),
    ("glusterfs", "core.v1.GlusterfsVolumeSource", "glusterfs", "glusterfs"),
    ("flocker", "core.v1.FlockerVolumeSource", "flocker", "flocker"),
    (
        "persistentVolumeClaim",
        "core.v1.PersistentVolumeClaimVolumeSource",
        "persistentVolumeClaim",
        "persistentVolumeClaim",
    ),
    ("rbd", "core.v1.RBDVolumeSource", "rbd", "rbd"),
    ("cinder", "core.v1.CinderVolumeSource", "cinder", "cinder"),
    ("cephfs", "core.v1.CephFSVolumeSource", "cephFS", "cephfs"),
    ("quobyte", "core.v1.QuobyteVolumeSource", "quobyte", "quobyte"),
    ("downwardAPI", "core.v1.DownwardAPIVolumeSource", "downwarAPI", "downwardAPI"),
    ("fc", "core.v1.FCVolumeSource", "fc", "fc"),
    ("flexVolume", "core.v1.FlexVolumeSource", "flexVolume", "flexVolume"),
    ("configMap", "core.v1.ConfigMapVolumeSource", "configMap", "configMap"),
    ("azureFile", "core.v1.AzureFileVolumeSource", "azureFile", "azureFile"),
    ("vsphereVolume", "core.v1.VsphereVirtualDiskVolumeSource", "vsphereVolume", "vsphereVolume"),
    (
        "photonPersistentDisk",
        "core.v1.PhotonPersistentDiskVolumeSource",
        "photonPersistentDisk",
        "photonPersistentDisk",
    ),
    ("portworxVolume", "core.v1.PortworxVolumeSource", "portworxVolume", "portworxVolume"),
    ("azureDisk", "core.v1.AzureDiskVolumeSource", "azureDisk", "azureDisk"),
    ("storageos", "core.v1.StorageOSVolumeSource", "storageos", "storageos"),
    ("projected", "core.v1.ProjectedVolumeSource", "projected", "projected"),
    ("scaleIO", "core.v1.ScaleIOVolumeSource", "scaleIO", "scaleIO"),
    ("csi", "core.v1.CSIVolumeSource", "csi", "csi"),
    ("ephemeral", "core.v1.EphemeralVolumeSource", "ephemeral", "ephemeral"),
    ("image", "core.v1.ImageVolumeSource", "image", "image"),
];

/// The same of a PersistentVolume.
const PERSISTENT_SOURCES: &[(&str, &str, &str, &str)] = &[
    ("hostPath", "core.v1.HostPathVolumeSource", "hostPath", "hostPath"),
    ("gcePersistentDisk", "core.v1.GCEPersistentDiskVolumeSource", "gcePersistentDisk", "persistentDisk"),
    (
        "awsElasticBlockStore",
        "core.v1.AWSElasticBlockStoreVolumeSource",
        "awsElasticBlockStore",
        "awsElasticBlockStore",
    ),
    ("glusterfs", "core.v1.GlusterfsPersistentVolumeSource", "glusterfs", "glusterfs"),
    ("flocker", "core.v1.FlockerVolumeSource", "flocker", "flocker"),
    ("nfs", "core.v1.NFSVolumeSource", "nfs", "nfs"),
    ("rbd", "core.v1.RBDPersistentVolumeSource", "rbd", "rbd"),
    ("quobyte", "core.v1.QuobyteVolumeSource", "quobyte", "quobyte"),
    ("cephfs", "core.v1.CephFSPersistentVolumeSource", "cephFS", "cephfs"),
    ("iscsi", "core.v1.ISCSIPersistentVolumeSource", "iscsi", "iscsi"),
    ("cinder", "core.v1.CinderPersistentVolumeSource", "cinder", "cinder"),
    ("fc", "core.v1.FCVolumeSource", "fc", "fc"),
    ("flexVolume", "core.v1.FlexPersistentVolumeSource", "flexVolume", "flexVolume"),
    ("azureFile", "core.v1.AzureFilePersistentVolumeSource", "azureFile", "azureFile"),
    ("vsphereVolume", "core.v1.VsphereVirtualDiskVolumeSource", "vsphereVolume", "vsphereVolume"),
    (
        "photonPersistentDisk",
        "core.v1.PhotonPersistentDiskVolumeSource",
        "photonPersistentDisk",
        "photonPersistentDisk",
    ),
    ("portworxVolume", "core.v1.PortworxVolumeSource", "portworxVolume", "portworxVolume"),
    ("azureDisk", "core.v1.AzureDiskVolumeSource", "azureDisk", "azureDisk"),
    ("scaleIO", "core.v1.ScaleIOPersistentVolumeSource", "scaleIO", "scaleIO"),
    ("local", "core.v1.LocalVolumeSource", "local", "local"),
    ("storageos", "core.v1.StorageOSPersistentVolumeSource", "storageos", "storageos"),
    ("csi", "core.v1.CSIPersistentVolumeSource", "csi", "csi"),
];

/// The volumes of a pod. Mounts may use those in which nothing is wrong.
pub fn of_pod<'a>(volumes: Field<'a>, context: &Context<'_>, errors: &mut FieldErrors) -> Vec<&'a Value> {
    let (is_pod, name) = match context.object.kind() {
        "Pod" => (true, context.object.name()),
        _ => (false, ""),
    };
    let mut good: Vec<&Value> = Vec::with_capacity(volumes.items().len());
    let mut names_seen: HashSet<&str> = HashSet::with_capacity(volumes.items().len());
    let made: Vec<String> = match name {
        "" => Vec::new(),
        name => {
            let ephemeral = volumes.items().iter().filter(|volume| volume.get("ephemeral").is_some());
            ephemeral.map(|volume| format!("{name}-{}", field::text(volume, "name"))).collect()
        }
    };
    for (index, value) in volumes.items().iter().enumerate() {
        let before = errors.0.len();
        let volume = volumes.index(index);
        pod_source(volume, context, is_pod, name, errors);
        volume.child("name").required_name(names::dns1123_label, errors);
        let own_name = field::text(value, "name");
        if names_seen.contains(own_name) {
            errors.duplicate(volume.path.child("name"), own_name);
        }
        if errors.0.len() == before {
            names_seen.insert(own_name);
            good.push(value);
        }
        let claim = volume.child("persistentVolumeClaim");
        let claim = claim.child("claimName");
        if made.iter().any(|made| made == claim.text()) {
            claim.invalid("must not reference a PVC that gets created for an ephemeral volume", errors);
        }
    }
    good
}

fn pod_source(volume: Field<'_>, context: &Context<'_>, is_pod: bool, pod: &str, errors: &mut FieldErrors) {
    let name = volume.child("name");
    let mut found = false;
    for (source, ty, second, first) in POD_SOURCES {
        let given = volume.child_shown(source, first);
        if !given.is_given() {
            continue;
        }
        if std::mem::replace(&mut found, true) {
            errors.forbidden(volume.path.child(second), ONE_TYPE);
        } else {
            match *source {
                "emptyDir" => {
                    let limit = given.child("sizeLimit");
                    if limit.quantity().is_some_and(|limit| limit.is_negative()) {
                        errors.forbidden(limit.path, "SizeLimit field must be a valid resource quantity");
                    }
                }
                "projected" => projected(given, context, errors),
                "downwardAPI" => {
                    mode(given.child("defaultMode"), errors);
                    for file in given.child("items").items() {
                        downward_file(Field::of(file, given.path), errors);
                    }
                }
                "image" if is_pod => {
                    given.child("reference").required("", errors);
                    context.judge(ty, given, errors);
                }
                "ephemeral" => {
                    context.judge(ty, given, errors);
                    if !pod.is_empty() && !name.text().is_empty() {
                        let claim = format!("{pod}-{}", name.text());
                        for why in names::dns1123_subdomain(&claim) {
                            errors.invalid(name.path, name.text(), &format!("PVC name {claim:?}: {why}"));
                        }
                    }
                }
                _ => context.judge(ty, given, errors),
            }
        }
        if *source == "iscsi" && given.has("initiatorName") {
            let portal = given.child("targetPortal");
            if name.text().len() + 1 + portal.text().len() > 64 {
                errors.invalid(name.path, name.text(), LONG_PORTAL);
            }
        }
    }
    if !found {
        errors.required(volume.path, "must specify a volume type");
    }
}

const LONG_PORTAL: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";

fn mode(field: Field<'_>, errors: &mut FieldErrors) {
    if field.is_given() && !(0..=0o777).contains(&field.number()) {
        errors.invalid(field.path, field.number(), MODE);
    }
}

/// The mode of a file, where one is given.
pub fn file_mode(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    mode(field, errors);
}

/// Keys of a map and the files they become.
pub fn key_paths(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    field.each(|item| key_path(item, errors));
}

fn key_path(item: Field<'_>, errors: &mut FieldErrors) {
    item.child("key").required("", errors);
    item.child("path").required("", errors);
    item.child("path").named(format::local_path, errors);
    mode(item.child("mode"), errors);
}

fn downward_file(file: Field<'_>, errors: &mut FieldErrors) {
    file.child("path").required("", errors);
    file.child("path").named(format::local_path, errors);
    let (object, resource) = (file.child("fieldRef"), file.child("resourceFieldRef"));
    match (object.is_given(), resource.is_given()) {
        (true, both) => {
            field_ref(object, VOLUME_FIELDS, errors);
            if both {
                errors.invalid(
                    file.path,
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                );
            }
        }
        (false, true) => resource_ref(resource, true, errors),
        (false, false) => errors.required(file.path, "one of fieldRef and resourceFieldRef is required"),
    }
    mode(file.child("mode"), errors);
}

const VOLUME_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// A field of the pod, by its path.
pub fn field_ref(reference: Field<'_>, known: &[&str], errors: &mut FieldErrors) {
    let version = reference.child("apiVersion");
    if !version.required("", errors) {
        return;
    }
    let field = reference.child("fieldPath");
    if !field.required("", errors) {
        return;
    }
    let path = field.text();
    let subscript =
        path.strip_suffix("']").and_then(|path| path.split_once("['")).filter(|(path, _)| !path.is_empty());
    let convertible = [
        "metadata.annotations",
        "metadata.labels",
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.serviceAccountName",
        "spec.schedulerName",
        "status.phase",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
        "spec.host",
    ];
    let problem = match subscript {
        _ if version.text() != "v1" => Some(format!("unsupported pod version: {}", version.text())),
        Some(("metadata.annotations" | "metadata.labels", _)) => None,
        Some(_) => Some(format!("field label does not support subscript: {path}")),
        None if convertible.contains(&path) => None,
        None => Some(format!("field label not supported: {path}")),
    };
    if let Some(problem) = problem {
        return errors.invalid(field.path, path, &format!("error converting fieldPath: {problem}"));
    }
    match subscript {
        Some(("metadata.annotations", key)) => {
            checks::named(errors, reference.path, &key.to_lowercase(), names::qualified_name);
        }
        Some((_, key)) => checks::named(errors, reference.path, key, names::qualified_name),
        None => {
            let path = if path == "spec.host" { "spec.nodeName" } else { path };
            if !known.contains(&path) {
                errors.not_supported(field.path, path, known);
            }
        }
    }
}

const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const SIZES: &[&str] = &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// A container's request or limit.
pub fn resource_ref(reference: Field<'_>, of_volume: bool, errors: &mut FieldErrors) {
    let (container, resource) = (reference.child("containerName"), reference.child("resource"));
    let name = resource.text();
    let huge = name.starts_with("requests.hugepages-") || name.starts_with("limits.hugepages-");
    if of_volume && container.text().is_empty() {
        errors.required(container.path, "");
    } else if resource.required("", errors) && !huge {
        resource.one_of(RESOURCES, errors);
    }
    let divisor = reference.child("divisor");
    if divisor.quantity().is_none_or(|divisor| divisor.is_zero()) {
        return;
    }
    let (allowed, what): (&[&str], &str) = match name {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"], "1m and 1 are supported with the cpu resource"),
        "limits.memory" | "requests.memory" => (SIZES, "memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => (SIZES, "local ephemeral storage"),
        _ if huge => (SIZES, "hugepages"),
        _ => return,
    };
    if !allowed.contains(&divisor.text()) {
        let why = match allowed.len() {
            2 => format!("only divisor's values {what}"),
            _ => format!("only divisor's values {} are supported with the {what} resource", SIZES.join(", ")),
        };
        errors.invalid(divisor.path, name, &why);
    }
}

/// Several sources in one directory; no two may make the same file.
fn projected(volume: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    mode(volume.child("defaultMode"), errors);
    let mut paths: HashSet<String> = HashSet::new();
    let mut conflict = |path: &str, told: &str, errors: &mut FieldErrors| {
        if !paths.insert(path.to_owned()) {
            errors.invalid(volume.path, told, "conflicting duplicate paths");
        }
    };
    volume.child("sources").each(|source| {
        let mut given = 0;
        for field in ["secret", "configMap"] {
            let part = source.child(field);
            if !part.is_given() {
                continue;
            }
            given += 1;
            part.child("name").required("", errors);
            part.child("items").each(|item| {
                key_path(item, errors);
                let path = item.child("path");
                if !path.text().is_empty() {
                    conflict(path.text(), part.child("name").text(), errors);
                }
            });
        }
        let part = source.child("downwardAPI");
        if part.is_given() {
            given += 1;
            for file in part.child("items").items() {
                downward_file(Field::of(file, part.path), errors);
                let path = field::text(file, "path");
                if !path.is_empty() {
                    conflict(path, path, errors);
                }
            }
        }
        let part = source.child("serviceAccountToken");
        if part.is_given() {
            given += 1;
            token(part, volume, errors);
        }
        let part = source.child("clusterTrustBundle");
        if part.is_given() {
            given += 1;
            trust_bundle(part, context, errors);
            let path = part.child("path");
            path.required("", errors);
            path.named(format::local_path, errors);
            conflict(path.text(), path.text(), errors);
        }
        let part = source.child("podCertificate");
        if part.is_given() {
            given += 1;
            certificate(part, errors);
            let mut files = 0;
            for field in ["credentialBundlePath", "keyPath", "certificateChainPath"] {
                let path = part.child(field);
                if !path.text().is_empty() {
                    files += 1;
                    path.named(format::local_path, errors);
                    conflict(path.text(), path.text(), errors);
                }
            }
            if files == 0 {
                errors.required(
                    part.path,
                    "specify at least one of credentialBundlePath, keyPath, and certificateChainPath",
                );
            }
        }
        if given > 1 {
            errors.forbidden(source.path, "may not specify more than 1 volume type per source");
        }
    });
}

fn token(token: Field<'_>, volume: Field<'_>, errors: &mut FieldErrors) {
    let seconds = token.child("expirationSeconds");
    if seconds.number() < 600 {
        errors.invalid(seconds.path, seconds.number(), "may not specify a duration less than 10 minutes");
    }
    if seconds.number() > 1 << 32 {
        errors.invalid(seconds.path, seconds.number(), "may not specify a duration larger than 2^32 seconds");
    }
    let path = Field { value: token.get("path"), path: volume.path.child("path") };
    if path.required("", errors) {
        path.named(format::local_path, errors);
    }
}

fn trust_bundle(bundle: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let (name, signer) = (bundle.child("name"), bundle.child("signerName"));
    match (name.is_given(), signer.is_given()) {
        (true, true) => {
            let printed = context.printed_as("core.v1.ClusterTrustBundleProjection", bundle.value);
            let why = format!("{printed}: only one of name and signerName may be used");
            errors.push(bundle.path, Reason::Invalid, why);
        }
        (true, false) => {
            if name.text().is_empty() {
                errors.required(name.path, "must be a valid object name");
            }
            let rest = name.text().rsplit_once(':').map_or(name.text(), |(_, rest)| rest);
            for why in names::dns1123_subdomain(rest) {
                errors.invalid(name.path, name.text(), &format!("not a valid clustertrustbundlename: {why}"));
            }
            let selector = bundle.child("labelSelector");
            if selector.is_given() {
                selector.invalid("labelSelector must be unset if name is specified", errors);
            }
        }
        (false, true) => {
            if signer.text().is_empty() {
                errors.required(signer.path, "must be a valid signer name");
            }
            format::signer(signer.text(), signer.path, errors);
            placement::label_selector(bundle.child("labelSelector"), errors);
        }
        (false, false) => errors.required(bundle.path, "either name or signerName must be specified"),
    }
}

const KEYS: &[&str] = &["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];

fn certificate(certificate: Field<'_>, errors: &mut FieldErrors) {
    let signer = certificate.child("signerName");
    format::signer(signer.text(), signer.path, errors);
    let annotations = certificate.child("userAnnotations");
    for (key, _) in annotations.entries() {
        let key = key.to_lowercase();
        let wrong = names::qualified_name(&key);
        for why in &wrong {
            errors.invalid(annotations.path, key.as_str(), why);
        }
        if wrong.is_empty() && !key.contains('/') {
            errors.invalid(
                annotations.path,
                key.as_str(),
                "must be a domain-prefixed key (such as \"acme.io/foo\")",
            );
        }
    }
    certificate.child("keyType").one_of(KEYS, errors);
    let seconds = certificate.child("maxExpirationSeconds");
    if seconds.is_given() {
        let host = signer.text().split('/').next().unwrap_or("");
        let own = host == "kubernetes.io" || host.ends_with(".kubernetes.io");
        let most = if own { 86_400 } else { 91 * 86_400 };
        if seconds.number() < 3600 {
            errors.invalid(
                seconds.path,
                seconds.number(),
                "if provided, maxExpirationSeconds must be >= 3600",
            );
        }
        if seconds.number() > most {
            let why = format!("if provided, maxExpirationSeconds must be <= {most}");
            errors.invalid(seconds.path, seconds.number(), &why);
        }
    }
}

/// An iSCSI name; those of PersistentVolumes are refused in fewer words.
fn iscsi_name(field: Field<'_>, brief: bool, errors: &mut FieldErrors) {
    let name = field.text();
    let alphanumeric = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let valid = match name.get(..3) {
        Some("iqn") => is_iqn(name),
        Some("eui") => name.len() == 20 && alphanumeric(&name[4..]),
        Some("naa") => name.len() == 36 && alphanumeric(&name[4..]),
        _ if brief => return errors.invalid(field.path, name, "must be valid format"),
        _ => return errors.invalid(field.path, name, "must be valid format starting with iqn, eui, or naa"),
    };
    if !valid {
        errors.invalid(field.path, name, "must be valid format");
    }
}

/// `iqn.2001-04.com.example:storage.disk1`
fn is_iqn(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("iqn.") else { return false };
    let bytes = rest.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let dated = (0..4).all(digit)
        && bytes.get(4) == Some(&b'-')
        && digit(5)
        && digit(6)
        && bytes.get(7) == Some(&b'.');
    let Some((domain, label)) = rest.get(8..).filter(|_| dated).and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    let word = |c: char| c.is_alphanumeric() || c == '-' || c == '.';
    let label_letter = |c: char| !",;*&$|".contains(c) && !c.is_whitespace();
    !domain.is_empty() && domain.chars().all(word) && !label.is_empty() && label.chars().all(label_letter)
}

pub fn iscsi(field: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    iscsi_source(field, context, false, errors);
}

pub fn persistent_iscsi(field: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    iscsi_source(field, context, true, errors);
}

fn iscsi_source(iscsi: Field<'_>, context: &Context<'_>, persistent: bool, errors: &mut FieldErrors) {
    let portal = iscsi.child("targetPortal");
    portal.required("", errors);
    let initiator = iscsi.child_shown("initiatorName", "initiatorname");
    if persistent && initiator.is_given() && context.object.name().len() + 1 + portal.text().len() > 64 {
        errors.invalid(iscsi.path.child("targetportal"), portal.text(), LONG_PORTAL);
    }
    let iqn = iscsi.child("iqn");
    if iqn.required("", errors) {
        iscsi_name(iqn, persistent, errors);
    }
    iscsi.child("lun").in_range(0, 255, errors);
    let secret = iscsi.child("secretRef");
    let authenticates = iscsi.child("chapAuthDiscovery").flag() || iscsi.child("chapAuthSession").flag();
    if authenticates && !secret.is_given() {
        errors.required(secret.path, "");
    }
    if persistent && secret.is_given() {
        secret.child("name").required("", errors);
    }
    if initiator.is_given() {
        iscsi_name(initiator, persistent, errors);
    }
}

pub fn fibre_channel(fc: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let (targets, ids, lun) = (fc.child("targetWWNs"), fc.child("wwids"), fc.child("lun"));
    if targets.is_empty() && ids.is_empty() {
        errors.required(targets.path, "must specify either targetWWNs or wwids, but not both");
    }
    if !targets.is_empty() && !ids.is_empty() {
        targets.invalid("targetWWNs and wwids can not be specified simultaneously", errors);
    }
    if !targets.is_empty() {
        if lun.is_given() {
            lun.in_range(0, 255, errors);
        } else {
            errors.required(lun.path, "lun is required if targetWWNs is specified");
        }
    }
}

pub fn partition(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if !(0..=255).contains(&field.number()) {
        errors.invalid(field.path, field.number(), "must be between 1 and 255, inclusive");
    }
}

pub fn quobyte(quobyte: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let (registry, tenant) = (quobyte.child("registry"), quobyte.child("tenant"));
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    if !registry.required(PAIRS, errors) {
    } else if tenant.text().len() >= 65 {
        errors.required(tenant.path, "must be a UUID and may not exceed a length of 64 characters");
    } else {
        for pair in registry.text().split(',') {
            let one_port = pair.rsplit_once(':').is_some_and(|(host, _)| {
                !host.contains(':') || (host.starts_with('[') && host.ends_with(']'))
            });
            if !one_port {
                errors.invalid(registry.path, registry.text(), PAIRS);
            }
        }
    }
    quobyte.child("volume").required("", errors);
}

pub fn flocker(flocker: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let (name, uuid) = (flocker.child("datasetName"), flocker.child("datasetUUID"));
    match (name.is_empty(), uuid.is_empty()) {
        (true, true) => errors.required(flocker.path, "one of datasetName and datasetUUID is required"),
        (false, false) => {
            errors.invalid(
                flocker.path,
                "resource",
                "datasetName and datasetUUID can not be specified simultaneously",
            );
        }
        _ => {}
    }
    if name.text().contains('/') {
        errors.invalid(name.path, name.text(), "must not contain '/'");
    }
}

pub fn flex_options(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    field.each_entry(|key, option| {
        let domain = format!(".{}", key.split('/').next().unwrap_or(key).to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            errors.invalid(option.path, key, "kubernetes.io and k8s.io namespaces are reserved");
        }
    });
}

pub fn azure_disk(disk: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let (uri, kind) = (disk.child("diskURI"), disk.child("kind"));
    disk.child("diskName").required("", errors);
    uri.required("", errors);
    disk.child("cachingMode").optional_one_of(&["None", "ReadOnly", "ReadWrite"], errors);
    kind.optional_one_of(&["Dedicated", "Managed", "Shared"], errors);
    let managed = kind.text() == "Managed";
    if kind.is_given() && managed && !uri.text().starts_with("/subscriptions/") {
        errors.not_supported(
            uri.path,
            uri.text(),
            &["/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"],
        );
    }
    if kind.is_given() && !managed && !uri.text().starts_with("https://") {
        errors.not_supported(
            uri.path,
            uri.text(),
            &["https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"],
        );
    }
}

/// The secret of a pod's CSI volume. Its name is told as the volume's own.
pub fn csi_secret(field: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if !field.is_given() {
        return;
    }
    let name = field.child("name");
    if name.required("", errors)
        && let Some(path) = context.holder_path
    {
        checks::named(errors, path.child("name"), name.text(), names::dns1123_subdomain);
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

/// The spec of a PersistentVolume.
pub fn persistent(field: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    persistent_spec(field, context, false, errors);
}

/// The same inside an attachment.
pub fn persistent_spec(spec: Field<'_>, context: &Context<'_>, inline: bool, errors: &mut FieldErrors) {
    const INLINE: &str = "may not be specified in the context of inline volumes";
    if inline {
        for field in ["claimRef", "capacity"] {
            if !spec.child(field).is_empty() {
                errors.forbidden(spec.path.child(field), INLINE);
            }
        }
        if !spec.has("csi") {
            errors.required(spec.path.child("csi"), "has to be specified in the context of inline volumes");
        }
    }
    let modes = spec.child("accessModes");
    modes.required("", errors);
    access_modes(modes, context, errors);
    if !inline {
        let capacity = spec.child("capacity");
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
    let policy = spec.child("persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        match inline {
            true if policy.text() != "Retain" => {
                errors.forbidden(policy.path, "may only be Retain in the context of inline volumes")
            }
            true => {}
            false => policy.one_of(&["Delete", "Recycle", "Retain"], errors),
        }
    }
    let affinity = spec.child("nodeAffinity");
    if affinity.is_given() {
        let required = affinity.child("required");
        if inline {
            errors.forbidden(affinity.path, INLINE);
        } else if required.is_given() {
            placement::node_selector_terms(required, errors);
        } else {
            errors.required(required.path, "must specify required node constraints");
        }
    }
    let mut found = false;
    for (source, ty, second, first) in PERSISTENT_SOURCES {
        let given = spec.child_shown(source, first);
        if !given.is_given() {
            continue;
        }
        // A flexVolume is judged wherever it stands among others.
        if std::mem::replace(&mut found, true) && *source != "flexVolume" {
            errors.forbidden(spec.path.child(second), ONE_TYPE);
            continue;
        }
        context.judge(ty, given, errors);
        if *source == "local" && (inline || !affinity.is_given()) {
            errors.required(affinity.path, "Local volume requires node affinity");
        }
    }
    if !found {
        errors.required(spec.path, "must specify a volume type");
    }
    let host = spec.child("hostPath");
    let is_root = || host.child("path").text().split('/').all(|part| matches!(part, "" | "."));
    if host.is_given() && is_root() && !host.child("path").is_empty() && policy.text() == "Recycle" {
        errors.forbidden(policy.path, "may not be 'recycle' for a hostPath mount of '/'");
    }
    let class = spec.child("storageClassName");
    if !class.is_empty() {
        match inline {
            true => errors.forbidden(class.path, INLINE),
            false => class.named(names::dns1123_subdomain, errors),
        }
    }
    let mode = spec.child("volumeMode");
    if mode.is_given() {
        match inline {
            true if mode.text() != "Filesystem" => errors.forbidden(
                mode.path,
                "may not specify volumeMode other than Filesystem in the context of inline volumes",
            ),
            true => {}
            false => mode.one_of(&["Block", "Filesystem"], errors),
        }
    }
    let attributes = spec.child("volumeAttributesClassName");
    if attributes.is_given() && !inline {
        if attributes.is_empty() {
            errors.required(attributes.path, "an empty string is disallowed");
        } else {
            attributes.named(names::dns1123_subdomain, errors);
        }
        if !spec.has("csi") {
            errors
                .required(spec.path.child("csi"), "has to be specified when using volumeAttributesClassName");
        }
    }
}
