//! `kubectl get`: tables made by the server, or objects in a machine's format.

pub mod raw;
mod sort;
mod watch;

use serde_json::{Value, json};

use super::INTERMEDIATE;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers::{self, Format, GET_FORMATS, columns, table};
use crate::selection::{
    ALL_NAMESPACES_FLAGS, CHUNK_FLAGS, FIELD_SELECTOR_FLAGS, FILE_FLAGS, Info, SELECTOR_FLAGS, Selected,
    Selection,
};
use crate::transport::{JSON, TABLE};

pub const COMMAND: Command = Command {
    name: "get",
    suggested_for: &["list", "ls"],
    group: INTERMEDIATE,
    short: "Show one or many resources",
    usage: "[(-o|--output=)FORMAT] (TYPE[.VERSION][.GROUP] [NAME | -l label] | TYPE[.VERSION][.GROUP]/NAME ...) [flags]",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        FIELD_SELECTOR_FLAGS,
        ALL_NAMESPACES_FLAGS,
        CHUNK_FLAGS,
        printers::FLAGS,
        &[
            Flag::text("raw", "Path to request from the server; the answer is printed as it is"),
            Flag::bool("watch", "Go on showing changes").short('w'),
            Flag::bool("watch-only", "Show changes only"),
            Flag::bool("output-watch-events", "Show the kind of each change"),
            Flag::bool("ignore-not-found", "A missing object is no error"),
            Flag::list("label-columns", "Labels to show as columns").short('L'),
            Flag::bool("show-labels", "Show all labels in a column"),
            Flag::bool("show-kind", "Show the kind in front of names"),
            Flag::bool("no-headers", "Leave out the headers"),
            Flag::text("sort-by", "Field to sort by, as a JSONPath"),
            Flag::bool("server-print", "Let the server make the table").default("true"),
            Flag::text("subresource", "Show this subresource of the object"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if !args.text("raw").is_empty() {
        return raw::run(cli).await;
    }
    let watching = args.bool("watch") || args.bool("watch-only");
    if args.bool("output-watch-events") && !watching {
        return Err(Error::message(
            "--output-watch-events option can only be used with --watch or --watch-only",
        ));
    }
    if !watching && args.positional.is_empty() && !args.has_files() && args.text("kustomize").is_empty() {
        eprintln!(
            "You must specify the type of resource to get. Use \"kubectl api-resources\" for a complete list of supported resources.\n"
        );
        return Err(args.usage_error(
            "Required resource not specified.\nUse \"kubectl explain <resource>\" for a detailed description of that resource (e.g. kubectl explain pods).",
        ));
    }
    let format = Format::from_args(args, GET_FORMATS)?;
    if args.bool("show-labels") && !format.is_human() {
        return Err(Error::message(format!(
            "--show-labels option cannot be used with {} printer",
            args.text("output")
        )));
    }
    let selection = selection(cli, &format);
    if watching {
        return watch::run(cli, &selection, &format).await;
    }
    let mut selected = selection.fetch(cli).await?;
    if args.bool("ignore-not-found") {
        selected.errors.retain(|error| !error.is_not_found());
    }
    if format.is_human() {
        print_tables(cli, &format, selected)
    } else {
        print_objects(cli, &format, selected)
    }
}

fn selection(cli: &Cli, format: &Format) -> Selection {
    let tables = format.is_human() && cli.args.bool("server-print");
    let sorting = !cli.args.text("sort-by").is_empty();
    let mut selection = Selection::from_args(cli, &cli.args.positional);
    selection.types_mean_all = true;
    selection.accept = if tables { TABLE } else { JSON };
    selection.include_object = tables && sorting;
    if sorting {
        // pieces sorted one by one would not be a sorted list
        selection.chunk = 0;
    }
    selection
}

fn table_options(
    cli: &Cli,
    format: &Format,
    info: &Info,
    with_namespace: bool,
    with_kind: bool,
) -> table::Options {
    let args = &cli.args;
    table::Options {
        wide: *format == Format::Wide,
        no_headers: args.bool("no-headers"),
        with_namespace,
        kind_prefix: (with_kind || args.bool("show-kind")).then(|| info.resource.kind_name()),
        label_columns: args.list("label-columns").into_iter().map(str::to_owned).collect(),
        show_labels: args.bool("show-labels"),
    }
}

/// One block per resource type; blocks are separated by an empty line.
fn print_tables(cli: &Cli, format: &Format, mut selected: Selected) -> Result<()> {
    let args = &cli.args;
    if !args.text("sort-by").is_empty() {
        sort::sort(&mut selected.infos, args.text("sort-by"))?;
    }
    let infos = &selected.infos;
    let with_kind = infos.iter().any(|info| {
        info.resource.kind != infos[0].resource.kind || info.resource.group != infos[0].resource.group
    });
    let now = jiff::Timestamp::now();
    let mut printed = false;
    let mut position = 0;
    // Upstream shows the column of whatever comes after the first namespaced type.
    let mut with_namespace = false;
    while position < infos.len() {
        let resource = &infos[position].resource;
        let end =
            (position..infos.len()).find(|next| infos[*next].resource != *resource).unwrap_or(infos.len());
        with_namespace |= args.bool("all-namespaces") && resource.namespaced;
        let options = table_options(cli, format, &infos[position], with_namespace, with_kind);
        let mut printer = table::Printer::new(options);
        let mut text = String::new();
        for info in &infos[position..end] {
            if info.object.kind() == "Table" {
                text.push_str(&printer.rows(&info.object, None));
            } else {
                text.push_str(
                    &printer.rows(&table::from_objects(std::slice::from_ref(&info.object), now), None),
                );
            }
        }
        if !text.is_empty() {
            if printed && !args.bool("no-headers") {
                cli.print("\n")?;
            }
            cli.print(&columns::align(&text, columns::TABLE))?;
            printed = true;
        }
        position = end;
    }
    if !printed && selected.errors.is_empty() && !args.bool("ignore-not-found") {
        cli.flush()?;
        let namespaced = !args.bool("all-namespaces") && infos.iter().all(|info| info.resource.namespaced);
        if namespaced {
            eprintln!("No resources found in {} namespace.", cli.namespace()?.name);
        } else {
            eprintln!("No resources found");
        }
    }
    cli.flush()?;
    Error::collect(selected.errors)
}

/// One object as itself, several as a list.
fn print_objects(cli: &Cli, format: &Format, mut selected: Selected) -> Result<()> {
    if selected.infos.is_empty() {
        if selected.single {
            return Error::collect(selected.errors);
        }
        if cli.args.bool("ignore-not-found") && !selected.errors.is_empty() {
            return Error::collect(selected.errors);
        }
    }
    if !cli.args.text("sort-by").is_empty() {
        sort::sort(&mut selected.infos, cli.args.text("sort-by"))?;
    }
    let object = match selected.infos.as_slice() {
        [only] if selected.single => only.object.clone(),
        many => {
            let items: Vec<Value> = many.iter().map(|info| info.object.clone()).collect();
            json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items})
        }
    };
    cli.print(&format.print(&object, &cli.args)?)?;
    cli.flush()?;
    Error::collect(selected.errors)
}
