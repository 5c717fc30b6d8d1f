//! `'abc 123'.find('[0-9]+')`, and `findAll`. Expressions are bounded in size, and the engine takes time
//! linear in the text.

use cel::common::types::{CelInt, CelList, CelString};
use cel::common::value::Val;
use cel::{DeclarationError, Env, ExecutionError, add_member_overload};
use regex::{Regex, RegexBuilder};

use super::wrong;

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    add_member_overload!(env, fn find: (CelString, CelString) -> Result<CelString>)?;
    add_member_overload!(env, fn find_all: (CelString, CelString) -> Result<CelList>)?;
    add_member_overload!(env, fn find_some: (CelString, CelString, CelInt) -> Result<CelList>, name = "findAll")
}

fn compile(pattern: &str) -> Result<Regex, ExecutionError> {
    RegexBuilder::new(pattern)
        .size_limit(1 << 20)
        .build()
        .map_err(|error| wrong("find", format!("illegal regex: {error}")))
}

fn find(this: &CelString<'_>, pattern: &CelString<'_>) -> Result<CelString<'static>, ExecutionError> {
    let found = compile(pattern.inner())?;
    Ok(CelString::from(found.find(this.inner()).map_or("", |found| found.as_str()).to_string()))
}

fn all(text: &str, pattern: &str, most: usize) -> Result<CelList<'static>, ExecutionError> {
    let found = compile(pattern)?;
    let found = found.find_iter(text).take(most);
    let found: Vec<Box<dyn Val>> =
        found.map(|found| Box::new(CelString::from(found.as_str().to_string())) as Box<dyn Val>).collect();
    Ok(CelList::from(found))
}

fn find_all(this: &CelString<'_>, pattern: &CelString<'_>) -> Result<CelList<'static>, ExecutionError> {
    all(this.inner(), pattern.inner(), usize::MAX)
}

fn find_some(
    this: &CelString<'_>,
    pattern: &CelString<'_>,
    most: &CelInt,
) -> Result<CelList<'static>, ExecutionError> {
    all(this.inner(), pattern.inner(), usize::try_from(*most.inner()).unwrap_or(usize::MAX))
}
