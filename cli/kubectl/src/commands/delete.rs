//! `kubectl delete`: asks the server to delete, and waits until the objects are gone.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::INTERMEDIATE;
use super::get::raw;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::{Args, Flag};
use crate::selection::{
    ALL_NAMESPACES_FLAGS, FIELD_SELECTOR_FLAGS, FILE_FLAGS, Info, SELECTOR_FLAGS, Selection, Target,
};
use crate::transport::{JSON, Query, Request};
use crate::watch::Events;
use crate::write::{DRY_RUN_FLAGS, DryRun};

pub const COMMAND: Command = Command {
    name: "delete",
    suggested_for: &["rm", "remove"],
    group: INTERMEDIATE,
    short: "Delete resources by file, name or selector",
    usage: "([-f FILENAME] | TYPE [(NAME | -l label | --all)])",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        FIELD_SELECTOR_FLAGS,
        ALL_NAMESPACES_FLAGS,
        DRY_RUN_FLAGS,
        DELETE_FLAGS,
        &[
            Flag::bool("all", "Delete all resources of the type"),
            Flag::bool("ignore-not-found", "A missing object is no error"),
            Flag::bool("interactive", "Ask before deleting").short('i'),
            Flag::text("output", "name prints names only").short('o'),
            Flag::text("raw", "Path to delete"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

/// The flags that say how to delete.
pub const DELETE_FLAGS: &[Flag] = &[
    Flag::text("cascade", "background, orphan or foreground: what becomes of dependents")
        .default("background")
        .bare("background"),
    Flag::bool("force", "Delete at once, without waiting for the node"),
    Flag::int("grace-period", "Seconds the resource gets to stop; negative leaves it to the resource")
        .default("-1"),
    Flag::bool("now", "The same as --grace-period=1"),
    Flag::duration("timeout", "How long to wait; 0 is until it is gone"),
    Flag::bool("wait", "Wait until the resources are gone").default("true"),
];

/// How to delete.
#[derive(Debug, Clone)]
pub struct Options {
    pub propagation: &'static str,
    pub grace_period: Option<i64>,
    pub force: bool,
    pub wait: bool,
    pub timeout: Duration,
    pub dry_run: DryRun,
    pub quiet: bool,
    pub names_only: bool,
}

impl Options {
    /// As `kubectl delete` deletes: `--force` means at once.
    pub fn from_args(args: &Args) -> Result<Self> {
        let mut grace_period = args.int("grace-period");
        let force = args.bool("force");
        if args.bool("now") {
            if grace_period != -1 {
                return Err(Error::message("--now and --grace-period cannot be specified together"));
            }
            grace_period = 1;
        }
        if grace_period == 0 && !force {
            // a grace period of nothing is only honest with --force
            grace_period = 1;
        }
        if force && grace_period < 0 {
            grace_period = 0;
        }
        if force && grace_period > 0 {
            return Err(Error::message(
                "--force and --grace-period greater than 0 cannot be specified together",
            ));
        }
        Options::with_grace_period(args, grace_period)
    }

    /// To make room for a new object: `--force` only says that there is one, and the old one gets its
    /// time to stop.
    pub fn for_successor(args: &Args) -> Result<Self> {
        let mut options = Options::with_grace_period(args, args.int("grace-period"))?;
        options.wait = true;
        Ok(options)
    }

    /// As `apply --prune` deletes: it neither waits nor says so.
    pub fn for_pruning(args: &Args) -> Result<Self> {
        let mut options = Options::with_grace_period(args, args.int("grace-period"))?;
        options.wait = false;
        options.quiet = true;
        Ok(options)
    }

    fn with_grace_period(args: &Args, grace_period: i64) -> Result<Self> {
        let propagation = match args.text("cascade") {
            "background" | "true" | "" => "Background",
            "orphan" | "false" => "Orphan",
            "foreground" => "Foreground",
            other => {
                return Err(Error::message(format!(
                    "invalid cascade value ({other}). Must be \"background\", \"foreground\", or \"orphan\""
                )));
            }
        };
        Ok(Options {
            propagation,
            grace_period: (grace_period >= 0).then_some(grace_period),
            force: args.bool("force"),
            wait: args.bool("wait"),
            timeout: args.duration("timeout"),
            dry_run: DryRun::from_args(args)?,
            quiet: false,
            names_only: args.text("output") == "name",
        })
    }
}

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if !args.text("raw").is_empty() {
        if !args.positional.is_empty() {
            return Err(Error::message("arguments may not be passed when --raw is specified"));
        }
        return raw::send(cli, Method::DELETE, Default::default()).await;
    }
    check_flags(args)?;
    let options = Options::from_args(args)?;
    let mut selection = Selection::from_args(cli, &args.positional);
    selection.chunk = 500;
    selection.selects_all = args.bool("all");
    let by_selector =
        args.bool("all") || !args.text("selector").is_empty() || !args.text("field-selector").is_empty();
    let ignore_missing = args.bool("ignore-not-found") || by_selector;

    let (infos, mut errors) = found(cli, &selection).await?;
    if args.bool("interactive") {
        if infos.is_empty() && errors.is_empty() {
            return cli.line("No resources found");
        }
        if !confirm(cli, &infos)? {
            return Ok(());
        }
    }
    if cli.namespace()?.explicit
        && !args.bool("all-namespaces")
        && infos.iter().any(|info| !info.resource.namespaced)
    {
        cli.warn("deleting cluster-scoped resources, not scoped to the provided namespace");
    }
    if options.force && options.grace_period == Some(0) {
        eprintln!(
            "Warning: Immediate deletion does not wait for confirmation that the running resource has been terminated. The resource may continue to run on the cluster indefinitely."
        );
    }
    let found = delete_all(cli, &infos, &options, ignore_missing, &mut errors).await?;
    if found == 0 && errors.is_empty() && by_selector {
        cli.line("No resources found")?;
    }
    cli.flush()?;
    Error::collect(errors)
}

fn check_flags(args: &Args) -> Result<()> {
    if !matches!(args.text("output"), "" | "name") {
        return Err(Error::message(format!(
            "unexpected -o output mode: {}. We only support '-o name'",
            args.text("output")
        )));
    }
    if args.bool("all") && !args.text("selector").is_empty() {
        return Err(Error::message("setting 'all' parameter but found a non empty selector. "));
    }
    if args.bool("all") && !args.text("field-selector").is_empty() {
        return Err(Error::message("cannot set --all and --field-selector at the same time"));
    }
    Ok(())
}

/// The objects to delete: those of lists are fetched, those that are named or in files are not.
async fn found(cli: &Cli, selection: &Selection) -> Result<(Vec<Info>, Vec<Error>)> {
    let (mut infos, mut errors) = (Vec::new(), Vec::new());
    for target in selection.targets(cli).await? {
        match target {
            Target::Object(info) => infos.push(info),
            Target::Named { resource, namespace, name } => {
                infos.push(Info { resource, namespace, name, object: Value::Null, source: String::new() })
            }
            Target::Broken(error) => errors.push(error),
            list @ Target::List { .. } => match selection.fetch_one(cli, list).await {
                Ok(found) => infos.extend(found),
                Err(error) => errors.push(error),
            },
        }
    }
    Ok((infos, errors))
}

/// Deletes, reports and waits. Returns how many there were.
pub async fn delete_all(
    cli: &Cli,
    infos: &[Info],
    options: &Options,
    ignore_missing: bool,
    errors: &mut Vec<Error>,
) -> Result<usize> {
    let mut found = 0;
    let mut waiting: Vec<(&Info, String)> = Vec::new();
    for info in infos {
        match delete(cli, info, options).await {
            Ok(answer) => {
                found += 1;
                report(cli, info, options)?;
                if let Some(uid) = uid_of(&answer) {
                    waiting.push((info, uid));
                }
            }
            Err(error) if error.is_not_found() && ignore_missing => {}
            Err(error) if info.source.is_empty() => errors.push(error),
            Err(error) => errors.push(error.while_doing("deleting", &info.source)),
        }
    }
    cli.flush()?;
    if !options.wait || options.dry_run != DryRun::No {
        return Ok(found);
    }
    for (info, uid) in waiting {
        let gone = until_gone(cli, info, &uid);
        let outcome = match options.timeout.is_zero() {
            true => gone.await,
            false => tokio::time::timeout(options.timeout, gone).await.unwrap_or_else(|_| {
                Err(Error::message(format!(
                    "timed out waiting for the condition on {}/{}",
                    info.resource.qualified(),
                    info.name
                )))
            }),
        };
        match outcome {
            // whoever may delete need not be allowed to watch
            Err(error) if matches!(error.status_code(), Some(403 | 405)) => {}
            Err(error) => errors.push(error),
            Ok(()) => {}
        }
    }
    Ok(found)
}

async fn delete(cli: &Cli, info: &Info, options: &Options) -> Result<Value> {
    if options.dry_run == DryRun::Client && !info.source.is_empty() {
        return Ok(info.object.clone());
    }
    if options.dry_run == DryRun::Client {
        // a named object must be there, or saying it would be deleted is a lie
        return cli.client()?.get_json(&info.path()).await;
    }
    let mut body =
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": options.propagation});
    if let Some(seconds) = options.grace_period {
        body["gracePeriodSeconds"] = json!(seconds);
    }
    if options.dry_run == DryRun::Server {
        body["dryRun"] = json!(["All"]);
    }
    cli.client()?.json(Request::with_body(Method::DELETE, &info.path(), JSON, body.to_string())).await
}

fn report(cli: &Cli, info: &Info, options: &Options) -> Result<()> {
    if options.quiet {
        return Ok(());
    }
    let kind = info.resource.kind_name();
    if options.names_only {
        return cli.line(format!("{kind}/{}", info.name));
    }
    let operation = if options.grace_period == Some(0) { "force deleted" } else { "deleted" };
    let place =
        if info.namespace.is_empty() { String::new() } else { format!(" from {} namespace", info.namespace) };
    cli.line(format!("{kind} {:?} {operation}{place}{}", info.name, options.dry_run.suffix()))
}

/// A Status names the UID in its details; an object still being deleted has its own.
fn uid_of(answer: &Value) -> Option<String> {
    let uid =
        if answer.kind() == "Status" { answer.text("details.uid") } else { answer.text("metadata.uid") };
    (!uid.is_empty()).then(|| uid.to_owned())
}

/// Waits for the deletion of this very object; one of the same name made since is another. A kind that is no longer
/// served took its objects along.
pub async fn until_gone(cli: &Cli, info: &Info, uid: &str) -> Result<()> {
    let _span = ferry_trace::span("kubectl.wait_gone");
    match watch_until_gone(cli, info, uid).await {
        Err(error) if error.is_not_found() => Ok(()),
        outcome => outcome,
    }
}

async fn watch_until_gone(cli: &Cli, info: &Info, uid: &str) -> Result<()> {
    let client = cli.client()?;
    let path = info.resource.path(&info.namespace);
    let query = Query::new().with("fieldSelector", &format!("metadata.name={}", info.name));
    loop {
        let list = client.json(Request::get(&format!("{path}{query}"))).await?;
        if !list.list("items").iter().any(|item| item.text("metadata.uid") == uid) {
            return Ok(());
        }
        let revision = list.text("metadata.resourceVersion").to_owned();
        let mut events =
            Events::start(client, &path, query.clone().with("resourceVersion", &revision), JSON).await?;
        while let Some(event) = events.next().await? {
            if event.kind == "ERROR" {
                break;
            }
            if event.kind == "DELETED" && event.object.text("metadata.uid") == uid {
                return Ok(());
            }
        }
    }
}

fn confirm(cli: &Cli, infos: &[Info]) -> Result<bool> {
    cli.line("You are about to delete the following resource(s):")?;
    for info in infos {
        cli.line(info.kind_slash_name())?;
    }
    cli.print("Do you want to continue? (y/N): ")?;
    cli.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    let yes = matches!(answer.trim(), "y" | "Y" | "yes" | "Yes" | "YES");
    if !yes {
        cli.line("deletion is cancelled")?;
    }
    Ok(yes)
}
