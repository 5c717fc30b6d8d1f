//! `kubectl api-resources` and `kubectl api-versions`: what discovery found.

use serde_json::{Value, json};

use super::OTHER;
use crate::cli::Cli;
use crate::command::Command;
use crate::discovery::Resource;
use crate::error::{Error, Result};
use crate::flags::Flag;
use crate::printers::Format;
use crate::printers::columns::{TABLE, align};
use ferry_api::go_json;

const FORMATS: &str = "json,kyaml,name,wide,yaml";

pub const API_RESOURCES: Command = Command {
    name: "api-resources",
    group: OTHER,
    short: "List the kinds the server has",
    flags: &[&[
        Flag::text("api-group", "Only this group"),
        Flag::bool("namespaced", "Only kinds that live in namespaces, or with =false only those that do not")
            .default("true"),
        Flag::list("verbs", "Only kinds that support these verbs"),
        Flag::text("output", "wide, name, json, yaml or kyaml").short('o'),
        Flag::bool("no-headers", "Leave out the headers"),
        Flag::text("sort-by", "name or kind"),
        Flag::list("categories", "Only kinds of these categories"),
        Flag::bool("cached", "Use the cached discovery"),
        Flag::bool("show-managed-fields", "Accepted for compatibility"),
    ]],
    run: Some(|cli| Box::pin(resources(cli))),
    ..Command::NONE
};

pub const API_VERSIONS: Command = Command {
    name: "api-versions",
    group: OTHER,
    short: "List the API versions the server has",
    run: Some(|cli| Box::pin(versions(cli))),
    ..Command::NONE
};

async fn versions(cli: &Cli) -> Result<()> {
    refuse_words(cli)?;
    let discovery = cli.refresh_discovery().await?;
    let mut versions: Vec<String> = Vec::new();
    for group in &discovery.groups {
        for version in &group.versions {
            versions.push(if group.name.is_empty() {
                version.clone()
            } else {
                format!("{}/{version}", group.name)
            });
        }
    }
    versions.sort();
    versions.into_iter().try_for_each(|version| cli.line(version))
}

/// The resources as the server's own list of them would have them.
fn list(resources: &[&Resource]) -> Value {
    let entries: Vec<Value> = resources
        .iter()
        .map(|resource| {
            let mut entry = json!({"name": resource.name, "singularName": resource.singular,
                "namespaced": resource.namespaced, "version": resource.version, "kind": resource.kind,
                "verbs": resource.verbs});
            if !resource.group.is_empty() {
                entry["group"] = json!(resource.group);
            }
            for (key, words) in [("shortNames", &resource.short_names), ("categories", &resource.categories)]
            {
                if !words.is_empty() {
                    entry[key] = json!(words);
                }
            }
            entry
        })
        .collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "", "resources": entries})
}

/// The order the API declares the fields of such a list in.
fn order(path: &[&str]) -> Vec<String> {
    let names: &[&str] = match path {
        [] => &["kind", "apiVersion", "groupVersion", "resources"],
        _ => &[
            "name",
            "singularName",
            "namespaced",
            "group",
            "version",
            "kind",
            "verbs",
            "shortNames",
            "categories",
        ],
    };
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn refuse_words(cli: &Cli) -> Result<()> {
    if cli.args.positional.is_empty() {
        return Ok(());
    }
    Err(cli.args.usage_error(format!("unexpected arguments: [{}]", cli.args.positional.join(" "))))
}

async fn resources(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let format = Format::from_args(args, FORMATS)?;
    refuse_words(cli)?;
    if !matches!(args.text("sort-by"), "" | "name" | "kind") {
        return Err(Error::message("--sort-by accepts only name or kind"));
    }
    let discovery =
        if args.bool("cached") { cli.discovery().await? } else { cli.refresh_discovery().await? };
    let wanted = |resource: &&Resource| {
        (!args.changed("api-group") || resource.group == args.text("api-group"))
            && (!args.changed("namespaced") || resource.namespaced == args.bool("namespaced"))
            && args.list("verbs").iter().all(|verb| resource.supports(verb))
            && args
                .list("categories")
                .iter()
                .all(|category| resource.categories.iter().any(|known| known == category))
            && !resource.verbs.is_empty()
    };
    let mut resources: Vec<&Resource> = discovery.preferred().into_iter().filter(wanted).collect();
    resources.sort_by(|a, b| match args.text("sort-by") {
        "name" => a.name.cmp(&b.name),
        "kind" => a.kind.cmp(&b.kind),
        _ => (&a.group, &a.name).cmp(&(&b.group, &b.name)),
    });
    match format {
        Format::Name => {
            return resources.into_iter().try_for_each(|resource| cli.line(resource.qualified()));
        }
        Format::Json => return cli.print(&go_json::pretty_in_order(&list(&resources), &order)),
        Format::Yaml | Format::Kyaml => return cli.print(&format.print(&list(&resources), args)?),
        _ => {}
    }
    let wide = format == Format::Wide;
    let mut text = String::new();
    if !args.bool("no-headers") {
        text.push_str("NAME\tSHORTNAMES\tAPIVERSION\tNAMESPACED\tKIND");
        text.push_str(if wide { "\tVERBS\tCATEGORIES\n" } else { "\n" });
    }
    for resource in resources {
        text.push_str(&format!(
            "{}\t{}\t{}\t{}\t{}",
            resource.name,
            resource.short_names.join(","),
            resource.group_version(),
            resource.namespaced,
            resource.kind
        ));
        if wide {
            text.push_str(&format!("\t{}\t{}", resource.verbs.join(","), resource.categories.join(",")));
        }
        text.push('\n');
    }
    cli.print(&align(&text, TABLE))
}
