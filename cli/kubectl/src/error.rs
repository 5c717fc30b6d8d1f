//! What can go wrong, and the one place that puts it into kubectl's words and exit codes.

use std::fmt;

use serde_json::Value;

use crate::fields::Fields;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Clone)]
pub enum Error {
    /// The server answered with a Status.
    Status(Box<Status>),
    /// No resource type of that name is served.
    NoMatch { resource: String },
    /// A sentence of our own; printed after `error: `.
    Message(String),
    /// A sentence printed exactly as it is.
    Plain(String),
    /// The kubeconfig cannot be used.
    Configuration(String),
    /// The process ends with this code; a message is printed if there is one.
    Exit { code: u8, message: String },
    /// Several things went wrong, each worth its own line.
    Many(Vec<Error>),
    /// The user asked for help instead.
    Help,
}

/// The API's error value, as received.
#[derive(Debug, Clone, Default)]
pub struct Status {
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub details: Value,
}

impl Error {
    pub fn message(message: impl Into<String>) -> Self {
        Error::Message(message.into())
    }
    pub fn plain(message: impl Into<String>) -> Self {
        Error::Plain(message.into())
    }
    pub fn exit(code: u8) -> Self {
        Error::Exit { code, message: String::new() }
    }
    pub fn status_code(&self) -> Option<u16> {
        match self {
            Error::Status(status) => Some(status.code),
            _ => None,
        }
    }
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::Status(status) if status.reason == "NotFound" || (status.code == 404 && status.reason.is_empty()))
    }
    pub fn is_conflict(&self) -> bool {
        matches!(self, Error::Status(status) if status.reason == "Conflict")
    }
    pub fn is_invalid(&self) -> bool {
        matches!(self, Error::Status(status) if status.reason == "Invalid")
    }
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Error::Status(status) if status.reason == "AlreadyExists")
    }
    /// Puts `context` in front of the message, keeping what kind of error it is.
    pub fn context(self, context: impl fmt::Display) -> Self {
        match self {
            Error::Status(mut status) => {
                status.message = format!("{context}: {}", status.message);
                Error::Status(status)
            }
            Error::Message(message) => Error::Message(format!("{context}: {message}")),
            other => other,
        }
    }

    /// One error for all of them: none is success, one stays itself.
    pub fn collect(mut errors: Vec<Error>) -> Result<()> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Many(errors)),
        }
    }

    /// What stands on the terminal, and the exit code.
    pub fn render(&self) -> (String, u8) {
        match self {
            Error::Help => (String::new(), 0),
            Error::Exit { code, message } => (message.clone(), *code),
            Error::Many(errors) if errors.len() == 1 => errors[0].render(),
            Error::Many(errors) => {
                let mut lines: Vec<String> = Vec::new();
                for line in errors.iter().map(Error::line_among_others) {
                    if !lines.contains(&line) {
                        lines.push(line);
                    }
                }
                (lines.join("\n"), 1)
            }
            Error::Status(status) if status.reason == "Invalid" => (status.render_invalid(), 1),
            Error::Configuration(message) => (format!("Error in configuration: {message}"), 1),
            other => (other.line(), 1),
        }
    }

    /// The error as one line among others: only the server's own are marked.
    fn line_among_others(&self) -> String {
        match self {
            Error::Status(_) => self.line(),
            other => other.to_string(),
        }
    }

    /// The error on a line of its own.
    pub fn line(&self) -> String {
        match self {
            Error::Status(status) if status.reason == "Unauthorized" => {
                format!("error: You must be logged in to the server ({})", status.message)
            }
            Error::Status(status) if status.reason.is_empty() => {
                format!("Error from server: {}", status.message)
            }
            Error::Status(status) => format!("Error from server ({}): {}", status.reason, status.message),
            Error::Message(message) if message.starts_with("error: ") => message.clone(),
            Error::Message(message) => format!("error: {message}"),
            Error::NoMatch { .. } => format!("error: {self}"),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Status(status) => f.write_str(&status.message),
            Error::NoMatch { resource } => write!(f, "the server doesn't have a resource type {resource:?}"),
            Error::Message(message) | Error::Plain(message) | Error::Configuration(message) => {
                f.write_str(message)
            }
            Error::Exit { message, .. } => f.write_str(message),
            Error::Many(errors) => {
                let lines: Vec<String> = errors.iter().map(Error::to_string).collect();
                write!(f, "[{}]", lines.join(", "))
            }
            Error::Help => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Error::message(error.to_string())
    }
}

/// The operating system's words as Go has them: `no such file or directory`.
pub fn system_words(error: &std::io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

impl From<ferry_client::kubeconfig::KubeconfigError> for Error {
    fn from(error: ferry_client::kubeconfig::KubeconfigError) -> Self {
        Error::message(error.to_string())
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Error::message(error.to_string())
    }
}

impl Status {
    /// Reads a Status out of a response body; a body that is none becomes one.
    pub fn from_response(code: u16, body: &[u8], verb: &str, resource: &str) -> Self {
        if let Ok(value) = serde_json::from_slice::<Value>(body)
            && value.text("kind") == "Status"
        {
            return Status {
                code: value.int("code").and_then(|code| u16::try_from(code).ok()).unwrap_or(code),
                reason: value.text("reason").to_owned(),
                message: value.text("message").to_owned(),
                details: value.at("details").clone(),
            };
        }
        let text = String::from_utf8_lossy(body).trim().to_owned();
        let (reason, message) = match code {
            401 => ("Unauthorized", "the server has asked for the client to provide credentials".to_owned()),
            403 => ("Forbidden", if text.is_empty() { "forbidden".to_owned() } else { text }),
            404 => ("NotFound", "the server could not find the requested resource".to_owned()),
            405 => (
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource".to_owned(),
            ),
            406 => ("NotAcceptable", text),
            409 => (
                if verb == "POST" { "AlreadyExists" } else { "Conflict" },
                "the server reported a conflict".to_owned(),
            ),
            415 => ("UnsupportedMediaType", text),
            429 => (
                "TooManyRequests",
                "the server has received too many requests and has asked us to try again later".to_owned(),
            ),
            500 => (
                "InternalError",
                format!("an error on the server ({text:?}) has prevented the request from succeeding"),
            ),
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request".to_owned()),
            504 => ("Timeout", "the server was unable to return a response in the time allotted".to_owned()),
            _ => (
                "",
                if text.is_empty() {
                    format!(
                        "the server responded with the status code {code} but did not return more information"
                    )
                } else {
                    text
                },
            ),
        };
        let message =
            if resource.is_empty() || code == 403 { message } else { format!("{message} ({resource})") };
        Status { code, reason: reason.to_owned(), message, details: Value::Null }
    }

    fn render_invalid(&self) -> String {
        let kind = self.details.text("kind");
        let name = self.details.text("name");
        let mut causes: Vec<String> = Vec::new();
        for cause in self.details.list("causes") {
            let line = format!("{}: {}", cause.text("field"), cause.text("message"));
            if !causes.contains(&line) {
                causes.push(line);
            }
        }
        let mut sentence = "The request is invalid".to_owned();
        if !kind.is_empty() || !name.is_empty() {
            sentence = format!("The {kind} {name:?} is invalid");
        } else if !self.message.is_empty() && causes.is_empty() {
            sentence = format!("{sentence}: {}", self.message);
        }
        match causes.as_slice() {
            [] => sentence,
            [only] => format!("{sentence}: {only}"),
            many => {
                let bullets: Vec<String> = many.iter().map(|cause| format!("* {cause}")).collect();
                format!("{sentence}: \n{}", bullets.join("\n"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(body: Value) -> Error {
        Error::Status(Box::new(Status::from_response(400, body.to_string().as_bytes(), "GET", "")))
    }

    #[test]
    fn a_status_keeps_its_reason_and_message() {
        let error = status(
            json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "pods \"x\" not found"}),
        );
        assert_eq!(error.render(), ("Error from server (NotFound): pods \"x\" not found".to_owned(), 1));
        assert!(error.is_not_found());
    }

    #[test]
    fn an_invalid_object_lists_its_causes() {
        let error = status(json!({"kind": "Status", "code": 422, "reason": "Invalid", "message": "m",
            "details": {"kind": "Pod", "name": "x", "causes": [
                {"field": "spec.a", "message": "Required value"}, {"field": "spec.b", "message": "Too long"}]}}));
        assert_eq!(
            error.render().0,
            "The Pod \"x\" is invalid: \n* spec.a: Required value\n* spec.b: Too long"
        );
    }

    #[test]
    fn many_errors_take_a_line_each() {
        let error = Error::Many(vec![Error::message("one"), Error::message("two"), Error::message("one")]);
        assert_eq!(error.render().0, "one\ntwo");
    }
}
