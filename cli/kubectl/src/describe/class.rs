//! Persistent volumes, and the classes and budgets that others refer to.

use serde_json::Value;

use super::config::short_mode;
use super::metadata::{annotations, labels, lines, selector};
use super::{or_none, time, volume};
use crate::fields::Fields;
use ferry_api::json_path::to_text;

pub fn persistent_volume(volume: &Value) -> String {
    let mut text = format!("Name:\t{}\n", volume.name());
    text.push_str(&labels("Labels", volume, "metadata.labels", ""));
    text.push_str(&annotations(volume, ""));
    let finalizers: Vec<&str> = volume.list("metadata.finalizers").iter().filter_map(Value::as_str).collect();
    let given: Vec<&str> = volume.list("spec.accessModes").iter().filter_map(Value::as_str).collect();
    let modes: Vec<&str> = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]
        .into_iter()
        .filter(|mode| given.contains(mode))
        .map(short_mode)
        .collect();
    let status = match volume.text("metadata.deletionTimestamp") {
        "" => volume.text("status.phase").to_owned(),
        since => {
            let age = crate::printers::duration::age(since, jiff::Timestamp::now());
            format!("Terminating (lasts {age})")
        }
    };
    let claim = match volume.text("spec.claimRef.name") {
        "" => String::new(),
        name => format!("{}/{name}", volume.text("spec.claimRef.namespace")),
    };
    text.push_str(&format!(
        "Finalizers:\t[{}]\nStorageClass:\t{}\nStatus:\t{status}\nClaim:\t{claim}\nReclaim Policy:\t{}\nAccess Modes:\t{}\n",
        finalizers.join(" "),
        volume.text("spec.storageClassName"),
        volume.text("spec.persistentVolumeReclaimPolicy"),
        modes.join(",")
    ));
    if volume.has("spec.volumeMode") {
        text.push_str(&format!("VolumeMode:\t{}\n", volume.text("spec.volumeMode")));
    }
    text.push_str(&format!("Capacity:\t{}\n", to_text(volume.at("spec.capacity.storage"))));
    text.push_str(&node_affinity(volume));
    text.push_str(&format!("Message:\t{}\nSource:\n", volume.text("status.message")));
    text.push_str(&source(volume.at("spec")));
    text
}

/// What a pod's volume cannot be, or says less about.
fn source(spec: &Value) -> String {
    if spec.has("local") {
        return format!(
            "    Type:\tLocalVolume (a persistent volume backed by local storage on a node)\n    Path:\t{}\n",
            spec.text("local.path")
        );
    }
    if !spec.has("csi") {
        return volume::source(spec);
    }
    let attributes: Vec<String> = spec
        .entries("csi.volumeAttributes")
        .iter()
        .map(|(key, value)| format!("    {key}={}", to_text(value)))
        .collect();
    format!(
        "    Type:\tCSI (a Container Storage Interface (CSI) volume source)\n    Driver:\t{}\n    FSType:\t{}\n    VolumeHandle:\t{}\n    ReadOnly:\t{}\n{}",
        spec.text("csi.driver"),
        spec.text("csi.fsType"),
        spec.text("csi.volumeHandle"),
        spec.flag("csi.readOnly"),
        lines("VolumeAttributes", &attributes, "    ")
    )
}

fn node_affinity(volume: &Value) -> String {
    if !volume.has("spec.nodeAffinity.required") {
        return "Node Affinity:\t<none>\n".to_owned();
    }
    let mut text = "Node Affinity:\t\n".to_owned();
    let terms = volume.list("spec.nodeAffinity.required.nodeSelectorTerms");
    text.push_str(if terms.is_empty() { "  Required Terms:\t<none>\n" } else { "  Required Terms:\t\n" });
    for (position, term) in terms.iter().enumerate() {
        text.push_str(&format!("    Term {position}:\t"));
        let requirements = term.list("matchExpressions");
        if requirements.is_empty() {
            text.push_str("<none>\n");
        }
        for (position, requirement) in requirements.iter().enumerate() {
            let values: Vec<&str> = requirement.list("values").iter().filter_map(Value::as_str).collect();
            let operator = requirement.text("operator").to_lowercase();
            let indent = if position == 0 { "" } else { "    \t" };
            let values = if values.is_empty() { String::new() } else { format!(" [{}]", values.join(", ")) };
            text.push_str(&format!("{indent}{} {operator}{values}\n", requirement.text("key")));
        }
    }
    text
}

/// `a=b,c=d`, or `<none>`.
pub(super) fn joined(object: &Value, path: &str) -> String {
    let pairs: Vec<String> =
        object.entries(path).iter().map(|(key, value)| format!("{key}={}", to_text(value))).collect();
    or_none(pairs.join(","))
}

pub fn volume_attributes_class(class: &Value) -> String {
    format!(
        "Name:\t{}\nAnnotations:\t{}\nDriverName:\t{}\nParameters:\t{}\n",
        class.name(),
        joined(class, "metadata.annotations"),
        class.text("driverName"),
        joined(class, "parameters")
    )
}

/// Which CSI drivers a node has.
pub fn csi_node(node: &Value) -> String {
    let mut text = format!("Name:\t{}\n", node.name());
    text.push_str(&labels("Labels", node, "metadata.labels", ""));
    text.push_str(&annotations(node, ""));
    text.push_str(&format!("CreationTimestamp:\t{}\nSpec:\n", time(node.text("metadata.creationTimestamp"))));
    let drivers = node.list("spec.drivers");
    if !drivers.is_empty() {
        text.push_str("  Drivers:\n");
    }
    for driver in drivers {
        text.push_str(&format!("    {}:\n      Node ID:\t{}\n", driver.text("name"), driver.text("nodeID")));
        if let Some(count) = driver.int("allocatable.count") {
            text.push_str(&format!("      Allocatables:\n        Count:\t{count}\n"));
        }
        let keys: Vec<String> = driver.list("topologyKeys").iter().map(to_text).collect();
        if !keys.is_empty() {
            text.push_str(&format!("      Topology Keys:\t[{}]\n", keys.join(" ")));
        }
    }
    text
}

pub fn storage_class(class: &Value) -> String {
    const DEFAULT: [&str; 2] =
        ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    let is_default = DEFAULT.iter().any(|key| class.keyed("metadata.annotations", key) == "true");
    let expansion = match class.at("allowVolumeExpansion") {
        Value::Null => "<unset>",
        Value::Bool(true) => "True",
        _ => "False",
    };
    let mut text = format!(
        "Name:\t{}\nIsDefaultClass:\t{}\nAnnotations:\t{}\nProvisioner:\t{}\nParameters:\t{}\nAllowVolumeExpansion:\t{expansion}\n",
        class.name(),
        if is_default { "Yes" } else { "No" },
        joined(class, "metadata.annotations"),
        class.text("provisioner"),
        joined(class, "parameters")
    );
    let options = class.list("mountOptions");
    text.push_str(if options.is_empty() { "MountOptions:\t<none>\n" } else { "MountOptions:\n" });
    for option in options {
        text.push_str(&format!("  {}\n", to_text(option)));
    }
    for (field, title) in [("reclaimPolicy", "ReclaimPolicy"), ("volumeBindingMode", "VolumeBindingMode")] {
        if class.has(field) {
            text.push_str(&format!("{title}:\t{}\n", class.text(field)));
        }
    }
    let topologies = class.list("allowedTopologies");
    if !topologies.is_empty() {
        text.push_str("AllowedTopologies:\t\n");
    }
    for (position, term) in topologies.iter().enumerate() {
        let requirements = term.list("matchLabelExpressions");
        text.push_str(&format!("  Term {position}:\t"));
        if requirements.is_empty() {
            text.push_str("<none>\n");
        }
        for (position, requirement) in requirements.iter().enumerate() {
            let values: Vec<&str> = requirement.list("values").iter().filter_map(Value::as_str).collect();
            let indent = if position == 0 { "" } else { "  \t" };
            text.push_str(&format!("{indent}{} in [{}]\n", requirement.text("key"), values.join(", ")));
        }
    }
    text
}

pub fn priority_class(class: &Value) -> String {
    format!(
        "Name:\t{}\nValue:\t{}\nGlobalDefault:\t{}\nPreemptionPolicy:\t{}\nDescription:\t{}\nAnnotations:\t{}\n",
        class.name(),
        class.int("value").unwrap_or(0),
        class.flag("globalDefault"),
        class.text("preemptionPolicy"),
        class.text("description"),
        joined(class, "metadata.annotations")
    )
}

pub fn disruption_budget(budget: &Value) -> String {
    let mut text = format!("Name:\t{}\nNamespace:\t{}\n", budget.name(), budget.namespace());
    for (field, title) in [("spec.minAvailable", "Min available"), ("spec.maxUnavailable", "Max unavailable")]
    {
        if budget.has(field) {
            text.push_str(&format!("{title}:\t{}\n", to_text(budget.at(field))));
        }
    }
    let chosen = match budget.at("spec.selector") {
        Value::Null => "<unset>".to_owned(),
        chosen => selector(chosen),
    };
    let count = |field: &str| budget.int(&format!("status.{field}")).unwrap_or(0);
    text.push_str(&format!(
        "Selector:\t{chosen}\nStatus:\n    Allowed disruptions:\t{}\n    Current:\t{}\n    Desired:\t{}\n    Total:\t{}\n",
        count("disruptionsAllowed"),
        count("currentHealthy"),
        count("desiredHealthy"),
        count("expectedPods")
    ));
    text
}
