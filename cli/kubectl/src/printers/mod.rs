//! Output formats. A printer takes objects as the server gave them; which one is used is decided
//! once, from `-o`.

pub mod columns;
pub mod custom_columns;
pub mod declared;
pub mod duration;
pub mod go_template;
pub mod kyaml;
pub mod table;

use ferry_api::{go_json, json_path};
use serde_json::Value;

use crate::error::{Error, Result, system_words};
use crate::fields::{self, Fields};
use crate::flags::{Args, Flag};

pub const FLAGS: &[Flag] = &[
    Flag::text("output", "Output format: json, yaml, kyaml, name, jsonpath=…, jsonpath-as-json=…, jsonpath-file=…, go-template=…, go-template-file=…")
        .short('o'),
    Flag::text("template", "Template of the jsonpath and go-template output formats"),
    Flag::bool("show-managed-fields", "Keep managedFields when printing JSON or YAML"),
    Flag::bool("allow-missing-template-keys", "Leave out missing fields in templates").default("true"),
];

/// What `-o` asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    /// A table, or the sentence of the command: `pod/web created`.
    Human,
    Wide,
    Name,
    Json,
    Yaml,
    Kyaml,
    JsonPath {
        template: json_path::Template,
        as_json: bool,
    },
    GoTemplate(go_template::Template),
    CustomColumns(custom_columns::Columns),
}

/// The formats of commands that change objects, as their refusal lists them.
pub const OBJECT_FORMATS: &str = "go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,templatefile,yaml";
/// The formats of `get`.
pub const GET_FORMATS: &str = "custom-columns,custom-columns-file,go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,templatefile,wide,yaml";

impl Format {
    /// Reads `-o`. `allowed` is the list a refusal names.
    pub fn from_args(args: &Args, allowed: &str) -> Result<Self> {
        let output = args.text("output");
        let (format, inline) = match output.split_once('=') {
            Some((format, argument)) => (format, Some(argument)),
            None => (output, None),
        };
        let unknown = || {
            Err(Error::message(format!(
                "unable to match a printer suitable for the output format {output:?}, allowed formats are: {allowed}"
            )))
        };
        if !format.is_empty() && !allowed.split(',').any(|name| name == format) {
            return unknown();
        }
        let template = inline.unwrap_or(args.text("template"));
        // --template alone implies -o go-template.
        let format = if format.is_empty() && !template.is_empty() { "go-template" } else { format };
        match format {
            "" => Ok(Format::Human),
            "wide" => Ok(Format::Wide),
            "name" => Ok(Format::Name),
            "json" => Ok(Format::Json),
            "yaml" => Ok(Format::Yaml),
            "kyaml" => Ok(Format::Kyaml),
            "custom-columns" | "custom-columns-file" => {
                if inline.is_none_or(str::is_empty) {
                    return Err(Error::message(
                        "custom-columns format specified but no custom columns given",
                    ));
                }
                let columns = columns(format, template)?;
                Ok(Format::CustomColumns(columns.no_headers(args.bool("no-headers"))))
            }
            _ if template.is_empty() => {
                Err(Error::message("template format specified but no template given"))
            }
            "jsonpath" | "jsonpath-as-json" | "jsonpath-file" => Ok(Format::JsonPath {
                template: json_path_template(format, template)?,
                as_json: format == "jsonpath-as-json",
            }),
            "go-template" | "go-template-file" | "template" | "templatefile" => {
                Ok(Format::GoTemplate(go_template(format, template)?))
            }
            _ => unknown(),
        }
    }

    pub fn is_human(&self) -> bool {
        matches!(self, Format::Human | Format::Wide)
    }

    /// Prints one object, or one list, in a machine's format.
    pub fn print(&self, object: &Value, args: &Args) -> Result<String> {
        match self {
            Format::Human | Format::Wide => Ok(String::new()),
            Format::Name => Ok(names(object)),
            Format::Json => Ok(go_json::pretty(&without_managed_fields(object, args))),
            Format::Yaml => Ok(ferry_api::yaml::encode_value(&without_managed_fields(object, args))),
            Format::Kyaml => Ok(kyaml::document(&without_managed_fields(object, args))),
            Format::JsonPath { template, as_json } => {
                let found = template.evaluate(object, args.bool("allow-missing-template-keys"));
                let found = found.map_err(|reason| jsonpath_failure(template, object, &reason))?;
                Ok(if *as_json { found.as_json() } else { found.text() })
            }
            Format::GoTemplate(template) => {
                match template.execute(object, args.bool("allow-missing-template-keys")) {
                    (text, Ok(())) => Ok(text),
                    (text, Err(reason)) => Err(go_template_failure(template, object, &text, &reason)?),
                }
            }
            Format::CustomColumns(columns) => columns.print(object),
        }
    }
}

/// `template` is the template, or the name of its file.
fn json_path_template(format: &str, template: &str) -> Result<json_path::Template> {
    let text = match format {
        "jsonpath-file" => std::fs::read_to_string(template)
            .map_err(|error| Error::message(format!("error reading --template {template}, {error}\n")))?,
        _ => template.to_owned(),
    };
    json_path::Template::parse(&text)
        .map_err(|reason| Error::message(format!("error parsing jsonpath {text}, {reason}")))
}

fn go_template(format: &str, template: &str) -> Result<go_template::Template> {
    let text = match format {
        "go-template-file" | "templatefile" => std::fs::read_to_string(template).map_err(|error| {
            let reason = crate::kubeconfig::describe(&error);
            Error::message(format!("error reading --template {template}, open {template}: {reason}"))
        })?,
        _ => template.to_owned(),
    };
    go_template::Template::parse(&text)
        .map_err(|reason| Error::message(format!("error parsing template {text}, {reason}")))
}

fn columns(format: &str, template: &str) -> Result<custom_columns::Columns> {
    if format != "custom-columns-file" {
        return custom_columns::Columns::parse(template);
    }
    let text = std::fs::read_to_string(template).map_err(|error| {
        let reason = system_words(&error);
        Error::message(format!("error reading template {template}, open {template}: {reason}\n"))
    })?;
    custom_columns::Columns::parse_file(&text)
}

/// What was printed until then stays, and what helps to mend the template follows it.
fn go_template_failure(
    template: &go_template::Template,
    object: &Value,
    printed: &str,
    reason: &str,
) -> std::io::Result<Error> {
    use std::io::Write;
    write!(
        std::io::stdout(),
        "{printed}Error executing template: {reason}. Printing more information for debugging the template:\n\ttemplate was:\n\t\t{}\n\traw data was:\n\t\t{}\n\tobject given to template engine was:\n\t\t{}\n\n",
        template.source,
        go_json::compact(object),
        go_template::shown(object)
    )?;
    Ok(Error::message(format!("error executing template {:?}: {reason}", template.source)))
}

fn jsonpath_failure(template: &json_path::Template, object: &Value, reason: &str) -> Error {
    Error::message(format!(
        "error executing jsonpath {:?}: Error executing template: {reason}. Printing more information for debugging the template:\n\ttemplate was:\n\t\t{}\n\tobject given to jsonpath engine was:\n\t\t{}\n\n",
        template.source,
        template.source,
        go_json::go_syntax(object)
    ))
}

fn without_managed_fields(object: &Value, args: &Args) -> Value {
    let mut object = object.clone();
    if args.bool("show-managed-fields") {
        return object;
    }
    fields::remove(&mut object, "metadata.managedFields");
    if let Some(items) = object.get_mut("items").and_then(Value::as_array_mut) {
        for item in items {
            fields::remove(item, "metadata.managedFields");
        }
    }
    object
}

fn names(object: &Value) -> String {
    if object.is_list() {
        return object.list("items").iter().map(|item| named(item, "")).collect();
    }
    named(object, "")
}

/// Text of objects for a terminal: it cannot move the cursor, change the window or overwrite what stands before it
/// (CVE-2021-25743). In upstream's form.
pub fn inert(text: &str) -> String {
    text.replace('\u{1b}', "^[").replace('\r', "\\r")
}

/// `deployment.apps/web created`, the line most commands end with.
pub fn named(object: &Value, operation: &str) -> String {
    let name = if object.name().is_empty() { "<unknown>" } else { object.name() };
    let kind = object.kind().to_lowercase();
    let group = if object.group().is_empty() { String::new() } else { format!(".{}", object.group()) };
    let operation = if operation.is_empty() { String::new() } else { format!(" {operation}") };
    format!("{kind}{group}/{name}{operation}\n")
}
