//! A CustomResourceDefinition as the server works with it, read off its JSON, and the kind rows it makes.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use ferry_api::json_path::Template;
use ferry_api::kinds::priorities;
use ferry_api::{Codec, GroupResource, GroupVersionKind, Kind, Object, Scope, Status, Subresource, read};
use parking_lot::RwLock;
use serde_json::Value;

use super::conditions;
use super::schema::VersionSchema;
use super::strategy::CustomStrategy;
use crate::columns::Column;
use crate::strategy::{ScalePaths, Selectable};

pub const GROUP: &str = "apiextensions.k8s.io";
pub const PLURAL: &str = "customresourcedefinitions";

const VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

const AGE_DESCRIPTION: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    pub name: String,
    pub uid: String,
    pub generation: i64,
    pub group: String,
    /// What was asked for.
    pub names: Names,
    /// What no other definition of the group has.
    pub accepted: Names,
    pub scope: Scope,
    pub versions: Vec<Version>,
    pub preserve_unknown_fields: bool,
    /// `spec.conversion.webhook`, where versions are converted by one.
    pub webhook: Option<Value>,
    pub established: bool,
    pub terminating: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Version {
    pub name: String,
    pub served: bool,
    pub storage: bool,
    /// What clients of a deprecated version are told.
    pub deprecation: Option<String>,
    pub has_status: bool,
    pub scale: Option<Scale>,
    pub columns: Vec<PrinterColumn>,
    pub selectable: Vec<String>,
}

/// Paths as the definition has them, without the first dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    pub replicas: String,
    pub status_replicas: String,
    pub selector: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrinterColumn {
    pub name: String,
    pub kind: String,
    pub format: String,
    pub description: String,
    pub priority: i32,
    pub json_path: String,
}

/// The definition's JSON as the watch cache has it. Schemas are read from here when they are needed, so that a
/// definition that nobody uses costs no more than its text.
#[derive(Debug)]
pub struct Source(RwLock<Bytes>);

impl Source {
    pub fn new(json: Bytes) -> Arc<Source> {
        Arc::new(Source(RwLock::new(json)))
    }

    /// The same definition with another status: the old text is not kept for its schema's sake.
    pub fn replace(&self, json: Bytes) {
        *self.0.write() = json;
    }

    /// Whether `json` is a definition with the same spec.
    pub fn has_spec_of(&self, json: &Bytes) -> bool {
        let spec = |json: &Bytes| serde_json::from_slice::<Value>(json).map(|mut it| it["spec"].take());
        matches!((spec(&self.0.read().clone()), spec(json)), (Ok(own), Ok(other)) if own == other)
    }

    /// The `openAPIV3Schema` of a version.
    pub fn schema_of(&self, version: &str) -> Result<Option<Value>, serde_json::Error> {
        let json = self.0.read().clone();
        let mut definition: Value = serde_json::from_slice(&json)?;
        let versions = definition.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
        let found = versions.into_iter().flatten().find(|entry| entry["name"] == version);
        Ok(found.and_then(|entry| entry.pointer_mut("/schema/openAPIV3Schema")).map(Value::take))
    }
}

/// A definition's object without its schemas: they are nearly all of its text, and nothing but they themselves is read
/// off them.
pub fn outline(json: &[u8]) -> Result<Object, Status> {
    let text = read::without(json, &["spec", "versions", "*", "schema"]);
    Object::read(text.as_deref().unwrap_or(json))
        .map_err(|error| Status::internal(format!("a stored object cannot be read: {error}")))
}

/// A definition that is served: its rows, the stored one among them or beside them, and its rules.
pub struct Served {
    pub stored: Arc<Kind>,
    /// All versions; those that are served are rows.
    pub versions: Vec<Arc<Kind>>,
    pub rows: Vec<Arc<Kind>>,
    pub strategy: Arc<CustomStrategy>,
}

impl Definition {
    pub fn read(object: &Object) -> Result<Definition, Status> {
        let spec = object.0.get("spec").unwrap_or(&Value::Null);
        let status = object.0.get("status").unwrap_or(&Value::Null);
        let names = Names::read(&spec["names"]);
        let versions = spec["versions"].as_array().into_iter().flatten();
        let definition = Definition {
            name: object.name().to_string(),
            uid: object.uid().to_string(),
            generation: object.generation(),
            group: text(&spec["group"]),
            versions: versions.map(|version| Version::read(version, spec, &names)).collect(),
            accepted: Names::read(&status["acceptedNames"]),
            names,
            scope: if spec["scope"] == "Namespaced" { Scope::Namespaced } else { Scope::Cluster },
            preserve_unknown_fields: spec["preserveUnknownFields"] == true,
            webhook: spec
                .pointer("/conversion/webhook")
                .filter(|_| spec["conversion"]["strategy"] == "Webhook")
                .cloned(),
            established: conditions::is_true(status, "Established"),
            terminating: object.is_deleting(),
        };
        match definition.storage_version() {
            Some(_) => Ok(definition),
            None => Err(Status::internal(format!("the definition {} has no storage version", object.name()))),
        }
    }

    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.group.clone(), self.names.plural.clone())
    }

    /// Whether it has not got all the names it asks for.
    pub fn is_in_conflict(&self) -> bool {
        self.names != self.accepted
    }

    fn storage_version(&self) -> Option<&Version> {
        self.versions.iter().find(|version| version.storage)
    }

    /// The rows and rules that the definition stands for.
    pub fn serve(&self, source: &Arc<Source>) -> Option<Served> {
        let stored = &self.storage_version()?.name;
        let (mut rows, mut versions) = (Vec::new(), Vec::new());
        let mut stored_row = None;
        let mut strategy = CustomStrategy::default();
        for version in &self.versions {
            let schema = Arc::new(VersionSchema::new(self, version, source.clone()));
            let row = Arc::new(self.row(version, stored, Codec::custom(schema.clone())));
            strategy.add(version, schema);
            versions.push(row.clone());
            if version.name == *stored {
                stored_row = Some(row.clone());
            }
            if version.served {
                rows.push(row);
            }
        }
        Some(Served { stored: stored_row?, versions, rows, strategy: Arc::new(strategy) })
    }

    fn row(&self, version: &Version, stored: &str, codec: Codec) -> Kind {
        let gvk = |version: &str| {
            GroupVersionKind::new(self.group.clone(), version.to_string(), self.accepted.kind.clone())
        };
        let words = |words: &[String]| words.iter().map(|word| Cow::Owned(word.clone())).collect();
        let subresource = |name: &'static str, kind: GroupVersionKind| Subresource {
            name: name.into(),
            kind,
            verbs: ["get", "patch", "update"].map(Cow::Borrowed).to_vec(),
        };
        let mut subresources = Vec::new();
        if version.has_status {
            subresources.push(subresource("status", gvk(&version.name)));
        }
        if version.scale.is_some() {
            subresources.push(subresource("scale", GroupVersionKind::new("autoscaling", "v1", "Scale")));
        }
        Kind {
            group: self.group.clone().into(),
            version: version.name.clone().into(),
            kind: self.accepted.kind.clone().into(),
            plural: self.accepted.plural.clone().into(),
            singular: self.accepted.singular.clone().into(),
            list_kind: self.accepted.list_kind.clone().into(),
            scope: self.scope,
            verbs: VERBS.iter().map(|verb| Cow::Borrowed(*verb)).collect(),
            short_names: words(&self.accepted.short_names),
            categories: words(&self.accepted.categories),
            subresources,
            by_default: true,
            storage_prefix: format!("{}/{}", self.group, self.accepted.plural).into(),
            storage_version: gvk(stored),
            hash_version: None,
            codec,
            returns_deleted: false,
            is_resource_metrics: false,
            deprecation: version.deprecation.clone().map(Into::into),
            terminating: self.terminating,
            generation: Some(format!("{}/{}", self.uid, self.generation).into()),
        }
    }
}

impl Names {
    fn read(value: &Value) -> Names {
        Names {
            plural: text(&value["plural"]),
            singular: text(&value["singular"]),
            kind: text(&value["kind"]),
            list_kind: text(&value["listKind"]),
            short_names: texts(&value["shortNames"]),
            categories: texts(&value["categories"]),
        }
    }
}

impl Version {
    fn read(version: &Value, spec: &Value, names: &Names) -> Version {
        let name = text(&version["name"]);
        let deprecation = (version["deprecated"] == true).then(|| match &version["deprecationWarning"] {
            Value::String(warning) => warning.clone(),
            _ => deprecation(&name, spec, names),
        });
        let scale = version.pointer("/subresources/scale").filter(|scale| scale.is_object());
        let columns = version["additionalPrinterColumns"].as_array().into_iter().flatten();
        let selectable = version["selectableFields"].as_array().into_iter().flatten();
        Version {
            served: version["served"] == true,
            storage: version["storage"] == true,
            deprecation,
            has_status: version.pointer("/subresources/status").is_some_and(Value::is_object),
            scale: scale.map(|scale| Scale {
                replicas: path(&scale["specReplicasPath"]),
                status_replicas: path(&scale["statusReplicasPath"]),
                selector: Some(path(&scale["labelSelectorPath"])).filter(|path| !path.is_empty()),
            }),
            columns: columns.map(PrinterColumn::read).collect(),
            selectable: selectable.map(|field| path(&field["jsonPath"])).collect(),
            name,
        }
    }

    pub(super) fn table_columns(&self) -> Vec<Column> {
        let age = [PrinterColumn {
            name: "Age".into(),
            kind: "date".into(),
            format: String::new(),
            description: AGE_DESCRIPTION.into(),
            priority: 0,
            json_path: ".metadata.creationTimestamp".into(),
        }];
        let columns = if self.columns.is_empty() { &age[..] } else { &self.columns };
        let made = columns.iter().filter_map(|column| {
            // The definition was checked; a path that cannot be read shows nothing.
            let path = Template::parse_relaxed(&column.json_path).ok()?;
            let PrinterColumn { name, kind, format, description, priority, json_path } = column;
            let description = match description.as_str() {
                "" => format!("Custom resource definition column (in JSONPath format): {json_path}"),
                description => description.to_string(),
            };
            Some(Column::custom(name, kind, format, &description, *priority, path))
        });
        made.collect()
    }

    pub(super) fn scale_paths(&self) -> Option<ScalePaths> {
        self.scale.as_ref().map(|scale| ScalePaths {
            replicas: scale.replicas.clone().into(),
            status_replicas: scale.status_replicas.clone().into(),
            selector: scale.selector.clone().map(Into::into),
        })
    }

    pub(super) fn selectable_fields(&self) -> impl Iterator<Item = Selectable> {
        self.selectable.iter().map(|path| Selectable {
            field: path.clone().into(),
            path: path.clone().into(),
            absent: "",
        })
    }
}

impl PrinterColumn {
    fn read(column: &Value) -> PrinterColumn {
        PrinterColumn {
            name: text(&column["name"]),
            kind: text(&column["type"]),
            format: text(&column["format"]),
            description: text(&column["description"]),
            priority: column["priority"].as_i64().and_then(|number| i32::try_from(number).ok()).unwrap_or(0),
            json_path: text(&column["jsonPath"]),
        }
    }
}

/// What is said of a deprecated version that says nothing itself. It names the newest version to use in its place.
fn deprecation(name: &str, spec: &Value, names: &Names) -> String {
    let group = spec["group"].as_str().unwrap_or("");
    let versions = spec["versions"].as_array().into_iter().flatten();
    let usable = versions.filter(|version| version["served"] == true && version["deprecated"] != true);
    let newer = usable
        .filter_map(|version| version["name"].as_str())
        .filter(|other| priorities::compare_versions(other, name).is_gt())
        .max_by(|a, b| priorities::compare_versions(a, b));
    match newer {
        Some(newer) => {
            format!("{group}/{name} {} is deprecated; use {group}/{newer} {}", names.kind, names.kind)
        }
        None => format!("{group}/{name} {} is deprecated", names.kind),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("").to_string()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

fn path(value: &Value) -> String {
    value.as_str().unwrap_or("").trim_start_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_outline_says_all_but_the_schemas() {
        let schema =
            json!({"openAPIV3Schema": {"type": "object", "properties": {"schema": {"type": "string"}}}});
        let version = |name: &str| {
            json!({
                "name": name, "served": true, "storage": name == "v1", "schema": schema,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}},
                "additionalPrinterColumns": [{"name": "schema", "type": "string", "jsonPath": ".schema"}],
                "selectableFields": [{"jsonPath": ".schema"}],
            })
        };
        let whole = Object::from_value(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.example.com", "uid": "u", "generation": 3, "annotations": {"schema": "kept"}},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": "widgets", "kind": "Widget", "listKind": "WidgetList", "shortNames": ["w"]},
                "versions": [version("v1"), version("v2")],
                "conversion": {"strategy": "Webhook", "webhook": {"schema": 1}},
            },
            "status": {"acceptedNames": {"plural": "widgets"}, "conditions": [{"type": "Established", "status": "True"}]},
        }))
        .expect("an object");
        let outlined = outline(&whole.to_stored_json()).expect("an outline");
        assert_eq!(Definition::read(&outlined).ok(), Definition::read(&whole).ok());
        assert_eq!(outlined.annotation("schema"), Some("kept"));
        assert!(!outlined.to_stored_json().windows(15).any(|text| text == b"openAPIV3Schema"));
        let spaced = br#"{"metadata": {"name": "a"}, "spec": {"versions": [{"schema": {}}]}}"#;
        assert_eq!(outline(spaced).expect("text of others").name(), "a");
        assert!(outline(b"{").is_err());
    }
}
