//! `kubectl apply`: makes the server's object what the file says. On the client's side this is a
//! three-way merge of the last applied configuration, the file and the live object; with
//! `--server-side` the server does it and keeps who owns which field.

mod apply_set;
mod last_applied;
pub mod merge;
mod ownership;
pub mod prune;

use serde_json::{Value, json};

use apply_set::ApplySet;

use super::ADVANCED;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::flags::{Args, Flag};
use crate::printers;
use crate::selection::{FILE_FLAGS, Info, SELECTOR_FLAGS, Selection};
use crate::transport::{APPLY_PATCH, Query};
use crate::write::{
    DRY_RUN_FLAGS, DryRun, LAST_APPLIED, RECORD_FLAGS, VALIDATE_FLAGS, Writer, record_cause, save_config,
};

pub const COMMAND: Command = Command {
    name: "apply",
    group: ADVANCED,
    short: "Make a resource what a file says",
    usage: "(-f FILENAME | -k DIRECTORY)",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        VALIDATE_FLAGS,
        RECORD_FLAGS,
        SERVER_SIDE_FLAGS,
        &[
            Flag::text("field-manager", "Name of the field manager").default("kubectl-client-side-apply"),
            Flag::bool("overwrite", "Let the file win over changes made elsewhere").default("true"),
            Flag::bool("prune", "Delete what an earlier apply made and the files no longer have"),
            Flag::array("prune-allowlist", "Kind to prune, as group/version/kind"),
            Flag::bool("all", "With --prune, choose all resources"),
            Flag::text("cascade", "background, orphan or foreground")
                .default("background")
                .bare("background"),
            Flag::bool("force", "Delete and create again where a change is not possible"),
            Flag::int("grace-period", "With --force or --prune, seconds to stop").default("-1"),
            Flag::duration("timeout", "With --force or --prune, how long to wait"),
            Flag::bool("wait", "With --force or --prune, wait until it is gone"),
            Flag::bool("openapi-patch", "Accepted for compatibility").default("true"),
            Flag::text("subresource", "Apply to this subresource; only with --server-side"),
            Flag::text("applyset", "With --prune, the object that keeps what was applied: [RESOURCE][.GROUP]/NAME, a Secret by default (alpha)")
                .gated(apply_set::GATE),
        ],
    ],
    children: &[&last_applied::EDIT, &last_applied::SET, &last_applied::VIEW],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

pub const SERVER_SIDE_FLAGS: &[Flag] = &[
    Flag::bool("server-side", "Let the server merge, and keep who owns which field"),
    Flag::bool("force-conflicts", "With --server-side, take fields others own"),
];

pub fn field_manager(args: &Args) -> &str {
    if args.changed("field-manager") {
        args.text("field-manager")
    } else if args.bool("server-side") {
        "kubectl"
    } else {
        "kubectl-client-side-apply"
    }
}

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if !args.positional.is_empty() {
        return Err(args.usage_error(format!("Unexpected args: [{}]", args.positional.join(" "))));
    }
    let writer = Writer::new(cli)?;
    if !args.has_files() {
        return Err(Error::message("must specify one of -f and -k"));
    }
    let mut apply_set = ApplySet::from_flag(cli).await?;
    if args.bool("prune") {
        prune::listed_kinds(cli).await?;
    }
    check_flags(cli, apply_set.as_ref()).await?;
    let (infos, mut errors) = Selection::from_args(cli, &[]).objects(cli).await?;
    let mut chosen = Vec::new();
    for info in infos {
        if super::create::matches_selector(&info.object, args.text("selector"))? {
            chosen.push(info);
        }
    }
    if chosen.is_empty() && errors.is_empty() {
        return Err(Error::message("no objects passed to apply"));
    }
    if let Some(set) = &mut apply_set {
        if let Err(error) = set.label(&mut chosen) {
            chosen.clear();
            errors.push(error);
        }
        set.before_apply(&writer, &chosen).await?;
    }
    let mut applied: Vec<Info> = Vec::new();
    for info in chosen {
        match apply(&writer, info).await {
            Ok((info, operation)) => {
                if writer.format.is_human() {
                    writer.report(&info.object, operation)?;
                } else if writer.format == printers::Format::Name {
                    cli.print(&writer.format.print(&info.object, args)?)?;
                }
                applied.push(info);
            }
            Err(error) => errors.push(error),
        }
    }
    cli.flush()?;
    // what was to be printed whole is printed if all went well, and so is pruning done
    Error::collect(errors)?;
    print_applied(&writer, &applied)?;
    match &apply_set {
        _ if !args.bool("prune") => Ok(()),
        Some(set) => set.prune(&writer, &applied).await,
        None => prune::run(&writer, &applied).await,
    }
}

async fn check_flags(cli: &Cli, apply_set: Option<&ApplySet>) -> Result<()> {
    let args = &cli.args;
    let (server_side, client) = (args.bool("server-side"), args.text("dry-run") == "client");
    let refuse = |message: &str| Err(Error::message(message));
    if args.bool("force-conflicts") && !server_side {
        return refuse("--force-conflicts only works with --server-side");
    }
    if client && server_side {
        return refuse(
            "--dry-run=client doesn't work with --server-side (did you mean --dry-run=server instead?)",
        );
    }
    if server_side && args.bool("force") {
        return refuse("--force cannot be used with --server-side");
    }
    if args.bool("force") && args.text("dry-run") == "server" {
        return refuse("--dry-run=server cannot be used with --force");
    }
    if args.bool("all") && !args.text("selector").is_empty() {
        return refuse("cannot set --all and --selector at the same time");
    }
    if let Some(set) = apply_set {
        if !args.bool("prune") {
            return refuse("--applyset requires --prune");
        }
        set.check(cli).await?;
    }
    if args.bool("prune") {
        check_pruning(args, apply_set.is_some())?;
    }
    if !args.text("subresource").is_empty() && !server_side {
        return refuse("--subresource can only be specified for --server-side");
    }
    Ok(())
}

fn check_pruning(args: &Args, in_set: bool) -> Result<()> {
    let by_selector = !args.text("selector").is_empty();
    let refusal = if args.bool("force") {
        // what is made again has another UID, and would be pruned
        "--force cannot be used with --prune"
    } else if in_set && args.bool("all") {
        "--all is incompatible with --applyset"
    } else if in_set && by_selector {
        "--selector is incompatible with --applyset"
    } else if in_set && args.changed("prune-allowlist") {
        "--prune-allowlist is incompatible with --applyset"
    } else if !in_set && !by_selector && !args.bool("all") {
        "all resources selected for prune without explicitly passing --all. To prune all resources, pass the --all flag. If you did not mean to prune all resources, specify a label selector"
    } else if !in_set && args.bool("server-side") {
        "--prune is in alpha and doesn't currently work on objects created by server-side apply"
    } else {
        return Ok(());
    };
    Err(Error::message(refusal))
}

/// One object as itself, several as a list; names were printed one by one.
fn print_applied(writer: &Writer<'_>, applied: &[Info]) -> Result<()> {
    let cli = writer.cli;
    if writer.format.is_human() || writer.format == printers::Format::Name {
        return Ok(());
    }
    match applied {
        [] => Ok(()),
        [only] => cli.print(&writer.format.print(&only.object, &cli.args)?),
        many => {
            let items: Vec<&Value> = many.iter().map(|info| &info.object).collect();
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items});
            cli.print(&writer.format.print(&list, &cli.args)?)
        }
    }
}

/// Applies one object; gives back what is there now and what was done.
async fn apply(writer: &Writer<'_>, mut info: Info) -> Result<(Info, &'static str)> {
    let args = &writer.cli.args;
    let _span = ferry_trace::span("kubectl.apply");
    if info.name.is_empty() {
        let generated = info.object.text("metadata.generateName");
        if !generated.is_empty() {
            return Err(Error::message(format!("from {generated}: cannot use generate name with apply")));
        }
        return Err(retrieving(Error::message("resource name may not be empty"), &info));
    }
    if args.bool("server-side") {
        return server_side(writer, info).await;
    }
    record_cause(args, &mut info.object);
    let live = match writer.cli.client()?.get_json(&info.path()).await {
        Ok(live) => live,
        Err(error) if error.is_not_found() => return create(writer, info).await,
        Err(error) => return Err(retrieving(error, &info)),
    };
    if !live.map("metadata.annotations").is_some_and(|annotations| annotations.contains_key(LAST_APPLIED)) {
        eprintln!(
            "Warning: resource {}/{} is missing the {LAST_APPLIED} annotation which is required by kubectl apply. kubectl apply should only be used on resources created declaratively by either kubectl create --save-config or kubectl apply. The missing annotation will be patched automatically.",
            info.resource.name, info.name
        );
    }
    let (object, operation) = match merge::patch(writer, &info, &live).await? {
        merge::Outcome::Unchanged => (live, "unchanged"),
        merge::Outcome::Configured(object) => (object, "configured"),
    };
    info.object = object;
    warn_if_deleting(&info.object);
    Ok((info, operation))
}

fn warn_if_deleting(object: &Value) {
    if object.has("metadata.deletionTimestamp") {
        eprintln!(
            "Warning: Detected changes to resource {} which is currently being deleted.",
            object.name()
        );
    }
}

async fn create(writer: &Writer<'_>, mut info: Info) -> Result<(Info, &'static str)> {
    save_config(&mut info.object);
    // the annotation keeps the nulls, as it does when the manifest is applied to a live object
    fields::remove_nulls(&mut info.object);
    if writer.dry_run != DryRun::Client {
        info.object = writer
            .create(&info.resource, &info.namespace, &info.object)
            .await
            .map_err(|error| error.while_doing("creating", &info.source))?;
    }
    Ok((info, "created"))
}

fn retrieving(error: Error, info: &Info) -> Error {
    let what = format!("retrieving current configuration of:\n{}\nfrom server for:", info.described());
    error.while_doing(&what, &info.source)
}

async fn server_side(writer: &Writer<'_>, mut info: Info) -> Result<(Info, &'static str)> {
    let args = &writer.cli.args;
    let query = Query::new()
        .with("dryRun", if writer.dry_run == DryRun::Server { "All" } else { "" })
        .with("fieldManager", field_manager(args))
        .with("fieldValidation", writer.validation())
        .with("force", if args.bool("force-conflicts") { "true" } else { "false" });
    if info.object.has("metadata.managedFields") {
        return Err(Error::message("metadata.managedFields must be nil"));
    }
    let mut target: crate::write::PatchTarget<'_> = (&info).into();
    target.subresource = args.text("subresource");
    let mut applied =
        writer.patch_with(target, APPLY_PATCH, &info.object, query.clone()).await.map_err(conflict_words)?;
    if writer.dry_run == DryRun::No
        && let Some(taken) = ownership::migrate(writer, &info, &applied, field_manager(args)).await?
    {
        // applied once more, so that fields which left the manifest are removed
        applied = match writer.patch_with(target, APPLY_PATCH, &info.object, query).await {
            Ok(applied) => applied,
            Err(error) => {
                eprintln!(
                    "Warning: failed to re-apply configuration after performing Server-Side Apply migration. This is non-fatal and will be retried next time you apply. Error: {error}"
                );
                taken
            }
        };
    }
    info.object = applied;
    warn_if_deleting(&info.object);
    Ok((info, "serverside-applied"))
}

/// A conflict names the owners and what to do about it.
fn conflict_words(error: Error) -> Error {
    match error {
        Error::Status(status) if status.reason == "Conflict" => Error::message(format!(
            "{}\nPlease review the fields above--they currently have other managers. Here\nare the ways you can resolve this warning:\n* If you intend to manage all of these fields, please re-run the apply\n  command with the `--force-conflicts` flag.\n* If you do not intend to manage all of the fields, please edit your\n  manifest to remove references to the fields that should keep their\n  current managers.\n* You may co-own fields by updating your manifest to match the existing\n  value; in this case, you'll become the manager if the other manager(s)\n  stop managing the field (remove it from their configuration).\nSee https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts",
            status.message
        )),
        other => other,
    }
}
