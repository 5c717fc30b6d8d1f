//! The schema of one version of a custom resource: its codec, and what its objects are judged by. It is compiled
//! when the first object is read or written.

use std::fmt;
use std::sync::{Arc, OnceLock};

use ferry_api::openapi::schemas::Version as OpenApiVersion;
use ferry_api::{CustomSchema, FieldErrors, GroupVersionKind, Schema, Status};
use ferry_schema::{Rules, Structural, default, prune, publish, validate};
use serde_json::{Map, Value, json};

use super::definition::{Definition, Source, Version};
use crate::strategy::UpdateScope;

pub struct VersionSchema {
    gvk: GroupVersionKind,
    list_kind: String,
    plural: String,
    namespaced: bool,
    /// `spec.preserveUnknownFields`: nothing is pruned.
    preserve_unknown_fields: bool,
    source: Arc<Source>,
    compiled: OnceLock<Result<Compiled, String>>,
}

struct Compiled {
    structural: Structural,
    rules: OnceLock<Result<Rules, String>>,
    rows: OnceLock<Schema>,
}

impl VersionSchema {
    pub fn new(definition: &Definition, version: &Version, source: Arc<Source>) -> VersionSchema {
        let (group, kind) = (definition.group.clone(), definition.accepted.kind.clone());
        VersionSchema {
            gvk: GroupVersionKind::new(group, version.name.clone(), kind),
            list_kind: definition.accepted.list_kind.clone(),
            plural: definition.accepted.plural.clone(),
            namespaced: definition.scope == ferry_api::Scope::Namespaced,
            preserve_unknown_fields: definition.preserve_unknown_fields,
            source,
            compiled: OnceLock::new(),
        }
    }

    /// Judges an object by the schema and its rules, and says what was wrong before and stays so. A schema that cannot be
    /// read lets nothing pass.
    pub fn validate(
        &self,
        new: &Map<String, Value>,
        old: Option<&Map<String, Value>>,
        scope: UpdateScope<'_>,
        errors: &mut FieldErrors,
    ) -> Result<Vec<String>, Status> {
        let compiled = self.compiled().map_err(|why| self.unusable(why))?;
        let rules = compiled.rules.get_or_init(|| Rules::compile(&compiled.structural));
        let rules = rules.as_ref().map_err(|why| self.unusable(why))?;
        Ok(match (scope, old) {
            (UpdateScope::Status, Some(old)) => {
                validate::status(new, old, &compiled.structural, rules, errors)
            }
            (_, old) => validate::object(new, old, &compiled.structural, rules, errors),
        })
    }

    fn compiled(&self) -> Result<&Compiled, &String> {
        let compile = || {
            let _span = ferry_trace::span("customResource.compile");
            let schema = self.source.schema_of(&self.gvk.version).map_err(|error| error.to_string())?;
            let schema = schema.unwrap_or_else(|| json!({"type": "object"}));
            let structural = Structural::parse(&schema)?;
            Ok(Compiled { structural, rules: OnceLock::new(), rows: OnceLock::new() })
        };
        self.compiled
            .get_or_init(|| {
                compile().inspect_err(|why: &String| {
                    tracing::error!(kind = %self.gvk, %why, "the schema of a custom resource cannot be read");
                })
            })
            .as_ref()
    }

    fn unusable(&self, why: &str) -> Status {
        Status::internal(format!("the schema of {} cannot be used: {why}", self.gvk))
    }

    fn published(&self) -> Option<Value> {
        self.source.schema_of(&self.gvk.version).ok().flatten()
    }
}

impl CustomSchema for VersionSchema {
    fn prune(&self, object: &mut Map<String, Value>) -> Vec<String> {
        let mut unknown = Vec::new();
        if !self.preserve_unknown_fields
            && let Ok(compiled) = self.compiled()
        {
            prune::prune(object, &compiled.structural, Some(&mut unknown));
        }
        unknown
    }

    fn set_defaults(&self, object: &mut Map<String, Value>) {
        if let Ok(compiled) = self.compiled() {
            default::apply(object, &compiled.structural);
        }
    }

    fn field_rows(&self) -> &Schema {
        static UNREADABLE: OnceLock<Schema> = OnceLock::new();
        match self.compiled() {
            Ok(compiled) => compiled.rows.get_or_init(|| compiled.structural.rows(&self.gvk)),
            Err(_) => UNREADABLE.get_or_init(Schema::custom_object),
        }
    }

    fn open_api(&self, version: OpenApiVersion) -> Value {
        let schema = self.published();
        match version {
            OpenApiVersion::V2 if self.preserve_unknown_fields => {
                publish::v2(None, &self.gvk, self.namespaced)
            }
            OpenApiVersion::V2 => publish::v2(schema.as_ref(), &self.gvk, self.namespaced),
            OpenApiVersion::V3 => publish::v3(schema.as_ref(), &self.gvk, self.namespaced),
        }
    }

    fn open_api_list(&self, version: OpenApiVersion) -> Value {
        let refers = match version {
            OpenApiVersion::V2 => "#/definitions/",
            OpenApiVersion::V3 => "#/components/schemas/",
        };
        publish::list(&self.gvk, &self.list_kind, &self.plural, refers)
    }
}

impl fmt::Debug for VersionSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VersionSchema").field("kind", &self.gvk).finish_non_exhaustive()
    }
}
