//! Volumes, claims, and what provides them.

use ferry_api::Object;

use super::{Warnings, node_selector_term, old_label, old_label_at, section};
use crate::kinds::checks::Path;
use crate::kinds::rules::field::Field;

const OLD_CLASS: (&str, &str) = (
    "volume.beta.kubernetes.io/storage-class",
    r#"deprecated since v1.8; use "storageClassName" attribute instead"#,
);
const OLD_OPTIONS: (&str, &str) = (
    "volume.beta.kubernetes.io/mount-options",
    r#"deprecated since v1.31; use "mountOptions" attribute instead"#,
);

/// Kinds of volumes that nobody mounts any more, with what is said of them. Pods have all of them.
pub const GONE: [(&str, &str); 8] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Upstream tells of this source under the name of its Go field.
pub fn shown(source: &str) -> &str {
    if source == "storageos" { "storageOS" } else { source }
}

fn old_annotations(object: &Object, old: &[(&str, &str)], said: &mut Warnings) {
    let metadata = Path::root("metadata");
    let annotations = metadata.child("annotations");
    for (key, message) in old.iter().filter(|(key, _)| object.annotation(key).is_some()) {
        said.at(annotations.key(key), message);
    }
}

pub fn volume(object: &Object, spec: Field<'_>, said: &mut Warnings) {
    old_annotations(object, &[OLD_CLASS, OLD_OPTIONS], said);
    let policy = spec.child("persistentVolumeReclaimPolicy");
    if policy.text() == "Recycle" {
        said.at(
            policy.path,
            "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
        );
    }
    let affinity = spec.child("nodeAffinity");
    let required = affinity.child("required");
    required.child("nodeSelectorTerms").each(|term| node_selector_term(term, false, said));
    let gone = GONE.iter().filter(|(source, _)| !matches!(*source, "flocker" | "quobyte"));
    for (source, message) in gone.filter(|(source, _)| spec.has(source)) {
        said.at(spec.path.child(shown(source)), message);
    }
}

pub fn claim(object: &Object, spec: Field<'_>, said: &mut Warnings) {
    old_annotations(object, &[OLD_CLASS], said);
    claim_spec(spec, said);
}

pub fn claim_spec(spec: Field<'_>, said: &mut Warnings) {
    let resources = spec.child("resources");
    for list in ["requests", "limits"] {
        fractional(resources.child(list), "storage", said);
    }
}

/// A part of a byte is nothing.
pub fn fractional(amounts: Field<'_>, resource: &str, said: &mut Warnings) {
    let Some(amount) = amounts.child(resource).quantity() else { return };
    if amount.milli() % 1000 != 0 {
        let what = format!("fractional byte value {:?} is invalid, must be an integer", amount.to_string());
        said.at(amounts.path.key(resource), &what);
    }
}

pub fn class(object: &Object, said: &mut Warnings) {
    section(object, "allowedTopologies").each(|topology| {
        topology.child("matchLabelExpressions").each(|expression| {
            let key = expression.child("key");
            if let Some(message) = old_label(key.text()) {
                said.at(key.path, message);
            }
        });
    });
}

pub fn capacity(object: &Object, said: &mut Warnings) {
    let topology = section(object, "nodeTopology");
    topology.child("matchExpressions").each(|expression| old_label_at(expression.child("key"), said));
    let labels = topology.child("matchLabels");
    for (key, _) in labels.entries() {
        if let Some(message) = old_label(key) {
            said.at(labels.path.child(key), message);
        }
    }
}

/// Tokens are asked for; since v1.35 they can be kept out of what drivers log.
pub fn driver(spec: Field<'_>, old: Option<&Object>, said: &mut Warnings) {
    let requests = spec.get("tokenRequests");
    let changed = old.is_none_or(|old| section(old, "spec").get("tokenRequests") != requests);
    if changed && !spec.child("tokenRequests").is_empty() && !spec.has("serviceAccountTokenInSecrets") {
        said.say(
            "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent \
             possible logging of tokens in volume attributes",
        );
    }
}
