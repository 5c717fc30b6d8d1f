//! The spec of a definition: its group, scope and names, and each of its versions.

use ferry_api::{FieldErrors, Object, names};
use ferry_schema::check::{self, CheckContext};
use serde_json::Value;

use super::super::checks::{self, Path};
use super::{conversion, text, version};
use crate::custom_resources::conditions;

/// A definition's spec as it is read here.
#[derive(Clone, Copy)]
pub struct Spec<'o>(&'o Value);

impl<'o> Spec<'o> {
    pub fn of(object: &'o Object) -> Spec<'o> {
        Spec(object.0.get("spec").unwrap_or(&Value::Null))
    }

    pub fn text(self, pointer: &str) -> &'o str {
        self.0.pointer(pointer).map_or("", text)
    }

    pub fn versions(self) -> &'o [Value] {
        self.0["versions"].as_array().map_or(&[], Vec::as_slice)
    }

    fn version(self, name: &str) -> Option<&'o Value> {
        self.versions().iter().find(|version| version["name"] == name)
    }

    fn preserves_unknown_fields(self) -> bool {
        self.0["preserveUnknownFields"] == true
    }

    /// The schemas of all versions, each once.
    fn schemas(self) -> Vec<&'o Value> {
        let mut schemas: Vec<&Value> = Vec::new();
        for schema in self.versions().iter().filter_map(schema) {
            if !schemas.contains(&schema) {
                schemas.push(schema);
            }
        }
        schemas
    }

    /// What the versions say under `field`, and where errors are told. What is the same in all of them is judged
    /// once, at `top` of the spec.
    fn parts(self, field: &'static str, top: &str) -> Vec<Part<'o>> {
        let versions = self.versions();
        let is_same = versions.iter().all(|version| version[field] == versions[0][field]);
        let parts = versions.iter().enumerate().map(|(index, version)| Part {
            version,
            value: &version[field],
            path: if is_same { format!("spec.{top}") } else { format!("spec.versions[{index}].{field}") },
        });
        parts.take(if is_same { 1 } else { versions.len() }).filter(|part| !part.value.is_null()).collect()
    }

    /// Formats that schemas name and that nobody judges values by, each once.
    pub fn unrecognized_formats(self) -> impl Iterator<Item = &'o str> {
        let mut formats = Vec::new();
        for schema in self.schemas() {
            visit(schema, &mut |schema| {
                let format = text(&schema["format"]);
                if !format.is_empty()
                    && !is_recognized(text(&schema["type"]), format)
                    && !formats.contains(&format)
                {
                    formats.push(format);
                }
            });
        }
        formats.into_iter()
    }
}

struct Part<'o> {
    version: &'o Value,
    value: &'o Value,
    path: String,
}

pub fn judge(new: &Object, old: Option<&Object>, errors: &mut FieldErrors) {
    let spec = Spec::of(new);
    let before = old.map(Spec::of);
    group(spec, errors);
    let root = Path::root("spec");
    checks::one_of(errors, root.child("scope"), Some(spec.text("/scope")), &["Cluster", "Namespaced"]);
    versions(spec, before, errors);
    schemas(spec, before, errors);
    for part in spec.parts("subresources", "subresources") {
        version::subresources(part.value, &part.path, errors);
    }
    for part in spec.parts("additionalPrinterColumns", "additionalPrinterColumns") {
        version::columns(part.value, &part.path, errors);
    }
    let schema_differs = spec.parts("schema", "validation").len() > 1;
    for part in spec.parts("selectableFields", "selectableFields") {
        // Fields that all versions select are looked for in the schema of all versions.
        if part.path == "spec.selectableFields" && schema_differs {
            errors.invalid(&part.path, "", "may only be set when validations.schema is included");
            continue;
        }
        let before = before.and_then(|spec| spec.version(text(&part.version["name"])));
        let before = before.map(|version| &version["selectableFields"]);
        version::selectable(part.value, schema(part.version), before, &part.path, errors);
    }
    for field in ["plural", "singular", "kind", "listKind"] {
        if text(&spec.0["names"][field]).is_empty() {
            errors.required(format!("spec.names.{field}"), "");
        }
    }
    super::names::judge(&spec.0["names"], "spec.names", errors);
    let status = old.and_then(|old| old.0.get("status")).unwrap_or(&Value::Null);
    let is_established = conditions::is_true(status, "Established");
    let allowed = match before {
        None => conversion::Allowed::CREATE,
        Some(before) => conversion::Allowed::update(&before.0["conversion"], is_established),
    };
    conversion::judge(&spec.0["conversion"], spec.preserves_unknown_fields(), allowed, errors);
    if let Some(before) = before {
        immutable(spec, before, is_established, errors);
    }
    if spec.preserves_unknown_fields() && !before.is_some_and(Spec::preserves_unknown_fields) {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.invalid("spec.preserveUnknownFields", true, why);
    }
}

fn group(spec: Spec<'_>, errors: &mut FieldErrors) {
    const PATH: &str = "spec.group";
    let group = spec.text("/group");
    let faults = names::dns1123_subdomain(group);
    if group.is_empty() {
        errors.required(PATH, "");
    } else if !faults.is_empty() {
        errors.invalid(PATH, group, &faults.join(","));
    } else if !group.contains('.') {
        errors.invalid(PATH, group, "should be a domain with at least one dot");
    }
}

fn versions(spec: Spec<'_>, before: Option<Spec<'_>>, errors: &mut FieldErrors) {
    const PATH: &str = "spec.versions";
    let versions = spec.versions();
    let has_all = |spec: Spec<'_>| spec.versions().iter().all(|version| schema(version).is_some());
    let needs_schema = before.is_none_or(has_all);
    for (index, version) in versions.iter().enumerate() {
        let path = format!("{PATH}[{index}]");
        if schema(version).is_none() {
            let at = format!("{path}.schema.openAPIV3Schema");
            if needs_schema {
                errors.required(at, "");
            } else if !spec.preserves_unknown_fields() && version["served"] == true {
                errors.required(at, "because otherwise all fields are pruned");
            }
        }
        let name = text(&version["name"]);
        let faults = names::dns1035_label(name);
        if !faults.is_empty() {
            errors.invalid(format!("{path}.name"), name, &faults.join(","));
            if index == 0 && !name.is_empty() {
                errors.invalid("spec.version", name, &faults.join(","));
            }
        }
        version::deprecation(version, &path, errors);
    }
    let is_again = |(index, version): (usize, &Value)| {
        versions[..index].iter().any(|other| other["name"] == version["name"])
    };
    if versions.iter().enumerate().any(is_again) {
        errors.invalid(PATH, names_of(spec), "must contain unique version names");
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        errors.invalid(PATH, names_of(spec), why);
    }
}

fn schemas(spec: Spec<'_>, before: Option<Spec<'_>>, errors: &mut FieldErrors) {
    let all_old = before.map_or_else(Vec::new, Spec::schemas);
    let parts = spec.parts("schema", "validation");
    let is_same = parts.len() < spec.versions().len() || parts.len() == 1;
    let has_status = |version: &Value| version.pointer("/subresources/status").is_some_and(Value::is_object);
    for part in parts {
        let Some(schema) = schema(part.version) else { continue };
        let old = before.and_then(|spec| spec.version(text(&part.version["name"])));
        let context = CheckContext {
            old: old.and_then(self::schema),
            all_old: &all_old,
            preserve_unknown_fields: spec.preserves_unknown_fields(),
            status_subresource: match is_same {
                true => spec.versions().iter().any(has_status),
                false => has_status(part.version),
            },
        };
        check::schema(schema, &format!("{}.openAPIV3Schema", part.path), &context, errors);
    }
    if spec.preserves_unknown_fields() {
        let mut has_default = false;
        let mut look = |schema: &Value| has_default |= !schema["default"].is_null();
        spec.schemas().into_iter().for_each(|schema| visit(schema, &mut look));
        if has_default {
            let why = "must be false in order to use defaults in the schema";
            errors.invalid("spec.preserveUnknownFields", true, why);
        }
    }
}

fn immutable(new: Spec<'_>, old: Spec<'_>, is_established: bool, errors: &mut FieldErrors) {
    // What the place of stored objects depends on.
    let always = ["/group", "/names/plural"].map(|field| (field, true));
    let once_served = ["/scope", "/names/kind"].map(|field| (field, is_established));
    for (field, fixed) in once_served.into_iter().chain(always) {
        if fixed && new.text(field) != old.text(field) {
            errors.invalid(format!("spec{}", field.replace('/', ".")), new.text(field), checks::IMMUTABLE);
        }
    }
}

/// The value that errors about all versions show.
fn names_of(spec: Spec<'_>) -> Value {
    match &spec.0["versions"] {
        Value::Array(versions) => versions.iter().map(|version| version["name"].clone()).collect(),
        _ => Value::Null,
    }
}

fn schema(version: &Value) -> Option<&Value> {
    version.pointer("/schema/openAPIV3Schema").filter(|schema| !schema.is_null())
}

/// Every part of a schema that is a schema itself. The request's own limit on depth bounds the recursion.
fn visit<'s>(schema: &'s Value, look: &mut impl FnMut(&'s Value)) {
    if !schema.is_object() {
        return;
    }
    look(schema);
    for field in ["items", "additionalProperties", "additionalItems", "not"] {
        match &schema[field] {
            Value::Array(schemas) => schemas.iter().for_each(|schema| visit(schema, look)),
            one => visit(one, look),
        }
    }
    for field in ["allOf", "anyOf", "oneOf"] {
        schema[field].as_array().into_iter().flatten().for_each(|schema| visit(schema, look));
    }
    for field in ["properties", "patternProperties", "definitions", "dependencies"] {
        let named = schema[field].as_object().into_iter().flatten();
        named.for_each(|(_, schema)| visit(schema, look));
    }
}

/// Formats that values are judged by, by the type of the value; names are compared without dashes.
fn is_recognized(kind: &str, format: &str) -> bool {
    const OF_STRINGS: &[&str] = &[
        "bsonobjectid",
        "uri",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "cidr",
        "mac",
        "uuid",
        "uuid3",
        "uuid4",
        "uuid5",
        "isbn",
        "isbn10",
        "isbn13",
        "creditcard",
        "ssn",
        "hexcolor",
        "rgbcolor",
        "byte",
        "password",
        "date",
        "duration",
        "datetime",
        "k8sshortname",
        "k8slongname",
    ];
    match kind {
        "" | "string" => OF_STRINGS.contains(&format.replace('-', "").as_str()),
        "integer" => ["int32", "int64"].contains(&format),
        "number" => ["float", "double"].contains(&format),
        _ => false,
    }
}
