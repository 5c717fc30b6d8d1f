//! The Kubernetes API as data: the kinds and their fields, and the types for objects, statuses, selectors and quantities.
//! Codecs, OpenAPI and discovery are derived from the same rows.
//!
//! This crate does no I/O and knows no server, client or storage. Built-in kinds and custom resources use the same
//! rows; only the source of the rows differs.
//!
//! Start reading at [`types`] (the field rows), then [`kinds`] (the kind rows), then [`object`]. [`decode`] is the single
//! pass behind [`json`] and [`yaml`]; [`protobuf`] has its own decoder. [`defaulting`] and [`convert`] complete an object.
//! [`read`] and [`mod@write`] are for the stored form. [`discovery`] and [`openapi`] publish the rows. [`selector`],
//! [`quantity`], [`time`], [`duration`] and [`names`] are values that all crates share; [`quota`] computes the usage of
//! objects, [`certificate_request`] parses the request in a CertificateSigningRequest, and [`local_volume`] names volumes
//! on a node's disk.

pub mod certificate_request;
pub mod codec;
pub mod convert;
pub mod csi_volume;
pub mod declared_features;
pub mod decode;
pub mod defaulting;
pub mod depth;
pub mod device_taint;
pub mod discovery;
pub mod duration;
pub mod excerpt;
pub mod field_error;
pub mod go_json;
pub mod json;
pub mod json_path;
pub mod kinds;
pub mod local_volume;
mod managers;
pub mod names;
pub mod object;
pub mod openapi;
pub mod pod_resources;
pub mod private_key;
pub mod protobuf;
pub mod quantity;
pub mod quota;
pub mod read;
pub mod selector;
pub mod status;
pub mod table;
pub mod time;
pub mod types;
pub mod user;
pub mod view;
mod word;
pub mod write;
pub mod yaml;
pub mod zero;

pub use codec::{Codec, CustomSchema};
pub use depth::MAX_DEPTH;
pub use field_error::{FieldError, FieldErrors};
pub use json::FieldValidation;
pub use kinds::{GroupResource, GroupVersionKind, Kind, Scope, Subresource};
pub use managers::ManagedFieldsEntry;
pub use object::Object;
pub use quantity::Quantity;
pub use selector::{FieldSelector, LabelSelector};
pub use status::Status;
pub use types::{Field, Schema, Shape, Type, TypeId, Types};
pub use user::User;
