//! `kubectl create`: from files, or from flags through a generator. Generators are pure: flags in,
//! object out.

mod config;
pub mod identity;
mod ingress;
pub mod policy;
mod role;
mod secret;
pub mod service;
mod token;
mod workload;

use ferry_api::selector::LabelSelector;
use serde_json::Value;

use super::BEGINNER;
use super::edit;
use super::get::raw;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::{Args, Flag};
use crate::printers;
use crate::selection::{FILE_FLAGS, SELECTOR_FLAGS, Selection};
use crate::write::{
    DRY_RUN_FLAGS, DryRun, FIELD_MANAGER_CREATE, RECORD_FLAGS, SAVE_CONFIG_FLAGS, VALIDATE_FLAGS, Writer,
    enforce_namespace, record_cause, save_config, save_generated_config,
};

pub const COMMAND: Command = Command {
    name: "create",
    group: BEGINNER,
    short: "Create a resource from a file or from standard input",
    usage: "-f FILENAME",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        VALIDATE_FLAGS,
        SAVE_CONFIG_FLAGS,
        RECORD_FLAGS,
        FIELD_MANAGER_CREATE,
        &[
            Flag::bool("edit", "Edit the objects before they are created"),
            Flag::bool("windows-line-endings", "With --edit, end lines for Windows' editors"),
            Flag::text("raw", "Path to post the file to"),
        ],
    ],
    children: &[
        &role::CLUSTER_ROLE,
        &identity::CLUSTER_ROLE_BINDING,
        &config::CONFIG_MAP,
        &workload::CRON_JOB,
        &workload::DEPLOYMENT,
        &ingress::COMMAND,
        &workload::JOB,
        &identity::NAMESPACE,
        &policy::POD_DISRUPTION_BUDGET,
        &policy::PRIORITY_CLASS,
        &policy::QUOTA,
        &role::ROLE,
        &identity::ROLE_BINDING,
        &secret::COMMAND,
        &service::COMMAND,
        &identity::SERVICE_ACCOUNT,
        &token::COMMAND,
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

/// A generator's flags: the shared ones and its own.
macro_rules! generator_flags {
    ($own:expr) => {
        &[
            crate::printers::FLAGS,
            crate::write::DRY_RUN_FLAGS,
            crate::write::VALIDATE_FLAGS,
            crate::write::SAVE_CONFIG_FLAGS,
            crate::write::FIELD_MANAGER_CREATE,
            $own,
        ]
    };
}
pub(crate) use generator_flags;

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if !args.has_files() {
        if !args.positional.is_empty() {
            return Err(args.usage_error(format!("Unexpected args: [{}]", args.positional.join(" "))));
        }
        return Err(Error::message("must specify one of -f and -k"));
    }
    if !args.positional.is_empty() {
        return Err(args.usage_error(format!("Unexpected args: [{}]", args.positional.join(" "))));
    }
    if !args.text("raw").is_empty() {
        return post_raw(cli).await;
    }
    if args.bool("edit") {
        return edit::edit_and_create(cli).await;
    }
    let writer = Writer::new(cli)?;
    let (infos, mut errors) = Selection::from_args(cli, &[]).objects(cli).await?;
    let mut count = errors.len();
    for mut info in infos {
        if !matches_selector(&info.object, args.text("selector"))? {
            continue;
        }
        count += 1;
        if args.bool("save-config") {
            save_config(&mut info.object);
        }
        record_cause(args, &mut info.object);
        let created = match writer.dry_run {
            DryRun::Client => Ok(info.object.clone()),
            _ => writer.create(&info.resource, &info.namespace, &info.object).await,
        };
        match created {
            Ok(object) => writer.report(&object, "created")?,
            Err(error) => errors.push(error.while_doing("creating", &info.source)),
        }
    }
    cli.flush()?;
    if count == 0 {
        return Err(Error::message("no objects passed to create"));
    }
    Error::collect(errors)
}

async fn post_raw(cli: &Cli) -> Result<()> {
    if cli.args.bool("edit") {
        return Err(Error::message("--raw and --edit are mutually exclusive"));
    }
    let file = raw_file(&cli.args)?;
    if !cli.args.text("selector").is_empty() {
        return Err(Error::message("--raw and --selector (-l) are mutually exclusive"));
    }
    raw::send(cli, http::Method::POST, raw_body(file)?.into()).await
}

/// The one file that `--raw` sends as it is.
pub fn raw_file(args: &Args) -> Result<&str> {
    let files = args.list("filename");
    let [file] = files.as_slice() else {
        return Err(Error::message("--raw can only use a single local file or stdin"));
    };
    if file.starts_with("http://") || file.starts_with("https://") {
        return Err(Error::message("--raw cannot read from a url"));
    }
    if args.bool("recursive") {
        return Err(Error::message("--raw and --recursive are mutually exclusive"));
    }
    if !args.text("output").is_empty() {
        return Err(Error::message("--raw and --output are mutually exclusive"));
    }
    Ok(*file)
}

/// The bytes of a file, or of standard input.
pub fn raw_body(file: &str) -> Result<Vec<u8>> {
    use std::io::Read;
    if file != "-" {
        return Ok(std::fs::read(file)?);
    }
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body)?;
    Ok(body)
}

/// Whether an object that is not on a server yet has the labels asked for.
pub fn matches_selector(object: &Value, selector: &str) -> Result<bool> {
    if selector.is_empty() {
        return Ok(true);
    }
    let selector = LabelSelector::parse(selector).map_err(|error| Error::message(error.to_string()))?;
    let labels = object.map("metadata.labels");
    Ok(selector.matches(|key| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str)))
}

/// The one name a generator takes.
pub fn one_name(args: &Args) -> Result<&str> {
    let count = args.dash.unwrap_or(args.positional.len());
    match args.first() {
        Some(name) if count == 1 => Ok(name),
        _ => Err(args.usage_error(format!("exactly one NAME is required, got {count}"))),
    }
}

/// What follows `--`: a command and its arguments.
pub fn command_words(args: &Args) -> &[String] {
    args.dash.map_or(&[], |dash| &args.positional[dash..])
}

/// Creates what a generator made. `prefix` is how a refusal starts; without one the server's own
/// words stand.
pub async fn create_generated(cli: &Cli, mut object: Value, prefix: &str) -> Result<()> {
    let writer = Writer::new(cli)?;
    if !is_cluster_scoped(&object) {
        enforce_namespace(cli, &mut object)?;
    }
    if cli.args.bool("save-config") {
        save_generated_config(&mut object);
    }
    record_cause(&cli.args, &mut object);
    if writer.dry_run == DryRun::Client {
        return report_generated(&writer, &object);
    }
    let resource = cli.resource_of(&object).await?;
    let namespace = if resource.namespaced { cli.namespace()?.name } else { String::new() };
    match writer.create(&resource, &namespace, &object).await {
        Ok(created) => writer.report(&created, "created"),
        Err(Error::Status(status)) if !prefix.is_empty() => {
            Err(Error::message(format!("{prefix} {}", status.message)))
        }
        Err(error) => Err(error),
    }
}

/// A generated object has its fields in declared order, not sorted, when printed as JSON.
pub fn report_generated(writer: &Writer<'_>, object: &Value) -> Result<()> {
    if writer.format == printers::Format::Json {
        return writer.cli.print(&printers::declared::pretty(object));
    }
    writer.report(object, "created")
}

fn is_cluster_scoped(object: &Value) -> bool {
    matches!(object.kind(), "Namespace" | "ClusterRole" | "ClusterRoleBinding" | "PriorityClass")
}

/// A number where it is one, else text: ports and percentages.
pub fn int_or_string(text: &str) -> Value {
    match text.parse::<i64>() {
        Ok(number) => number.into(),
        Err(_) => text.into(),
    }
}

impl Error {
    /// Names the file in a refusal: `error when creating "web.yaml": …`.
    pub fn while_doing(self, verb: &str, source: &str) -> Self {
        if source.is_empty() { self } else { self.context(format!("error when {verb} {source:?}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn local_objects_match_selectors() {
        let object = json!({"metadata": {"labels": {"app": "web"}}});
        let check = |selector: &str, expected: bool| {
            assert_eq!(matches_selector(&object, selector).unwrap(), expected, "{selector}")
        };
        check("", true);
        check("app=web", true);
        check("app==web", true);
        check("app!=web", false);
        check("app", true);
        check("!app", false);
        check("tier", false);
        check("app=web,tier=x", false);
    }
}
