//! `kubectl drain`: no new pods, and the ones there moved away, as their disruption budgets allow.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::Method;
use serde_json::{Value, json};

use super::cordon::{nodes, set_schedulable};
use crate::cli::Cli;
use crate::command::Command;
use crate::commands::CLUSTER;
use crate::commands::delete::until_gone;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::{Args, Flag};
use crate::printers::named;
use crate::selection::{CHUNK_FLAGS, Info, SELECTOR_FLAGS, Selection, Target};
use crate::transport::{JSON, Request};
use crate::write::{DRY_RUN_FLAGS, DryRun, Writer};

pub const COMMAND: Command = Command {
    name: "drain",
    group: CLUSTER,
    short: "Move all pods off a node",
    usage: "NODE",
    flags: &[
        SELECTOR_FLAGS,
        DRY_RUN_FLAGS,
        CHUNK_FLAGS,
        &[
            Flag::bool("delete-emptydir-data", "Also pods whose emptyDir is lost with them"),
            Flag::bool("disable-eviction", "Delete instead of evicting; disruption budgets are passed over"),
            Flag::bool("force", "Also pods nothing would make again"),
            Flag::int("grace-period", "Seconds each pod gets to stop; negative leaves it to the pod")
                .default("-1"),
            Flag::bool("ignore-daemonsets", "Leave pods of daemon sets where they are"),
            Flag::text("pod-selector", "Only these pods"),
            Flag::int(
                "skip-wait-for-delete-timeout",
                "Do not wait for pods that are being deleted for longer than this",
            ),
            Flag::duration("timeout", "How long to go on trying; 0 is for ever"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

const RETRY_DELAY: Duration = Duration::from_secs(5);

/// What to do about a pod.
#[derive(Debug, PartialEq)]
enum Verdict {
    Evict,
    /// Goes, but the user should know.
    EvictWith(&'static str),
    Skip,
    SkipWith(&'static str),
    Refuse(&'static str),
}

async fn run(cli: &Cli) -> Result<()> {
    let writer = Writer::new(cli)?;
    let (infos, errors) = nodes(cli).await?;
    Error::collect(errors)?;
    let mut failures = Vec::new();
    let mut pending: Vec<&str> = Vec::new();
    for info in &infos {
        set_schedulable(&writer, info, true).await?;
    }
    for info in &infos {
        let drained = drain(&writer, info);
        let timeout = cli.args.duration("timeout");
        let outcome = match timeout.is_zero() {
            true => drained.await,
            false => tokio::time::timeout(timeout, drained).await.unwrap_or_else(|_| {
                Err(Error::message(format!("drain did not complete within {}s", timeout.as_secs())))
            }),
        };
        match outcome {
            Ok(()) => cli.print(&named(&info.object, &format!("drained{}", writer.dry_run.suffix())))?,
            Err(error) => {
                cli.flush()?;
                eprintln!(
                    "error: unable to drain node {:?} due to error: {error}, continuing command...",
                    info.name
                );
                pending.push(&info.name);
                failures.push(error);
            }
        }
    }
    cli.flush()?;
    if !pending.is_empty() {
        eprintln!("There are pending nodes to be drained:");
        pending.iter().for_each(|name| eprintln!(" {name}"));
    }
    // what failed has been said above; what remains is the reason alone
    Error::collect(failures).map_err(|error| match error {
        Error::Message(reason) => Error::plain(reason),
        other => other,
    })
}

async fn drain(writer: &Writer<'_>, node: &Info) -> Result<()> {
    let cli = writer.cli;
    let pods = cli.resource("pods").await?;
    let mut selection = Selection::from_args(cli, &[]);
    (selection.selector, selection.field_selector) =
        (cli.args.text("pod-selector").to_owned(), format!("spec.nodeName={}", node.name));
    let target = Target::List { resource: pods.clone(), namespace: String::new() };
    let found = selection.fetch_one(cli, target).await?;
    let (mut going, mut warnings, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
    for pod in found.iter().map(|info| &info.object) {
        let name = format!("{}/{}", pod.namespace(), pod.name());
        match verdict(cli, pod).await? {
            Verdict::Evict => going.push(pod.clone()),
            Verdict::EvictWith(warning) => {
                going.push(pod.clone());
                warnings.push((warning, name));
            }
            Verdict::Skip => {}
            Verdict::SkipWith(warning) => warnings.push((warning, name)),
            Verdict::Refuse(reason) => refusals.push((reason, name)),
        }
    }
    if !refusals.is_empty() {
        let errors: Vec<String> = grouped(&refusals)
            .into_iter()
            .map(|(reason, pods)| format!("cannot delete {reason}: {pods}"))
            .collect();
        return Err(Error::message(if errors.len() == 1 {
            errors[0].clone()
        } else {
            format!("[{}]", errors.join(", "))
        }));
    }
    if !warnings.is_empty() {
        let texts: Vec<String> =
            grouped(&warnings).into_iter().map(|(warning, pods)| format!("{warning}: {pods}")).collect();
        eprintln!("Warning: {}", texts.join("; "));
    }
    let mut leaving: FuturesUnordered<_> = going
        .iter()
        .map(|pod| {
            let info = Info {
                resource: pods.clone(),
                namespace: pod.namespace().to_owned(),
                name: pod.name().to_owned(),
                object: pod.clone(),
                source: String::new(),
            };
            async move { remove(writer, &info).await }
        })
        .collect();
    while let Some(outcome) = leaving.next().await {
        outcome?;
    }
    Ok(())
}

/// Reasons in the order they first came up, each with all its pods.
fn grouped<'a>(entries: &[(&'a str, String)]) -> Vec<(&'a str, String)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for (reason, pod) in entries {
        match groups.iter_mut().find(|(known, _)| known == reason) {
            Some((_, pods)) => pods.push(pod),
            None => groups.push((reason, vec![pod])),
        }
    }
    groups.into_iter().map(|(reason, pods)| (reason, pods.join(", "))).collect()
}

async fn verdict(cli: &Cli, pod: &Value) -> Result<Verdict> {
    let owner = pod.list("metadata.ownerReferences").iter().find(|owner| owner.flag("controller"));
    let daemon_set_exists = match owner {
        Some(owner) if owner.text("kind") == "DaemonSet" => {
            let sets = cli.resource("daemonsets.apps").await?;
            match cli.client()?.get_json(&sets.object_path(pod.namespace(), owner.text("name"))).await {
                Ok(_) => true,
                Err(error) if error.is_not_found() => false,
                Err(error) => return Err(error),
            }
        }
        _ => false,
    };
    Ok(decide(&cli.args, pod, owner.map(|owner| owner.text("kind")), daemon_set_exists))
}

/// Seconds since a pod should have been gone, if it is being deleted.
fn overdue(pod: &Value, now: jiff::Timestamp) -> Option<i64> {
    let due: jiff::Timestamp = pod.text("metadata.deletionTimestamp").parse().ok()?;
    Some(now.duration_since(due).as_secs())
}

fn decide(args: &Args, pod: &Value, owner: Option<&str>, daemon_set_exists: bool) -> Verdict {
    let patience = args.int("skip-wait-for-delete-timeout");
    if patience > 0 && overdue(pod, jiff::Timestamp::now()).is_some_and(|seconds| seconds > patience) {
        return Verdict::Skip;
    }
    if pod
        .map("metadata.annotations")
        .is_some_and(|annotations| annotations.contains_key("kubernetes.io/config.mirror"))
    {
        return Verdict::Skip;
    }
    let finished = matches!(pod.text("status.phase"), "Succeeded" | "Failed");
    if owner == Some("DaemonSet") && !finished {
        if daemon_set_exists {
            return if args.bool("ignore-daemonsets") {
                Verdict::SkipWith("ignoring DaemonSet-managed Pods")
            } else {
                Verdict::Refuse("DaemonSet-managed Pods (use --ignore-daemonsets to ignore)")
            };
        }
        if !args.bool("force") {
            return Verdict::Refuse("Pods that declare no controller (use --force to override)");
        }
        return Verdict::EvictWith("deleting DaemonSet-managed Pods (controller not found)");
    }
    if !finished
        && pod.list("spec.volumes").iter().any(|volume| volume.has("emptyDir"))
        && !args.bool("delete-emptydir-data")
    {
        return Verdict::Refuse("Pods with local storage (use --delete-emptydir-data to override)");
    }
    if finished || owner.is_some() {
        return Verdict::Evict;
    }
    if args.bool("force") {
        Verdict::EvictWith("deleting Pods that declare no controller")
    } else {
        Verdict::Refuse("Pods that declare no controller (use --force to override)")
    }
}

/// Evicts or deletes one pod, and waits until it is gone.
async fn remove(writer: &Writer<'_>, info: &Info) -> Result<()> {
    let cli = writer.cli;
    if writer.dry_run == DryRun::Client {
        return cli.line(format!("evicting pod {}/{} (dry run)", info.namespace, info.name));
    }
    let evict = !cli.args.bool("disable-eviction");
    if !request_removal(writer, info, evict).await? || writer.dry_run != DryRun::No {
        return Ok(());
    }
    if !leaves(cli, info).await? {
        return cli.line(format!(
            "pod {:?} has DeletionTimestamp older than {} seconds, skipping",
            info.name,
            cli.args.int("skip-wait-for-delete-timeout")
        ));
    }
    cli.print(&named(
        &json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": info.name}}),
        if evict { "evicted" } else { "deleted" },
    ))
}

/// Repeats the request while a disruption budget forbids it. Returns false if there is no such pod.
async fn request_removal(writer: &Writer<'_>, info: &Info, evict: bool) -> Result<bool> {
    let cli = writer.cli;
    let verb = if evict { "evicting" } else { "deleting" };
    let (method, path, body) = removal(writer, info, evict);
    loop {
        cli.line(format!("{verb} pod {}/{}{}", info.namespace, info.name, writer.dry_run.suffix()))?;
        cli.flush()?;
        let request = Request::with_body(method.clone(), &path, JSON, body.clone());
        match cli.client()?.json(request).await {
            Ok(_) => return Ok(true),
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) if error.status_code() == Some(429) => {
                eprintln!(
                    "error when evicting pods/{:?} -n {:?} (will retry after {}s): {error}",
                    info.name,
                    info.namespace,
                    RETRY_DELAY.as_secs()
                );
                tokio::time::sleep(RETRY_DELAY).await;
            }
            Err(error) => {
                return Err(Error::message(format!(
                    "error when evicting pods/{:?} -n {:?}: {error}",
                    info.name, info.namespace
                )));
            }
        }
    }
}

/// Method, path and body of the request.
fn removal(writer: &Writer<'_>, info: &Info, evict: bool) -> (Method, String, String) {
    let mut options = json!({});
    let grace_period = writer.cli.args.int("grace-period");
    if grace_period >= 0 {
        options["gracePeriodSeconds"] = json!(grace_period);
    }
    if writer.dry_run == DryRun::Server {
        options["dryRun"] = json!(["All"]);
    }
    if !evict {
        return (Method::DELETE, info.path(), options.to_string());
    }
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": info.name, "namespace": info.namespace}, "deleteOptions": options,
    });
    (Method::POST, format!("{}/eviction", info.path()), eviction.to_string())
}

/// Waits until the pod is gone, or long enough past the time it should have been: then it is false.
async fn leaves(cli: &Cli, info: &Info) -> Result<bool> {
    let gone = until_gone(cli, info, info.object.text("metadata.uid"));
    let patience = cli.args.int("skip-wait-for-delete-timeout");
    if patience <= 0 {
        return gone.await.map(|()| true);
    }
    let due = match cli.client()?.get_json(&info.path()).await {
        Ok(pod) => overdue(&pod, jiff::Timestamp::now()),
        Err(error) if error.is_not_found() => return Ok(true),
        Err(error) => return Err(error),
    };
    // a pod without a time to be gone was not deleted: somebody put another in its place
    let Some(seconds) = due else { return gone.await.map(|()| true) };
    let rest = u64::try_from(patience - seconds + 1).unwrap_or(0);
    match tokio::time::timeout(Duration::from_secs(rest), gone).await {
        Ok(outcome) => outcome.map(|()| true),
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;

    #[test]
    fn pods_that_would_be_lost_are_refused() {
        let known: Vec<&Flag> = COMMAND.own_flags().collect();
        let args = |line: &str| {
            flags::parse(&known, &line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).unwrap()
        };
        let bare = json!({"metadata": {"name": "p"}});
        assert_eq!(
            decide(&args(""), &bare, None, false),
            Verdict::Refuse("Pods that declare no controller (use --force to override)")
        );
        assert_eq!(
            decide(&args("--force"), &bare, None, false),
            Verdict::EvictWith("deleting Pods that declare no controller")
        );
        assert_eq!(decide(&args(""), &bare, Some("ReplicaSet"), false), Verdict::Evict);
        assert_eq!(
            decide(&args(""), &bare, Some("DaemonSet"), true),
            Verdict::Refuse("DaemonSet-managed Pods (use --ignore-daemonsets to ignore)")
        );
        assert_eq!(
            decide(&args("--ignore-daemonsets"), &bare, Some("DaemonSet"), true),
            Verdict::SkipWith("ignoring DaemonSet-managed Pods")
        );
        let local = json!({"spec": {"volumes": [{"emptyDir": {}}]}});
        assert_eq!(
            decide(&args(""), &local, Some("ReplicaSet"), false),
            Verdict::Refuse("Pods with local storage (use --delete-emptydir-data to override)")
        );
        let stuck = json!({"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}});
        assert_eq!(
            decide(&args("--force --skip-wait-for-delete-timeout=5"), &stuck, None, false),
            Verdict::Skip
        );
        let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}});
        assert_eq!(decide(&args(""), &mirror, None, false), Verdict::Skip);
    }
}
