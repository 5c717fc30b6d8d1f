//! `create ingress`: rules written as `host/path=service:port[,tls[=secret]]`.

use serde_json::{Map, Value, json};

use super::{create_generated, generator_flags, one_name};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::{Args, Flag};

pub const COMMAND: Command = Command {
    name: "ingress",
    aliases: &["ing"],
    short: "Create an ingress",
    usage: "NAME --rule=host/path=service:port[,tls[=secret]]",
    flags: generator_flags!(&[
        Flag::array("rule", "Rule, as host/path=service:port[,tls[=secret]]"),
        Flag::text("class", "Ingress class"),
        Flag::array("annotation", "Annotation, as key=value"),
        Flag::text("default-backend", "Where all else goes, as service:port"),
    ]),
    run: Some(|cli| {
        Box::pin(async move { create_generated(cli, ingress(&cli.args)?, "failed to create ingress:").await })
    }),
    ..Command::NONE
};

struct Rule<'a> {
    host: &'a str,
    path: &'a str,
    service: &'a str,
    port: &'a str,
    /// `Some("")` takes the default certificate.
    tls: Option<&'a str>,
}

fn ingress(args: &Args) -> Result<Value> {
    let name = one_name(args)?;
    let texts = args.list("rule");
    let backend_text = args.text("default-backend");
    if texts.is_empty() && backend_text.is_empty() {
        return Err(Error::message(
            "not enough information provided: every ingress has to either specify a default-backend (which catches all traffic) or a list of rules (which catch specific paths)",
        ));
    }
    let mut rules = Vec::new();
    for text in texts {
        rules.push(parse(text).ok_or_else(|| {
            Error::message(format!(
                "rule {text} is invalid and should be in format host/path=svcname:svcport[,tls[=secret]]"
            ))
        })?);
    }
    let mut annotations = Map::new();
    for pair in args.list("annotation") {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            Error::message(format!("annotation {pair} is invalid and should be in format key=[value]"))
        })?;
        annotations.insert(key.to_owned(), value.into());
    }
    let mut spec = json!({});
    if !args.text("class").is_empty() {
        spec["ingressClassName"] = json!(args.text("class"));
    }
    if !backend_text.is_empty() {
        let (service, port) = backend_text
            .split_once(':')
            .filter(|(_, port)| !port.contains(':'))
            .ok_or_else(|| Error::message("default-backend should be in format servicename:serviceport"))?;
        spec["defaultBackend"] = backend(service, port);
    }
    let tls = tls_entries(&rules);
    if !tls.is_empty() {
        spec["tls"] = Value::Array(tls);
    }
    if !rules.is_empty() {
        spec["rules"] = Value::Array(rule_entries(&rules));
    }
    let mut object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": name}, "spec": spec, "status": {"loadBalancer": {}}});
    if !annotations.is_empty() {
        object["metadata"]["annotations"] = Value::Object(annotations);
    }
    Ok(object)
}

fn parse(text: &str) -> Option<Rule<'_>> {
    let (rule, tls) = match text.split_once(',') {
        Some((rule, "tls")) => (rule, Some("")),
        Some((rule, tls)) => (rule, Some(tls.strip_prefix("tls=")?)),
        None => (text, None),
    };
    let (host_and_path, backend) = rule.split_once('=')?;
    let (host, path) = host_and_path.split_once('/')?;
    let (service, port) = backend.split_once(':')?;
    let fits = !service.is_empty() && !port.is_empty() && !port.contains(':');
    fits.then_some(Rule { host, path, service, port, tls })
}

fn backend(service: &str, port: &str) -> Value {
    let port = match port.parse::<i64>() {
        Ok(number) => json!({"number": number}),
        Err(_) => json!({"name": port}),
    };
    json!({"service": {"name": service, "port": port}})
}

/// Rules of one host share an entry.
fn rule_entries(rules: &[Rule<'_>]) -> Vec<Value> {
    let mut entries: Vec<Value> = Vec::new();
    for rule in rules {
        let (path, path_type) = match rule.path.strip_suffix('*') {
            Some(prefix) => (prefix, "Prefix"),
            None => (rule.path, "Exact"),
        };
        let path = json!({"path": format!("/{path}"), "pathType": path_type, "backend": backend(rule.service, rule.port)});
        match entries.iter_mut().find(|entry| entry.text("host") == rule.host) {
            Some(entry) => {
                if let Some(paths) = entry.pointer_mut("/http/paths").and_then(Value::as_array_mut) {
                    paths.push(path);
                }
            }
            None => {
                let mut entry = json!({"http": {"paths": [path]}});
                if !rule.host.is_empty() {
                    entry["host"] = json!(rule.host);
                }
                entries.push(entry);
            }
        }
    }
    entries
}

/// Hosts of one secret share an entry; a host takes the first secret named for it.
fn tls_entries(rules: &[Rule<'_>]) -> Vec<Value> {
    let mut entries: Vec<Value> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for rule in rules {
        let Some(secret) = rule.tls else { continue };
        if seen.contains(&rule.host) {
            continue;
        }
        seen.push(rule.host);
        if let Some(entry) = entries.iter_mut().find(|entry| entry.text("secretName") == secret) {
            if let Some(hosts) = entry["hosts"].as_array_mut() {
                hosts.push(json!(rule.host));
            }
            continue;
        }
        let mut entry = json!({});
        if !rule.host.is_empty() {
            entry["hosts"] = json!([rule.host]);
        }
        if !secret.is_empty() {
            entry["secretName"] = json!(secret);
        }
        if entry.as_object().is_some_and(|map| !map.is_empty()) {
            entries.push(entry);
        }
    }
    entries
}
