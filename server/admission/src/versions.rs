//! An object in the version that a webhook or policy speaks, and back into the one that is stored.

use std::sync::Arc;

use ferry_api::{FieldValidation, Kind, Object, Status, convert, defaulting, json};
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
}

impl Versioned {
    pub fn new(
        registry: &Registry,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
        kind: &Arc<Kind>,
    ) -> Result<Versioned, Status> {
        let stored = stored_row(registry, request.kind);
        let shown = |object: Option<&Object>| -> Result<Value, Status> {
            let Some(object) = object else { return Ok(Value::Null) };
            match &stored {
                Some(stored) => Ok(convert::convert(object.clone(), stored, kind)?.into_value()),
                None => Ok(object.clone().into_value()),
            }
        };
        Ok(Versioned { kind: kind.clone(), object: shown(object)?, old: shown(old)? })
    }
}

/// What someone else made of an object, in `kind`'s version, as the object that goes on: it has to be an
/// object of the kind, gets its defaults, and is brought into the stored version.
pub fn take_back(registry: &Registry, changed: Value, kind: &Kind) -> Result<Object, Status> {
    let said = |field: &str| changed.get(field).and_then(Value::as_str).unwrap_or("").to_string();
    if said("apiVersion") != kind.api_version() || said("kind") != *kind.kind {
        return Err(Status::internal(format!(
            "the changed object is {}, Kind={}, not {}, Kind={}",
            said("apiVersion"),
            said("kind"),
            kind.api_version(),
            kind.kind
        )));
    }
    let mut object = match &kind.schema {
        Some(schema) => {
            json::decode_value(changed, schema, FieldValidation::Ignore)
                .map_err(|status| Status::internal(status.message))?
                .object
        }
        None => {
            Object::from_value(changed).ok_or_else(|| Status::internal("the changed value is no object"))?
        }
    };
    if let Some(schema) = &kind.schema {
        defaulting::apply(&mut object, schema);
    }
    let Some(resource) = registry.resource(&kind.group_resource()) else { return Ok(object) };
    object = convert::convert(object, kind, &resource.stored)?;
    if let Some(schema) = &resource.stored.schema {
        defaulting::apply(&mut object, schema);
    }
    resource.strategy.default(&mut object);
    Ok(object)
}

/// Other versions of the same resource, in which the same objects can be read.
pub fn equivalents(kind: &Kind) -> Vec<&'static Arc<Kind>> {
    ferry_api::kinds::builtin()
        .iter()
        .filter(|row| {
            row.storage_version == kind.storage_version
                && row.plural == kind.plural
                && (row.group != kind.group || row.version != kind.version)
        })
        .collect()
}

fn stored_row(registry: &Registry, kind: &Kind) -> Option<Arc<Kind>> {
    registry.resource(&kind.group_resource()).map(|resource| resource.stored.clone())
}
