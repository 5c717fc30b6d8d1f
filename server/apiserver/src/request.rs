//! A request after the filters: user, request info, headers and body.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferry_api::{FieldValidation, Kind, Object, Status, json};
use ferry_auth::User;
use ferry_registry::Resource;
use ferry_registry::verbs::Annotation;
use ferry_store::Revision;
use http::{HeaderMap, Method};
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::flow_control::Seats;
use crate::long_running::LongRunning;
use crate::negotiate::{self, Encoding};
use crate::request_info::{Query, RequestInfo};
use crate::response_memory::ResponseMemory;

/// A request that does not say how long it waits for others.
const PATIENCE: Duration = Duration::from_secs(30);
/// Whoever asks for longer waits this long: a time far off has no place on a clock.
pub const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

pub struct Request {
    pub method: Method,
    pub info: RequestInfo,
    pub query: Query,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub user: Arc<User>,
    /// What the caller showed, for the sign-in to the page only.
    pub shown: Option<crate::ui::Shown>,
    pub peer: Option<SocketAddr>,
    pub warnings: Mutex<Vec<String>>,
    /// Said to the audit log by admission.
    pub annotations: Mutex<Vec<Annotation>>,
    /// Taken from by whoever makes an answer as a whole.
    pub response_memory: ResponseMemory,
    /// The request's seats; a watch keeps them until its initial events are sent.
    pub seats: Mutex<Option<Seats>>,
    pub long_running: LongRunning,
    /// Taken by whoever turns the connection into a stream (exec, watch over WebSocket).
    pub upgrade: Mutex<Option<OnUpgrade>>,
}

/// Query parameters that all writes share.
#[derive(Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub validation: FieldValidation,
    pub manager: String,
    pub force: bool,
    /// The options object that admission sees.
    pub value: Value,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    pub fn write_options(&self, kind: &str) -> Result<WriteOptions, Status> {
        let dry_run: Vec<&str> = self.query.all("dryRun").filter(|value| !value.is_empty()).collect();
        if dry_run.iter().any(|value| *value != "All") {
            let mut errors = ferry_api::FieldErrors::default();
            errors.not_supported("dryRun", json!(dry_run), &["All"]);
            return Err(Status::invalid("meta.k8s.io", kind, "", &errors));
        }
        let validation = match self.query.text("fieldValidation") {
            "Strict" => FieldValidation::Strict,
            "Warn" | "" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            other => {
                let mut errors = ferry_api::FieldErrors::default();
                errors.not_supported("fieldValidation", other, &["", "Ignore", "Strict", "Warn"]);
                return Err(Status::invalid("meta.k8s.io", kind, "", &errors));
            }
        };
        let manager = match self.query.text("fieldManager") {
            "" => manager_of(self.header("user-agent")).to_string(),
            manager if manager.len() > 128 => {
                let mut errors = ferry_api::FieldErrors::default();
                errors.too_long("fieldManager", 128);
                return Err(Status::invalid("meta.k8s.io", kind, "", &errors));
            }
            manager => manager.to_string(),
        };
        let mut value = json!({"apiVersion": "meta.k8s.io/v1", "kind": kind});
        if !dry_run.is_empty() {
            value["dryRun"] = json!(["All"]);
        }
        for name in ["fieldManager", "fieldValidation"] {
            if let Some(text) = self.query.get(name) {
                value[name] = text.into();
            }
        }
        Ok(WriteOptions {
            dry_run: !dry_run.is_empty(),
            validation,
            manager,
            force: self.query.flag("force"),
            value,
        })
    }

    pub fn warn(&self, warnings: impl IntoIterator<Item = String>) {
        ferry_registry::verbs::warn(&self.warnings, warnings);
    }

    /// How long the client is willing to wait: `?timeout=20s`.
    pub fn patience(&self) -> Duration {
        let asked =
            self.query.text("timeout").strip_suffix('s').and_then(|seconds| seconds.parse::<u64>().ok());
        asked.map_or(PATIENCE, |seconds| Duration::from_secs(seconds).min(LONGEST_WAIT))
    }

    /// The body as an object of `kind`, with defaults.
    pub fn decode(
        &self,
        kind: &Kind,
        resource: &Resource,
        validation: FieldValidation,
    ) -> Result<Object, Status> {
        let object = self.decode_as(kind, validation)?;
        Ok(complete(object, kind, resource))
    }

    /// The body as an object of `kind`, as it was sent.
    pub fn decode_as(&self, kind: &Kind, validation: FieldValidation) -> Result<Object, Status> {
        let _span = ferry_trace::span("apiserver.decode");
        let encoding = negotiate::body_encoding(&self.headers)?;
        let decoded = match encoding {
            Encoding::Protobuf => {
                let object = kind.decode_protobuf(&self.body)?;
                json::Decoded { object, warnings: Vec::new() }
            }
            Encoding::Json => kind.decode_json(&self.body, validation)?,
            Encoding::Yaml => kind.decode_yaml(&self.body, validation)?,
        };
        self.warn(decoded.warnings);
        let mut object = decoded.object;
        match kind.generation {
            Some(_) => check_custom_type(&object, kind, &self.body)?,
            None => check_type(&mut object, kind)?,
        }
        Ok(object)
    }
}

/// Sets the defaults of an object in the version `kind`. Those that depend on other fields are known of the version that
/// is stored; the registry sets them on what it converts.
pub fn complete(mut object: Object, kind: &Kind, resource: &Resource) -> Object {
    let _span = ferry_trace::span("apiserver.default");
    kind.codec.set_defaults(&mut object);
    if kind.is_storage_version() {
        resource.strategy.default(&mut object);
    }
    object
}

/// The object says which kind it is, or leaves it to the URL; it must not say something else.
fn check_type(object: &mut Object, kind: &Kind) -> Result<(), Status> {
    let (api_version, wanted) = (kind.api_version(), kind.kind.as_ref());
    let (have_version, have) = (object.api_version(), object.kind());
    let kind_fits = have.is_empty() || have == wanted;
    if kind_fits && (have_version.is_empty() || have_version == api_version) {
        object.set_type(&api_version, wanted);
        return Ok(());
    }
    let given = ferry_api::GroupVersionKind::from_api_version(have_version, have);
    let why = match ferry_api::Types::builtin().by_kind(&given) {
        Some(_) if kind_fits => {
            return Err(Status::bad_request(format!(
                "the API version in the data ({have_version}) does not match the expected API version ({api_version})"
            )));
        }
        Some(_) => format!(
            "converting ({}.{have}) to ({}.{wanted}): unknown conversion",
            given.version,
            go_package(&kind.group)
        ),
        None => format!("no kind {have:?} is registered for version {have_version:?} in scheme {SCHEME:?}"),
    };
    Err(Status::bad_request(format!(
        "{have} in version {have_version:?} cannot be handled as a {wanted}: {why}"
    )))
}

/// A custom object has to say its kind.
fn check_custom_type(object: &Object, kind: &Kind, body: &[u8]) -> Result<(), Status> {
    let (have_version, have) = (object.api_version(), object.kind());
    let api_version = kind.api_version();
    if have.is_empty() {
        return Err(json::without_kind(&kind.kind, body));
    }
    if have_version != api_version {
        return Err(Status::bad_request(format!(
            "the API version in the data ({have_version}) does not match the expected API version ({api_version})"
        )));
    }
    if have != kind.kind {
        let mut errors = ferry_api::FieldErrors::default();
        errors.invalid("kind", have, &format!("must be {}", kind.kind));
        return Err(Status::invalid(&kind.group, have, object.name(), &errors));
    }
    Ok(())
}

/// Where upstream keeps its kinds: part of a message that clients know.
const SCHEME: &str = "pkg/api/legacyscheme/scheme.go:30";

/// `apps` of the group apps, `rbac` of rbac.authorization.k8s.io.
fn go_package(group: &str) -> &str {
    if group.is_empty() { "core" } else { group.split('.').next().unwrap_or(group) }
}

/// `kubectl` of `kubectl/v1.36.4 (linux/amd64) …`.
fn manager_of(user_agent: &str) -> &str {
    let manager = user_agent.split('/').next().unwrap_or("");
    let end = manager.char_indices().map(|(at, _)| at).nth(128).unwrap_or(manager.len());
    if manager.is_empty() { "unknown" } else { &manager[..end] }
}

/// A resourceVersion parameter.
pub fn revision(text: &str) -> Result<Revision, BadRevision> {
    text.parse::<i64>().ok().filter(|number| *number >= 0).map(Revision).ok_or_else(|| {
        let mut errors = ferry_api::FieldErrors::default();
        let why = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
        errors.invalid("resourceVersion", text, &why);
        BadRevision(errors.0.iter().map(ToString::to_string).collect())
    })
}

/// Why a resourceVersion is none.
#[derive(Debug)]
pub struct BadRevision(String);

impl BadRevision {
    pub fn in_list(self) -> Status {
        Status::bad_request(format!("invalid resource version: {}", self.0))
    }
}

impl From<BadRevision> for Status {
    fn from(bad: BadRevision) -> Status {
        Status::unexpected(bad.0)
    }
}

/// A namespace itself is no object of the namespace that its URL names.
pub fn namespace_of<'a>(kind: &Kind, info: &'a RequestInfo) -> &'a str {
    if kind.is_namespaced() { &info.namespace } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_of_a_request_is_the_program_that_sent_it() {
        assert_eq!(manager_of("kubectl/v1.36.4 (linux/amd64)"), "kubectl");
        assert_eq!(manager_of(""), "unknown");
    }
}
