//! Structural schemas of custom resources, as defined by `apiextensions.k8s.io/v1`: validation of the schemas themselves
//! ([`check`]), pruning and defaults of objects ([`prune`], [`default`]), validation of objects ([`validate`], [`rules`])
//! and OpenAPI ([`publish`]).
//!
//! This crate works on JSON values. It knows no HTTP, store or registry; callers decide how long they keep a schema.
//!
//! Start reading at [`structural`].

pub mod check;
mod decl;
pub mod default;
mod embedded;
mod field_path;
mod format;
mod path;
mod pattern;
pub mod prune;
pub mod publish;
pub mod rules;
pub mod structural;
pub mod validate;
mod words;

pub use rules::Rules;
pub use structural::Structural;

use ferry_api::FieldErrors;

/// Hands errors on one by one, so that the list they come into keeps its own limits.
pub(crate) fn hand_on(found: FieldErrors, errors: &mut FieldErrors) {
    for error in found.0 {
        errors.push(error.path, error.reason, error.detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_and_rules_are_shared_by_threads() {
        fn is_shared<T: Send + Sync>() {}
        is_shared::<Structural>();
        is_shared::<Rules>();
    }
}
