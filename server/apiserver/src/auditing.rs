//! The audit filter: creates the events that the policy requires for a request, from its arrival to its last byte.
//! Nothing here waits; events go into the sinks' queues.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use ferry_auth::audit::{Audit, Level, Record, RequestFacts, ResponseFacts, Stage};
use ferry_auth::impersonate::Impersonated;
use ferry_auth::{Decision, User};
use ferry_registry::verbs::Annotation;
use futures::StreamExt;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Uri};
use serde_json::Value;

use crate::body::{Body, Response};
use crate::filters::Connection;
use crate::request_info::RequestInfo;
use crate::{metrics, negotiate, ui};

const AUDIT_ID: &str = "audit-id";
/// A client may name its request, but not fill the log with the name.
const LONGEST_ID: usize = 64;

/// One request being written down.
pub struct Auditing {
    audit: Arc<Audit>,
    record: Record,
    long_running: bool,
    /// The page's sign-in speaks in secrets.
    hides_bodies: bool,
}

impl Auditing {
    /// `None` when the policy wants to know nothing of the request.
    pub fn begin(
        audit: Option<&Arc<Audit>>,
        connection: &Connection,
        parts: &http::request::Parts,
        info: &RequestInfo,
        user: &Arc<User>,
        received: SystemTime,
    ) -> Option<Auditing> {
        let audit = audit?;
        let attributes = info.attributes(user);
        let config = audit.policy().decide(&attributes);
        metrics::audit_level(config.level);
        if config.level == Level::None {
            return None;
        }
        let facts = RequestFacts {
            audit_id: audit_id(&parts.headers),
            request_uri: request_uri(&parts.uri),
            user_agent: text(&parts.headers, USER_AGENT.as_str()).map(str::to_string),
            source_ips: source_ips(&parts.headers, connection),
            received,
            attributes: &attributes,
            user: user.clone(),
        };
        let record = Record::new(config, facts);
        let auditing = Auditing {
            audit: audit.clone(),
            record,
            long_running: info.is_long_running(),
            hides_bodies: ui::is_ours(info),
        };
        auditing.emit(Stage::RequestReceived);
        Some(auditing)
    }

    pub fn impersonated(&mut self, impersonated: &Impersonated) {
        self.record.impersonated(impersonated.user.clone(), impersonated.constraint);
    }

    pub fn decided(&mut self, decision: &Decision) {
        let word = match decision {
            Decision::Allow { .. } => "allow",
            Decision::Deny { .. } | Decision::NoOpinion { .. } => "forbid",
            Decision::Failed { .. } => return self.annotate("authorization.k8s.io/reason", "internal error"),
        };
        self.annotate("authorization.k8s.io/decision", word);
        self.annotate("authorization.k8s.io/reason", decision.reason());
    }

    pub fn annotate(&mut self, key: &str, value: &str) {
        self.record.annotate(key, value);
    }

    /// What admission has to say; of contents only where the policy wants to see those.
    pub fn annotate_all(&mut self, annotations: &[Annotation]) {
        let with_contents = self.record.config().level >= Level::Request;
        for annotation in annotations.iter().filter(|one| with_contents || !one.is_content) {
            self.annotate(&annotation.key, &annotation.value);
        }
    }

    /// The body as it arrived.
    pub fn request_body(&mut self, headers: &HeaderMap, body: &Bytes) {
        if self.record.config().level >= Level::Request && !body.is_empty() && !self.hides_bodies {
            self.record.request_object(readable(headers, body));
        }
    }

    pub fn panicked(&mut self) {
        self.emit(Stage::Panic);
    }

    /// Writes down the answer; one that is still being sent is complete when its stream ends, or its client is gone.
    pub fn finish(mut self, mut response: Response) -> Response {
        let id = self.record.audit_id().to_string();
        if let Ok(id) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(AUDIT_ID, id);
        }
        let mut facts = ResponseFacts { code: response.status().as_u16(), ..ResponseFacts::default() };
        if let Body::Bytes(bytes) = response.body() {
            let failed = response.status().is_client_error() || response.status().is_server_error();
            let wanted = self.record.config().level >= Level::RequestResponse;
            if (failed || wanted) && !self.hides_bodies {
                let json = readable(response.headers(), bytes);
                facts.status = serde_json::from_slice(&json)
                    .ok()
                    .filter(|answer: &Value| answer.get("kind").is_some_and(|kind| kind == "Status"));
                facts.object = Some(json);
            }
        }
        self.record.response(facts);
        if self.long_running {
            self.emit(Stage::ResponseStarted);
        }
        match std::mem::replace(response.body_mut(), Body::Empty) {
            Body::Stream(stream) => {
                *response.body_mut() = Body::passed_on(stream.map(move |bytes| {
                    let _until_the_end = &self;
                    bytes
                }));
            }
            body => *response.body_mut() = body,
        }
        response
    }

    fn emit(&self, stage: Stage) {
        if let Some(event) = self.record.event(stage, SystemTime::now()) {
            metrics::audit_event();
            self.audit.emit(event);
        }
    }
}

/// However a request ends, the log says so once. Without an answer it was its client that ended it.
impl Drop for Auditing {
    fn drop(&mut self) {
        self.emit(Stage::ResponseComplete);
    }
}

/// A body as JSON where it can be had; the log is read by people.
fn readable(headers: &HeaderMap, body: &Bytes) -> Bytes {
    match text(headers, CONTENT_TYPE.as_str()) {
        Some(kind) if kind.starts_with(negotiate::PROTOBUF) => ferry_api::protobuf::decode(body)
            .map_or_else(|_| body.clone(), |(_, object)| object.to_json().into()),
        _ => body.clone(),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn audit_id(headers: &HeaderMap) -> String {
    match text(headers, AUDIT_ID).filter(|id| !id.is_empty()) {
        Some(id) => id.chars().take(LONGEST_ID).collect(),
        None => uuid::Uuid::new_v4().to_string(),
    }
}

/// Path and query, whichever protocol they came by: over HTTP/2 a request names its host with them.
fn request_uri(uri: &Uri) -> String {
    uri.path_and_query().map_or_else(String::new, ToString::to_string)
}

/// The client as proxies name it, then the nearest one, which is the only one known for certain.
fn source_ips(headers: &HeaderMap, connection: &Connection) -> Vec<String> {
    let is_address = |text: &&str| text.parse::<std::net::IpAddr>().is_ok();
    let forwarded = text(headers, "x-forwarded-for").into_iter().flat_map(|list| list.split(','));
    let named = forwarded.chain(text(headers, "x-real-ip")).map(str::trim).filter(is_address);
    let mut addresses: Vec<String> = Vec::new();
    let peer = connection.peer.map(|peer| peer.ip().to_string());
    for address in named.map(str::to_string).chain(peer) {
        if addresses.last() != Some(&address) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_is_the_last_source() {
        let mut headers = HeaderMap::new();
        let connection = Connection { peer: Some(([10, 0, 0, 9], 4711).into()), ..Connection::default() };
        assert_eq!(source_ips(&headers, &connection), ["10.0.0.9"]);
        headers.insert("x-forwarded-for", HeaderValue::from_static("192.0.2.1, no-address, 10.0.0.9"));
        assert_eq!(source_ips(&headers, &connection), ["192.0.2.1", "10.0.0.9"]);
    }

    #[test]
    fn a_request_is_told_by_its_path_whatever_the_protocol() {
        for uri in ["https://127.0.0.1:6443/api/v1/pods?limit=1", "/api/v1/pods?limit=1"] {
            assert_eq!(request_uri(&uri.parse().expect("an address")), "/api/v1/pods?limit=1");
        }
    }

    #[test]
    fn a_client_names_its_request_in_few_words() {
        let mut headers = HeaderMap::new();
        assert_eq!(audit_id(&headers).len(), 36);
        headers.insert(AUDIT_ID, HeaderValue::from_str(&"x".repeat(100)).expect("a header"));
        assert_eq!(audit_id(&headers).len(), LONGEST_ID);
    }
}
