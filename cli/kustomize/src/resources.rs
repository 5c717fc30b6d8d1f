//! The resources of a build, in the order they were read, each with a name of its own.

use regex::Regex;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::id::{Gvk, Id};
use crate::kustomization::Selector;
use crate::resource::{Behavior, Resource, scalar_text};
use crate::schema::Schemas;

#[derive(Debug, Clone, Default)]
pub struct Resources(pub Vec<Resource>);

impl Resources {
    pub fn append(&mut self, resource: Resource, schemas: &Schemas) -> Result<()> {
        let id = resource.id(schemas);
        if self.0.iter().any(|other| other.id(schemas).is(&id)) {
            return Err(Error::new(format!("may not add resource with an already registered id: {id}")));
        }
        self.0.push(resource);
        Ok(())
    }

    pub fn append_all(&mut self, more: Vec<Resource>, schemas: &Schemas) -> Result<()> {
        more.into_iter().try_for_each(|resource| self.append(resource, schemas))
    }

    /// Those that are or were called so.
    pub fn with_any_id(&self, schemas: &Schemas, matches: impl Fn(&Id) -> bool) -> Vec<usize> {
        let named = |resource: &Resource| resource.all_ids(schemas).iter().any(&matches);
        let present = self.0.iter().enumerate().filter(|(_, resource)| !resource.value.is_null());
        present.filter(|(_, resource)| named(resource)).map(|(at, _)| at).collect()
    }

    /// The one that is or was called so.
    pub fn by_id(&self, id: &Id, schemas: &Schemas) -> Result<usize> {
        let found = match self.with_any_id(schemas, |other| id.is(other)).as_slice() {
            [only] => return Ok(*only),
            [] => "no",
            _ => "multiple",
        };
        Err(Error::new(format!("{found} matches for Id {id}; failed to find unique target for patch {id}")))
    }

    /// Adds what a generator made, or merges it into what is there, as it asks.
    pub fn absorb(&mut self, mut made: Resource, schemas: &Schemas) -> Result<()> {
        let id = made.id(schemas);
        let behavior = made.behavior.unwrap_or(Behavior::Unspecified);
        let shown = || {
            format!(
                "resid.ResId{{Gvk:resid.Gvk{{Group:{:?}, Version:{:?}, Kind:{:?}, isClusterScoped:{}}}, Name:{:?}, Namespace:{:?}}}",
                id.gvk.group, id.gvk.version, id.gvk.kind, id.cluster, id.name, id.namespace
            )
        };
        let merges = matches!(behavior, Behavior::Merge | Behavior::Replace);
        match self.with_any_id(schemas, |other| id.is(other)).as_slice() {
            [] if merges => {
                Err(Error::new(format!("id {} does not exist; cannot merge or replace", shown())))
            }
            [] => self.append(made, schemas),
            [_] if !merges => Err(Error::new(format!(
                "id {} exists; can not use behavior: '{}', behavior must be merge or replace",
                shown(),
                behavior.word()
            ))),
            [at] => {
                let old = &self.0[*at];
                take_metadata(&mut made, old);
                if behavior == Behavior::Merge {
                    for field in ["data", "binaryData"] {
                        merge_map(&mut made.value, &old.value, field);
                    }
                    made.origin = old.origin.clone();
                }
                self.0[*at] = made;
                Ok(())
            }
            _ => Err(Error::new(format!("found multiple objects that could accept merge of {id}"))),
        }
    }

    /// The resources that a selector means; its fields are regular expressions.
    pub fn select(&self, selector: &Selector, schemas: &Schemas) -> Result<Vec<usize>> {
        let patterns = Patterns::new(selector)?;
        let mut selected = Vec::new();
        for (at, resource) in self.0.iter().enumerate() {
            let (now, first) = (resource.id(schemas), resource.original_id(schemas));
            let in_namespace =
                [&first, &now].iter().any(|id| patterns.fits_namespace(id.effective_namespace()));
            let named = [&first, &now].iter().any(|id| patterns.fits_name(&id.name));
            if in_namespace
                && named
                && patterns.fits_gvk(&now.gvk)
                && resource.matches_labels(&selector.label_selector)?
                && resource.matches_annotations(&selector.annotation_selector)?
            {
                selected.push(at);
            }
        }
        Ok(selected)
    }
}

/// A generated resource keeps the name, the history and, below its own, the labels and annotations of
/// what it replaces.
fn take_metadata(made: &mut Resource, old: &Resource) {
    let mut labels = old.labels();
    labels.extend(made.labels());
    made.set_text_map("labels", labels);
    let mut annotations = old.annotations();
    annotations.extend(made.annotations());
    made.set_text_map("annotations", annotations);
    made.set_name(&old.name());
    made.set_namespace(&old.namespace());
    made.previous = old.previous.clone();
    made.prefixes = old.prefixes.clone();
    made.suffixes = old.suffixes.clone();
    made.needs_hash &= old.needs_hash;
    made.behavior = old.behavior;
    made.variables = old.variables.clone();
    made.transformations = old.transformations.clone();
}

fn merge_map(value: &mut Value, old: &Value, field: &str) {
    let entries = |value: &Value| -> Vec<(String, Value)> {
        let map = value.get(field).and_then(Value::as_object).into_iter().flatten();
        map.map(|(key, value)| (key.clone(), Value::String(scalar_text(value)))).collect()
    };
    let merged: serde_json::Map<String, Value> = entries(old).into_iter().chain(entries(value)).collect();
    if let Value::Object(map) = value {
        map.remove(field);
        if !merged.is_empty() {
            map.insert(field.into(), Value::Object(merged));
        }
    }
}

/// A selector's fields as anchored regular expressions; what is empty fits everything.
pub struct Patterns {
    group: Option<Regex>,
    version: Option<Regex>,
    kind: Option<Regex>,
    name: Option<Regex>,
    namespace: Option<Regex>,
}

impl Patterns {
    pub fn new(selector: &Selector) -> Result<Patterns> {
        let anchored = |pattern: &str| match pattern {
            "" => Ok(None),
            pattern => Regex::new(&format!("^(?:{pattern})$"))
                .map(Some)
                .map_err(|error| Error::new(format!("error parsing regexp: {error}"))),
        };
        Ok(Patterns {
            group: anchored(&selector.group)?,
            version: anchored(&selector.version)?,
            kind: anchored(&selector.kind)?,
            name: anchored(&selector.name)?,
            namespace: anchored(&selector.namespace)?,
        })
    }

    pub fn fits_gvk(&self, gvk: &Gvk) -> bool {
        fits(&self.group, &gvk.group) && fits(&self.version, &gvk.version) && fits(&self.kind, &gvk.kind)
    }

    pub fn fits_name(&self, name: &str) -> bool {
        fits(&self.name, name)
    }

    pub fn fits_namespace(&self, namespace: &str) -> bool {
        fits(&self.namespace, namespace)
    }

    pub fn fits_id(&self, id: &Id) -> bool {
        self.fits_gvk(&id.gvk) && self.fits_name(&id.name) && self.fits_namespace(&id.namespace)
    }
}

fn fits(pattern: &Option<Regex>, text: &str) -> bool {
    pattern.as_ref().is_none_or(|pattern| pattern.is_match(text))
}
