//! `jsonpatch.escapeKey('a/b')`: a name as a step of a JSON pointer (RFC 6901).

use cel::common::types::CelString;
use cel::{DeclarationError, Env, add_overload};

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    add_overload!(env, fn escape_key: (CelString) -> CelString, name = "jsonpatch.escapeKey")
}

fn escape_key<'v>(key: &CelString<'_>) -> CelString<'v> {
    CelString::from(key.inner().replace('~', "~0").replace('/', "~1"))
}
