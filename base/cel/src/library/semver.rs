//! `semver('1.2.3').isLessThan(semver('2.0.0'))`: semantic versions.

use std::cmp::Ordering;

use cel::common::types::{CelBool, CelInt, CelString};
use cel::common::value::{StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};
use semver::Version;

use super::{opaque, wrong};

#[derive(Debug, Clone)]
pub struct Semver(Version);

opaque!(Semver, "kubernetes.Semver");

impl Semver {
    pub fn parse(text: &str) -> Result<Semver, semver::Error> {
        Version::parse(text).map(Semver)
    }
}

/// What comes after a plus says nothing about precedence.
impl PartialEq for Semver {
    fn eq(&self, other: &Semver) -> bool {
        self.0.cmp_precedence(&other.0) == Ordering::Equal
    }
}

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    add_overload!(env, fn semver: (CelString) -> Result<Semver>)?;
    add_overload!(env, fn semver_normalized: (CelString, CelBool) -> Result<Semver>, name = "semver")?;
    add_overload!(env, fn is_semver: (CelString) -> CelBool)?;
    add_overload!(env, fn is_semver_normalized: (CelString, CelBool) -> CelBool, name = "isSemver")?;
    add_member_overload!(env, fn is_less_than: (Semver, Semver) -> CelBool)?;
    add_member_overload!(env, fn is_greater_than: (Semver, Semver) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (Semver, Semver) -> CelInt)?;
    add_member_overload!(env, fn major: (Semver) -> CelInt)?;
    add_member_overload!(env, fn minor: (Semver) -> CelInt)?;
    add_member_overload!(env, fn patch: (Semver) -> CelInt)
}

/// `normalize` forgives a leading v, leading zeros and absent parts.
fn parse(text: &str, normalize: bool) -> Result<Version, ExecutionError> {
    let refuse = |error: semver::Error| wrong("semver", format!("invalid semver {text:?}: {error}"));
    if !normalize {
        return Version::parse(text).map_err(refuse);
    }
    let plain = text.strip_prefix('v').unwrap_or(text);
    let (core, suffix) = plain.split_at(plain.find(['-', '+']).unwrap_or(plain.len()));
    let mut parts: Vec<&str> = core
        .split('.')
        .map(|part| match part.trim_start_matches('0') {
            "" if !part.is_empty() => "0",
            trimmed => trimmed,
        })
        .collect();
    while parts.len() < 3 {
        parts.push("0");
    }
    Version::parse(&format!("{}{suffix}", parts.join("."))).map_err(refuse)
}

fn semver(text: &CelString<'_>) -> Result<Semver, ExecutionError> {
    parse(text.inner(), false).map(Semver)
}

fn semver_normalized(text: &CelString<'_>, normalize: &CelBool) -> Result<Semver, ExecutionError> {
    parse(text.inner(), *normalize.inner()).map(Semver)
}

fn is_semver(text: &CelString<'_>) -> CelBool {
    parse(text.inner(), false).is_ok().into()
}

fn is_semver_normalized(text: &CelString<'_>, normalize: &CelBool) -> CelBool {
    parse(text.inner(), *normalize.inner()).is_ok().into()
}

fn is_less_than(this: &Semver, other: &Semver) -> CelBool {
    (this.0.cmp_precedence(&other.0) == Ordering::Less).into()
}

fn is_greater_than(this: &Semver, other: &Semver) -> CelBool {
    (this.0.cmp_precedence(&other.0) == Ordering::Greater).into()
}

fn compare_to(this: &Semver, other: &Semver) -> CelInt {
    CelInt::from(this.0.cmp_precedence(&other.0) as i64)
}

fn major(this: &Semver) -> CelInt {
    CelInt::from(this.0.major as i64)
}

fn minor(this: &Semver) -> CelInt {
    CelInt::from(this.0.minor as i64)
}

fn patch(this: &Semver) -> CelInt {
    CelInt::from(this.0.patch as i64)
}
