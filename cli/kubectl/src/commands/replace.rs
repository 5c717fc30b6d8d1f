//! `kubectl replace`: writes an object whole, or with `--force` deletes and creates it.

use http::Method;

use super::ADVANCED;
use super::create::{raw_body, raw_file};
use super::delete::{DELETE_FLAGS, Options};
use super::get::raw;
use super::recreate::{Replacement, make_room};
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers;
use crate::selection::{FILE_FLAGS, Info, Selection};
use crate::write::{
    DRY_RUN_FLAGS, DryRun, LAST_APPLIED, RECORD_FLAGS, SAVE_CONFIG_FLAGS, VALIDATE_FLAGS, Writer,
    record_cause, save_config,
};

pub const COMMAND: Command = Command {
    name: "replace",
    group: ADVANCED,
    short: "Replace a resource by file",
    usage: "-f FILENAME",
    flags: &[
        FILE_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        VALIDATE_FLAGS,
        SAVE_CONFIG_FLAGS,
        RECORD_FLAGS,
        DELETE_FLAGS,
        &[
            Flag::text("raw", "Path to put the file to"),
            Flag::text("subresource", "Replace this subresource"),
            Flag::text("field-manager", "Name of the field manager").default("kubectl-replace"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if !args.has_files() {
        return Err(Error::message("must specify one of -f and -k"));
    }
    if !args.text("raw").is_empty() {
        return raw::send(cli, Method::PUT, raw_body(raw_file(args)?)?.into()).await;
    }
    if args.int("grace-period") >= 0 && !args.bool("force") {
        return Err(Error::message("--grace-period must have --force specified"));
    }
    if !args.duration("timeout").is_zero() && !args.bool("force") {
        return Err(Error::message("--timeout must have --force specified"));
    }
    let writer = Writer::new(cli)?;
    if args.bool("force") && writer.dry_run != DryRun::No {
        return Err(Error::message("--dry-run can not be used when --force is set"));
    }
    let (mut infos, mut errors) = Selection::from_args(cli, &[]).objects(cli).await?;
    if infos.is_empty() && errors.is_empty() {
        return Err(Error::message("no objects passed to replace"));
    }
    for info in &mut infos {
        if args.bool("save-config")
            || info
                .object
                .map("metadata.annotations")
                .is_some_and(|annotations| annotations.contains_key(LAST_APPLIED))
        {
            save_config(&mut info.object);
        }
        record_cause(args, &mut info.object);
    }
    if args.bool("force") {
        return force(&writer, infos, errors).await;
    }
    for info in infos {
        if let Err(error) = write(&writer, &info).await {
            errors.push(error.while_doing("replacing", &info.source));
        }
    }
    cli.flush()?;
    Error::collect(errors)
}

/// Deletes all and creates all. One object that cannot be read or that the server refuses keeps
/// every other from being deleted.
async fn force(writer: &Writer<'_>, infos: Vec<Info>, mut errors: Vec<Error>) -> Result<()> {
    let cli = writer.cli;
    let mut planned = Vec::new();
    for info in infos {
        match Replacement::plan(writer, info).await {
            Ok(replacement) => planned.push(replacement),
            Err(error) => errors.push(error),
        }
    }
    Error::collect(std::mem::take(&mut errors))?;
    let mut options = Options::for_successor(&cli.args)?;
    if options.grace_period == Some(0) {
        // the old object is given the time to be gone before its name is taken again
        options.grace_period = Some(1);
    }
    for replacement in make_room(cli, planned, &options, &mut errors).await? {
        match replacement.create(writer).await {
            Ok(created) => writer.report(&created, "replaced")?,
            Err(error) => errors.push(error),
        }
    }
    cli.flush()?;
    Error::collect(errors)
}

async fn write(writer: &Writer<'_>, info: &Info) -> Result<()> {
    if writer.dry_run == DryRun::Client {
        return writer.report(&info.object, "replaced");
    }
    let subresource = writer.cli.args.text("subresource");
    let mut object = info.object.clone();
    if object.text("metadata.resourceVersion").is_empty() {
        // whatever is there is overwritten, also where the server insists on a version
        let live = writer.cli.client()?.get_json(&info.path()).await?;
        crate::fields::set(
            &mut object,
            "metadata.resourceVersion",
            live.at("metadata.resourceVersion").clone(),
        );
    }
    let replaced = writer.replace(&info.resource, &info.namespace, &info.name, subresource, &object).await?;
    writer.report(&replaced, "replaced")
}
