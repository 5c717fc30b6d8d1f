//! The words of a schema: those that are not supported, those that exclude each other, and rules.

use std::collections::HashSet;
use std::sync::Arc;

use ferry_api::FieldErrors;
use ferry_api::field_error::{FieldError, Reason};
use serde_json::{Map, Value, json};

use super::{Options, children, is_given, is_true, object, text};
use crate::Structural;
use crate::decl::{Decl, Decls};
use crate::field_path;
use crate::hand_on;
use crate::path::Path;
use crate::prune::META_FIELDS;
use crate::rules::{self, Compiled, Fault};
use crate::structural::{EMBEDDED, Ref, Rule};

type Fields = Map<String, Value>;

pub const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];

/// What one rule may cost, and what those of a schema may together.
const COST_LIMIT: u64 = 10_000_000;
const TOTAL_COST_LIMIT: u64 = 100_000_000;

/// Bytes of paths of errors, after which the check ends.
const MOST_TOLD: usize = 1 << 20;

const REASONS: &[&str] =
    &["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Why a schema cannot be read as a structural one, as the first word that says so.
pub fn unsupported(schema: &Value) -> Option<String> {
    let fields = schema.as_object()?;
    let said = |word: &str| match fields.get(word) {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Object(inner)) => !inner.is_empty() || word == "additionalItems",
        Some(_) => true,
    };
    let words = [
        ("id", "id"),
        ("$schema", "schema"),
        ("$ref", "$ref"),
        ("patternProperties", "patternProperties"),
        ("dependencies", "dependencies"),
        ("additionalItems", "additionalItems"),
        ("definitions", "definitions"),
    ];
    if let Some((_, name)) = words.iter().find(|(word, _)| said(word)) {
        return Some(format!("OpenAPIV3Schema '{name}' is not supported"));
    }
    if fields.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        let why = "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined";
        return Some(why.to_string());
    }
    if matches!(fields.get("items"), Some(Value::Array(_))) {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_string());
    }
    children(fields).into_iter().find_map(|(_, schema)| unsupported(schema))
}

/// A set of lists or objects that are no units.
pub fn has_set_of_parts(schema: &Fields) -> bool {
    text(schema, "x-kubernetes-list-type") == "set"
        && object(schema, "items").is_some_and(|items| match text(items, "type") {
            "array" => !["", "atomic"].contains(&text(items, "x-kubernetes-list-type")),
            "object" => text(items, "x-kubernetes-map-type") != "atomic",
            _ => false,
        })
}

/// Keys of a list that is a map which may be absent, or null.
pub fn has_optional_keys(schema: &Fields) -> bool {
    let mut errors = Vec::new();
    keys(schema, &Path::root(), &mut errors);
    !errors.is_empty()
}

/// `rules`: the schema is structural, so rules can be compiled.
pub fn check(value: &Value, path: &str, options: &Options, rules: bool, errors: &mut FieldErrors) {
    let structural = Structural::parse(value).ok().filter(|_| rules);
    let mut walk = Walk {
        options,
        decls: Decls::default(),
        schema: Vec::new(),
        cel: Vec::new(),
        total: 0,
        expensive: Vec::new(),
    };
    let Some(fields) = value.as_object() else { return };
    let place = Place {
        node: structural.as_ref().map(|structural| structural.root.clone()),
        root: true,
        cardinality: Some(1),
        ..Place::default()
    };
    walk.schema(fields, &mut Path::at(path), place);
    hand_on(FieldErrors(walk.schema), errors);
    hand_on(FieldErrors(walk.cel), errors);
    if structural.is_some() && walk.total > TOTAL_COST_LIMIT {
        for (path, _) in &walk.expensive {
            let why =
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            errors.forbidden(path.as_str(), why);
        }
        let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.forbidden(path, &too_expensive(name, walk.total, TOTAL_COST_LIMIT));
    }
}

/// Where a schema stands.
#[derive(Clone, Default)]
struct Place {
    /// The same, read; none where rules are not compiled.
    node: Option<Ref>,
    root: bool,
    /// Why no default may stand here, after `must not be set`.
    no_defaults: Option<Arc<str>>,
    inside_metadata: bool,
    /// The list or map whose elements have no old value.
    uncorrelatable: Option<Arc<str>>,
    /// How often such a value can stand in an object; none without a limit.
    cardinality: Option<u64>,
}

struct Walk<'o> {
    options: &'o Options,
    decls: Decls,
    schema: Vec<FieldError>,
    cel: Vec<FieldError>,
    total: u64,
    /// Those that cost most, at most four.
    expensive: Vec<(String, u64)>,
}

/// Tells into one of the two lists.
fn tell(errors: &mut Vec<FieldError>, add: impl FnOnce(&mut FieldErrors)) {
    let mut one = FieldErrors::default();
    add(&mut one);
    errors.append(&mut one.0);
}

/// The keys of a list of type map, and the properties of its items that they name.
fn list_keys(schema: &Fields, path: &Path, found: &mut FieldErrors) {
    let list_type = schema.get("x-kubernetes-list-type").and_then(Value::as_str);
    let list_keys = schema.get("x-kubernetes-list-map-keys").cloned().unwrap_or_else(|| json!([]));
    let names: Vec<&str> = list_keys.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !names.is_empty() {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list_type {
            None => found.required(path.with("x-kubernetes-list-type"), why),
            Some("map") => {}
            Some(other) => found.invalid(path.with("x-kubernetes-list-type"), other, why),
        }
    }
    if list_type != Some("map") {
        return;
    }
    if names.is_empty() {
        let why = "must not be empty if x-kubernetes-list-type is map";
        found.required(path.with("x-kubernetes-list-map-keys"), why);
    }
    let items = match (schema.get("items"), object(schema, "items")) {
        (None | Some(Value::Null), _) => {
            let why = "must have a schema if x-kubernetes-list-type is map";
            return found.required(path.with("items"), why);
        }
        (Some(items), None) => {
            let why = "must only have a single schema if x-kubernetes-list-type is map";
            return found.invalid(path.with("items"), items.clone(), why);
        }
        (_, Some(items)) => items,
    };
    if text(items, "type") != "object" {
        let why = "must be object if parent array's x-kubernetes-list-type is map";
        return found.invalid(path.with("items.type"), text(items, "type"), why);
    }
    let mut seen = HashSet::new();
    for name in names {
        let property = object(items, "properties").and_then(|properties| object(properties, name));
        match property {
            Some(key) if ["array", "object"].contains(&text(key, "type")) => {
                let path = path.with(&format!("items.properties[{name}].type"));
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                found.invalid(path, text(items, "type"), why);
            }
            Some(_) => {}
            None => {
                let why = "entries must all be names of item properties";
                found.invalid(path.with("x-kubernetes-list-map-keys"), list_keys.clone(), why);
            }
        }
        if !seen.insert(name) {
            let why = "must not contain duplicate entries";
            found.invalid(path.with("x-kubernetes-list-map-keys"), list_keys.clone(), why);
        }
    }
}

fn properties(schema: &Fields) -> Option<&Fields> {
    object(schema, "properties").filter(|properties| !properties.is_empty())
}

/// What holds for a property, of what holds for everything right below its schema.
fn property_place(name: &str, schema: &Fields, path: &Path, place: &Place, inner: &Place) -> Place {
    let node = place.node.as_ref().and_then(|node| node.property(name).cloned());
    let mut inner = Place { node, ..inner.clone() };
    // Of maps of a type that nobody knows, no old value is known.
    if !["", "granular", "atomic"].contains(&text(schema, "x-kubernetes-map-type"))
        && inner.uncorrelatable.is_none()
    {
        inner.uncorrelatable = Some(path.as_str().into());
    }
    let is_resource = place.root || is_true(schema, "x-kubernetes-embedded-resource");
    if is_resource && META_FIELDS.contains(&name) {
        inner.inside_metadata = true;
        if place.root {
            inner.no_defaults = Some(format!("in top-level {name}").into());
        }
    }
    inner
}

impl Walk<'_> {
    fn schema(&mut self, schema: &Fields, path: &mut Path, place: Place) {
        // Enough is wrong; more would not be told.
        if self.schema.iter().map(|error| error.path.len()).sum::<usize>() > MOST_TOLD {
            return;
        }
        let before = self.schema.len();
        self.supported(schema, path, &place);
        if is_true(schema, "uniqueItems") {
            let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            tell(&mut self.schema, |errors| errors.forbidden(path.with("uniqueItems"), why));
        }
        if properties(schema).is_some()
            && is_given(schema, "additionalProperties")
            && schema.get("additionalProperties") != Some(&Value::Bool(true))
        {
            let why = "additionalProperties and properties are mutual exclusive";
            tell(&mut self.schema, |errors| errors.forbidden(path.with("additionalProperties"), why));
        }
        self.below(schema, path, &place);
        self.topology(schema, path);
        let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array);
        let Some(rules) = rules.filter(|rules| !rules.is_empty()) else { return };
        let has_path = rules.iter().any(|rule| rule.get("fieldPath").is_some());
        let read = || Some(Structural::parse(&Value::Object(schema.clone())).ok()?.root);
        let node = place.node.clone().or_else(|| if has_path { read() } else { None });
        for (index, rule) in rules.iter().enumerate() {
            let path = path.with(&format!("x-kubernetes-validations[{index}]"));
            self.rule(rule, node.as_ref(), &path);
        }
        if self.schema.len() == before
            && let Some(node) = place.node.clone()
        {
            self.compile(&node, path, &place);
        }
    }

    /// The schemas below a schema, in upstream's order.
    fn below(&mut self, schema: &Fields, path: &mut Path, place: &Place) {
        let inner = self.inner_place(schema, place);
        if let Some(values) = object(schema, "additionalProperties") {
            let node = place.node.as_ref().and_then(|node| node.values().cloned());
            let mut inner = Place { node, ..inner.clone() };
            if place.inside_metadata {
                inner.no_defaults = Some("inside additionalProperties applying to object metadata".into());
            }
            path.below("additionalProperties", |path| self.schema(values, path, inner));
        }
        for (name, property) in properties(schema).into_iter().flatten() {
            let Some(property) = property.as_object() else { continue };
            let inner = property_place(name, schema, path, place, &inner);
            path.property(name, |path| self.schema(property, path, inner));
        }
        for (way, combined) in children(schema) {
            let is_combination =
                [".not", ".allOf", ".anyOf", ".oneOf", ".definitions", ".dependencies", ".items["]
                    .iter()
                    .any(|word| way.starts_with(word));
            if let Some(combined) = combined.as_object().filter(|_| is_combination) {
                let inner = Place { node: None, root: false, ..place.clone() };
                path.below(&way[1..], |path| self.schema(combined, path, inner));
            }
        }
        if let Some(items) = object(schema, "items") {
            let mut inner =
                Place { node: place.node.as_ref().and_then(|node| node.items().cloned()), ..inner };
            if text(schema, "x-kubernetes-list-type") != "map" && inner.uncorrelatable.is_none() {
                inner.uncorrelatable = Some(path.as_str().into());
            }
            path.below("items", |path| self.schema(items, path, inner));
        }
    }

    /// What holds for everything right below a schema.
    fn inner_place(&self, schema: &Fields, place: &Place) -> Place {
        let count = |name: &str| schema.get(name).and_then(Value::as_i64).map(|most| most.max(0) as u64);
        let most = match text(schema, "type") {
            "object" if is_given(schema, "additionalProperties") => count("maxProperties"),
            "array" => count("maxItems"),
            _ => Some(1),
        };
        let cardinality = place.cardinality.zip(most).map(|(times, most)| times.saturating_mul(most));
        Place { root: false, cardinality, ..place.clone() }
    }

    fn supported(&mut self, schema: &Fields, path: &Path, place: &Place) {
        let kind = text(schema, "type");
        let errors = &mut self.schema;
        if self.options.valid_types && !kind.is_empty() && !TYPES.contains(&kind) {
            tell(errors, |errors| errors.not_supported(path.with("type"), kind, TYPES));
        }
        if is_given(schema, "default")
            && let Some(why) = &place.no_defaults
        {
            tell(errors, |errors| errors.forbidden(path.with("default"), &format!("must not be set {why}")));
        }
        let mut forbidden = |name: &str, why: &str| {
            tell(errors, |errors| errors.forbidden(path.with(name), why));
        };
        if !text(schema, "id").is_empty() {
            forbidden("id", "id is not supported");
        }
        for word in ["additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
            let empty =
                schema.get(word) == Some(&json!({})) && ["patternProperties", "definitions"].contains(&word);
            if is_given(schema, word) && !empty {
                forbidden(word, &format!("{word} is not supported"));
            }
        }
        if kind == "null" {
            forbidden("type", "type cannot be set to null, use nullable as an alternative");
        }
        if matches!(schema.get("items"), Some(Value::Array(items)) if !items.is_empty()) {
            forbidden("items", "items must be a schema object and not an array");
        }
        if place.inside_metadata && is_true(schema, "x-kubernetes-embedded-resource") {
            forbidden("x-kubernetes-embedded-resource", "must not be used inside of resource meta");
        }
    }

    /// Lists and maps: what merges of them depend on.
    fn topology(&mut self, schema: &Fields, path: &Path) {
        let kind = text(schema, "type");
        let mut found = FieldErrors::default();
        if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
            found.invalid(
                path.with("x-kubernetes-preserve-unknown-fields"),
                false,
                "must be true or undefined",
            );
        }
        for (word, wanted, known) in [
            ("x-kubernetes-map-type", "object", ["atomic", "granular"].as_slice()),
            ("x-kubernetes-list-type", "array", &["atomic", "set", "map"]),
        ] {
            let Some(given) = schema.get(word).and_then(Value::as_str) else { continue };
            let why = format!("must be {wanted} if {word} is specified");
            if kind.is_empty() {
                found.required(path.with("type"), &why);
            } else if kind != wanted {
                found.invalid(path.with("type"), kind, &why);
            } else if self.options.atomic_sets && has_set_of_parts(schema) && wanted == "array" {
                let items = object(schema, "items");
                let list = items.and_then(|items| items.get("x-kubernetes-list-type")).cloned();
                let is_list = items.is_some_and(|items| text(items, "type") == "array");
                let word = if is_list { "x-kubernetes-list-type" } else { "x-kubernetes-map-type" };
                let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
                found.invalid(path.with(&format!("items.{word}")), list, why);
            }
            if !known.contains(&given) {
                found.not_supported(path.with(word), given, known);
            }
        }
        list_keys(schema, path, &mut found);
        self.schema.append(&mut found.0);
        if self.options.list_map_keys {
            keys(schema, path, &mut self.schema);
        }
    }

    /// The words of one rule.
    fn rule(&mut self, rule: &Value, node: Option<&Ref>, path: &str) {
        let field = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
        let lines = |text: &str| text.contains(['\n', '\r']);
        let (source, message) = (field("rule").trim(), field("message"));
        let mut found = FieldErrors::default();
        if source.is_empty() {
            found.required(format!("{path}.rule"), "rule is not specified");
        } else if !message.is_empty() && message.trim().is_empty() {
            found.invalid(format!("{path}.message"), message, "must be non-empty if specified");
        } else if lines(message.trim()) {
            found.invalid(format!("{path}.message"), message, "must not contain line breaks");
        } else if lines(source) && message.trim().is_empty() {
            found.required(
                format!("{path}.message"),
                "message must be specified if rule contains line breaks",
            );
        }
        let expression = field("messageExpression");
        if !expression.is_empty() && expression.trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            found.required(format!("{path}.messageExpression"), why);
        }
        if let Some(reason) = rule.get("reason").and_then(Value::as_str)
            && !REASONS.contains(&reason)
        {
            found.not_supported(format!("{path}.reason"), reason, REASONS);
        }
        let below = field("fieldPath");
        if !below.is_empty() {
            let mut wrong = |why: &str| found.invalid(format!("{path}.fieldPath"), below, why);
            if below.trim().is_empty() {
                wrong("must be non-empty if specified");
            }
            if lines(below) {
                wrong("must not contain line breaks");
            }
            if node.is_some_and(|node| field_path::resolve(below, node, true).is_err()) {
                wrong("must be a valid path");
            }
        }
        self.schema.append(&mut found.0);
    }

    /// Compiles the rules of a schema and adds up what they cost.
    fn compile(&mut self, node: &Ref, path: &Path, place: &Place) {
        let path = path.with("x-kubernetes-validations");
        let Some(decl) = self.decls.of(node, place.root || node.is(EMBEDDED)) else {
            let why = "internal error: failed to construct type information for x-kubernetes-validations rules: unable \
                       to convert structural schema to CEL declarations";
            tell(&mut self.cel, |errors| errors.push(path, Reason::Internal, why.to_string()));
            return;
        };
        for (index, rule) in node.rules().iter().enumerate() {
            self.compile_one(rule, node, &decl, &format!("{path}[{index}]"), place);
        }
    }

    fn compile_one(&mut self, rule: &Rule, node: &Ref, decl: &Arc<Decl>, path: &str, place: &Place) {
        let times = place.cardinality.unwrap_or_else(|| rules::cardinality(decl));
        let compiled = rules::compile(rule, node, decl);
        let wrong = |errors: &mut Vec<FieldError>, name: &str, why: &str| {
            let detail = format!("{}: {why}", shown(rule));
            tell(errors, |errors| errors.push(format!("{path}.{name}"), Reason::Invalid, detail));
        };
        let uses_old_self = match &compiled {
            Ok(Compiled { cost, message_cost, uses_old_self, .. }) => {
                self.cost(*cost, times, "estimated rule cost", format!("{path}.rule"));
                if rule.message_expression.is_some() {
                    let name = "estimated messageExpression cost";
                    self.cost(*message_cost, 1, name, format!("{path}.messageExpression"));
                }
                *uses_old_self
            }
            Err(Fault::Rule(why)) => {
                wrong(&mut self.cel, "rule", why);
                false
            }
            Err(Fault::Message(why, rest)) => {
                self.cost(rest.cost, times, "estimated rule cost", format!("{path}.rule"));
                wrong(&mut self.cel, "messageExpression", why);
                rest.uses_old_self
            }
        };
        let mut found = FieldErrors::default();
        match (uses_old_self, &place.uncorrelatable, rule.optional_old_self) {
            (true, Some(around), _) => {
                let why = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {around}"
                );
                found.invalid(format!("{path}.rule"), &*rule.rule, &why);
            }
            (false, _, Some(optional)) => {
                let why = "may not be set if oldSelf is not used in rule";
                found.invalid(format!("{path}.optionalOldSelf"), optional, why);
            }
            _ => {}
        }
        self.cel.append(&mut found.0);
    }

    fn cost(&mut self, once: u64, times: u64, name: &str, path: String) {
        let cost = once.saturating_mul(times);
        if self.options.costs && cost > COST_LIMIT {
            let why = too_expensive(name, cost, COST_LIMIT);
            tell(&mut self.cel, |errors| errors.forbidden(path.as_str(), &why));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= TOTAL_COST_LIMIT / 100 {
            self.expensive.push((path, cost));
            self.expensive.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
            self.expensive.truncate(4);
        }
    }
}

/// A rule as upstream's messages show it: as Go writes JSON, which escapes what HTML would read as its own.
fn shown(rule: &Rule) -> String {
    let shown = shown_plainly(rule);
    shown.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn shown_plainly(rule: &Rule) -> String {
    let text = |text: &Option<crate::structural::Text>| json!(text.as_deref().unwrap_or_default());
    format!(
        r#"{{"Rule":{},"Message":{},"MessageExpression":{},"Reason":{},"FieldPath":{},"OptionalOldSelf":{}}}"#,
        json!(&*rule.rule),
        text(&rule.message),
        text(&rule.message_expression),
        json!(rule.reason.as_deref()),
        text(&rule.field_path),
        json!(rule.optional_old_self),
    )
}

fn too_expensive(name: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        factor if factor > 100.0 => "more than 100x".to_string(),
        factor if factor < 1.5 => format!("{factor:.6}x"),
        factor => format!("{factor:.1}x"),
    };
    format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

/// Elements of sets and maps, and the keys of maps, are always there.
fn keys(schema: &Fields, path: &Path, errors: &mut Vec<FieldError>) {
    let list_type = text(schema, "x-kubernetes-list-type");
    let Some(items) = object(schema, "items").filter(|_| ["set", "map"].contains(&list_type)) else { return };
    if is_true(items, "nullable") {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        tell(errors, |errors| errors.forbidden(path.with("items.nullable"), &why));
    }
    if list_type != "map" {
        return;
    }
    let required = items.get("required").and_then(Value::as_array);
    let names = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array).into_iter().flatten();
    for name in names.filter_map(Value::as_str) {
        let Some(key) = object(items, "properties").and_then(|properties| object(properties, name)) else {
            continue;
        };
        let is_required = required.is_some_and(|required| required.contains(&name.into()));
        if !is_required && !is_given(key, "default") {
            let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            tell(errors, |errors| {
                errors.required(path.with(&format!("items.properties[{name}].default")), why)
            });
        }
        if is_true(key, "nullable") {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            tell(errors, |errors| {
                errors.forbidden(path.with(&format!("items.properties[{name}].nullable")), why)
            });
        }
    }
}
