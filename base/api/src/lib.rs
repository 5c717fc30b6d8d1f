//! The API itself, as data: which kinds exist, which fields they have, and what an object, a status,
//! a selector and a quantity are. Codecs, OpenAPI and discovery are read off the same rows.
//!
//! This room does no I/O and knows no server, no client and no storage. Built-in kinds and custom
//! resources are the same rows; only where the rows come from differs.
//!
//! Start reading at [`types`] (the field rows), then [`kinds`] (the kind rows), then [`object`]. An
//! object comes in through [`decode`], the one pass behind [`json`] and [`yaml`], or through
//! [`protobuf`]; [`defaulting`] and [`convert`] finish it. [`read`] and [`mod@write`] are for text of the server's own:
//! what is stored. [`discovery`] and [`openapi`] tell clients
//! about the rows; [`selector`], [`quantity`], [`time`], [`duration`] and [`names`] are the values all rooms share,
//! [`quota`] what objects cost, [`certificate_request`] what is asked of a signer, and [`local_volume`] how volumes on a
//! node's disk are named.

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
