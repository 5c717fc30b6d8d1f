//! Sources of volumes: those that pods and PersistentVolumes have in common, by the driver's name.

use ferry_api::{FieldErrors, names};

use super::field::{Context, Field};
use crate::kinds::checks;

pub const ONE_TYPE: &str = "may not specify more than 1 volume type";
pub const LONG_PORTAL: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";

/// A field of a volume that says where its data is.
pub struct Source {
    pub field: &'static str,
    /// The type whose rows judge it.
    pub type_name: &'static str,
    /// The field's name in errors about its content.
    pub shown_first: &'static str,
    /// Its name in the error about a second source.
    pub shown_second: &'static str,
}

pub const fn source(field: &'static str, type_name: &'static str) -> Source {
    Source { field, type_name, shown_first: field, shown_second: field }
}

impl Source {
    /// Where upstream's errors use other names than the field's.
    pub const fn shown_as(self, second: &'static str, first: &'static str) -> Source {
        Source { shown_first: first, shown_second: second, ..self }
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
