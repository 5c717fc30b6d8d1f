//! Volumes of pods: which source each has, and the files of those that the kubelet writes.

use std::collections::HashSet;

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{self, Context, Field};
use super::volume_source::{LONG_PORTAL, ONE_TYPE, Source, source};
use super::{format, placement};
use crate::kinds::checks::{self, Path};

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// The sources of a pod's volume, in the order in which upstream validates them. `emptyDir` has no rows of its own.
const POD_SOURCES: &[Source] = &[
    source("emptyDir", ""),
    source("hostPath", "core.v1.HostPathVolumeSource"),
    source("gitRepo", "core.v1.GitRepoVolumeSource"),
    source("gcePersistentDisk", "core.v1.GCEPersistentDiskVolumeSource")
        .shown_as("gcePersistentDisk", "persistentDisk"),
    source("awsElasticBlockStore", "core.v1.AWSElasticBlockStoreVolumeSource"),
    source("secret", "core.v1.SecretVolumeSource"),
    source("nfs", "core.v1.NFSVolumeSource"),
    source("iscsi", "core.v1.ISCSIVolumeSource"),
    source("glusterfs", "core.v1.GlusterfsVolumeSource"),
    source("flocker", "core.v1.FlockerVolumeSource"),
    source("persistentVolumeClaim", "core.v1.PersistentVolumeClaimVolumeSource"),
    source("rbd", "core.v1.RBDVolumeSource"),
    source("cinder", "core.v1.CinderVolumeSource"),
    source("cephfs", "core.v1.CephFSVolumeSource").shown_as("cephFS", "cephfs"),
    source("quobyte", "core.v1.QuobyteVolumeSource"),
    source("downwardAPI", "core.v1.DownwardAPIVolumeSource").shown_as("downwarAPI", "downwardAPI"),
    source("fc", "core.v1.FCVolumeSource"),
    source("flexVolume", "core.v1.FlexVolumeSource"),
    source("configMap", "core.v1.ConfigMapVolumeSource"),
    source("azureFile", "core.v1.AzureFileVolumeSource"),
    source("vsphereVolume", "core.v1.VsphereVirtualDiskVolumeSource"),
    source("photonPersistentDisk", "core.v1.PhotonPersistentDiskVolumeSource"),
    source("portworxVolume", "core.v1.PortworxVolumeSource"),
    source("azureDisk", "core.v1.AzureDiskVolumeSource"),
    source("storageos", "core.v1.StorageOSVolumeSource"),
    source("projected", "core.v1.ProjectedVolumeSource"),
    source("scaleIO", "core.v1.ScaleIOVolumeSource"),
    source("csi", "core.v1.CSIVolumeSource"),
    source("ephemeral", "core.v1.EphemeralVolumeSource"),
    source("image", "core.v1.ImageVolumeSource"),
];

/// Validates the volumes of a pod and returns the valid ones, which mounts may use.
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
    for Source { field, type_name, shown_first, shown_second } in POD_SOURCES {
        let given = volume.child_shown(field, shown_first);
        if !given.is_given() {
            continue;
        }
        if std::mem::replace(&mut found, true) {
            errors.forbidden(volume.path.child(shown_second), ONE_TYPE);
        } else {
            match *field {
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
                    context.judge(type_name, given, errors);
                }
                "ephemeral" => {
                    context.judge(type_name, given, errors);
                    if !pod.is_empty() && !name.text().is_empty() {
                        let claim = format!("{pod}-{}", name.text());
                        for why in names::dns1123_subdomain(&claim) {
                            errors.invalid(name.path, name.text(), &format!("PVC name {claim:?}: {why}"));
                        }
                    }
                }
                _ => context.judge(type_name, given, errors),
            }
        }
        if *field == "iscsi" && given.has("initiatorName") {
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

/// A projected volume: sources that write files into one directory, each file once.
fn projected(volume: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    mode(volume.child("defaultMode"), errors);
    let mut files = ProjectedFiles { volume: volume.path, paths: HashSet::new() };
    volume.child("sources").each(|source| {
        let mut given = 0;
        for (field, check) in PROJECTIONS {
            let part = source.child(field);
            if part.is_given() {
                given += 1;
                check(part, volume, context, &mut files, errors);
            }
        }
        if given > 1 {
            errors.forbidden(source.path, "may not specify more than 1 volume type per source");
        }
    });
}

/// The files of the sources looked at so far.
struct ProjectedFiles<'a> {
    volume: Path<'a>,
    paths: HashSet<String>,
}

impl ProjectedFiles<'_> {
    /// `value` is what the error about a second file of this path quotes.
    fn add(&mut self, path: &str, value: &str, errors: &mut FieldErrors) {
        if !self.paths.insert(path.to_owned()) {
            errors.invalid(self.volume, value, "conflicting duplicate paths");
        }
    }
}

type CheckProjection = fn(Field<'_>, Field<'_>, &Context<'_>, &mut ProjectedFiles<'_>, &mut FieldErrors);

/// In upstream's order.
const PROJECTIONS: &[(&str, CheckProjection)] = &[
    ("secret", |part, _, _, files, errors| projected_keys(part, files, errors)),
    ("configMap", |part, _, _, files, errors| projected_keys(part, files, errors)),
    ("downwardAPI", |part, _, _, files, errors| projected_fields(part, files, errors)),
    ("serviceAccountToken", |part, volume, _, _, errors| token(part, volume, errors)),
    ("clusterTrustBundle", |part, _, context, files, errors| {
        trust_bundle(part, context, errors);
        let path = part.child("path");
        path.required("", errors);
        path.named(format::local_path, errors);
        files.add(path.text(), path.text(), errors);
    }),
    ("podCertificate", |part, _, _, files, errors| {
        certificate(part, errors);
        certificate_files(part, files, errors);
    }),
];

fn projected_keys(part: Field<'_>, files: &mut ProjectedFiles<'_>, errors: &mut FieldErrors) {
    part.child("name").required("", errors);
    part.child("items").each(|item| {
        key_path(item, errors);
        let path = item.child("path");
        if !path.text().is_empty() {
            files.add(path.text(), part.child("name").text(), errors);
        }
    });
}

fn projected_fields(part: Field<'_>, files: &mut ProjectedFiles<'_>, errors: &mut FieldErrors) {
    for file in part.child("items").items() {
        downward_file(Field::of(file, part.path), errors);
        let path = field::text(file, "path");
        if !path.is_empty() {
            files.add(path, path, errors);
        }
    }
}

fn certificate_files(part: Field<'_>, files: &mut ProjectedFiles<'_>, errors: &mut FieldErrors) {
    let fields = ["credentialBundlePath", "keyPath", "certificateChainPath"];
    let paths = fields.map(|field| part.child(field));
    for path in paths.iter().filter(|path| !path.text().is_empty()) {
        path.named(format::local_path, errors);
        files.add(path.text(), path.text(), errors);
    }
    if paths.iter().all(|path| path.text().is_empty()) {
        errors.required(
            part.path,
            "specify at least one of credentialBundlePath, keyPath, and certificateChainPath",
        );
    }
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
