//! Copies a value from one resource into fields of others.

use regex::Regex;
use serde_json::Value;

use crate::error::{Error, Result, Within};
use crate::field_spec::{element_match, look_up, split_field_path};
use crate::files::{FileTree, Root};
use crate::id::Id;
use crate::kustomization::{FieldOptions, ReplacementField, Selector, Source, Target, decode};
use crate::resource::{Resource, scalar_text};
use crate::resources::{Patterns, Resources};
use crate::schema::Schemas;

const DEFAULT_FIELD: &str = "metadata.name";

pub struct Replacement(ReplacementField);

impl Replacement {
    pub fn read(files: &dyn FileTree, root: &Root, fields: &[ReplacementField]) -> Result<Vec<Replacement>> {
        let mut replacements = Vec::new();
        for field in fields {
            if field.path.is_empty() {
                replacements.push(Replacement(field.clone()));
                continue;
            }
            if field.source.is_some() || field.targets.as_ref().is_some_and(|targets| !targets.is_empty()) {
                return Err(Error::new("cannot specify both path and inline replacement"));
            }
            let text = root.read_text(files, &field.path)?;
            let documents =
                ferry_api::yaml::documents(&text).map_err(|error| Error::new(error.to_string()))?;
            match documents.into_iter().next().unwrap_or_default() {
                Value::Array(items) => {
                    for item in items {
                        replacements.push(Replacement(decode(item)?));
                    }
                }
                map @ Value::Object(_) => replacements.push(Replacement(decode(map)?)),
                _ => {
                    return Err(Error::new(
                        "unsupported replacement type encountered within replacement path: invalid",
                    ));
                }
            }
        }
        Ok(replacements)
    }

    pub fn apply(&self, resources: &mut Resources, schemas: &Schemas) -> Result<()> {
        let Replacement(field) = self;
        let (has_source, targets) = (field.source.is_some() || field.source_value.is_some(), &field.targets);
        let Some(targets) = targets.as_ref().filter(|_| has_source) else {
            return Err(Error::new("replacements must specify a source and at least one target"));
        };
        let value = match (&field.source_value, &field.source) {
            (Some(_), Some(_)) => {
                return Err(Error::new("value and resource selectors are mutually exclusive"));
            }
            (Some(text), None) => ferry_api::yaml::core_scalar(text),
            (None, Some(source)) => source_value(resources, source, schemas)?,
            (None, None) => return Ok(()),
        };
        targets.iter().try_for_each(|target| apply_target(resources, &value, target, schemas))
    }
}

fn ids(resource: &Resource, schemas: &Schemas) -> Vec<Id> {
    let mut ids = vec![Id { cluster: false, ..resource.id(schemas) }];
    ids.extend(resource.previous_ids());
    ids
}

fn source_value(resources: &Resources, source: &Source, schemas: &Schemas) -> Result<Value> {
    let selector = source.id();
    let shown = || {
        let mut shown = selector.to_string();
        if !source.field_path.is_empty() {
            shown.push_str(&format!(":{}", source.field_path));
        }
        if let Some(options) =
            source.options.as_ref().filter(|options| !options.delimiter.is_empty() || options.create)
        {
            shown.push_str(&format!(":{}({}), create={}", options.delimiter, options.index, options.create));
        }
        shown
    };
    let selected: Vec<&Resource> = resources
        .0
        .iter()
        .filter(|resource| ids(resource, schemas).iter().any(|id| id.is_selected_by(&selector)))
        .collect();
    let resource = match selected.as_slice() {
        [only] => only,
        [] => return Err(Error::new(format!("nothing selected by {}", shown()))),
        _ => return Err(Error::new(format!("multiple matches for selector {}", shown()))),
    };
    let path = if source.field_path.is_empty() { DEFAULT_FIELD } else { &source.field_path };
    let found = look_up(&resource.value, &split_field_path(path))
        .within("error looking up replacement source")?
        .filter(|value| !is_nothing(value));
    let found = found.ok_or_else(|| {
        Error::new(format!("fieldPath `{path}` is missing for replacement source {selector}"))
    })?;
    let Some(options) = source.options.as_ref().filter(|options| !options.delimiter.is_empty()) else {
        return Ok(found.clone());
    };
    if found.is_array() || found.is_object() {
        return Err(Error::new("delimiter option can only be used with scalar nodes"));
    }
    let text = scalar_text(found);
    let part =
        usize::try_from(options.index).ok().and_then(|index| text.split(&options.delimiter).nth(index));
    let part = part.ok_or_else(|| {
        Error::new(format!("options.index {} is out of bounds for value {text}", options.index))
    })?;
    Ok(Value::String(part.to_owned()))
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn apply_target(resources: &mut Resources, value: &Value, target: &Target, schemas: &Schemas) -> Result<()> {
    let Some(select) = &target.select else {
        return Err(Error::new("target must specify resources to select"));
    };
    let wanted = Patterns::new(select).within("error creating target selector")?;
    let rejected: Vec<Patterns> = target
        .reject
        .iter()
        .filter(|reject| !reject.names_nothing())
        .map(Patterns::new)
        .collect::<Result<_>>()
        .within("error creating target selector")?;
    let fits = |resource: &Resource, selector: &Selector| -> Result<bool> {
        Ok(resource.matches_annotations(&selector.annotation_selector)?
            && resource.matches_labels(&selector.label_selector)?)
    };
    for resource in &mut resources.0 {
        if !fits(resource, select)? {
            continue;
        }
        let selects =
            |reject: &&Selector| !reject.annotation_selector.is_empty() || !reject.label_selector.is_empty();
        let mut is_rejected = false;
        for reject in target.reject.iter().filter(selects) {
            is_rejected |= fits(resource, reject)?;
        }
        let ids = ids(resource, schemas);
        is_rejected |= rejected.iter().any(|patterns| ids.iter().any(|id| patterns.fits_id(id)));
        if is_rejected || !ids.iter().any(|id| wanted.fits_id(id)) {
            continue;
        }
        let paths: Vec<&str> = match target.field_paths.as_slice() {
            [] => vec![DEFAULT_FIELD],
            paths => paths.iter().map(String::as_str).collect(),
        };
        for path in paths {
            copy_value(&mut resource.value, value, path, target.options.as_ref())?;
        }
    }
    Ok(())
}

fn copy_value(target: &mut Value, value: &Value, path: &str, options: Option<&FieldOptions>) -> Result<()> {
    let parts = split_field_path(path);
    let create = options.is_some_and(|options| options.create).then(|| empty_of(value));
    if set_in_structured_text(target, value, &parts, create.as_ref()) {
        return Ok(());
    }
    let missing = || {
        let verb = if create.is_some() { "find or create" } else { "find" };
        format!("unable to {verb} field {path:?} in replacement target")
    };
    let mut count = 0;
    let mut outcome = Ok(());
    visit(target, &parts, create.as_ref(), &mut |field, is_new| {
        count += 1;
        if outcome.is_ok() {
            outcome = set_field(field, is_new, value, options);
        }
    })
    .map_err(|error| error.within(missing()))?;
    outcome?;
    if count == 0 { Err(Error::new(missing())) } else { Ok(()) }
}

/// What is put in a place that is to hold `value`.
fn empty_of(value: &Value) -> Value {
    match value {
        Value::Array(_) => Value::Array(Vec::new()),
        Value::Object(_) => Value::Object(Default::default()),
        _ => Value::Null,
    }
}

/// Calls `found` on every value at the path. With `create`, what is missing is made first, and `found` is
/// told so.
fn visit(
    value: &mut Value,
    path: &[String],
    create: Option<&Value>,
    found: &mut dyn FnMut(&mut Value, bool),
) -> Result<()> {
    visit_made(value, path, create, false, found)
}

fn visit_made(
    value: &mut Value,
    path: &[String],
    create: Option<&Value>,
    is_new: bool,
    found: &mut dyn FnMut(&mut Value, bool),
) -> Result<()> {
    let Some((part, rest)) = path.split_first() else {
        found(value, is_new);
        return Ok(());
    };
    if let Ok(index) = part.parse::<usize>() {
        return visit_index(elements(value)?, index, rest, create, found);
    }
    if part.starts_with('[') && part.ends_with(']') {
        return visit_matches(elements(value)?, part, rest, create, found);
    }
    if part == "*" {
        return elements(value)?.iter_mut().try_for_each(|item| visit_made(item, rest, create, false, found));
    }
    match value {
        Value::Null if create.is_none() => return Ok(()),
        Value::Null => *value = Value::Object(Default::default()),
        _ => {}
    }
    let Value::Object(map) = value else {
        return Err(Error::new("wrong node kind: expected MappingNode"));
    };
    match (map.get_mut(part), create) {
        (Some(field), _) => visit_made(field, rest, create, false, found),
        (None, Some(create)) => {
            let field = map.entry(part.clone()).or_insert_with(|| made_for(rest, create));
            visit_made(field, rest, Some(create), true, found)
        }
        (None, None) => Ok(()),
    }
}

/// The element with a number; the one behind the last can be made.
fn visit_index(
    items: &mut Vec<Value>,
    index: usize,
    rest: &[String],
    create: Option<&Value>,
    found: &mut dyn FnMut(&mut Value, bool),
) -> Result<()> {
    if let Some(create) = create.filter(|_| items.len() == index) {
        items.push(made_for(rest, create));
        return visit_made(&mut items[index], rest, Some(create), true, found);
    }
    let count = items.len();
    let item = items
        .get_mut(index)
        .ok_or_else(|| Error::new(format!("index {index} specified but only {count} elements found")))?;
    visit_made(item, rest, create, false, found)
}

/// The elements that fit `[field=pattern]`; where none does, one can be made.
fn visit_matches(
    items: &mut Vec<Value>,
    part: &str,
    rest: &[String],
    create: Option<&Value>,
    found: &mut dyn FnMut(&mut Value, bool),
) -> Result<()> {
    let (field, pattern) = element_match(part)?;
    let regex = Regex::new(pattern).map_err(|error| Error::new(format!("error parsing regexp: {error}")))?;
    let fits = |item: &Value| match field {
        "" => regex.is_match(&scalar_text(item)),
        field => item.get(field).is_some_and(|value| regex.is_match(&scalar_text(value))),
    };
    if create.is_some() && !items.iter().any(fits) {
        items.push(match field {
            "" => pattern.into(),
            field => serde_json::json!({ field: pattern }),
        });
    }
    for item in items.iter_mut().filter(|item| fits(item)) {
        // a scalar is what was looked for, whatever follows
        let rest = if field.is_empty() { &[] } else { rest };
        visit_made(item, rest, create, false, found)?;
    }
    Ok(())
}

/// What stands in a new place: by the next part of the path, or at its end.
fn made_for(rest: &[String], create: &Value) -> Value {
    match rest.first() {
        None => create.clone(),
        Some(next) if next.starts_with('[') || next.parse::<usize>().is_ok() => Value::Array(Vec::new()),
        Some(_) => Value::Object(Default::default()),
    }
}

fn elements(value: &mut Value) -> Result<&mut Vec<Value>> {
    if value.is_null() {
        *value = Value::Array(Vec::new());
    }
    match value {
        Value::Array(items) => Ok(items),
        _ => Err(Error::new("wrong node kind: expected SequenceNode")),
    }
}

fn set_field(field: &mut Value, is_new: bool, value: &Value, options: Option<&FieldOptions>) -> Result<()> {
    let is_scalar = !field.is_array() && !field.is_object();
    let delimiter = options.filter(|options| !options.delimiter.is_empty());
    let text = match delimiter {
        None if !is_scalar => {
            *field = value.clone();
            return Ok(());
        }
        None if is_new && !value.is_string() => {
            *field = value.clone();
            return Ok(());
        }
        None => scalar_text(value),
        Some(_) if !is_scalar => {
            return Err(Error::new("delimiter option can only be used with scalar nodes"));
        }
        Some(options) => {
            let own = scalar_text(field);
            let mut parts: Vec<&str> = own.split(&options.delimiter).collect();
            let text = scalar_text(value);
            match usize::try_from(options.index) {
                Err(_) => parts.insert(0, &text),
                Ok(index) if index >= parts.len() => parts.push(&text),
                Ok(index) => parts[index] = &text,
            }
            parts.join(&options.delimiter)
        }
    };
    // the field keeps its type; a new one has the type its text says
    *field = match field {
        Value::Number(_) | Value::Bool(_) => match ferry_api::yaml::core_scalar(&text) {
            Value::String(text) => {
                return Err(Error::new(format!("cannot put {text:?} into a field that holds {field}")));
            }
            typed => typed,
        },
        Value::Null if is_new => ferry_api::yaml::core_scalar(&text),
        _ => Value::String(text),
    };
    Ok(())
}

/// A path may lead into text that is itself JSON or YAML. Answers whether it did and the value was set.
fn set_in_structured_text(
    target: &mut Value,
    value: &Value,
    path: &[String],
    create: Option<&Value>,
) -> bool {
    let is_text = |at: &usize| {
        matches!(
            look_up(target, &path[..*at]),
            Ok(Some(Value::String(_) | Value::Number(_) | Value::Bool(_)))
        )
    };
    let Some(end) = (1..path.len()).find(is_text) else { return false };
    let Ok(Some(Value::String(text))) = look_up(target, &path[..end]) else { return false };
    let text = text.clone();
    let Ok(documents) = ferry_api::yaml::documents(&text) else { return false };
    let Some(mut inner) = documents.into_iter().next() else { return false };
    let mut count = 0;
    let visited = visit(&mut inner, &path[end..], create, &mut |field, is_new| {
        count += 1;
        if set_field(field, is_new, value, None).is_err() {
            *field = value.clone();
        }
    });
    if visited.is_err() || count == 0 {
        return false;
    }
    let written = if !text.trim_start().starts_with(['{', '[']) {
        ferry_api::yaml::encode_value(&inner).trim().to_owned()
    } else if text.contains('\n') && text.contains("  ") {
        let Ok(pretty) = serde_json::to_string_pretty(&inner) else { return false };
        pretty.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
    } else {
        ferry_api::go_json::compact(&inner)
    };
    visit(target, &path[..end], None, &mut |field, _| *field = Value::String(written.clone())).is_ok()
}
