//! Containers: what they run, how they are, what they see.

use ferry_api::quantity::Quantity;
use serde_json::Value;

use super::{or_none, time, title_bool};
use crate::fields::Fields;

/// The containers of a list, with their statuses where there are any. In a template they stand
/// one space deeper.
pub fn containers(
    title: &str,
    spec: &Value,
    list: &str,
    pod: &Value,
    statuses: &str,
    template: bool,
) -> String {
    let all = spec.list(list);
    if all.is_empty() {
        return String::new();
    }
    let indent = if template { "  " } else { "" };
    let mut text = format!("{indent}{title}:\n");
    for container in all {
        let status = pod.list(statuses).iter().find(|status| status.text("name") == container.text("name"));
        let name_indent = if template { " " } else { "" };
        text.push_str(&format!("  {name_indent}{}:\n", container.text("name")));
        text.push_str(&basics(container, status));
        text.push_str(&words("Command", container.list("command")));
        text.push_str(&words("Args", container.list("args")));
        if let Some(status) = status {
            text.push_str(&state("State", status.at("state")));
            if status.has("lastState.terminated") {
                text.push_str(&state("Last State", status.at("lastState")));
            }
            text.push_str(&format!(
                "    Ready:\t{}\n    Restart Count:\t{}\n",
                title_bool(status.flag("ready")),
                status.int("restartCount").unwrap_or(0)
            ));
        }
        text.push_str(&amounts("Limits", container, "resources.limits"));
        text.push_str(&amounts("Requests", container, "resources.requests"));
        for (label, field) in
            [("Liveness", "livenessProbe"), ("Readiness", "readinessProbe"), ("Startup", "startupProbe")]
        {
            if container.has(field) {
                text.push_str(&format!("    {label}:\t{}\n", probe(container.at(field))));
            }
        }
        text.push_str(&environment_from(container));
        text.push_str(&environment(container, if template { None } else { Some(pod) }));
        text.push_str(&mounts(container));
    }
    text
}

fn basics(container: &Value, status: Option<&Value>) -> String {
    let mut text = String::new();
    if let Some(status) = status {
        text.push_str(&format!("    Container ID:\t{}\n", status.text("containerID")));
    }
    text.push_str(&format!("    Image:\t{}\n", container.text("image")));
    if let Some(status) = status {
        text.push_str(&format!("    Image ID:\t{}\n", status.text("imageID")));
    }
    let port = |number: &str, fallback: i64| {
        let ports: Vec<String> = container
            .list("ports")
            .iter()
            .map(|port| {
                let protocol = if port.text("protocol").is_empty() { "TCP" } else { port.text("protocol") };
                let name = if port.text("name").is_empty() {
                    String::new()
                } else {
                    format!(" ({})", port.text("name"))
                };
                format!("{}/{protocol}{name}", port.int(number).unwrap_or(fallback))
            })
            .collect();
        ports.join(", ")
    };
    for (label, ports) in [("Port", port("containerPort", 0)), ("Host Port", port("hostPort", 0))] {
        let plural = if ports.contains(", ") { "s" } else { "" };
        text.push_str(&format!("    {label}{plural}:\t{}\n", or_none(ports)));
    }
    text
}

fn words(title: &str, words: &[Value]) -> String {
    if words.is_empty() {
        return String::new();
    }
    let mut text = format!("    {title}:\n");
    for word in words {
        for line in word.as_str().unwrap_or_default().split('\n') {
            text.push_str(&format!("      {line}\n"));
        }
    }
    text
}

fn state(title: &str, state: &Value) -> String {
    if state.has("running") {
        return format!("    {title}:\tRunning\n      Started:\t{}\n", time(state.text("running.startedAt")));
    }
    if state.has("terminated") {
        let ended = state.at("terminated");
        let mut text = format!("    {title}:\tTerminated\n");
        for (label, field) in [("Reason", "reason"), ("Message", "message")] {
            if !ended.text(field).is_empty() {
                text.push_str(&format!("      {label}:\t{}\n", ended.text(field)));
            }
        }
        text.push_str(&format!("      Exit Code:\t{}\n", ended.int("exitCode").unwrap_or(0)));
        if let Some(signal) = ended.int("signal").filter(|signal| *signal > 0) {
            text.push_str(&format!("      Signal:\t{signal}\n"));
        }
        text.push_str(&format!(
            "      Started:\t{}\n      Finished:\t{}\n",
            time(ended.text("startedAt")),
            time(ended.text("finishedAt"))
        ));
        return text;
    }
    let reason = match state.text("waiting.reason") {
        "" => String::new(),
        reason => format!("      Reason:\t{reason}\n"),
    };
    format!("    {title}:\tWaiting\n{reason}")
}

fn amounts(title: &str, container: &Value, path: &str) -> String {
    let entries = container.entries(path);
    if entries.is_empty() {
        return String::new();
    }
    let lines: String = entries
        .into_iter()
        .map(|(name, quantity)| format!("      {name}:\t{}\n", quantity.as_str().unwrap_or_default()))
        .collect();
    format!("    {title}:\n{lines}")
}

fn probe(probe: &Value) -> String {
    let number = |field: &str, default: i64| probe.int(field).unwrap_or(default);
    let timing = format!(
        "delay={}s timeout={}s period={}s #success={} #failure={}",
        number("initialDelaySeconds", 0),
        number("timeoutSeconds", 0),
        number("periodSeconds", 0),
        number("successThreshold", 0),
        number("failureThreshold", 0)
    );
    let port = |path: &str| match probe.at(path) {
        Value::String(name) => name.clone(),
        other => other.to_string(),
    };
    if probe.has("exec") {
        let command: Vec<&str> = probe.list("exec.command").iter().filter_map(Value::as_str).collect();
        return format!("exec [{}] {timing}", command.join(" "));
    }
    if probe.has("httpGet") {
        let scheme = probe.text("httpGet.scheme").to_lowercase();
        return format!(
            "http-get {scheme}://{}:{}{} {timing}",
            probe.text("httpGet.host"),
            port("httpGet.port"),
            probe.text("httpGet.path")
        );
    }
    if probe.has("tcpSocket") {
        return format!("tcp-socket {}:{} {timing}", probe.text("tcpSocket.host"), port("tcpSocket.port"));
    }
    if probe.has("grpc") {
        return format!("grpc <pod>:{} {} {timing}", port("grpc.port"), probe.text("grpc.service"));
    }
    format!("unknown {timing}")
}

fn environment_from(container: &Value) -> String {
    let sources = container.list("envFrom");
    if sources.is_empty() {
        return String::new();
    }
    let mut text = "    Environment Variables from:\n".to_owned();
    for source in sources {
        let (kind, reference) =
            if source.has("configMapRef") { ("ConfigMap", "configMapRef") } else { ("Secret", "secretRef") };
        let from = match source.text("prefix") {
            "" => kind.to_owned(),
            prefix => format!("{kind} with prefix '{prefix}'"),
        };
        text.push_str(&format!(
            "      {}\t{from}\tOptional: {}\n",
            source.at(reference).text("name"),
            source.at(reference).flag("optional")
        ));
    }
    text
}

fn environment(container: &Value, pod: Option<&Value>) -> String {
    let variables = container.list("env");
    if variables.is_empty() {
        return "    Environment:\t<none>\n".to_owned();
    }
    let mut text = "    Environment:\n".to_owned();
    for variable in variables {
        let (name, from) = (variable.text("name"), variable.at("valueFrom"));
        if from.is_null() {
            for (position, line) in variable.text("value").split('\n').enumerate() {
                text.push_str(&if position == 0 {
                    format!("      {name}:\t{line}\n")
                } else {
                    format!("      \t{line}\n")
                });
            }
        } else if from.has("fieldRef") {
            let path = from.text("fieldRef.fieldPath");
            let value = pod.map(|pod| metadata_field(pod, path)).unwrap_or_default();
            let version = if from.text("fieldRef.apiVersion").is_empty() {
                "v1"
            } else {
                from.text("fieldRef.apiVersion")
            };
            text.push_str(&format!("      {name}:\t{value} ({version}:{path})\n"));
        } else if from.has("resourceFieldRef") {
            let resource = from.text("resourceFieldRef.resource");
            let value = if pod.is_some() {
                resource_field(container, from.at("resourceFieldRef"))
            } else {
                String::new()
            };
            let value = if value == "0" && pod.is_some() && resource.starts_with("limits") {
                "node allocatable".to_owned()
            } else {
                value
            };
            text.push_str(&format!("      {name}:\t{value} ({resource})\n"));
        } else if from.has("secretKeyRef") {
            let reference = from.at("secretKeyRef");
            text.push_str(&format!(
                "      {name}:\t<set to the key '{}' in secret '{}'>\tOptional: {}\n",
                reference.text("key"),
                reference.text("name"),
                reference.flag("optional")
            ));
        } else if from.has("configMapKeyRef") {
            let reference = from.at("configMapKeyRef");
            text.push_str(&format!(
                "      {name}:\t<set to the key '{}' of config map '{}'>\tOptional: {}\n",
                reference.text("key"),
                reference.text("name"),
                reference.flag("optional")
            ));
        }
    }
    text
}

/// Only metadata is known without asking the node.
fn metadata_field(pod: &Value, path: &str) -> String {
    match path {
        "metadata.name" | "metadata.namespace" | "metadata.uid" => pod.text(path).to_owned(),
        _ => match path.split_once("['").and_then(|(map, key)| Some((map, key.strip_suffix("']")?))) {
            Some((map, key)) => pod.keyed(map, key).to_owned(),
            None => String::new(),
        },
    }
}

/// The amount in units of the divisor, rounded up.
fn resource_field(container: &Value, reference: &Value) -> String {
    let Some((list, name)) = reference.text("resource").split_once('.') else { return String::new() };
    let amount = container
        .map(&format!("resources.{list}"))
        .and_then(|amounts| amounts.get(name))
        .and_then(Value::as_str)
        .unwrap_or("0");
    let divisor = match reference.at("divisor").as_str() {
        Some(text) if text != "0" && !text.is_empty() => text,
        _ => "1",
    };
    let (Ok(amount), Ok(divisor)) = (Quantity::parse(amount), Quantity::parse(divisor)) else {
        return String::new();
    };
    let (amount, divisor) = (amount.milli(), divisor.milli().max(1));
    (amount / divisor + i64::from(amount % divisor != 0)).to_string()
}

fn mounts(container: &Value) -> String {
    let mut mounts: Vec<&Value> = container.list("volumeMounts").iter().collect();
    if mounts.is_empty() {
        return "    Mounts:\t<none>\n".to_owned();
    }
    mounts.sort_by_key(|mount| mount.text("mountPath").to_owned());
    let mut text = "    Mounts:\n".to_owned();
    for mount in mounts {
        let mut flags = vec![if mount.flag("readOnly") { "ro".to_owned() } else { "rw".to_owned() }];
        if !mount.text("subPath").is_empty() {
            flags.push(format!("path={:?}", mount.text("subPath")));
        }
        text.push_str(&format!(
            "      {} from {} ({})\n",
            mount.text("mountPath"),
            mount.text("name"),
            flags.join(",")
        ));
    }
    text
}
