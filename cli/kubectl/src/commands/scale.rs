//! `kubectl scale` and `kubectl autoscale`.

use serde_json::json;

use super::DEPLOY;
use super::create::report_generated;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::flags::Flag;
use crate::printers;
use crate::selection::{FILE_FLAGS, Info, SELECTOR_FLAGS, Selection};
use crate::transport::MERGE_PATCH;
use crate::write::{
    DRY_RUN_FLAGS, DryRun, PatchTarget, RECORD_FLAGS, SAVE_CONFIG_FLAGS, Writer, enforce_namespace,
    save_generated_config,
};

pub const SCALE: Command = Command {
    name: "scale",
    group: DEPLOY,
    short: "Set the number of replicas",
    usage: "[--resource-version=version] [--current-replicas=count] --replicas=COUNT (-f FILENAME | TYPE NAME)",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        RECORD_FLAGS,
        &[
            Flag::int("replicas", "Number of replicas").required(),
            Flag::int("current-replicas", "Only scale from this number").default("-1"),
            Flag::text("resource-version", "Only scale an object of this version"),
            Flag::bool("all", "All resources of the type"),
            Flag::duration("timeout", "How long to wait for the scale to be reached"),
        ],
    ],
    run: Some(|cli| Box::pin(scale(cli))),
    ..Command::NONE
};

pub const AUTOSCALE: Command = Command {
    name: "autoscale",
    group: DEPLOY,
    short: "Scale by load, within limits",
    usage: "(-f FILENAME | TYPE NAME | TYPE/NAME) [--min=MINPODS] --max=MAXPODS [--cpu=CPU]",
    flags: &[
        FILE_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        RECORD_FLAGS,
        SAVE_CONFIG_FLAGS,
        &[
            Flag::int("min", "Lower limit").default("-1"),
            Flag::int("max", "Upper limit").default("-1").required(),
            Flag::int("cpu-percent", "Average CPU to aim for, in percent of the request").default("-1"),
            Flag::text("cpu", "Average CPU to aim for, as percentage or quantity"),
            Flag::text("memory", "Average memory to aim for, as percentage or quantity"),
            Flag::text("name", "Name of the autoscaler"),
            Flag::text("field-manager", "Name of the field manager").default("kubectl-autoscale"),
        ],
    ],
    run: Some(|cli| Box::pin(autoscale(cli))),
    ..Command::NONE
};

async fn scale(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let replicas = args.int("replicas");
    if replicas < 0 {
        return Err(Error::message(
            "The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0",
        ));
    }
    if args.changed("current-replicas") && args.int("current-replicas") < -1 {
        return Err(Error::message("The --current-replicas must specify an integer of -1 or greater"));
    }
    let writer = Writer::new(cli)?;
    let mut selection = Selection::from_args(cli, &args.positional);
    selection.chunk = 500;
    let selected = selection.fetch(cli).await?;
    let mut errors = selected.errors;
    if !args.text("resource-version").is_empty() && selected.infos.len() > 1 {
        return Err(Error::message("cannot use --resource-version with multiple resources"));
    }
    if selected.infos.is_empty() && errors.is_empty() {
        return Err(Error::message("no objects passed to scale"));
    }
    for info in &selected.infos {
        if let Err(error) = scale_one(&writer, info, replicas).await {
            errors.push(error);
        }
    }
    cli.flush()?;
    Error::collect(errors)
}

async fn scale_one(writer: &Writer<'_>, info: &Info, replicas: i64) -> Result<()> {
    let cli = writer.cli;
    let client = cli.client()?;
    let scale_path = format!("{}/scale", info.path());
    let (current, version) = (cli.args.int("current-replicas"), cli.args.text("resource-version"));
    if current >= 0 || !version.is_empty() {
        let scale = client.get_json(&scale_path).await?;
        let found = scale.int("spec.replicas").unwrap_or(0);
        if current >= 0 && found != current {
            return Err(Error::message(format!("Expected replicas to be {current}, was {found}")));
        }
        if !version.is_empty() && scale.text("metadata.resourceVersion") != version {
            return Err(Error::message(format!(
                "Expected resource version to be {version}, was {}",
                scale.text("metadata.resourceVersion")
            )));
        }
    }
    let mut scaled = info.object.clone();
    if scaled.has("spec.replicas") {
        fields::set(&mut scaled, "spec.replicas", json!(replicas));
    }
    if writer.dry_run == DryRun::Client {
        return writer.report(&scaled, "scaled");
    }
    let target = PatchTarget { subresource: "scale", ..info.into() };
    writer.patch(target, MERGE_PATCH, &json!({"spec": {"replicas": replicas}})).await?;
    if writer.dry_run == DryRun::Server {
        return writer.report(&scaled, "scaled");
    }
    if cli.args.bool("record") {
        let cause = json!({"metadata": {"annotations": {crate::write::CHANGE_CAUSE: cli.args.line()}}});
        writer.patch(info.into(), MERGE_PATCH, &cause).await?;
    }
    let timeout = cli.args.duration("timeout");
    if !timeout.is_zero() {
        let reached = tokio::time::timeout(timeout, until_scaled(cli, &scale_path, replicas)).await;
        reached
            .map_err(|_| Error::message(format!("timed out waiting for {:?} to be synced", info.name)))??;
    }
    let object =
        if writer.format.is_human() { info.object.clone() } else { client.get_json(&info.path()).await? };
    writer.report(&object, "scaled")
}

async fn until_scaled(cli: &Cli, scale_path: &str, replicas: i64) -> Result<()> {
    // the scale subresource cannot be watched
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(100));
    loop {
        tick.tick().await;
        if cli.client()?.get_json(scale_path).await?.int("status.replicas") == Some(replicas) {
            return Ok(());
        }
    }
}

async fn autoscale(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let (minimum, maximum) = (args.int("min"), args.int("max"));
    if maximum < 1 {
        return Err(Error::message(format!(
            "--max=MAXPODS is required and must be at least 1, max: {maximum}"
        )));
    }
    if maximum < minimum {
        return Err(Error::message(format!(
            "--max=MAXPODS must be larger or equal to --min=MINPODS, max: {maximum}, min: {minimum}"
        )));
    }
    let writer = Writer::new(cli)?;
    let mut selection = Selection::from_args(cli, &args.positional);
    // what a file names is scaled once it is there
    selection.live = false;
    let selected = selection.fetch(cli).await?;
    let mut errors = selected.errors;
    for info in &selected.infos {
        if let Err(error) = autoscale_one(&writer, info).await {
            errors.push(error);
        }
    }
    cli.flush()?;
    Error::collect(errors)
}

async fn autoscale_one(writer: &Writer<'_>, info: &Info) -> Result<()> {
    let cli = writer.cli;
    let args = &cli.args;
    if !info.resource.subresources.iter().any(|subresource| subresource == "scale") {
        return Err(Error::message(format!("cannot autoscale a {}", info.resource.kind)));
    }
    let name = if args.text("name").is_empty() { &info.name } else { args.text("name") };
    let mut spec = json!({"maxReplicas": args.int("max"),
        "scaleTargetRef": {"apiVersion": info.resource.group_version(), "kind": info.resource.kind, "name": info.name}});
    if args.int("min") > 0 {
        spec["minReplicas"] = json!(args.int("min"));
    }
    let mut metrics = Vec::new();
    if args.changed("cpu-percent") {
        eprintln!(
            "Flag --cpu-percent has been deprecated, Use --cpu with percentage or resource quantity format (e.g., '70%' for utilization or '500m' for milliCPU)."
        );
    }
    let cpu = match args.int("cpu-percent") {
        percent if percent >= 0 => format!("{percent}%"),
        _ => args.text("cpu").to_owned(),
    };
    for (resource, target) in [("cpu", cpu.as_str()), ("memory", args.text("memory"))] {
        if target.is_empty() {
            continue;
        }
        let target = match target.strip_suffix('%') {
            Some(percent) => {
                json!({"type": "Utilization", "averageUtilization": percent.parse::<i64>().map_err(|_| Error::message(format!("invalid value for --{resource}: {target:?}")))?})
            }
            None => json!({"type": "AverageValue", "averageValue": target}),
        };
        metrics.push(json!({"type": "Resource", "resource": {"name": resource, "target": target}}));
    }
    if !metrics.is_empty() {
        spec["metrics"] = json!(metrics);
    }
    let mut object = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name}, "spec": spec, "status": {"currentMetrics": null, "desiredReplicas": 0}});
    crate::write::record_cause(args, &mut object);
    if writer.dry_run == DryRun::Client {
        enforce_namespace(cli, &mut object)?;
        if writer.format.is_human() {
            return writer.report(&object, "created");
        }
        return report_generated(writer, &object);
    }
    if args.bool("save-config") {
        save_generated_config(&mut object);
    }
    let resource = cli.resource_of(&object).await?;
    let created = writer.create(&resource, &info.namespace, &object).await?;
    writer.report(&created, "autoscaled")
}
