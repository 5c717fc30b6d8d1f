//! Volumes by their source.

use serde_json::Value;

use crate::fields::Fields;
use ferry_api::json_path::to_text;

pub fn volumes(spec: &Value, indent: &str) -> String {
    let volumes = spec.list("volumes");
    if volumes.is_empty() {
        return format!("{indent}Volumes:\t<none>\n");
    }
    let mut text = format!("{indent}Volumes:\n");
    let name_indent = if indent.is_empty() { "" } else { " " };
    for volume in volumes {
        text.push_str(&format!("  {name_indent}{}:\n", volume.text("name")));
        text.push_str(&source(volume));
    }
    text
}

/// How a field of a source is shown.
enum Shown {
    Text,
    Flag,
    /// A quantity; `<unset>` without one.
    Limit,
}

use Shown::{Flag, Limit, Text};

/// Label and path of a line.
type Line = (&'static str, &'static str, Shown);

/// Sources by their field: the type that is shown, and its lines.
const SOURCES: &[(&str, &str, &[Line])] = &[
    (
        "hostPath",
        "HostPath (bare host directory volume)",
        &[("Path", "hostPath.path", Text), ("HostPathType", "hostPath.type", Text)],
    ),
    (
        "emptyDir",
        "EmptyDir (a temporary directory that shares a pod's lifetime)",
        &[("Medium", "emptyDir.medium", Text), ("SizeLimit", "emptyDir.sizeLimit", Limit)],
    ),
    (
        "configMap",
        "ConfigMap (a volume populated by a ConfigMap)",
        &[("Name", "configMap.name", Text), ("Optional", "configMap.optional", Flag)],
    ),
    (
        "secret",
        "Secret (a volume populated by a Secret)",
        &[("SecretName", "secret.secretName", Text), ("Optional", "secret.optional", Flag)],
    ),
    (
        "persistentVolumeClaim",
        "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
        &[
            ("ClaimName", "persistentVolumeClaim.claimName", Text),
            ("ReadOnly", "persistentVolumeClaim.readOnly", Flag),
        ],
    ),
    (
        "nfs",
        "NFS (an NFS mount that lasts the lifetime of a pod)",
        &[("Server", "nfs.server", Text), ("Path", "nfs.path", Text), ("ReadOnly", "nfs.readOnly", Flag)],
    ),
    (
        "csi",
        "CSI (a Container Storage Interface (CSI) volume source)",
        &[("Driver", "csi.driver", Text), ("FSType", "csi.fsType", Text), ("ReadOnly", "csi.readOnly", Flag)],
    ),
];

/// The lines of a volume's source. Of a source that is not in the table only the type is shown.
pub fn source(volume: &Value) -> String {
    if volume.has("downwardAPI") {
        return downward_api(volume);
    }
    if volume.has("projected") {
        return projected(volume);
    }
    let Some((_, kind, lines)) = SOURCES.iter().find(|(field, ..)| volume.has(field)) else {
        let mut fields = volume.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        let kind = fields.find(|key| *key != "name").unwrap_or("<unknown>");
        return format!("    Type:\t{kind}\n");
    };
    let lines = lines.iter().map(|(label, path, shown)| {
        let value = match shown {
            Text => volume.text(path).to_owned(),
            Flag => volume.flag(path).to_string(),
            Limit if volume.at(path).is_null() => "<unset>".to_owned(),
            Limit => to_text(volume.at(path)),
        };
        format!("    {label}:\t{value}\n")
    });
    format!("    Type:\t{kind}\n{}", lines.collect::<String>())
}

fn downward_api(volume: &Value) -> String {
    let items = volume.list("downwardAPI.items").iter().map(|item| {
        let from = match item.has("fieldRef") {
            true => item.text("fieldRef.fieldPath"),
            false => item.text("resourceFieldRef.resource"),
        };
        format!("      {from} -> {}\n", item.text("path"))
    });
    format!(
        "    Type:\tDownwardAPI (a volume populated by information about the pod)\n    Items:\n{}",
        items.collect::<String>()
    )
}

fn projected(volume: &Value) -> String {
    let mut text =
        "    Type:\tProjected (a volume that contains injected data from multiple sources)\n".to_owned();
    for source in volume.list("projected.sources") {
        if source.has("secret") {
            text.push_str(&format!(
                "    SecretName:\t{}\n    Optional:\t{}\n",
                source.text("secret.name"),
                source.flag("secret.optional")
            ));
        } else if source.has("downwardAPI") {
            text.push_str("    DownwardAPI:\ttrue\n");
        } else if source.has("configMap") {
            text.push_str(&format!(
                "    ConfigMapName:\t{}\n    Optional:\t{}\n",
                source.text("configMap.name"),
                source.flag("configMap.optional")
            ));
        } else if source.has("serviceAccountToken") {
            text.push_str(&format!(
                "    TokenExpirationSeconds:\t{}\n",
                source.int("serviceAccountToken.expirationSeconds").unwrap_or(3600)
            ));
        }
    }
    text
}
