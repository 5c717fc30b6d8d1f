//! Changing objects: dry run, field manager, validation and the line that says what was done. Every
//! command that writes goes through here.

use ferry_api::kinds::GroupVersionKind;
use ferry_api::types::Schema;
use http::Method;
use serde_json::{Value, json};

use crate::cli::Cli;
use crate::discovery::Resource;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::flags::{Args, Flag};
use crate::printers::{self, Format, OBJECT_FORMATS};
use crate::transport::{JSON, MERGE_PATCH, Query, Request, STRATEGIC_MERGE_PATCH};
use ferry_api::go_json;

pub const DRY_RUN_FLAGS: &[Flag] =
    &[Flag::text("dry-run", "none, client (print only) or server (let the server check it)")
        .default("none")
        .bare("unchanged")];
pub const VALIDATE_FLAGS: &[Flag] =
    &[Flag::text("validate", "strict, warn or ignore: what to do about unknown or duplicate fields")
        .default("strict")
        .bare("strict")];
pub const SAVE_CONFIG_FLAGS: &[Flag] =
    &[Flag::bool("save-config", "Keep the configuration in the object's annotation, for a later apply")];
pub const RECORD_FLAGS: &[Flag] =
    &[Flag::bool("record", "Keep this command in the object's annotation (deprecated)")];
pub const FIELD_MANAGER_CREATE: &[Flag] =
    &[Flag::text("field-manager", "Name of the field manager").default("kubectl-create")];

pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
pub const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRun {
    No,
    Client,
    Server,
}

impl DryRun {
    pub fn from_args(args: &Args) -> Result<Self> {
        match args.text("dry-run") {
            "" | "none" => Ok(DryRun::No),
            "client" => Ok(DryRun::Client),
            "server" => Ok(DryRun::Server),
            "unchanged" => {
                eprintln!("W --dry-run is deprecated and can be replaced with --dry-run=client.");
                Ok(DryRun::Client)
            }
            other => match crate::flags::parse_bool(other) {
                Some(true) => Ok(DryRun::Client),
                Some(false) => Ok(DryRun::No),
                None => Err(Error::message(format!(
                    "Invalid dry-run value ({other}). Must be \"none\", \"server\", or \"client\"."
                ))),
            },
        }
    }

    /// What stands behind the operation: `created (server dry run)`.
    pub fn suffix(self) -> &'static str {
        match self {
            DryRun::No => "",
            DryRun::Client => " (dry run)",
            DryRun::Server => " (server dry run)",
        }
    }
}

/// How this command writes and reports.
pub struct Writer<'a> {
    pub cli: &'a Cli,
    pub dry_run: DryRun,
    pub format: Format,
    validation: &'static str,
    printed: std::cell::Cell<bool>,
}

impl<'a> Writer<'a> {
    pub fn new(cli: &'a Cli) -> Result<Self> {
        if cli.args.changed("record") {
            eprintln!("Flag --record has been deprecated, --record will be removed in the future");
        }
        Ok(Writer {
            cli,
            dry_run: DryRun::from_args(&cli.args)?,
            format: Format::from_args(&cli.args, OBJECT_FORMATS)?,
            validation: validation(&cli.args)?,
            printed: std::cell::Cell::new(false),
        })
    }

    /// What the server is to do about unknown and duplicate fields.
    pub fn validation(&self) -> &'static str {
        self.validation
    }

    fn query(&self) -> Query {
        Query::new()
            .with("dryRun", if self.dry_run == DryRun::Server { "All" } else { "" })
            .with("fieldManager", self.cli.args.text("field-manager"))
            .with("fieldValidation", self.validation)
    }

    pub async fn create(&self, resource: &Resource, namespace: &str, object: &Value) -> Result<Value> {
        self.create_with(resource, namespace, object, self.query()).await
    }

    /// What the server says about creating this object, without creating it.
    pub async fn try_create(&self, resource: &Resource, namespace: &str, object: &Value) -> Result<Value> {
        let query = self.query();
        let query = if self.dry_run == DryRun::Server { query } else { query.with("dryRun", "All") };
        self.create_with(resource, namespace, object, query).await
    }

    async fn create_with(
        &self,
        resource: &Resource,
        namespace: &str,
        object: &Value,
        query: Query,
    ) -> Result<Value> {
        let mut object = object.clone();
        // what `get -o yaml` printed carries the version it was read at; a new object has none
        fields::remove(&mut object, "metadata.resourceVersion");
        let path = format!("{}{query}", resource.path(namespace));
        self.cli.client()?.json(Request::with_body(Method::POST, &path, JSON, object.to_string())).await
    }

    pub async fn replace(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        subresource: &str,
        object: &Value,
    ) -> Result<Value> {
        let path = format!("{}{}", with_subresource(resource, namespace, name, subresource), self.query());
        self.cli.client()?.json(Request::with_body(Method::PUT, &path, JSON, object.to_string())).await
    }

    pub async fn patch(&self, target: PatchTarget<'_>, content_type: &str, patch: &Value) -> Result<Value> {
        self.patch_with(target, content_type, patch, self.query()).await
    }

    pub async fn patch_with(
        &self,
        target: PatchTarget<'_>,
        content_type: &str,
        patch: &Value,
        query: Query,
    ) -> Result<Value> {
        let path = format!(
            "{}{query}",
            with_subresource(target.resource, target.namespace, target.name, target.subresource)
        );
        self.cli
            .client()?
            .json(Request::with_body(Method::PATCH, &path, content_type, patch.to_string()))
            .await
    }

    /// `deployment.apps/web created`, or the object in the format asked for.
    pub fn report(&self, object: &Value, operation: &str) -> Result<()> {
        if self.format.is_human() {
            return self
                .cli
                .print(&printers::named(object, &format!("{operation}{}", self.dry_run.suffix())));
        }
        self.separate()?;
        self.cli.print(&self.format.print(object, &self.cli.args)?)
    }

    /// Documents of one YAML stream are separated.
    pub fn separate(&self) -> Result<()> {
        if self.printed.replace(true) && self.format == Format::Yaml {
            self.cli.print("---\n")
        } else {
            Ok(())
        }
    }
}

#[derive(Clone, Copy)]
pub struct PatchTarget<'a> {
    pub resource: &'a Resource,
    pub namespace: &'a str,
    pub name: &'a str,
    pub subresource: &'a str,
}

impl<'a> From<&'a crate::selection::Info> for PatchTarget<'a> {
    fn from(info: &'a crate::selection::Info) -> Self {
        PatchTarget {
            resource: &info.resource,
            namespace: &info.namespace,
            name: &info.name,
            subresource: "",
        }
    }
}

fn with_subresource(resource: &Resource, namespace: &str, name: &str, subresource: &str) -> String {
    let path = resource.object_path(namespace, name);
    if subresource.is_empty() { path } else { format!("{path}/{subresource}") }
}

fn validation(args: &Args) -> Result<&'static str> {
    match args.text("validate") {
        "" => Ok(""),
        "strict" | "true" => Ok("Strict"),
        "warn" => Ok("Warn"),
        "ignore" | "false" => Ok("Ignore"),
        other => Err(Error::message(format!(
            "invalid - validate option {other:?}; must be one of: strict (or true), warn, ignore (or false)"
        ))),
    }
}

/// Keeps the object as it was configured in its own annotation, for a later three-way apply.
pub fn save_config(object: &mut Value) {
    let configuration = configuration(object);
    fields::set_keyed(object, "metadata.annotations", LAST_APPLIED, configuration);
}

/// The same for an object that flags made: what nobody wrote is not in its configuration.
pub fn save_generated_config(object: &mut Value) {
    let configuration = format!("{}\n", go_json::compact(object));
    fields::set_keyed(object, "metadata.annotations", LAST_APPLIED, configuration);
}

/// The object without the annotation itself, on one line.
pub fn configuration(object: &Value) -> String {
    let mut object = object.clone();
    if let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations") {
        annotations.remove(LAST_APPLIED);
    } else {
        fields::set(&mut object, "metadata.annotations", json!({}));
    }
    format!("{}\n", go_json::compact(&object))
}

/// `--record`: the command line, as the change's cause.
pub fn record_cause(args: &Args, object: &mut Value) {
    if args.bool("record") {
        fields::set_keyed(object, "metadata.annotations", CHANGE_CAUSE, args.line());
    }
}

/// The field rows of a built-in kind; a custom resource has none, and merges as plain JSON.
pub fn schema_of(object: &Value) -> Option<Schema> {
    Schema::builtin(&GroupVersionKind::from_api_version(object.text("apiVersion"), object.kind()))
}

/// The patch from one state of an object to another, and the content type it is sent as.
pub fn difference(before: &Value, after: &Value) -> Result<(Value, &'static str)> {
    match schema_of(after) {
        Some(schema) => {
            let patch = ferry_patch::strategic::two_way(before, after, &schema)
                .map_err(|error| Error::message(error.to_string()))?;
            Ok((patch, STRATEGIC_MERGE_PATCH))
        }
        None => Ok((ferry_patch::merge::diff(before, after), MERGE_PATCH)),
    }
}

/// The namespace a generated object goes to: set only if the user named one.
pub fn enforce_namespace(cli: &Cli, object: &mut Value) -> Result<()> {
    let namespace = cli.namespace()?;
    if namespace.explicit && object.namespace().is_empty() {
        fields::set(object, "metadata.namespace", namespace.name.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_leaves_out_itself() {
        let mut object = json!({"kind": "Pod", "metadata": {"name": "x"}});
        save_config(&mut object);
        assert_eq!(
            object.keyed("metadata.annotations", LAST_APPLIED),
            "{\"kind\":\"Pod\",\"metadata\":{\"annotations\":{},\"name\":\"x\"}}\n"
        );
        let again = configuration(&object);
        assert_eq!(object.keyed("metadata.annotations", LAST_APPLIED), again);
    }
}
