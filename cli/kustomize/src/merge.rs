//! Strategic merge as kustomize does it, which is not how the API server does: elements of the patch come
//! first, lists of unknown kinds are replaced, and every merged list of the resource is gone through even
//! where the patch does not mention it.
//!
//! The outcome depends on elements being shared between the lists that are worked on (an element that was
//! merged is merged wherever it stands), so the values become a tree of shared nodes first.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::id::Gvk;
use crate::resource::scalar_text;
use crate::schema::{Level, Schemas};

/// Merges the patch into the resource. Nothing is left of a resource that the patch deletes.
pub fn merge(resource: &Value, patch: &Value, schemas: &Schemas) -> Result<Option<Value>> {
    let (dest, patch) = (Node::of(resource), Node::of(patch));
    let merged = Merge { schemas }.walk(Some(dest), Some(patch), None, &[])?;
    Ok(merged.map(|node| node.value()).filter(|value| !value.is_null()))
}

type Shared = Rc<Node>;

struct Node(RefCell<Data>);

enum Data {
    /// A null that stays where the patch says nothing about it.
    KeptNull,
    Scalar(Value),
    Map(Vec<(String, Shared)>),
    List(Vec<Shared>),
}

impl Node {
    fn new(data: Data) -> Shared {
        Rc::new(Node(RefCell::new(data)))
    }

    fn of(value: &Value) -> Shared {
        Node::new(match value {
            Value::Object(map) => {
                Data::Map(map.iter().map(|(key, value)| (key.clone(), Node::of(value))).collect())
            }
            Value::Array(items) => Data::List(items.iter().map(Node::of).collect()),
            scalar => Data::Scalar(scalar.clone()),
        })
    }

    fn value(&self) -> Value {
        match &*self.0.borrow() {
            Data::KeptNull => Value::Null,
            Data::Scalar(value) => value.clone(),
            Data::Map(entries) => Value::Object(
                entries.iter().map(|(key, node)| (key.clone(), node.value())).collect::<Map<_, _>>(),
            ),
            Data::List(items) => Value::Array(items.iter().map(|item| item.value()).collect()),
        }
    }

    fn is_null(&self) -> bool {
        matches!(&*self.0.borrow(), Data::Scalar(Value::Null) | Data::KeptNull)
    }

    fn is_empty_map(&self) -> bool {
        matches!(&*self.0.borrow(), Data::Map(entries) if entries.is_empty())
    }

    fn is_map(&self) -> bool {
        matches!(&*self.0.borrow(), Data::Map(_))
    }

    fn shape(&self) -> &'static str {
        match &*self.0.borrow() {
            Data::Map(_) => "MappingNode",
            Data::List(_) => "SequenceNode",
            Data::Scalar(_) | Data::KeptNull => "ScalarNode",
        }
    }

    fn field(&self, name: &str) -> Option<Shared> {
        match &*self.0.borrow() {
            Data::Map(entries) => entries.iter().find(|(key, _)| key == name).map(|(_, node)| node.clone()),
            _ => None,
        }
    }

    fn field_names(&self) -> Vec<String> {
        match &*self.0.borrow() {
            Data::Map(entries) => entries.iter().map(|(key, _)| key.clone()).collect(),
            _ => Vec::new(),
        }
    }

    /// Sets a field; nothing and null take it away.
    fn set(&self, name: &str, node: Option<Shared>) {
        let node = node.filter(|node| !matches!(&*node.0.borrow(), Data::Scalar(Value::Null)));
        let Data::Map(entries) = &mut *self.0.borrow_mut() else { return };
        match (entries.iter().position(|(key, _)| key == name), node) {
            (Some(at), Some(node)) => entries[at].1 = node,
            (Some(at), None) => {
                entries.remove(at);
            }
            (None, Some(node)) => entries.push((name.to_owned(), node)),
            (None, None) => {}
        }
    }

    fn elements(&self) -> Vec<Shared> {
        match &*self.0.borrow() {
            Data::List(items) => items.clone(),
            _ => Vec::new(),
        }
    }

    fn set_elements(&self, elements: Vec<Shared>) {
        *self.0.borrow_mut() = Data::List(elements);
    }

    fn text(&self) -> String {
        match &*self.0.borrow() {
            Data::Scalar(value) => scalar_text(value),
            _ => String::new(),
        }
    }

    /// The first element that has all of these values. The empty key is the element itself.
    fn element(&self, keys: &[String], values: &[String]) -> Option<Shared> {
        if keys.first().is_none_or(String::is_empty) {
            let wanted = values.first().map_or("", String::as_str);
            return self.elements().into_iter().find(|element| element.text() == wanted);
        }
        self.elements().into_iter().filter(|element| element.is_map()).find(|element| {
            keys.iter()
                .zip(values)
                .all(|(key, value)| element.field(key).is_some_and(|field| field.text() == *value))
        })
    }

    /// Puts `element` in the place of those that have these values, or at the end. Without an element
    /// they are taken out.
    fn set_element(&self, element: Option<&Shared>, keys: &[String], values: &[String]) {
        let for_maps = keys.first().is_some_and(|key| !key.is_empty())
            && values.first().is_some_and(|value| !value.is_empty());
        let mut found = false;
        let mut kept = Vec::new();
        for candidate in self.elements() {
            if candidate.is_null() || candidate.is_empty_map() {
                continue;
            }
            if for_maps && !candidate.is_map() {
                kept.push(candidate);
                continue;
            }
            // a key without a value counts as matched when the key before it did
            let mut matched = true;
            for (at, key) in keys.iter().enumerate() {
                let Some(wanted) = values.get(at) else { continue };
                matched = match key.as_str() {
                    "" => candidate.text() == *wanted,
                    key => {
                        candidate.field(key).is_some_and(|field| wanted.is_empty() || field.text() == *wanted)
                    }
                };
                if !matched {
                    break;
                }
            }
            if !matched || values.is_empty() {
                if !values.is_empty() {
                    kept.push(candidate);
                }
                continue;
            }
            found = true;
            kept.extend(element.cloned());
        }
        if !found {
            kept.extend(element.cloned());
        }
        self.set_elements(kept);
    }
}

/// What `$patch` says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Directive {
    Merge,
    Replace,
    Delete,
}

const DIRECTIVE: &str = "$patch";

impl Directive {
    fn of(word: &str) -> Result<Directive> {
        match word {
            "merge" => Ok(Directive::Merge),
            "replace" => Ok(Directive::Replace),
            "delete" => Ok(Directive::Delete),
            other => Err(Error::new(format!("unknown patch strategy '{other}'"))),
        }
    }

    /// Takes the directive out of the patch.
    fn take(patch: Option<&Shared>) -> Result<Directive> {
        let Some(patch) = patch else { return Ok(Directive::Merge) };
        match patch.shape() {
            "MappingNode" => {
                let Some(word) = patch.field(DIRECTIVE) else { return Ok(Directive::Merge) };
                let directive = Directive::of(&word.text())?;
                patch.set(DIRECTIVE, None);
                Ok(directive)
            }
            "SequenceNode" => {
                let holder = patch.elements().into_iter().find(|element| element.field(DIRECTIVE).is_some());
                let alone = holder.filter(|element| element.field_names().len() == 1);
                let Some(word) = alone.and_then(|element| element.field(DIRECTIVE)) else {
                    return Ok(Directive::Merge);
                };
                let directive = Directive::of(&word.text())?;
                patch.set_element(None, &[DIRECTIVE.to_owned()], &[word.text()]);
                Ok(directive)
            }
            _ => Err(Error::new(format!(
                "no implemented strategic merge patch strategy for a scalar ('{}')",
                patch.text()
            ))),
        }
    }
}

struct Merge<'s> {
    schemas: &'s Schemas,
}

impl Merge<'_> {
    fn walk(
        &self,
        dest: Option<Shared>,
        patch: Option<Shared>,
        level: Option<Level>,
        path: &[String],
    ) -> Result<Option<Shared>> {
        let given = || dest.iter().chain(&patch).filter(|node| !node.is_null());
        let level = level.or_else(|| given().find_map(|node| self.own_level(node)));
        let Some(shape) = given().next().map(|node| node.shape()) else {
            return self.walk_map(dest, patch, level, path);
        };
        if let Some(other) = given().find(|node| node.shape() != shape) {
            return Err(Error::new(format!(
                "wrong node kind: expected {shape} but got {}: node contents:\n{}",
                other.shape(),
                ferry_api::yaml::encode_value(&other.value())
            )));
        }
        match shape {
            "MappingNode" => self.walk_map(dest, patch, level, path),
            "SequenceNode" => match level.as_ref().and_then(Level::merge_keys) {
                Some(keys) => self.walk_list(dest, patch, level, &keys, path),
                None => Ok(patch.or(dest)),
            },
            _ => Ok(patch.or(dest)),
        }
    }

    /// An object inside another says itself what it is.
    fn own_level(&self, node: &Shared) -> Option<Level> {
        let (api_version, kind) = (node.field("apiVersion")?.text(), node.field("kind")?.text());
        self.schemas.of_kind(&Gvk::new(&api_version, &kind))
    }

    fn walk_map(
        &self,
        dest: Option<Shared>,
        patch: Option<Shared>,
        level: Option<Level>,
        path: &[String],
    ) -> Result<Option<Shared>> {
        let is_missing = dest.as_ref().is_none_or(|dest| dest.is_null());
        let dest = if is_missing {
            if Directive::take(patch.as_ref()).ok() == Some(Directive::Delete) {
                return Ok(None);
            }
            match &patch {
                None if dest.is_some() => return Ok(Some(Node::new(Data::KeptNull))),
                None => return Ok(None),
                Some(patch) => patch.clone(),
            }
        } else {
            if patch.as_ref().is_some_and(|patch| patch.is_null()) {
                return Ok(None);
            }
            match (Directive::take(patch.as_ref())?, &patch) {
                (Directive::Delete, _) => return Ok(None),
                (Directive::Replace, Some(patch)) => patch.clone(),
                _ => dest.expect("it is not missing"),
            }
        };
        let mut names: BTreeSet<String> = dest.field_names().into_iter().collect();
        names.extend(patch.iter().flat_map(|patch| patch.field_names()));
        for name in names {
            let inner = level.as_ref().and_then(|level| level.field(&name));
            let mut path = path.to_vec();
            path.push(name.clone());
            let of_patch = patch.as_ref().and_then(|patch| patch.field(&name));
            let merged = self.walk(dest.field(&name), of_patch, inner, &path)?;
            dest.set(&name, merged);
        }
        Ok(Some(dest))
    }

    fn walk_list(
        &self,
        dest: Option<Shared>,
        patch: Option<Shared>,
        level: Option<Level>,
        keys: &[String],
        path: &[String],
    ) -> Result<Option<Shared>> {
        let is_missing = dest.as_ref().is_none_or(|dest| dest.is_null());
        let dest = if is_missing {
            match &patch {
                Some(patch) => patch.clone(),
                None => return Ok(None),
            }
        } else {
            if patch.as_ref().is_some_and(|patch| patch.is_null()) {
                return Ok(None);
            }
            match (Directive::take(patch.as_ref())?, &patch) {
                (Directive::Delete, _) => return Ok(None),
                (Directive::Replace, Some(patch)) => patch.clone(),
                _ => dest.expect("it is not missing"),
            }
        };
        // what the patch has comes first
        let sources: Vec<Shared> = patch.iter().chain([&dest]).cloned().collect();
        let (keys, values) = if keys.is_empty() {
            (vec![String::new()], scalar_values(&sources))
        } else {
            (keys.to_vec(), element_values(&sources, keys))
        };
        self.set_elements(dest, patch, level, &keys, values, path).map(Some)
    }

    fn set_elements(
        &self,
        dest: Shared,
        patch: Option<Shared>,
        level: Option<Level>,
        keys: &[String],
        mut all: Vec<Vec<String>>,
        path: &[String],
    ) -> Result<Shared> {
        let added = Node::new(Data::List(Vec::new()));
        let inner = level.as_ref().and_then(Level::elements);
        if keys.len() > 1 {
            merge_values(&mut all);
        }
        let mut last_keys: Vec<String> = Vec::new();
        for values in &all {
            let (keys, values) = valid_keys(&all, values, keys);
            let (own_keys, own_values) = valid_keys(std::slice::from_ref(&values), &values, &keys);
            let of_dest = dest.element(&own_keys, &own_values);
            let of_patch = patch.as_ref().and_then(|patch| patch.element(&own_keys, &own_values));
            let merged = self.walk(of_dest, of_patch, inner.clone(), path)?;
            match merged.filter(|merged| !merged.is_null() && !merged.is_empty_map()) {
                None => dest.set_element(None, &keys, &values),
                Some(merged) => {
                    for (key, value) in keys.iter().zip(&values) {
                        if !key.is_empty() && merged.field(key).is_none() && !value.is_empty() {
                            merged.set(key, Some(Node::of(&Value::String(value.clone()))));
                        }
                    }
                    added.set_element(Some(&merged), &keys, &values);
                }
            }
            last_keys = keys;
        }
        if all.is_empty() {
            return Ok(dest);
        }
        append_elements(&added, &dest, &last_keys);
        Ok(added)
    }
}

/// The keys that any element has, with this element's values of them.
fn valid_keys(all: &[Vec<String>], values: &[String], keys: &[String]) -> (Vec<String>, Vec<String>) {
    let has_value =
        |at: usize| all.iter().any(|values| values.get(at).is_some_and(|value| !value.is_empty()));
    let valid: Vec<usize> = (0..keys.len()).filter(|at| has_value(*at)).collect();
    if valid.is_empty() {
        return (keys.to_vec(), values.to_vec());
    }
    let pick = |from: &[String]| valid.iter().filter_map(|at| from.get(*at).cloned()).collect();
    (pick(keys), pick(values))
}

/// Two elements that differ only in a key that one of them lacks are the same.
fn merge_values(all: &mut [Vec<String>]) {
    for first in 0..all.len() {
        for second in 0..all.len() {
            let mut common = false;
            let merged: Option<Vec<String>> = all[first]
                .iter()
                .zip(&all[second])
                .map(|(one, other)| {
                    common |= one == other;
                    if one == other || other.is_empty() {
                        Some(one.clone())
                    } else if one.is_empty() {
                        Some(other.clone())
                    } else {
                        None
                    }
                })
                .collect();
            if let Some(merged) = merged.filter(|_| common) {
                all[first] = merged.clone();
                all[second] = merged;
            }
        }
    }
}

fn append_elements(list: &Shared, more: &Shared, keys: &[String]) {
    for element in more.elements() {
        if keys.first().is_none_or(String::is_empty) {
            list.set_element(Some(&element), &[String::new()], &[element.text()]);
            continue;
        }
        let mut values = Vec::new();
        for key in keys {
            match element.field(key) {
                Some(value) => values.push(value.text()),
                None => {
                    let mut elements = list.elements();
                    elements.push(element.clone());
                    list.set_elements(elements);
                }
            }
        }
        if keys.len() > 1 {
            list.set_element(None, keys, &values);
        }
        list.set_element(Some(&element), keys, &values);
    }
}

/// The values of the keys in all elements, each combination once.
fn element_values(sources: &[Shared], keys: &[String]) -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = Vec::new();
    for element in sources.iter().flat_map(|source| source.elements()) {
        let values: Vec<String> =
            keys.iter().map(|key| element.field(key).map(|field| field.text()).unwrap_or_default()).collect();
        if !all.contains(&values) {
            all.push(values);
        }
    }
    all
}

fn scalar_values(sources: &[Shared]) -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = Vec::new();
    for element in sources.iter().flat_map(|source| source.elements()) {
        let values = vec![element.text()];
        if !all.contains(&values) {
            all.push(values);
        }
    }
    all
}
