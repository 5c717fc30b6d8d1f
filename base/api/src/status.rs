//! `Status`: the API's error value. Every refusal of the server is built here, by name, so that one
//! thing is always said in the same words.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

use crate::excerpt;
use crate::field_error::{FieldError, FieldErrors};
use crate::kinds::GroupResource;

/// An answer that says why not is no place to send a body back in.
const LONGEST_MESSAGE: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    pub status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
    #[serde(default)]
    pub code: u16,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Status {
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Status {
        Status {
            kind: "Status".into(),
            api_version: "v1".into(),
            metadata: Default::default(),
            status: "Failure".into(),
            message: excerpt::of_owned(message.into(), LONGEST_MESSAGE),
            reason: reason.into(),
            details: None,
            code,
        }
    }

    /// The answer to a delete that removed the object.
    pub fn deleted(resource: &GroupResource, name: &str, uid: &str) -> Status {
        let mut status = Status::new(200, "", "").about(resource, name);
        status.status = "Success".into();
        if let Some(details) = &mut status.details {
            details.uid = uid.into();
        }
        status
    }

    pub fn success() -> Status {
        Status { status: "Success".into(), ..Status::new(200, "", "") }
    }

    pub fn bad_request(message: impl Into<String>) -> Status {
        Status::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Status {
        Status::new(401, "Unauthorized", "Unauthorized")
    }

    /// `why` is what an authorizer or admission plugin said.
    pub fn forbidden(resource: &GroupResource, name: &str, why: impl Display) -> Status {
        let message = match (resource.resource.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (_, true) => format!("{resource} is forbidden: {why}"),
            _ => format!("{resource} {name:?} is forbidden: {why}"),
        };
        Status::new(403, "Forbidden", message).about(resource, name)
    }

    pub fn not_found(resource: &GroupResource, name: &str) -> Status {
        Status::new(404, "NotFound", format!("{resource} {name:?} not found")).about(resource, name)
    }

    /// The path leads nowhere.
    pub fn no_such_path() -> Status {
        Status::new(404, "NotFound", "the server could not find the requested resource")
            .with_details(Details::default())
    }

    pub fn method_not_allowed() -> Status {
        Status::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
        .with_details(Details::default())
    }

    pub fn not_acceptable(accepted: &[&str]) -> Status {
        Status::new(
            406,
            "NotAcceptable",
            format!("only the following media types are accepted: {}", accepted.join(", ")),
        )
    }

    /// None of the media types that the client takes is one of the server's at all.
    pub fn no_representation(available: &[&str]) -> Status {
        Status::new(
            406,
            "NotAcceptable",
            format!("406: Not Acceptable\n\nAvailable representations: {}", available.join(", ")),
        )
    }

    pub fn already_exists(resource: &GroupResource, name: &str) -> Status {
        Status::new(409, "AlreadyExists", format!("{resource} {name:?} already exists")).about(resource, name)
    }

    pub fn conflict(resource: &GroupResource, name: &str, why: impl Display) -> Status {
        Status::new(409, "Conflict", format!("Operation cannot be fulfilled on {resource} {name:?}: {why}"))
            .about(resource, name)
    }

    /// The object changed between the client's read and its write.
    pub fn modified(resource: &GroupResource, name: &str) -> Status {
        Status::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub fn gone(message: impl Into<String>) -> Status {
        Status::new(410, "Gone", message)
    }

    pub fn expired(message: impl Into<String>) -> Status {
        Status::new(410, "Expired", message)
    }

    pub fn too_large(limit: usize) -> Status {
        Status::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"))
    }

    pub fn unsupported_media_type(accepted: &[&str]) -> Status {
        Status::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                accepted.join(", ")
            ),
        )
    }

    /// A media type that the server takes nowhere.
    pub fn unknown_media_type() -> Status {
        Status::new(415, "UnsupportedMediaType", "415: Unsupported Media Type")
    }

    /// What the client sent cannot be understood, and no rule says what to call that.
    pub fn unexpected(why: impl Display) -> Status {
        Status::new(500, "", why.to_string())
    }

    pub fn invalid(group: &str, kind: &str, name: &str, errors: &FieldErrors) -> Status {
        let name = excerpt::of(name, excerpt::LONGEST_VALUE);
        Status::new(422, "Invalid", format!("{kind}{} {name:?} is invalid: {errors}", dotted(group)))
            .with_details(Details {
                name: name.into_owned(),
                group: group.into(),
                kind: kind.into(),
                causes: errors.0.iter().map(FieldError::cause).collect(),
                ..Details::default()
            })
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Status {
        Status::new(429, "TooManyRequests", message)
            .with_details(Details { retry_after_seconds, ..Details::default() })
    }

    pub fn internal(why: impl Display) -> Status {
        let why = excerpt::of_owned(why.to_string(), LONGEST_MESSAGE);
        Status::new(500, "InternalError", format!("Internal error occurred: {why}")).with_details(Details {
            causes: vec![Cause { message: why, ..Cause::default() }],
            ..Details::default()
        })
    }

    pub fn unavailable(message: impl Into<String>) -> Status {
        Status::new(503, "ServiceUnavailable", message)
    }

    pub fn timeout(why: impl Display) -> Status {
        Status::new(504, "Timeout", format!("Timeout: {why}"))
    }

    pub fn about(self, resource: &GroupResource, name: &str) -> Status {
        self.with_details(Details {
            name: name.into(),
            group: resource.group.to_string(),
            kind: resource.resource.to_string(),
            ..Details::default()
        })
    }

    pub fn with_details(mut self, details: Details) -> Status {
        self.details = Some(details);
        self
    }

    pub fn is_already_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a Status writes to memory")
    }
}

/// `.apps` for the group apps, nothing for the core group.
fn dotted(group: &str) -> String {
    if group.is_empty() { String::new() } else { format!(".{group}") }
}

/// The same error from two rules is said once.
fn distinct(errors: &[FieldError]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for error in errors {
        let line = error.to_string();
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// One error as it is, several as a list.
impl Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match distinct(&self.0).as_slice() {
            [one] => f.write_str(one),
            many => write!(f, "[{}]", many.join(", ")),
        }
    }
}

impl Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_worded_as_users_know_them() {
        let pods = GroupResource::new("", "pods");
        let deployments = GroupResource::new("apps", "deployments");
        assert_eq!(Status::not_found(&pods, "a").message, r#"pods "a" not found"#);
        assert_eq!(
            Status::already_exists(&deployments, "a").message,
            r#"deployments.apps "a" already exists"#
        );
        let mut errors = FieldErrors::default();
        errors.required("spec.selector", "");
        errors.required("spec.selector", "");
        assert_eq!(
            Status::invalid("apps", "Deployment", "a", &errors).message,
            r#"Deployment.apps "a" is invalid: spec.selector: Required value"#
        );
    }
}
