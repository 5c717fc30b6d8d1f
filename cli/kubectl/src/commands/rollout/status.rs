//! `kubectl rollout status`.

use serde_json::Value;

use super::{REVISION, warn_if_empty, workloads};
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::selection::{FILE_FLAGS, Info, SELECTOR_FLAGS};
use crate::transport::{JSON, Query};
use crate::watch::Events;

pub const COMMAND: Command = Command {
    name: "status",
    short: "Show how far a rollout has come",
    usage: "(TYPE NAME | TYPE/NAME) [flags]",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        &[
            Flag::bool("watch", "Wait until it is finished").short('w').default("true"),
            Flag::int("revision", "Only this revision"),
            Flag::duration("timeout", "How long to wait; 0 is for ever"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    if cli.args.int("revision") < 0 {
        return Err(Error::message(format!(
            "revision must be a positive integer: {}",
            cli.args.int("revision")
        )));
    }
    let selected = workloads(cli).await?;
    let mut errors = selected.errors;
    if errors.is_empty() {
        warn_if_empty(cli, &selected.infos)?;
    }
    for info in &selected.infos {
        let timeout = cli.args.duration("timeout");
        let finished = until_finished(cli, info);
        let outcome = match timeout.is_zero() {
            true => finished.await,
            false => tokio::time::timeout(timeout, finished)
                .await
                .unwrap_or_else(|_| Err(Error::message("timed out waiting for the condition"))),
        };
        if let Err(error) = outcome {
            errors.push(error);
        }
    }
    Error::collect(errors)
}

async fn until_finished(cli: &Cli, info: &Info) -> Result<()> {
    let revision = cli.args.int("revision");
    let path = info.resource.path(&info.namespace);
    let query = Query::new().with("fieldSelector", &format!("metadata.name={}", info.name));
    let mut object = cli.client()?.get_json(&info.path()).await?;
    loop {
        let mut events = Events::start(
            cli.client()?,
            &path,
            query.clone().with("resourceVersion", object.text("metadata.resourceVersion")),
            JSON,
        )
        .await?;
        loop {
            let (text, done) = progress(&info.resource.kind, &object, revision)?;
            cli.print(&text)?;
            cli.flush()?;
            if done || !cli.args.bool("watch") {
                return Ok(());
            }
            match events.next().await? {
                Some(event) if event.kind == "DELETED" => {
                    return Err(Error::message("object has been deleted"));
                }
                Some(event) if event.kind == "MODIFIED" || event.kind == "ADDED" => object = event.object,
                _ => break,
            }
        }
        object = cli.client()?.get_json(&info.path()).await?;
    }
}

/// The message about a workload, and whether its rollout is finished.
fn progress(kind: &str, object: &Value, revision: i64) -> Result<(String, bool)> {
    let generation = object.int("metadata.generation").unwrap_or(0);
    let observed = count(object, "observedGeneration");
    match kind {
        "Deployment" => deployment(object, generation > observed, revision),
        "DaemonSet" => daemon_set(object, generation > observed),
        "StatefulSet" => stateful_set(object, generation, observed),
        other => Err(Error::message(format!("no status viewer has been implemented for {other}"))),
    }
}

fn count(object: &Value, field: &str) -> i64 {
    object.int(&format!("status.{field}")).unwrap_or(0)
}

fn deployment(object: &Value, is_unobserved: bool, revision: i64) -> Result<(String, bool)> {
    let name = object.name();
    if revision > 0 {
        let running: i64 = object.keyed("metadata.annotations", REVISION).parse().unwrap_or(0);
        if running != revision {
            return Err(Error::message(format!(
                "desired revision ({revision}) is different from the running revision ({running})"
            )));
        }
    }
    if is_unobserved {
        return Ok(("Waiting for deployment spec update to be observed...\n".to_owned(), false));
    }
    let mut progressing =
        object.list("status.conditions").iter().filter(|condition| condition.text("type") == "Progressing");
    if progressing.any(|condition| condition.text("reason") == "ProgressDeadlineExceeded") {
        return Err(Error::message(format!("deployment {name:?} exceeded its progress deadline")));
    }
    let (updated, total, available) =
        (count(object, "updatedReplicas"), count(object, "replicas"), count(object, "availableReplicas"));
    let waiting =
        |what: String| Ok((format!("Waiting for deployment {name:?} rollout to finish: {what}...\n"), false));
    match object.int("spec.replicas") {
        Some(wanted) if updated < wanted => {
            waiting(format!("{updated} out of {wanted} new replicas have been updated"))
        }
        _ if total > updated => waiting(format!("{} old replicas are pending termination", total - updated)),
        _ if available < updated => {
            waiting(format!("{available} of {updated} updated replicas are available"))
        }
        _ => Ok((format!("deployment {name:?} successfully rolled out\n"), true)),
    }
}

fn daemon_set(object: &Value, is_unobserved: bool) -> Result<(String, bool)> {
    let name = object.name();
    if object.text("spec.updateStrategy.type") != "RollingUpdate" {
        return Err(Error::message("rollout status is only available for RollingUpdate strategy type"));
    }
    if is_unobserved {
        return Ok(("Waiting for daemon set spec update to be observed...\n".to_owned(), false));
    }
    let updated = count(object, "updatedNumberScheduled");
    let (wanted, available) = (count(object, "desiredNumberScheduled"), count(object, "numberAvailable"));
    let waiting =
        |what: String| Ok((format!("Waiting for daemon set {name:?} rollout to finish: {what}...\n"), false));
    if updated < wanted {
        waiting(format!("{updated} out of {wanted} new pods have been updated"))
    } else if available < wanted {
        waiting(format!("{available} of {wanted} updated pods are available"))
    } else {
        Ok((format!("daemon set {name:?} successfully rolled out\n"), true))
    }
}

fn stateful_set(object: &Value, generation: i64, observed: i64) -> Result<(String, bool)> {
    let count = |field: &str| count(object, field);
    if object.text("spec.updateStrategy.type") != "RollingUpdate" {
        return Err(Error::message("rollout status is only available for RollingUpdate strategy type"));
    }
    if observed == 0 || generation > observed {
        return Ok(("Waiting for statefulset spec update to be observed...\n".to_owned(), false));
    }
    let wanted = object.int("spec.replicas").unwrap_or(0);
    if count("readyReplicas") < wanted {
        return Ok((format!("Waiting for {} pods to be ready...\n", wanted - count("readyReplicas")), false));
    }
    let updated = count("updatedReplicas");
    if object.has("spec.updateStrategy.rollingUpdate") {
        if let Some(partition) = object.int("spec.updateStrategy.rollingUpdate.partition")
            && updated < wanted - partition
        {
            return Ok((
                format!(
                    "Waiting for partitioned roll out to finish: {updated} out of {} new pods have been updated...\n",
                    wanted - partition
                ),
                false,
            ));
        }
        return Ok((
            format!("partitioned roll out complete: {updated} new pods have been updated...\n"),
            true,
        ));
    }
    let (update, current) = (object.text("status.updateRevision"), object.text("status.currentRevision"));
    if update != current {
        return Ok((
            format!(
                "waiting for statefulset rolling update to complete {updated} pods at revision {update}...\n"
            ),
            false,
        ));
    }
    Ok((
        format!(
            "statefulset rolling update complete {} pods at revision {current}...\n",
            count("currentReplicas")
        ),
        true,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_deployment_tells_how_far_it_is() {
        let deployment = |generation: i64, updated: i64, total: i64, available: i64| {
            json!({"metadata": {"name": "web", "generation": generation}, "spec": {"replicas": 3},
                   "status": {"observedGeneration": 1, "updatedReplicas": updated, "replicas": total, "availableReplicas": available}})
        };
        let check = |object: Value, text: &str, done: bool| {
            assert_eq!(progress("Deployment", &object, 0).unwrap(), (format!("{text}\n"), done))
        };
        check(deployment(2, 0, 0, 0), "Waiting for deployment spec update to be observed...", false);
        check(
            deployment(1, 1, 3, 3),
            "Waiting for deployment \"web\" rollout to finish: 1 out of 3 new replicas have been updated...",
            false,
        );
        check(
            deployment(1, 3, 4, 3),
            "Waiting for deployment \"web\" rollout to finish: 1 old replicas are pending termination...",
            false,
        );
        check(
            deployment(1, 3, 3, 2),
            "Waiting for deployment \"web\" rollout to finish: 2 of 3 updated replicas are available...",
            false,
        );
        check(deployment(1, 3, 3, 3), "deployment \"web\" successfully rolled out", true);
    }
}
