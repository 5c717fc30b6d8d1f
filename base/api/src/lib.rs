//! The API itself, as data: which kinds exist, which fields they have, and what an object, a status,
//! a selector and a quantity are. Codecs, OpenAPI and discovery are read off the same rows.
//!
//! This room does no I/O and knows no server, no client and no storage. Built-in kinds and custom
//! resources are the same rows; only where the rows come from differs.
//!
//! Start reading at [`types`] (the field rows), then [`kinds`] (the kind rows), then [`object`].

pub mod field_error;
pub mod kinds;
pub mod object;
pub mod status;
pub mod types;

pub use field_error::{FieldError, FieldErrors};
pub use kinds::{GroupResource, GroupVersionKind, Kind, Scope, Subresource};
pub use object::Object;
pub use status::Status;
pub use types::{Field, Schema, Shape, Type, TypeId, Types};
