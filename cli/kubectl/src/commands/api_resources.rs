//! `kubectl api-resources` and `kubectl api-versions`: what discovery found.

use super::OTHER;
use crate::cli::Cli;
use crate::command::Command;
use crate::discovery::Resource;
use crate::error::{Error, Result};
use crate::flags::Flag;
use crate::printers::columns::{TABLE, align};

pub const API_RESOURCES: Command = Command {
    name: "api-resources",
    group: OTHER,
    short: "List the kinds the server has",
    flags: &[&[
        Flag::text("api-group", "Only this group"),
        Flag::bool("namespaced", "Only kinds that live in namespaces, or with =false only those that do not")
            .default("true"),
        Flag::list("verbs", "Only kinds that support these verbs"),
        Flag::text("output", "wide or name").short('o'),
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

fn refuse_words(cli: &Cli) -> Result<()> {
    if cli.args.positional.is_empty() {
        return Ok(());
    }
    Err(cli.args.usage_error(format!("unexpected arguments: [{}]", cli.args.positional.join(" "))))
}

async fn resources(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if !matches!(args.text("output"), "" | "wide" | "name") {
        return Err(Error::message(format!(
            "--output {} is not available in kubectl api-resources",
            args.text("output")
        )));
    }
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
    if args.text("output") == "name" {
        return resources.into_iter().try_for_each(|resource| cli.line(resource.qualified()));
    }
    let wide = args.text("output") == "wide";
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
