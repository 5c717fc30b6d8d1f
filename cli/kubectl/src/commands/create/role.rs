//! `create role` and `create clusterrole`: rules from verbs and resources.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{create_generated, generator_flags, one_name};
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::flags::{Args, Flag};

pub const ROLE: Command = Command {
    name: "role",
    short: "Create a role with one rule",
    usage: "NAME --verb=verb --resource=resource.group/subresource [--resource-name=resourcename]",
    flags: generator_flags!(&[
        Flag::list("verb", "Verb the rule allows"),
        Flag::list("resource", "Resource the rule is about"),
        Flag::array("resource-name", "Name of the object the rule is about"),
    ]),
    run: Some(|cli| Box::pin(role(cli))),
    ..Command::NONE
};

pub const CLUSTER_ROLE: Command = Command {
    name: "clusterrole",
    short: "Create a cluster role",
    usage: "NAME --verb=verb --resource=resource.group [--resource-name=resourcename]",
    flags: generator_flags!(&[
        Flag::list("verb", "Verb the rule allows"),
        Flag::list("resource", "Resource the rule is about"),
        Flag::array("resource-name", "Name of the object the rule is about"),
        Flag::list("non-resource-url", "Path the rule is about"),
        Flag::list("aggregation-rule", "Labels of the cluster roles to gather, as key=value"),
    ]),
    run: Some(|cli| Box::pin(cluster_role(cli))),
    ..Command::NONE
};

const API_VERSION: &str = "rbac.authorization.k8s.io/v1";
const VERBS: &[&str] = &[
    "*",
    "get",
    "delete",
    "list",
    "create",
    "update",
    "patch",
    "watch",
    "proxy",
    "deletecollection",
    "use",
    "bind",
    "escalate",
    "impersonate",
];
const URL_VERBS: &[&str] = &["*", "get", "put", "post", "head", "options", "delete", "patch"];

/// Verbs that only some resources know.
fn allowed_for(verb: &str, resource: &str, group: &str) -> bool {
    match verb {
        "use" => resource == "podsecuritypolicies",
        "bind" | "escalate" => {
            group == "rbac.authorization.k8s.io" && matches!(resource, "roles" | "clusterroles")
        }
        "impersonate" => matches!(resource, "users" | "serviceaccounts" | "groups" | "userextras" | "uids"),
        _ => true,
    }
}

async fn role(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let name = one_name(args)?;
    let verbs = verbs(args);
    if verbs.is_empty() {
        return Err(Error::message("at least one verb must be specified"));
    }
    warn_about_verbs(&verbs);
    if args.list("resource").is_empty() {
        return Err(Error::message("at least one resource must be specified"));
    }
    let rules = resource_rules(cli, &verbs).await?;
    let object =
        json!({"apiVersion": API_VERSION, "kind": "Role", "metadata": {"name": name}, "rules": rules});
    create_generated(cli, object, "").await
}

async fn cluster_role(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let name = one_name(args)?;
    let verbs = verbs(args);
    let (resources, urls) = (args.list("resource"), args.list("non-resource-url"));
    let mut object =
        json!({"apiVersion": API_VERSION, "kind": "ClusterRole", "metadata": {"name": name}, "rules": null});
    if !args.list("aggregation-rule").is_empty() {
        if !(verbs.is_empty()
            && resources.is_empty()
            && urls.is_empty()
            && args.list("resource-name").is_empty())
        {
            return Err(Error::message(
                "aggregation rule must be specified without nonResourceURLs, verbs, resources or resourceNames",
            ));
        }
        let mut labels = serde_json::Map::new();
        for pair in args.list("aggregation-rule") {
            let (key, value) = pair.split_once('=').ok_or_else(|| Error::message(format!("invalid argument {pair:?} for \"--aggregation-rule\" flag: {pair} must be formatted as key=value")))?;
            labels.insert(key.to_owned(), value.into());
        }
        object["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": labels}]});
        return create_generated(cli, object, "").await;
    }
    if verbs.is_empty() {
        return Err(Error::message("at least one verb must be specified"));
    }
    if resources.is_empty() && urls.is_empty() {
        return Err(Error::message("one of resource or nonResourceURL must be specified"));
    }
    let mut rules = Vec::new();
    if !resources.is_empty() {
        warn_about_verbs(&verbs);
        rules.extend(resource_rules(cli, &verbs).await?);
    }
    if !urls.is_empty() {
        check_urls(&verbs, &urls)?;
        rules.push(json!({"nonResourceURLs": urls, "verbs": verbs}));
    }
    object["rules"] = json!(rules);
    create_generated(cli, object, "").await
}

fn check_urls(verbs: &[&str], urls: &[&str]) -> Result<()> {
    for verb in verbs {
        if !URL_VERBS.contains(verb) {
            return Err(Error::message(format!("invalid verb: '{verb}' for nonResourceURL")));
        }
    }
    for url in urls {
        if *url == "*" {
            continue;
        }
        if !url.starts_with('/') {
            return Err(Error::message("nonResourceURL should start with /"));
        }
        if url[..url.len() - 1].contains('*') {
            return Err(Error::message(
                "nonResourceURL only supports wildcard matches when '*' is at the end",
            ));
        }
    }
    Ok(())
}

/// Each verb once; `*` stands for all.
fn verbs(args: &Args) -> Vec<&str> {
    let mut verbs: Vec<&str> = Vec::new();
    for verb in args.list("verb") {
        if verb == "*" {
            return vec!["*"];
        }
        if !verbs.contains(&verb) {
            verbs.push(verb);
        }
    }
    verbs
}

fn warn_about_verbs(verbs: &[&str]) {
    for verb in verbs.iter().filter(|verb| !VERBS.contains(verb)) {
        eprintln!("Warning: '{verb}' is not a standard resource verb");
    }
}

/// The full name and the group of a resource, which the verbs must fit.
async fn named_resource(cli: &Cli, verbs: &[&str], resource: &str) -> Result<(String, String)> {
    let (name, group) = resource.split_once('.').unwrap_or((resource, ""));
    if name.is_empty() {
        return Err(Error::message("resource must be specified if apiGroup/subresource specified"));
    }
    if name == "*" {
        return Ok((name.to_owned(), group.to_owned()));
    }
    let found = cli.resource(resource).await;
    let (name, group) = match &found {
        Ok(found) => (found.name.clone(), found.group.clone()),
        Err(_) => (name.to_owned(), group.to_owned()),
    };
    for verb in verbs {
        if !allowed_for(verb, &name, &group) {
            return Err(Error::message(format!("can not perform '{verb}' on '{name}' in group '{group}'")));
        }
    }
    let is_special = |verb: &&str| matches!(*verb, "use" | "bind" | "escalate" | "impersonate");
    match found {
        Err(Error::NoMatch { resource }) if !verbs.iter().any(is_special) && !group.is_empty() => Err(
            Error::plain(format!("the server doesn't have a resource type {resource:?} in group {group:?}")),
        ),
        Err(error) if !verbs.iter().any(is_special) => Err(Error::plain(error.to_string())),
        _ => Ok((name, group)),
    }
}

/// One rule per group, with full resource names.
async fn resource_rules(cli: &Cli, verbs: &[&str]) -> Result<Vec<Value>> {
    let mut by_group: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut resources = cli.args.list("resource");
    if resources.contains(&"*") {
        resources = vec!["*"];
    }
    for entry in resources {
        let (resource, subresource) = entry.split_once('/').unwrap_or((entry, ""));
        let (name, group) = named_resource(cli, verbs, resource).await?;
        let full = if subresource.is_empty() { name } else { format!("{name}/{subresource}") };
        let names = by_group.entry(group).or_default();
        if !names.contains(&full) {
            names.push(full);
        }
    }
    let mut object_names: Vec<&str> = Vec::new();
    for name in cli.args.list("resource-name") {
        if !object_names.contains(&name) {
            object_names.push(name);
        }
    }
    let rules = by_group.into_iter().map(|(group, resources)| {
        let mut rule = json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
        if !object_names.is_empty() {
            rule["resourceNames"] = json!(object_names);
        }
        rule
    });
    Ok(rules.collect())
}
