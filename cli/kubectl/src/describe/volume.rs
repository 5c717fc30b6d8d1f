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

/// The lines of a volume's source; a source without a page of its own shows its fields.
pub fn source(volume: &Value) -> String {
    let lines = |kind: &str, entries: &[(&str, String)]| {
        let rest: String = entries.iter().map(|(label, value)| format!("    {label}:\t{value}\n")).collect();
        format!("    Type:\t{kind}\n{rest}")
    };
    let field = |path: &str| volume.text(path).to_owned();
    let flag = |path: &str| volume.flag(path).to_string();
    if volume.has("hostPath") {
        return lines(
            "HostPath (bare host directory volume)",
            &[("Path", field("hostPath.path")), ("HostPathType", field("hostPath.type"))],
        );
    }
    if volume.has("emptyDir") {
        let limit = match volume.at("emptyDir.sizeLimit") {
            Value::Null => "<unset>".to_owned(),
            limit => to_text(limit),
        };
        return lines(
            "EmptyDir (a temporary directory that shares a pod's lifetime)",
            &[("Medium", field("emptyDir.medium")), ("SizeLimit", limit)],
        );
    }
    if volume.has("configMap") {
        return lines(
            "ConfigMap (a volume populated by a ConfigMap)",
            &[("Name", field("configMap.name")), ("Optional", flag("configMap.optional"))],
        );
    }
    if volume.has("secret") {
        return lines(
            "Secret (a volume populated by a Secret)",
            &[("SecretName", field("secret.secretName")), ("Optional", flag("secret.optional"))],
        );
    }
    if volume.has("persistentVolumeClaim") {
        return lines(
            "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
            &[
                ("ClaimName", field("persistentVolumeClaim.claimName")),
                ("ReadOnly", flag("persistentVolumeClaim.readOnly")),
            ],
        );
    }
    if volume.has("downwardAPI") {
        let items: String = volume
            .list("downwardAPI.items")
            .iter()
            .map(|item| {
                let from = if item.has("fieldRef") {
                    item.text("fieldRef.fieldPath")
                } else {
                    item.text("resourceFieldRef.resource")
                };
                format!("      {from} -> {}\n", item.text("path"))
            })
            .collect();
        return format!(
            "    Type:\tDownwardAPI (a volume populated by information about the pod)\n    Items:\n{items}"
        );
    }
    if volume.has("projected") {
        return projected(volume);
    }
    if volume.has("nfs") {
        return lines(
            "NFS (an NFS mount that lasts the lifetime of a pod)",
            &[
                ("Server", field("nfs.server")),
                ("Path", field("nfs.path")),
                ("ReadOnly", flag("nfs.readOnly")),
            ],
        );
    }
    if volume.has("csi") {
        return lines(
            "CSI (a Container Storage Interface (CSI) volume source)",
            &[
                ("Driver", field("csi.driver")),
                ("FSType", field("csi.fsType")),
                ("ReadOnly", flag("csi.readOnly")),
            ],
        );
    }
    let kind = volume
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, _)| key.as_str())
        .find(|key| *key != "name")
        .unwrap_or("<unknown>");
    lines(kind, &[])
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
