//! Files of a volume that would lie at the same place, or one below the other.

use serde_json::Value;

use super::Warnings;
use crate::kinds::rules::field::{Field, text};

/// Where a file is put, and what it comes from.
#[derive(Clone, PartialEq, Eq)]
struct Placed {
    path: String,
    source: String,
}

impl std::fmt::Display for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.path)?;
        if self.source.is_empty() { Ok(()) } else { write!(f, " ({})", self.source) }
    }
}

impl Placed {
    fn collides(&self, other: &Placed) -> bool {
        let below = |path: &str, of: &str| path.strip_prefix(of).is_some_and(|rest| rest.starts_with('/'));
        let (one, two) = (self.path.as_str(), other.path.as_str());
        !two.is_empty() && (one == two || below(one, two) || below(two, one))
    }
}

pub fn of_volume(volume: Field<'_>, said: &mut Warnings) {
    let name = volume.child("name").text();
    for (source, given, kind) in [
        ("configMap", "name", "ConfigMap"),
        ("secret", "secretName", "Secret"),
        ("downwardAPI", "", "DownwardAPI"),
    ] {
        let source = volume.child(source);
        let shown = if given.is_empty() {
            kind.to_string()
        } else {
            format!("{kind} {:?}", source.child(given).text())
        };
        tell(name, &shown, files(source, ""), &mut Vec::new(), said);
    }
    let mut all = Vec::new();
    volume.child("projected").child("sources").each(|source| {
        let holds = |field: &str| source.has(field);
        let known = [
            "configMap",
            "secret",
            "downwardAPI",
            "serviceAccountToken",
            "clusterTrustBundle",
            "podCertificate",
        ];
        if !known.into_iter().any(holds) {
            said.say(format!("volume {name:?} (Projected) has no sources provided"));
            return;
        }
        tell(name, "Projected", projected(source), &mut all, said);
    });
}

/// Tells what collides with a file before it.
fn tell(volume: &str, source: &str, files: Vec<Placed>, before: &mut Vec<Placed>, said: &mut Warnings) {
    for file in files {
        if !file.path.is_empty() {
            for other in before.iter().filter(|other| file.collides(other)) {
                said.say(format!("volume {volume:?} ({source}): overlapping paths: {file} with {other}"));
            }
        }
        before.push(file);
    }
}

fn placed(path: &str, source: &str) -> Placed {
    Placed { path: path.trim_end_matches('/').into(), source: source.into() }
}

fn files(source: Field<'_>, from: &str) -> Vec<Placed> {
    source.child("items").items().iter().map(|item: &Value| placed(text(item, "path"), from)).collect()
}

fn projected(source: Field<'_>) -> Vec<Placed> {
    let (map, secret) = (source.child("configMap"), source.child("secret"));
    let (downward, token) = (source.child("downwardAPI"), source.child("serviceAccountToken"));
    let (bundle, certificate) = (source.child("clusterTrustBundle"), source.child("podCertificate"));
    if map.has("items") {
        files(map, &format!("ConfigMap {:?}", map.child("name").text()))
    } else if secret.has("items") {
        files(secret, &format!("Secret {:?}", secret.child("name").text()))
    } else if downward.has("items") {
        files(downward, "DownwardAPI")
    } else if token.is_given() {
        vec![placed(token.child("path").text(), "ServiceAccountToken")]
    } else if bundle.is_given() {
        let name = if bundle.has("name") { bundle.child("name") } else { bundle.child("signerName") };
        vec![placed(bundle.child("path").text(), &format!("ClusterTrustBundle {:?}", name.text()))]
    } else {
        let parts = [
            ("certificateChainPath", "PodCertificate chain"),
            ("keyPath", "PodCertificate key"),
            ("credentialBundlePath", "PodCertificate credential bundle"),
        ];
        let given = parts.into_iter().filter(|(field, _)| !certificate.child(field).is_empty());
        given.map(|(field, from)| placed(certificate.child(field).text(), from)).collect()
    }
}
