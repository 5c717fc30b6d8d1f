//! How objects of a kind are read and written. Built-in kinds have field rows; a custom resource has a
//! schema that came with its definition. What differs between the two is here and nowhere else.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::decode::Form;
use crate::defaulting;
use crate::json::{Decoded, FieldValidation, Reading};
use crate::kinds::{GroupVersionKind, Kind};
use crate::object::Object;
use crate::openapi::schemas::Version;
use crate::protobuf;
use crate::status::Status;
use crate::types::Schema;

#[derive(Debug, Clone)]
pub enum Codec {
    /// Field rows: JSON, YAML and protobuf.
    Typed(Schema),
    /// A schema made at run time: JSON and YAML. Only the metadata has field rows.
    Custom { schema: Arc<dyn CustomSchema>, metadata: Schema },
}

/// The schema of one version of a custom resource.
pub trait CustomSchema: fmt::Debug + Send + Sync {
    /// Removes the fields that the schema does not specify, and says which.
    fn prune(&self, object: &mut Map<String, Value>) -> Vec<String>;

    fn set_defaults(&self, object: &mut Map<String, Value>);

    /// The schema as field rows, for field ownership and server-side apply.
    fn field_rows(&self) -> &Schema;

    /// The kind's definition as OpenAPI publishes it.
    fn open_api(&self, version: Version) -> Value;

    /// The definition of its list.
    fn open_api_list(&self, version: Version) -> Value;
}

const JSON_AND_YAML: &[&str] = &["application/json", "application/yaml"];

impl Codec {
    pub fn builtin(gvk: &GroupVersionKind) -> Codec {
        Codec::Typed(Schema::builtin(gvk).expect("the table has the type of every built-in kind"))
    }

    pub fn custom(schema: Arc<dyn CustomSchema>) -> Codec {
        Codec::Custom { schema, metadata: Schema::custom_object() }
    }

    /// The field rows of a built-in kind.
    pub fn typed(&self) -> Option<&Schema> {
        match self {
            Codec::Typed(schema) => Some(schema),
            Codec::Custom { .. } => None,
        }
    }

    pub fn has_protobuf(&self) -> bool {
        self.typed().is_some()
    }

    /// The rows that say how fields are owned and merged.
    pub fn field_rows(&self) -> &Schema {
        match self {
            Codec::Typed(schema) => schema,
            Codec::Custom { schema, .. } => schema.field_rows(),
        }
    }

    pub fn set_defaults(&self, object: &mut Object) {
        match self {
            Codec::Typed(schema) => defaulting::apply(object, schema),
            Codec::Custom { schema, .. } => schema.set_defaults(&mut object.0),
        }
    }
}

impl Kind {
    pub fn decode_json(&self, bytes: &[u8], validation: FieldValidation) -> Result<Decoded, Status> {
        self.reading(Form::Whole, validation, |reading| reading.json(bytes))
    }

    pub fn decode_yaml(&self, bytes: &[u8], validation: FieldValidation) -> Result<Decoded, Status> {
        self.reading(Form::Whole, validation, |reading| reading.yaml(bytes))
    }

    /// An apply configuration, in YAML or JSON.
    pub fn decode_applied(&self, bytes: &[u8], validation: FieldValidation) -> Result<Decoded, Status> {
        self.reading(Form::Applied, validation, |reading| reading.yaml(bytes))
    }

    /// A value that is in memory already.
    pub fn decode_value(&self, value: Value, validation: FieldValidation) -> Result<Decoded, Status> {
        self.reading(Form::Whole, validation, |reading| reading.value(value))
    }

    pub fn decode_protobuf(&self, bytes: &[u8]) -> Result<Object, Status> {
        match self.codec.typed() {
            Some(schema) => protobuf::decode_as(bytes, schema),
            None => Err(Status::unsupported_media_type(JSON_AND_YAML)),
        }
    }

    pub fn encode_protobuf(&self, object: &Object) -> Result<Vec<u8>, Status> {
        let schema = self.codec.typed().ok_or_else(|| Status::not_acceptable(JSON_AND_YAML))?;
        protobuf::encode(object, schema).map_err(|error| Status::internal(error.to_string()))
    }

    fn reading<T>(
        &self,
        form: Form,
        validation: FieldValidation,
        read: impl FnOnce(Reading<'_>) -> Result<T, Status>,
    ) -> Result<T, Status> {
        match &self.codec {
            Codec::Typed(schema) => read(Reading::typed(schema, form, validation)),
            Codec::Custom { schema, metadata } => read(Reading {
                custom: Some(schema.as_ref()),
                kind: Some(&self.gvk()),
                ..Reading::typed(metadata, form, validation)
            }),
        }
    }

    /// The name of the kind's definition in the OpenAPI documents.
    pub fn definition_name(&self) -> Cow<'_, str> {
        match &self.codec {
            Codec::Typed(schema) => Cow::Borrowed(&schema.root().name),
            Codec::Custom { .. } => Cow::Owned(self.custom_definition_name(&self.kind)),
        }
    }

    /// The name of its list's definition.
    pub fn list_definition_name(&self) -> String {
        match &self.codec {
            Codec::Typed(schema) => format!("{}List", schema.root().name),
            Codec::Custom { .. } => self.custom_definition_name(&self.list_kind),
        }
    }

    /// `com.example.v1.Widget` of the group `example.com`: the group's parts in reverse, as Java names packages.
    fn custom_definition_name(&self, kind: &str) -> String {
        let group: Vec<&str> = self.group.split('.').rev().collect();
        format!("{}.{}.{kind}", group.join("."), self.version)
    }
}
