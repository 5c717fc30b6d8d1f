//! The rules of a custom resource: those that its definition gives it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry_api::{CustomSchema, FieldErrors, Kind, Object, Status, User};

use super::definition::Version;
use super::schema::VersionSchema;
use crate::columns::{self, Column};
use crate::registry::Registry;
use crate::strategy::{ScalePaths, Selectable, Strategy, StrategyOptions, TxnPart, UpdateScope};

#[derive(Default)]
pub struct CustomStrategy {
    versions: BTreeMap<String, VersionRules>,
    /// Those of all versions, each once.
    selectable: Vec<Selectable>,
}

struct VersionRules {
    schema: Arc<VersionSchema>,
    has_status: bool,
    columns: Vec<Column>,
    scale: Option<ScalePaths>,
    selectable: Vec<Selectable>,
}

impl CustomStrategy {
    pub(super) fn add(&mut self, version: &Version, schema: Arc<VersionSchema>) {
        let rules = VersionRules {
            schema,
            has_status: version.has_status,
            columns: version.table_columns(),
            scale: version.scale_paths(),
            selectable: version.selectable_fields().collect(),
        };
        for field in &rules.selectable {
            if !self.selectable.contains(field) {
                self.selectable.push(field.clone());
            }
        }
        self.versions.insert(version.name.clone(), rules);
    }

    fn version(&self, version: &str) -> Result<&VersionRules, Status> {
        self.versions.get(version).ok_or_else(|| Status::internal(format!("no version {version} is defined")))
    }
}

impl VersionRules {
    fn check_scale(&self, object: &Object, errors: &mut FieldErrors) {
        let Some(scale) = &self.scale else { return };
        for path in [&scale.replicas, &scale.status_replicas] {
            if let Some(number) = columns::at(object, path).and_then(serde_json::Value::as_i64)
                && !(0..=i64::from(i32::MAX)).contains(&number)
            {
                let why = match number {
                    ..0 => "should be a non-negative integer".to_string(),
                    _ => format!("should be less than or equal to {}", i32::MAX),
                };
                errors.invalid(format!(".{path}"), number, &why);
            }
        }
    }
}

/// Finalizers without a domain are allowed, but whoever adds one is told of it.
fn plain_finalizers(new: &Object, old: Option<&Object>) -> Vec<String> {
    let is_new = |name: &&str| old.is_none_or(|old| !old.finalizers().any(|had| had == *name));
    let standard = ["orphan", "foregroundDeletion"];
    let plain = new.finalizers().filter(|name| !name.contains('/') && !standard.contains(name));
    plain
        .filter(is_new)
        .map(|name| {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            format!("metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers")
        })
        .collect()
}

impl Strategy for CustomStrategy {
    fn default(&self, _: &mut Object) {}

    fn prepare_create(&self, object: &mut Object) {
        // The status that was sent is gone; its defaults are shown as they will be whenever the object is read.
        let version = object.api_version().rsplit('/').next().unwrap_or("");
        if let Some(rules) = self.versions.get(version).filter(|rules| rules.has_status) {
            let schema = rules.schema.clone();
            schema.set_defaults(&mut object.0);
        }
    }

    fn stamp_requester(&self, _: &mut Object, _: &User) {}

    fn prepare_update(&self, new: &mut Object, old: &Object) {
        // Without a status subresource the status is a field like any other.
        let version = new.api_version().rsplit('/').next().unwrap_or("");
        let has_status = self.versions.get(version).is_some_and(|rules| rules.has_status);
        if !has_status && new.0.get("status") != old.0.get("status") {
            new.set_meta("generation", old.generation() + 1);
        }
    }

    fn validate(
        &self,
        object: &Object,
        asked: &Kind,
        errors: &mut FieldErrors,
    ) -> Result<Vec<String>, Status> {
        let rules = self.version(&asked.version)?;
        let mut warnings = rules.schema.validate(&object.0, None, UpdateScope::Main, errors)?;
        rules.check_scale(object, errors);
        warnings.extend(plain_finalizers(object, None));
        Ok(warnings)
    }

    fn prepare_action(&self, _: &str, _: &mut Object, _: &Object) {}

    fn validate_update(
        &self,
        new: &Object,
        old: &Object,
        asked: &Kind,
        scope: UpdateScope<'_>,
        errors: &mut FieldErrors,
    ) -> Result<Vec<String>, Status> {
        let rules = self.version(&asked.version)?;
        let mut warnings = rules.schema.validate(&new.0, Some(&old.0), scope, errors)?;
        rules.check_scale(new, errors);
        warnings.extend(plain_finalizers(new, Some(old)));
        Ok(warnings)
    }

    fn selectable(&self) -> &[Selectable] {
        &self.selectable
    }

    fn may_select(&self, field: &str, version: &str) -> bool {
        self.versions.get(version).is_some_and(|rules| rules.selectable.iter().any(|it| it.field == field))
    }

    fn columns(&self, version: &str) -> &[Column] {
        self.versions.get(version).map_or(&[], |rules| &rules.columns)
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions {
            generation: true,
            unconditional_update: false,
            status_keeps_metadata: true,
            plain_finalizers: true,
            ..StrategyOptions::PLAIN
        }
    }

    fn grace_period(&self, _: &Object, _: Option<i64>) -> Option<i64> {
        None
    }

    fn is_retained(&self, _: &Object) -> bool {
        false
    }

    fn begin_deletion(&self, _: &mut Object) {}

    fn scale(&self, version: &str) -> Option<&ScalePaths> {
        self.versions.get(version)?.scale.as_ref()
    }

    fn txn_parts(
        &self,
        _: &Registry,
        _: Option<&mut Object>,
        _: Option<&Object>,
    ) -> Result<Vec<TxnPart>, Status> {
        Ok(Vec::new())
    }
}
