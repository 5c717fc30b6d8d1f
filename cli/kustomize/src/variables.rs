//! `vars`: `$(NAME)` in certain fields stands for a field of another resource.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::field_spec::{Create, FieldSpec, look_up, split_field_path};
use crate::id::Id;
use crate::kustomization::Variable;
use crate::resource::scalar_text;
use crate::resources::Resources;
use crate::schema::Schemas;

/// The variables by name.
#[derive(Debug, Default)]
pub struct Variables(BTreeMap<String, Variable>);

impl Variables {
    /// Adds variables, and marks the resources that they read.
    pub fn add(&mut self, more: &[Variable], resources: &mut Resources, schemas: &Schemas) -> Result<()> {
        for variable in more {
            let gvk = variable.objref.gvk();
            let cluster = schemas.is_cluster_scoped(&gvk);
            let id = Id {
                gvk,
                name: variable.objref.name.clone(),
                namespace: variable.objref.namespace.clone(),
                cluster,
            };
            let anywhere = id.namespace.is_empty() && !id.cluster;
            let found = resources
                .with_any_id(schemas, |other| if anywhere { id.same_name(other) } else { id.is(other) });
            match found.as_slice() {
                [] => {}
                [at] => resources.0[*at].variables.push(variable.name.clone()),
                many => {
                    return Err(Error::new(format!(
                        "found {} resId matches for var {} (unable to disambiguate)",
                        many.len(),
                        variable.name
                    )));
                }
            }
            self.insert(variable.clone())?;
        }
        Ok(())
    }

    pub fn merge(&mut self, other: Variables) -> Result<()> {
        other.0.into_values().try_for_each(|variable| self.insert(variable))
    }

    fn insert(&mut self, mut variable: Variable) -> Result<()> {
        if self.0.contains_key(&variable.name) {
            return Err(Error::new(format!("var '{}' already encountered", variable.name)));
        }
        if variable.fieldref.field_path.is_empty() {
            variable.fieldref.field_path = "metadata.name".into();
        }
        self.0.insert(variable.name.clone(), variable);
        Ok(())
    }

    /// Replaces the variables, and answers with the names of those that stand nowhere.
    pub fn resolve(&self, resources: &mut Resources, specs: &[FieldSpec]) -> Result<Vec<String>> {
        let mut values: BTreeMap<&str, Value> = BTreeMap::new();
        for variable in self.0.values() {
            let holder = resources.0.iter().find(|resource| resource.variables.contains(&variable.name));
            let holder = holder.ok_or_else(|| {
                Error::new(format!(
                    "var '{variable:?}' cannot be mapped to a field in the set of known resources"
                ))
            })?;
            let path = indexed(&split_field_path(&variable.fieldref.field_path));
            let value = look_up(&holder.value, &path).ok().flatten().ok_or_else(|| {
                Error::new(format!(
                    "field specified in var '{variable:?}' not found in corresponding resource"
                ))
            })?;
            values.insert(&variable.name, value.clone());
        }
        if values.is_empty() {
            return Ok(Vec::new());
        }
        let mut used: BTreeMap<String, usize> = BTreeMap::new();
        for resource in &mut resources.0 {
            for spec in specs {
                spec.visit(resource, Create::Nothing, &mut |value| replace(value, &values, &mut used))?;
            }
        }
        Ok(values.keys().filter(|name| !used.contains_key(**name)).map(|name| (*name).to_owned()).collect())
    }
}

/// `ports[0]` as `ports` and `0`.
fn indexed(path: &[String]) -> Vec<String> {
    let mut parts = Vec::new();
    for part in path {
        match part.strip_suffix(']').and_then(|part| part.split_once('[')) {
            Some((field, index)) if !field.is_empty() && index.parse::<usize>().is_ok() => {
                parts.push(field.to_owned());
                parts.push(index.to_owned());
            }
            _ => parts.push(part.clone()),
        }
    }
    parts
}

fn replace(
    value: &mut Value,
    values: &BTreeMap<&str, Value>,
    used: &mut BTreeMap<String, usize>,
) -> Result<()> {
    match value {
        Value::String(text) => *value = expand(text, values, used),
        Value::Object(map) => {
            for entry in map.values_mut() {
                if let Value::String(text) = entry {
                    *entry = expand(text, values, used);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                let Value::String(text) = item else {
                    return Err(Error::new("invalid value type expect a string"));
                };
                *item = expand(text, values, used);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    Ok(())
}

/// The text with its variables replaced. A variable alone keeps the type of its value; `$$` is a dollar.
fn expand(text: &str, values: &BTreeMap<&str, Value>, used: &mut BTreeMap<String, usize>) -> Value {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(name) =
            rest.strip_prefix('(').and_then(|inner| inner.split_once(')')).map(|(name, _)| name)
        {
            rest = &rest[name.len() + 2..];
            match values.get(name) {
                Some(value) if !value.is_array() && !value.is_object() && !value.is_null() => {
                    *used.entry(name.to_owned()).or_default() += 1;
                    if text.len() == name.len() + 3 {
                        return value.clone();
                    }
                    expanded.push_str(&scalar_text(value));
                }
                _ => expanded.push_str(&format!("$({name})")),
            }
            continue;
        }
        match rest.chars().next() {
            Some('$') => {
                expanded.push('$');
                rest = &rest[1..];
            }
            Some(next) => {
                expanded.push('$');
                expanded.push(next);
                rest = &rest[next.len_utf8()..];
            }
            None => expanded.push('$'),
        }
    }
    expanded.push_str(rest);
    Value::String(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn variables_are_expanded() {
        let values = BTreeMap::from([("A", json!("x")), ("PORT", json!(80))]);
        let check = |text: &str, expected: Value| {
            assert_eq!(expand(text, &values, &mut BTreeMap::new()), expected, "{text}");
        };
        check("$(A)", json!("x"));
        check("$(PORT)", json!(80));
        check("a-$(A):$(PORT)", json!("a-x:80"));
        check("$(B) $$(A) $A $", json!("$(B) $(A) $A $"));
        check("$(A", json!("$(A"));
    }
}
