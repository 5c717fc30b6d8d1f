//! The objects that a binding passes to its policy as parameters.

use std::sync::Arc;

use ferry_api::selector::LabelSelector;
use ferry_api::{GroupVersionKind, kinds};
use ferry_registry::{Registry, Resource};
use serde_json::Value;

use super::policies::{ParamKind, ParamRef};

/// One evaluation for each; a policy without parameters is evaluated once, with null.
pub fn collect(
    registry: &Registry,
    kind: Option<&ParamKind>,
    reference: Option<&ParamRef>,
    namespace: &str,
) -> Result<Vec<Value>, String> {
    let (Some(kind), Some(reference)) = (kind, reference) else { return Ok(vec![Value::Null]) };
    let (resource, namespaced) = resource_of(registry, kind)
        .ok_or_else(|| format!("paramKind kind `{}, Kind={}` not known", kind.api_version, kind.kind))?;
    let place = match (namespaced, reference.namespace.as_deref().filter(|namespace| !namespace.is_empty())) {
        (false, None) => "",
        (false, Some(_)) => {
            return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".into());
        }
        (true, Some(named)) => named,
        (true, None) if namespace.is_empty() => {
            return Err(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                    .into(),
            );
        }
        (true, None) => namespace,
    };
    let found = match (reference.name.as_deref().filter(|name| !name.is_empty()), &reference.selector) {
        (Some(_), Some(_)) => return Err("paramRef.name and paramRef.selector are mutually exclusive".into()),
        (Some(name), None) => resource.cache.get(&resource.key(place, name)).into_iter().collect(),
        (None, Some(selector)) => selected(&resource, place, selector)?,
        (None, None) => return Err("one of name or selector must be provided".into()),
    };
    if found.is_empty() {
        return match reference.parameter_not_found_action.as_deref() {
            Some("Deny") => {
                Err("no params found for policy binding with `Deny` parameterNotFoundAction".into())
            }
            // Nothing to evaluate with: the binding lets the request pass.
            _ => Ok(Vec::new()),
        };
    }
    let values = found.iter().map(|entry| serde_json::from_slice(&entry.json));
    values.collect::<Result<_, _>>().map_err(|error| error.to_string())
}

fn resource_of(registry: &Registry, kind: &ParamKind) -> Option<(Arc<Resource>, bool)> {
    let gvk = GroupVersionKind::from_api_version(&kind.api_version, &kind.kind);
    if let Some(row) = kinds::builtin_row(&gvk) {
        return registry.resource(&row.group_resource()).map(|resource| (resource, row.is_namespaced()));
    }
    let mut resources = registry.resources().into_iter();
    let found =
        resources.find(|resource| resource.stored.group == gvk.group && resource.stored.kind == gvk.kind)?;
    let namespaced = found.stored.is_namespaced();
    Some((found, namespaced))
}

fn selected(
    resource: &Resource,
    namespace: &str,
    selector: &Value,
) -> Result<Vec<Arc<ferry_registry::cache::Entry>>, String> {
    let selector = LabelSelector::from_structured(Some(selector)).map_err(|error| error.to_string())?;
    let (snapshot, _) = resource.cache.snapshot();
    let here = snapshot.values().filter(|entry| entry.namespace() == namespace && !entry.uninitialized);
    Ok(here.filter(|entry| selector.matches(|key| entry.label(key))).cloned().collect())
}
