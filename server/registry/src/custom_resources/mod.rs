//! Custom resources: what a CustomResourceDefinition says becomes the same rows and the same strategy that
//! built-in kinds have, made at run time. Verbs, cache and store know no difference.
//!
//! [`definition`] reads a definition, [`schema`] is the codec of one of its versions, [`strategy`] its rules. What a
//! definition itself must be is a kind's own matter: `kinds/custom_resource_definition`.

pub mod approval;
pub mod conditions;
pub mod definition;
pub mod schema;
pub mod strategy;

pub use definition::{Definition, Source};
pub use strategy::CustomStrategy;
