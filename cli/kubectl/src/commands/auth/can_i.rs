//! `kubectl auth can-i`.

use http::Method;
use serde_json::{Value, json};

use super::whoami::bracketed;
use crate::cli::Cli;
use crate::command::Command;
use crate::describe::rbac::rule_order;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers::columns::{TABLE, align};
use crate::selection::ALL_NAMESPACES_FLAGS;
use crate::transport::{JSON, Request};

pub const COMMAND: Command = Command {
    name: "can-i",
    short: "Check whether an action is allowed",
    usage: "VERB [TYPE | TYPE/NAME | NONRESOURCEURL]",
    flags: &[
        ALL_NAMESPACES_FLAGS,
        &[
            Flag::bool("list", "List all that is allowed"),
            Flag::bool("no-headers", "With --list, leave out the headers"),
            Flag::bool("quiet", "Only the exit code").short('q'),
            Flag::text("subresource", "The subresource, as log or scale"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

const VERBS: &[&str] = &[
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "use",
    "bind",
    "impersonate",
    "*",
    "approve",
    "sign",
    "escalate",
    "attest",
];
const URL_VERBS: &[&str] = &["get", "put", "post", "head", "options", "delete", "patch", "*"];

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if args.bool("list") {
        if !args.positional.is_empty() {
            return Err(Error::message("list option must be specified with no arguments"));
        }
        return list(cli).await;
    }
    if args.bool("no-headers") {
        return Err(Error::message("--no-headers cannot be set without --list specified"));
    }
    let (verb, target) = match args.positional.as_slice() {
        [verb, target] => (verb.as_str(), target.as_str()),
        _ => {
            return Err(Error::message(
                "you must specify two arguments: verb resource or verb resource/resourceName.\nSee 'kubectl auth can-i -h' for help and examples.",
            ));
        }
    };
    let namespace = if args.bool("all-namespaces") { String::new() } else { cli.namespace()?.name };
    let spec = if target.starts_with('/') {
        if !args.text("subresource").is_empty() {
            return Err(Error::message("--subresource can not be used with NonResourceURL"));
        }
        if !URL_VERBS.contains(&verb) {
            eprintln!("Warning: verb '{verb}' is not a known verb");
        }
        json!({"nonResourceAttributes": {"verb": verb, "path": target}})
    } else {
        if !VERBS.contains(&verb) {
            eprintln!("Warning: verb '{verb}' is not a known verb\n");
        }
        let (resource, name) = target.split_once('/').unwrap_or((target, ""));
        let (plural, group, scoped) = names(cli, resource).await;
        if !scoped && !namespace.is_empty() && plural != "*" {
            let suffix = if group.is_empty() { String::new() } else { format!(" in group '{group}'") };
            eprintln!("Warning: resource '{plural}' is not namespace scoped{suffix}\n");
        }
        json!({"resourceAttributes": {"namespace": namespace, "verb": verb, "group": group, "resource": plural, "subresource": args.text("subresource"), "name": name}})
    };
    let review =
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec});
    let answer = post(cli, "selfsubjectaccessreviews", &review).await?;
    let allowed = answer.flag("status.allowed");
    if !args.bool("quiet") {
        let mut text = if allowed { "yes" } else { "no" }.to_owned();
        if !allowed {
            for field in ["status.reason", "status.evaluationError"] {
                if !answer.text(field).is_empty() {
                    text.push_str(&format!(" - {}", answer.text(field)));
                }
            }
        }
        cli.line(text)?;
    }
    if allowed { Ok(()) } else { Err(Error::exit(1)) }
}

/// The resource's full name and group, and whether it lives in namespaces. One that is not served
/// is asked about all the same.
async fn names(cli: &Cli, word: &str) -> (String, String, bool) {
    if word == "*" {
        return ("*".to_owned(), "*".to_owned(), true);
    }
    match cli.resource(word).await {
        Ok(found) => (found.name.clone(), found.group.clone(), found.namespaced),
        Err(_) => {
            let (resource, group) = word.split_once('.').unwrap_or((word, ""));
            if group.is_empty() {
                eprintln!("Warning: the server doesn't have a resource type '{resource}'\n");
            } else {
                eprintln!(
                    "Warning: the server doesn't have a resource type '{resource}' in group '{group}'\n"
                );
            }
            (resource.to_owned(), group.to_owned(), true)
        }
    }
}

async fn post(cli: &Cli, name: &str, review: &Value) -> Result<Value> {
    cli.client()?
        .json(Request::with_body(
            Method::POST,
            &format!("/apis/authorization.k8s.io/v1/{name}"),
            JSON,
            review.to_string(),
        ))
        .await
}

async fn list(cli: &Cli) -> Result<()> {
    let namespace = cli.namespace()?.name;
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}});
    let answer = post(cli, "selfsubjectrulesreviews", &review).await?;
    if answer.flag("status.incomplete") && !answer.text("status.evaluationError").is_empty() {
        eprintln!("warning: the list may be incomplete: {}", answer.text("status.evaluationError"));
    }
    let mut rows: Vec<Value> = Vec::new();
    for rule in answer.list("status.resourceRules") {
        rows.extend(broken_down(rule));
    }
    let mut rows = compacted(rows);
    for rule in answer.list("status.nonResourceRules") {
        for url in rule.list("nonResourceURLs") {
            rows.push(json!({"nonResourceURLs": [url], "verbs": rule.at("verbs")}));
        }
    }
    rows.sort_by_key(sort_key);
    let mut text = String::new();
    if !cli.args.bool("no-headers") {
        text.push_str("Resources\tNon-Resource URLs\tResource Names\tVerbs\n");
    }
    for row in &rows {
        text.push_str(&format!(
            "{}\t{}\t{}\t{}\n",
            resource_group(row),
            bracketed(row.list("nonResourceURLs")),
            bracketed(row.list("resourceNames")),
            bracketed(row.list("verbs"))
        ));
    }
    cli.print(&align(&text, TABLE))
}

/// One rule per group, resource and name.
fn broken_down(rule: &Value) -> Vec<Value> {
    let mut rules = Vec::new();
    for group in rule.list("apiGroups") {
        for resource in rule.list("resources") {
            for verb in rule.list("verbs") {
                let names = rule.list("resourceNames");
                if names.is_empty() {
                    rules.push(json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]}));
                }
                for name in names {
                    rules.push(json!({"apiGroups": [group], "resources": [resource], "resourceNames": [name], "verbs": [verb]}));
                }
            }
        }
    }
    rules
}

/// Rules about the same thing share a row.
fn compacted(rules: Vec<Value>) -> Vec<Value> {
    let mut rows: Vec<Value> = Vec::new();
    for rule in rules {
        let same = |row: &&mut Value| {
            row["apiGroups"] == rule["apiGroups"]
                && row["resources"] == rule["resources"]
                && row.at("resourceNames") == rule.at("resourceNames")
        };
        match rows.iter_mut().find(same) {
            Some(row) => {
                if let (Some(verbs), Some(new)) = (row["verbs"].as_array_mut(), rule["verbs"].as_array()) {
                    for verb in new {
                        if !verbs.contains(verb) {
                            verbs.push(verb.clone());
                        }
                    }
                }
            }
            None => rows.push(rule),
        }
    }
    rows
}

/// `deployments.apps`, `*.*`, or nothing for a URL.
fn resource_group(row: &Value) -> String {
    let Some(resource) = row.list("resources").first().and_then(Value::as_str) else { return String::new() };
    let group = row.list("apiGroups").first().and_then(Value::as_str).unwrap_or_default();
    if group.is_empty() {
        return resource.to_owned();
    }
    let (name, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    if subresource.is_empty() { format!("{name}.{group}") } else { format!("{name}.{group}/{subresource}") }
}

fn sort_key(row: &Value) -> String {
    let part = |field: &str| row.list(field).iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
    format!(
        "{}APIGroups:[{}],Resources:[{}],ResourceNames:[{}],NonResourceURLs:[{}]",
        rule_order(row),
        part("apiGroups"),
        part("resources"),
        part("resourceNames"),
        part("nonResourceURLs")
    )
}
