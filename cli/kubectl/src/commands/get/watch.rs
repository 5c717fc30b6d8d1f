//! `get -w`: the list, then every change of it.

use std::rc::Rc;

use serde_json::Value;

use super::table_options;
use crate::cli::Cli;
use crate::discovery::Resource;
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
    let Watched { resource, namespace, name } = watched(cli, selection).await?;
    let field_selector = match (name.as_str(), selection.field_selector.as_str()) {
        ("", selector) => selector.to_owned(),
        (name, "") => format!("metadata.name={name}"),
        (name, selector) => format!("metadata.name={name},{selector}"),
    };
    let query =
        Query::new().with("fieldSelector", &field_selector).with("labelSelector", &selection.selector);
    let path = resource.path(&namespace);
    let client = cli.client()?;
    if !name.is_empty() {
        // A missing object is an error at once, not an endless wait.
        let object = resource.object_path(&namespace, &name);
        match client.json(Request::get(&object).accept(selection.accept)).await {
            Err(error) if error.is_not_found() && cli.args.bool("ignore-not-found") => return Ok(()),
            outcome => outcome?,
        };
    }
    let list = client.json(Request::get(&format!("{path}{query}")).accept(selection.accept)).await?;
    let query = query.with("resourceVersion", list.text("metadata.resourceVersion"));

    let name = String::new();
    let info =
        Info { resource: resource.clone(), namespace, name, object: Value::Null, source: String::new() };
    let options = table_options(cli, format, &info, cli.args.bool("all-namespaces"), false);
    let mut show = Show { cli, format, printer: table::Printer::new(options) };
    if !cli.args.bool("watch-only") {
        if list.kind() == "Table" || format.is_human() {
            show.object("ADDED", &list)?;
        } else {
            for item in crate::selection::items(list, &resource) {
                show.object("ADDED", &item.object)?;
            }
        }
        cli.flush()?;
    }
    show.follow(Events::start(client, &path, query, selection.accept).await?).await
}

/// One resource, or one object of it.
struct Watched {
    resource: Rc<Resource>,
    namespace: String,
    /// Empty for a whole resource.
    name: String,
}

async fn watched(cli: &Cli, selection: &Selection) -> Result<Watched> {
    let mut targets = selection.targets(cli).await?;
    let (Some(target), true) = (targets.pop(), targets.is_empty()) else {
        if selection.files.is_empty() && selection.words.len() == 1 {
            return Err(Error::message("you may only specify a single resource type"));
        }
        // An object that does not exist is the better error.
        selection.fetch(cli).await?.all()?;
        return Err(Error::message(
            "watch is only supported on individual resources and resource collections - more than 1 resource was found",
        ));
    };
    match target {
        Target::Object(Info { resource, namespace, name, .. })
        | Target::Named { resource, namespace, name } => Ok(Watched { resource, namespace, name }),
        Target::List { resource, namespace } => Ok(Watched { resource, namespace, name: String::new() }),
        Target::Broken(error) => Err(error),
    }
}

struct Show<'a> {
    cli: &'a Cli,
    format: &'a Format,
    printer: table::Printer,
}

impl Show<'_> {
    async fn follow(mut self, mut events: Events) -> Result<()> {
        while let Some(event) = events.next().await? {
            if event.kind == "ERROR" {
                return Err(Error::message(format!(
                    "unable to decode an event from the watch stream: {}",
                    event.object.text("message")
                )));
            }
            if event.kind != "BOOKMARK" {
                self.object(&event.kind, &event.object)?;
                self.cli.flush()?;
            }
        }
        Ok(())
    }

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
        // `-o name` prints no event types.
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
