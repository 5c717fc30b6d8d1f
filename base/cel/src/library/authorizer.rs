//! `authorizer.group('').resource('pods').namespace('a').check('get').allowed()`.

use cel::common::types::{CelBool, CelString};
use cel::common::value::{StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload};

use super::{opaque, wrong};
use crate::access::{Access, AccessReviews, Question};

#[derive(Debug, Clone, PartialEq)]
pub struct Authorizer {
    pub answers: AccessReviews,
    pub service_account: Option<(String, String)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PathCheck {
    answers: AccessReviews,
    question: Question,
}

#[derive(Debug, Clone, PartialEq)]
pub struct GroupCheck {
    answers: AccessReviews,
    question: Question,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ResourceCheck {
    pub answers: AccessReviews,
    pub question: Question,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision(Access);

opaque!(Authorizer, "kubernetes.authorization.Authorizer");
opaque!(PathCheck, "kubernetes.authorization.PathCheck");
opaque!(GroupCheck, "kubernetes.authorization.GroupCheck");
opaque!(ResourceCheck, "kubernetes.authorization.ResourceCheck");
opaque!(Decision, "kubernetes.authorization.Decision");

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    add_member_overload!(env, fn service_account: (Authorizer, CelString, CelString) -> Authorizer)?;
    add_member_overload!(env, fn path: (Authorizer, CelString) -> Result<PathCheck>)?;
    add_member_overload!(env, fn group: (Authorizer, CelString) -> GroupCheck)?;
    add_member_overload!(env, fn resource: (GroupCheck, CelString) -> ResourceCheck)?;
    add_member_overload!(env, fn subresource: (ResourceCheck, CelString) -> ResourceCheck)?;
    add_member_overload!(env, fn namespace: (ResourceCheck, CelString) -> ResourceCheck)?;
    add_member_overload!(env, fn name: (ResourceCheck, CelString) -> ResourceCheck)?;
    add_member_overload!(env, fn field_selector: (ResourceCheck, CelString) -> ResourceCheck)?;
    add_member_overload!(env, fn label_selector: (ResourceCheck, CelString) -> ResourceCheck)?;
    add_member_overload!(env, fn check_path: (PathCheck, CelString) -> Result<Decision>, name = "check")?;
    add_member_overload!(env, fn check_resource: (ResourceCheck, CelString) -> Result<Decision>, name = "check")?;
    add_member_overload!(env, fn allowed: (Decision) -> CelBool)?;
    add_member_overload!(env, fn reason: (Decision) -> CelString)?;
    add_member_overload!(env, fn errored: (Decision) -> CelBool)?;
    add_member_overload!(env, fn error: (Decision) -> CelString)
}

fn service_account(this: &Authorizer, namespace: &CelString<'_>, name: &CelString<'_>) -> Authorizer {
    let account = (namespace.inner().to_string(), name.inner().to_string());
    Authorizer { answers: this.answers.clone(), service_account: Some(account) }
}

fn path(this: &Authorizer, path: &CelString<'_>) -> Result<PathCheck, ExecutionError> {
    if path.inner().is_empty() {
        return Err(wrong("path", "path must not be empty"));
    }
    let path = Some(path.inner().to_string());
    let question = Question { service_account: this.service_account.clone(), path, ..Question::default() };
    Ok(PathCheck { answers: this.answers.clone(), question })
}

fn group(this: &Authorizer, group: &CelString<'_>) -> GroupCheck {
    let group = group.inner().to_string();
    let question = Question { service_account: this.service_account.clone(), group, ..Question::default() };
    GroupCheck { answers: this.answers.clone(), question }
}

fn resource(this: &GroupCheck, resource: &CelString<'_>) -> ResourceCheck {
    let question = Question { resource: resource.inner().to_string(), ..this.question.clone() };
    ResourceCheck { answers: this.answers.clone(), question }
}

impl ResourceCheck {
    fn with(&self, set: impl FnOnce(&mut Question)) -> ResourceCheck {
        let mut check = self.clone();
        set(&mut check.question);
        check
    }
}

fn subresource(this: &ResourceCheck, value: &CelString<'_>) -> ResourceCheck {
    this.with(|question| question.subresource = value.inner().to_string())
}

fn namespace(this: &ResourceCheck, value: &CelString<'_>) -> ResourceCheck {
    this.with(|question| question.namespace = value.inner().to_string())
}

fn name(this: &ResourceCheck, value: &CelString<'_>) -> ResourceCheck {
    this.with(|question| question.name = value.inner().to_string())
}

fn field_selector(this: &ResourceCheck, value: &CelString<'_>) -> ResourceCheck {
    this.with(|question| question.field_selector = value.inner().to_string())
}

fn label_selector(this: &ResourceCheck, value: &CelString<'_>) -> ResourceCheck {
    this.with(|question| question.label_selector = value.inner().to_string())
}

fn ask(
    answers: &AccessReviews,
    question: &Question,
    verb: &CelString<'_>,
) -> Result<Decision, ExecutionError> {
    let question = Question { verb: verb.inner().to_string(), ..question.clone() };
    answers.look_up(&question).map(Decision).ok_or_else(|| wrong("check", "not answered yet"))
}

fn check_path(this: &PathCheck, verb: &CelString<'_>) -> Result<Decision, ExecutionError> {
    ask(&this.answers, &this.question, verb)
}

fn check_resource(this: &ResourceCheck, verb: &CelString<'_>) -> Result<Decision, ExecutionError> {
    ask(&this.answers, &this.question, verb)
}

fn allowed(this: &Decision) -> CelBool {
    this.0.allowed.into()
}

fn reason(this: &Decision) -> CelString<'static> {
    CelString::from(this.0.reason.clone())
}

fn errored(this: &Decision) -> CelBool {
    this.0.error.is_some().into()
}

fn error(this: &Decision) -> CelString<'static> {
    CelString::from(this.0.error.clone().unwrap_or_default())
}
