//! `get -w`: the list, then every change of it.

use serde_json::Value;

use super::table_options;
use crate::cli::Cli;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::printers::{Format, table};
use crate::selection::{Info, Selection, Target};
use crate::transport::{Query, Request};
use crate::watch::Events;

pub async fn run(cli: &Cli, selection: &Selection, format: &Format) -> Result<()> {
    if !cli.args.text("sort-by").is_empty() {
        let flag = if cli.args.bool("watch") {
            "--watch requested, --sort-by will be ignored for watch events received"
        } else {
            "--watch-only requested, --sort-by will be ignored"
        };
        eprintln!("warning: {flag}");
    }
    let targets = selection.targets(cli).await?;
    let [target] = targets.as_slice() else {
        if selection.files.is_empty() && selection.words.len() == 1 {
            return Err(Error::message("you may only specify a single resource type"));
        }
        // what is not there is the better reason
        selection.fetch(cli).await?.all()?;
        return Err(Error::message(
            "watch is only supported on individual resources and resource collections - more than 1 resource was found",
        ));
    };
    let (resource, namespace, name) = match target {
        Target::Object(info) => (&info.resource, &info.namespace, info.name.as_str()),
        Target::Named { resource, namespace, name } => (resource, namespace, name.as_str()),
        Target::List { resource, namespace } => (resource, namespace, ""),
        Target::Broken(error) => return Err(error.clone()),
    };
    let field_selector = match (name, selection.field_selector.as_str()) {
        ("", selector) => selector.to_owned(),
        (name, "") => format!("metadata.name={name}"),
        (name, selector) => format!("metadata.name={name},{selector}"),
    };
    let query =
        Query::new().with("fieldSelector", &field_selector).with("labelSelector", &selection.selector);
    let path = resource.path(namespace);
    let client = cli.client()?;
    if !name.is_empty() {
        // a missing object is an error now, not an endless wait
        match client.json(Request::get(&resource.object_path(namespace, name)).accept(selection.accept)).await
        {
            Err(error) if error.is_not_found() && cli.args.bool("ignore-not-found") => return Ok(()),
            outcome => outcome?,
        };
    }
    let list = client.json(Request::get(&format!("{path}{query}")).accept(selection.accept)).await?;
    let revision = list.text("metadata.resourceVersion").to_owned();

    let info = Info {
        resource: resource.clone(),
        namespace: namespace.clone(),
        name: String::new(),
        object: Value::Null,
        source: String::new(),
    };
    let options = table_options(cli, format, &info, cli.args.bool("all-namespaces"), false);
    let mut show = Show { cli, format, printer: table::Printer::new(options) };
    if !cli.args.bool("watch-only") {
        if list.kind() == "Table" || format.is_human() {
            show.object("ADDED", &list)?;
        } else {
            for item in crate::selection::items(list, resource) {
                show.object("ADDED", &item.object)?;
            }
        }
        cli.flush()?;
    }

    let mut events =
        Events::start(client, &path, query.with("resourceVersion", &revision), selection.accept).await?;
    while let Some(event) = events.next().await? {
        if event.kind == "ERROR" {
            return Err(Error::message(format!(
                "unable to decode an event from the watch stream: {}",
                event.object.text("message")
            )));
        }
        if event.kind != "BOOKMARK" {
            show.object(&event.kind, &event.object)?;
            cli.flush()?;
        }
    }
    Ok(())
}

struct Show<'a> {
    cli: &'a Cli,
    format: &'a Format,
    printer: table::Printer,
}

impl Show<'_> {
    fn object(&mut self, kind: &str, object: &Value) -> Result<()> {
        let with_event = self.cli.args.bool("output-watch-events");
        if self.format.is_human() {
            let event = with_event.then_some(kind);
            let text = if object.kind() == "Table" {
                self.printer.print(object, event)
            } else {
                let objects =
                    if object.is_list() { object.list("items").to_vec() } else { vec![object.clone()] };
                self.printer.print(&table::from_objects(&objects, jiff::Timestamp::now()), event)
            };
            return self.cli.print(&text);
        }
        // a name says nothing about what became of it
        if with_event && *self.format != Format::Name {
            let wrapped = serde_json::json!({"type": kind, "object": object});
            return self.cli.print(&self.format.print(&wrapped, &self.cli.args)?);
        }
        if *self.format == Format::Yaml {
            self.cli.print("---\n")?;
        }
        self.cli.print(&self.format.print(object, &self.cli.args)?)
    }
}
