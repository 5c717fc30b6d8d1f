//! Config maps, secrets, service accounts and volume claims.

use base64::Engine as _;
use serde_json::Value;

use super::metadata::{annotations, labels};
use crate::cli::Cli;
use crate::error::Result;
use crate::fields::Fields;
use ferry_api::json_path::to_text;

fn head(object: &Value) -> String {
    let mut text = format!("Name:\t{}\nNamespace:\t{}\n", object.name(), object.namespace());
    text.push_str(&labels("Labels", object, "metadata.labels", ""));
    text.push_str(&annotations(object, ""));
    text
}

fn size(encoded: &Value) -> usize {
    base64::engine::general_purpose::STANDARD
        .decode(encoded.as_str().unwrap_or_default())
        .map_or(0, |data| data.len())
}

pub fn config_map(object: &Value) -> String {
    let mut text = head(object);
    text.push_str("\nData\n====\n");
    for (key, value) in object.entries("data") {
        text.push_str(&format!("{key}:\n----\n{}\n\n", to_text(value)));
    }
    text.push_str("\nBinaryData\n====\n");
    for (key, value) in object.entries("binaryData") {
        text.push_str(&format!("{key}: {} bytes\n", size(value)));
    }
    text.push('\n');
    text
}

/// The values stay secret; their sizes do not.
pub fn secret(object: &Value) -> String {
    let mut text = head(object);
    text.push_str(&format!("\nType:\t{}\n\nData\n====\n", object.text("type")));
    for (key, value) in object.entries("data") {
        if object.text("type") == "kubernetes.io/service-account-token" && key == "token" {
            let token = base64::engine::general_purpose::STANDARD
                .decode(value.as_str().unwrap_or_default())
                .unwrap_or_default();
            text.push_str(&format!("{key}:\t{}\n", String::from_utf8_lossy(&token)));
        } else {
            text.push_str(&format!("{key}:\t{} bytes\n", size(value)));
        }
    }
    text
}

pub fn service_account(object: &Value) -> String {
    let mut text = head(object);
    for (title, field) in [("Image pull secrets", "imagePullSecrets"), ("Mountable secrets", "secrets")] {
        let names: Vec<String> =
            object.list(field).iter().map(|secret| secret.text("name").to_owned()).collect();
        if !names.is_empty() || field == "imagePullSecrets" {
            text.push_str(&super::metadata::lines(title, &names, ""));
        }
    }
    text
}

pub async fn claim(cli: &Cli, object: &Value) -> Result<String> {
    let mut text = format!("Name:\t{}\nNamespace:\t{}\n", object.name(), object.namespace());
    let status = if object.has("metadata.deletionTimestamp") {
        "Terminating".to_owned()
    } else {
        object.text("status.phase").to_owned()
    };
    text.push_str(&format!(
        "StorageClass:\t{}\nStatus:\t{status}\nVolume:\t{}\n",
        object.text("spec.storageClassName"),
        object.text("spec.volumeName")
    ));
    text.push_str(&labels("Labels", object, "metadata.labels", ""));
    text.push_str(&annotations(object, ""));
    let words = |path: &str| object.list(path).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
    text.push_str(&format!("Finalizers:\t[{}]\n", words("metadata.finalizers")));
    let bound = !object.text("spec.volumeName").is_empty();
    let capacity = if bound {
        object
            .map("status.capacity")
            .and_then(|capacity| capacity.get("storage"))
            .map(to_text)
            .unwrap_or_default()
    } else {
        String::new()
    };
    let modes: Vec<&str> =
        object.list("status.accessModes").iter().filter_map(Value::as_str).map(short_mode).collect();
    text.push_str(&format!(
        "Capacity:\t{capacity}\nAccess Modes:\t{}\n",
        if bound { modes.join(",") } else { String::new() }
    ));
    if object.has("spec.volumeMode") {
        text.push_str(&format!("VolumeMode:\t{}\n", object.text("spec.volumeMode")));
    }
    let pods = crate::pods::list(cli, object.namespace(), "").await?;
    let users: Vec<String> = pods
        .iter()
        .filter(|pod| {
            pod.list("spec.volumes")
                .iter()
                .any(|volume| volume.text("persistentVolumeClaim.claimName") == object.name())
        })
        .map(|pod| pod.name().to_owned())
        .collect();
    text.push_str(&super::metadata::lines("Used By", &users, ""));
    Ok(text)
}

pub fn short_mode(mode: &str) -> &str {
    match mode {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        other => other,
    }
}
