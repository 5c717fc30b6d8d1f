//! Converts objects to the version of a webhook or policy, and back to the stored version.

use std::sync::Arc;

use ferry_api::{FieldValidation, GroupVersionKind, Kind, Object, Schema, Status, json};
use ferry_registry::Registry;
use serde_json::Value;

use crate::chain::Request;

/// The objects of a request in one version of their kind.
#[derive(Debug, Clone)]
pub struct Versioned {
    pub kind: Arc<Kind>,
    /// Null when there is none.
    pub object: Value,
    pub old: Value,
    /// The objects are of the subresource's own kind, which has but one version.
    own: Option<GroupVersionKind>,
}

impl Versioned {
    pub async fn new(
        registry: &Registry,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
        kind: &Arc<Kind>,
    ) -> Result<Versioned, Status> {
        let own = request.call.object_kind.cloned();
        let resource =
            if own.is_none() { registry.resource(&request.call.kind.group_resource()) } else { None };
        let given: Vec<Object> = [object, old].into_iter().flatten().cloned().collect();
        let shown = match &resource {
            Some(resource) => resource.convert_all(given, kind).await?,
            None => given,
        };
        let mut shown = shown.into_iter().map(Object::into_value);
        let mut next = |given: Option<&Object>| given.and_then(|_| shown.next()).unwrap_or(Value::Null);
        Ok(Versioned { kind: kind.clone(), object: next(object), old: next(old), own })
    }

    /// The fields that the objects have.
    pub fn schema(&self) -> Option<Schema> {
        match &self.own {
            None => Some(self.kind.codec.field_rows().clone()),
            Some(own) => Schema::builtin(own),
        }
    }

    /// What someone else made of the object, as the object that goes on.
    pub async fn take_back(&self, registry: &Registry, changed: Value) -> Result<Object, Status> {
        match &self.own {
            None => take_back(registry, changed, &self.kind).await,
            Some(own) => {
                check_type(&changed, &own.api_version(), &own.kind)?;
                match Schema::builtin(own) {
                    Some(schema) => json::decode_value(changed, &schema, FieldValidation::Ignore)
                        .map(|decoded| decoded.object)
                        .map_err(|status| Status::internal(status.message)),
                    None => Object::from_value(changed)
                        .ok_or_else(|| Status::internal("the changed value is no object")),
                }
            }
        }
    }
}

fn check_type(changed: &Value, api_version: &str, kind: &str) -> Result<(), Status> {
    let said = |field: &str| changed.get(field).and_then(Value::as_str).unwrap_or("");
    if said("apiVersion") == api_version && said("kind") == kind {
        return Ok(());
    }
    Err(Status::internal(format!(
        "the changed object is {}, Kind={}, not {api_version}, Kind={kind}",
        said("apiVersion"),
        said("kind"),
    )))
}

/// Of an object in `kind`'s version: it has to be an object of the kind, gets its defaults, and is brought into the
/// stored version.
async fn take_back(registry: &Registry, changed: Value, kind: &Kind) -> Result<Object, Status> {
    check_type(&changed, &kind.api_version(), &kind.kind)?;
    let decoded = kind.decode_value(changed, FieldValidation::Ignore);
    let mut object = decoded.map_err(|status| Status::internal(status.message))?.object;
    kind.codec.set_defaults(&mut object);
    let Some(resource) = registry.resource(&kind.group_resource()) else { return Ok(object) };
    object = resource.convert(object, &resource.stored).await?;
    resource.stored.codec.set_defaults(&mut object);
    resource.strategy.default(&mut object);
    Ok(object)
}

/// Other versions of the same resource, in which the same objects can be read.
pub fn equivalents(registry: &Registry, kind: &Kind) -> Vec<Arc<Kind>> {
    let resource = registry.resource(&kind.group_resource());
    let versions = resource.map_or_else(Vec::new, |resource| resource.versions.clone());
    versions.into_iter().filter(|row| row.group != kind.group || row.version != kind.version).collect()
}
