//! An audit event, and the record of a request that it is made from.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use bytes::Bytes;
use serde::{Serialize, Serializer};
use serde_json::{Value, value::RawValue};

use super::{API_VERSION, Level, RequestConfig, Stage};
use crate::{attributes::Attributes, user::User};

/// What is known when a request arrives.
pub struct RequestFacts<'a> {
    /// From the header `Audit-ID`, or made by the server.
    pub audit_id: String,
    pub request_uri: String,
    pub user_agent: Option<String>,
    /// The client and the proxies it named, nearest last.
    pub source_ips: Vec<String>,
    pub received: SystemTime,
    pub attributes: &'a Attributes<'a>,
    pub user: Arc<User>,
}

/// What is known when it was answered.
#[derive(Clone, Debug, Default)]
pub struct ResponseFacts {
    pub code: u16,
    /// The `Status` that was sent, if one was: its `status`, `message`, `reason` and `details`.
    pub status: Option<Value>,
    /// The JSON body; looked at only when the level wants it.
    pub object: Option<Bytes>,
}

/// A request being audited. Gathers what its events will say.
pub struct Record {
    config: RequestConfig,
    base: Event,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    kind: &'static str,
    api_version: &'static str,
    pub level: Level,
    #[serde(rename = "auditID")]
    pub audit_id: String,
    pub stage: Stage,
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    pub verb: String,
    #[serde(serialize_with = "user_info")]
    pub user: Arc<User>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional_user_info")]
    pub impersonated_user: Option<Arc<User>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authentication_metadata: Option<AuthenticationMetadata>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    pub source_ips: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_ref: Option<ObjectReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_status: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_object: Option<AuditedObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_object: Option<AuditedObject>,
    #[serde(serialize_with = "micro_time")]
    pub request_received_timestamp: SystemTime,
    #[serde(serialize_with = "micro_time")]
    pub stage_timestamp: SystemTime,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AuthenticationMetadata {
    impersonation_constraint: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

/// A body, kept as the bytes that travelled. Managed fields are cut out when the event is written,
/// by the sink's task and not by the request's.
#[derive(Clone, Debug)]
pub struct AuditedObject {
    json: Bytes,
    omit_managed_fields: bool,
}

impl Record {
    pub fn new(config: RequestConfig, facts: RequestFacts<'_>) -> Self {
        let attributes = facts.attributes;
        let object_ref = attributes.is_resource_request.then(|| ObjectReference {
            resource: attributes.resource.to_owned(),
            namespace: attributes.namespace.to_owned(),
            name: attributes.name.to_owned(),
            api_group: attributes.api_group.to_owned(),
            api_version: attributes.api_version.to_owned(),
            subresource: attributes.subresource.to_owned(),
            ..ObjectReference::default()
        });
        let base = Event {
            kind: "Event",
            api_version: API_VERSION,
            level: config.level,
            audit_id: facts.audit_id,
            stage: Stage::RequestReceived,
            request_uri: facts.request_uri,
            verb: attributes.verb.to_owned(),
            user: facts.user,
            impersonated_user: None,
            authentication_metadata: None,
            source_ips: facts.source_ips,
            user_agent: facts.user_agent,
            object_ref,
            response_status: None,
            request_object: None,
            response_object: None,
            request_received_timestamp: facts.received,
            stage_timestamp: facts.received,
            annotations: BTreeMap::new(),
        };
        Record { config, base }
    }

    pub fn config(&self) -> &RequestConfig {
        &self.config
    }

    /// By which the request is found in the log.
    pub fn audit_id(&self) -> &str {
        &self.base.audit_id
    }

    pub fn impersonated(&mut self, user: Arc<User>, constraint: Option<&'static str>) {
        self.base.impersonated_user = Some(user);
        self.base.authentication_metadata =
            constraint.map(|impersonation_constraint| AuthenticationMetadata { impersonation_constraint });
    }

    /// Whoever says something about a request first is believed: a later plugin cannot rewrite it.
    pub fn annotate(&mut self, key: &str, value: &str) {
        if self.config.level == Level::None {
            return;
        }
        let said = self.base.annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        if said != value {
            tracing::warn!(key, said, value, "an audit annotation was set twice; keeping the first value");
        }
    }

    /// The request's body as JSON; kept if the level wants it. A created object's name and UID
    /// are learned later: see [`Record::object`].
    pub fn request_object(&mut self, json: Bytes) {
        if self.config.level >= Level::Request {
            self.base.request_object = Some(self.audited(json));
        }
    }

    /// Completes the reference to the object, as when a create has chosen its name.
    pub fn object(&mut self, name: &str, uid: &str, resource_version: &str) {
        if let Some(reference) = &mut self.base.object_ref {
            for (field, value) in [
                (&mut reference.name, name),
                (&mut reference.uid, uid),
                (&mut reference.resource_version, resource_version),
            ] {
                if field.is_empty() {
                    *field = value.to_owned();
                }
            }
        }
    }

    pub fn response(&mut self, facts: ResponseFacts) {
        let mut status = match facts.status {
            Some(Value::Object(status)) => status,
            _ => serde_json::Map::new(),
        };
        status.retain(|key, _| matches!(key.as_str(), "status" | "message" | "reason" | "details" | "code"));
        status.entry("metadata").or_insert_with(|| Value::Object(serde_json::Map::new()));
        status.insert("code".to_owned(), facts.code.into());
        self.base.response_status = Some(Value::Object(status));
        if self.config.level >= Level::RequestResponse {
            self.base.response_object = facts.object.map(|json| self.audited(json));
        }
    }

    /// The event of a stage, or `None` if the policy does not want it.
    pub fn event(&self, stage: Stage, now: SystemTime) -> Option<Event> {
        self.config.wants(stage).then(|| {
            let mut event = self.base.clone();
            event.stage = stage;
            event.stage_timestamp = now;
            event
        })
    }

    fn audited(&self, json: Bytes) -> AuditedObject {
        AuditedObject { json, omit_managed_fields: self.config.omit_managed_fields }
    }
}

impl Serialize for AuditedObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.omit_managed_fields
            && let Ok(mut object) = serde_json::from_slice::<Value>(&self.json)
        {
            drop_managed_fields(&mut object);
            return object.serialize(serializer);
        }
        // A body that is no JSON is written as the text it is: the log has to stay readable.
        match serde_json::from_slice::<Box<RawValue>>(&self.json) {
            Ok(raw) => raw.serialize(serializer),
            Err(_) => String::from_utf8_lossy(&self.json).serialize(serializer),
        }
    }
}

fn drop_managed_fields(object: &mut Value) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
    }
    if let Some(Value::Array(items)) = object.get_mut("items") {
        items.iter_mut().for_each(drop_managed_fields);
    }
}

#[derive(Serialize)]
struct UserInfo<'a> {
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: &'a BTreeMap<String, Vec<String>>,
}

fn user_info<S: Serializer>(user: &Arc<User>, serializer: S) -> Result<S::Ok, S::Error> {
    UserInfo { username: &user.name, uid: &user.uid, groups: &user.groups, extra: &user.extra }
        .serialize(serializer)
}

fn optional_user_info<S: Serializer>(user: &Option<Arc<User>>, serializer: S) -> Result<S::Ok, S::Error> {
    match user {
        Some(user) => user_info(user, serializer),
        None => serializer.serialize_none(),
    }
}

fn micro_time<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    let time = jiff::Timestamp::try_from(*time).map_err(serde::ser::Error::custom)?;
    serializer.collect_str(&format_args!("{time:.6}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn record(config: RequestConfig) -> Record {
        let user = Arc::new(User::new("jane").with_groups(["dev"]));
        let attributes = Attributes {
            api_version: "v1",
            namespace: "ns",
            name: "web",
            ..Attributes::resource(&user, "update", "apps", "deployments")
        };
        let facts = RequestFacts {
            audit_id: "id-1".to_owned(),
            request_uri: "/apis/apps/v1/namespaces/ns/deployments/web".to_owned(),
            user_agent: Some("kubectl".to_owned()),
            source_ips: vec!["192.0.2.1".to_owned()],
            received: SystemTime::UNIX_EPOCH + Duration::from_micros(1_000_001),
            attributes: &attributes,
            user: user.clone(),
        };
        Record::new(config, facts)
    }

    fn config(level: Level) -> RequestConfig {
        RequestConfig { level, omit_stages: vec![Stage::RequestReceived], omit_managed_fields: true }
    }

    #[test]
    fn an_event_says_who_did_what_and_what_came_of_it() {
        let mut record = record(config(Level::RequestResponse));
        record.annotate("authorization.k8s.io/decision", "allow");
        record.annotate("authorization.k8s.io/decision", "forbid");
        record.impersonated(Arc::new(User::new("joe")), Some("impersonate:user-info"));
        record.request_object(Bytes::from_static(
            br#"{"metadata":{"name":"web","managedFields":[1]},"a":1.0}"#,
        ));
        record.object("web", "u-1", "7");
        record.response(ResponseFacts {
            code: 200,
            status: None,
            object: Some(Bytes::from_static(b"{\"items\":[{\"metadata\":{\"managedFields\":[]}}]}")),
        });
        let event =
            record.event(Stage::ResponseComplete, SystemTime::UNIX_EPOCH + Duration::from_secs(2)).unwrap();
        assert_eq!(
            serde_json::to_value(&event).unwrap(),
            json!({
                "kind": "Event",
                "apiVersion": "audit.k8s.io/v1",
                "level": "RequestResponse",
                "auditID": "id-1",
                "stage": "ResponseComplete",
                "requestURI": "/apis/apps/v1/namespaces/ns/deployments/web",
                "verb": "update",
                "user": {"username": "jane", "groups": ["dev"]},
                "impersonatedUser": {"username": "joe"},
                "authenticationMetadata": {"impersonationConstraint": "impersonate:user-info"},
                "sourceIPs": ["192.0.2.1"],
                "userAgent": "kubectl",
                "objectRef": {"resource": "deployments", "namespace": "ns", "name": "web", "uid": "u-1", "apiGroup": "apps", "apiVersion": "v1", "resourceVersion": "7"},
                "responseStatus": {"metadata": {}, "code": 200},
                "requestObject": {"metadata": {"name": "web"}, "a": 1.0},
                "responseObject": {"items": [{"metadata": {}}]},
                "requestReceivedTimestamp": "1970-01-01T00:00:01.000001Z",
                "stageTimestamp": "1970-01-01T00:00:02.000000Z",
                "annotations": {"authorization.k8s.io/decision": "allow"},
            })
        );
        assert!(
            record.event(Stage::RequestReceived, SystemTime::UNIX_EPOCH).is_none(),
            "the policy omits that stage"
        );
    }

    #[test]
    fn a_level_keeps_what_it_names_and_no_more() {
        for (level, request, response) in [
            (Level::Metadata, false, false),
            (Level::Request, true, false),
            (Level::RequestResponse, true, true),
        ] {
            let mut record = record(config(level));
            record.request_object(Bytes::from_static(b"{}"));
            let status = json!({"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403});
            record.response(ResponseFacts {
                code: 403,
                status: Some(status),
                object: Some(Bytes::from_static(b"{}")),
            });
            let event = record.event(Stage::ResponseComplete, SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(
                (event.request_object.is_some(), event.response_object.is_some()),
                (request, response),
                "{level:?}"
            );
            let expected = json!({"metadata": {}, "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403});
            assert_eq!(event.response_status, Some(expected));
        }
    }

    #[test]
    fn a_body_that_is_no_json_is_kept_as_text() {
        let odd = |omit_managed_fields| AuditedObject {
            json: Bytes::from_static(b"k8s\0\xff"),
            omit_managed_fields,
        };
        for omit in [true, false] {
            assert_eq!(serde_json::to_value(odd(omit)).unwrap(), json!("k8s\0\u{fffd}"));
        }
    }
}
