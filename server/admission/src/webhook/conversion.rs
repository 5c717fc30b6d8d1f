//! Conversion webhooks of custom resources (`spec.conversion.webhook`).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ferry_api::{FieldErrors, GroupVersionKind, Object, Status};
use ferry_registry::conversion::ConversionWebhook;
use ferry_registry::{Registry, metadata};
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::Endpoint;
use super::hooks::ClientConfig;

/// How long a webhook may take for all objects of a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The forms of a review that this server speaks.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// The webhook as a definition writes it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookConversion {
    #[serde(default)]
    pub client_config: ClientConfig,
    #[serde(default)]
    pub conversion_review_versions: Vec<String>,
}

pub struct ConversionHook {
    registry: Arc<Registry>,
    conversion: WebhookConversion,
    endpoint: Endpoint,
}

impl ConversionHook {
    pub fn new(registry: Arc<Registry>, conversion: WebhookConversion) -> ConversionHook {
        ConversionHook { registry, conversion, endpoint: Endpoint::default() }
    }
}

/// Named after what was to be converted, as upstream's: by its version, a reader knows the direction.
fn failed(kind: &GroupVersionKind, why: &str) -> Status {
    Status::internal(format!("conversion webhook for {kind} failed: {why}"))
}

#[async_trait]
impl ConversionWebhook for ConversionHook {
    async fn convert(&self, objects: Vec<Object>, to: &str) -> Result<Vec<Object>, Status> {
        let mut span = ferry_trace::span("webhook.convert");
        span.set("objects", objects.len() as i64);
        let Some(first) = objects.first() else { return Ok(objects) };
        let kind = GroupVersionKind::from_api_version(first.api_version(), first.kind());
        let failed = |why: &str| failed(&kind, why);
        let version = self.conversion.conversion_review_versions.iter();
        let version = version.map(String::as_str).find(|version| REVIEW_VERSIONS.contains(version));
        let version = version.ok_or_else(|| failed("no supported ConversionReview version"))?;
        let uid = uuid::Uuid::new_v4().to_string();
        let values: Vec<Value> = objects.into_iter().map(Object::into_value).collect();
        let review = json!({
            "apiVersion": format!("apiextensions.k8s.io/{version}"), "kind": "ConversionReview",
            "request": {"uid": uid, "desiredAPIVersion": to, "objects": values},
        });
        let body = review.to_string().into_bytes();
        let config = &self.conversion.client_config;
        let answer = span.in_scope(self.endpoint.post(&self.registry, config, TIMEOUT, body)).await;
        let answer = answer.map_err(|why| failed(&why))?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| failed(&error.to_string()))?;
        converted(values, answer, &uid, version, to).map_err(|why| match why {
            Refusal::Malformed(why) => failed(&why),
            Refusal::Said(why) => failed(&why),
        })
    }
}

enum Refusal {
    /// The answer is none.
    Malformed(String),
    /// The webhook says why it will not.
    Said(String),
}

/// The objects of an answer, each checked against the one it was made of. Pure.
fn converted(
    given: Vec<Value>,
    mut answer: Value,
    uid: &str,
    version: &str,
    to: &str,
) -> Result<Vec<Object>, Refusal> {
    let malformed = |why: String| Refusal::Malformed(why);
    let expected = format!("apiextensions.k8s.io/{version}");
    if answer["apiVersion"] != expected || answer["kind"] != "ConversionReview" {
        return Err(malformed(format!(
            "invalid ConversionReview response: expected {expected}, Kind=ConversionReview"
        )));
    }
    let response = &mut answer["response"];
    if response.is_null() {
        return Err(malformed("no response provided".into()));
    }
    if response["uid"] != uid {
        return Err(malformed(format!("expected response.uid={uid:?}, got {}", response["uid"])));
    }
    match response.pointer("/result/status").and_then(Value::as_str) {
        Some("Success") => {}
        _ => {
            let message = response.pointer("/result/message").and_then(Value::as_str).unwrap_or("");
            let reason = response.pointer("/result/status").and_then(Value::as_str).unwrap_or("");
            return Err(Refusal::Said(match message {
                "" => format!("response.result.status was {reason:?}, not \"Success\""),
                message => message.to_string(),
            }));
        }
    }
    let made = match response["convertedObjects"].take() {
        Value::Array(objects) => objects,
        _ => Vec::new(),
    };
    if made.len() != given.len() {
        return Err(malformed(format!("expected {} converted objects, got {}", given.len(), made.len())));
    }
    let pairs = given.into_iter().zip(made).enumerate();
    pairs.map(|(index, (given, made))| one(given, made, index, to).map_err(malformed)).collect()
}

/// A webhook may change everything but the type it was not asked for and the metadata others than labels and annotations.
fn one(given: Value, mut made: Value, index: usize, to: &str) -> Result<Object, String> {
    if made["apiVersion"] != to {
        let message = format!("invalid groupVersion (expected {to}, received {})", text(&made["apiVersion"]));
        return Err(format!("invalid converted object at index {index}: {message}"));
    }
    if made["kind"] != given["kind"] {
        let message =
            format!("invalid kind (expected {}, received {})", text(&given["kind"]), text(&made["kind"]));
        return Err(format!("invalid converted object at index {index}: {message}"));
    }
    if !made["metadata"].is_object() {
        return Err(format!("invalid metadata of object {index}: missing metadata in converted object"));
    }
    for field in ["name", "namespace", "uid"] {
        if made["metadata"].get(field) != given["metadata"].get(field) {
            return Err(format!("invalid metadata of object {index}: metadata.{field} was changed"));
        }
    }
    let mut kept = given["metadata"].clone();
    for field in ["labels", "annotations"] {
        match made["metadata"].get(field) {
            Some(Value::Object(map)) if map.values().all(Value::is_string) => {
                kept[field] = Value::Object(map.clone());
            }
            None | Some(Value::Null) => {
                if let Value::Object(kept) = &mut kept {
                    kept.remove(field);
                }
            }
            Some(_) => {
                return Err(format!("invalid metadata of object {index}: {field} is no map of strings"));
            }
        }
    }
    made["metadata"] = kept;
    let made = Object::from_value(made);
    let made = made.ok_or_else(|| format!("invalid converted object at index {index}: no object"))?;
    // What was stored before a rule became stricter stays readable, as long as the webhook leaves it.
    let mut errors = FieldErrors::default();
    let is_changed = |field: &str| made.meta(field) != given["metadata"].get(field);
    if is_changed("labels") {
        metadata::validate_labels(&made, &mut errors);
    }
    if is_changed("annotations") {
        metadata::validate_annotations(&made, &mut errors);
    }
    match errors.is_empty() {
        true => Ok(made),
        false => Err(format!("invalid metadata of object {index}: {errors}")),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widget(version: &str, name: &str) -> Value {
        json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget",
            "metadata": {"name": name, "uid": "u", "resourceVersion": "7"}, "spec": {}})
    }

    fn check(made: Value, result: Value, expected: Result<&str, &str>) {
        let answer = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "response": {"uid": "1", "result": result, "convertedObjects": made}});
        let outcome = converted(vec![widget("v1", "a")], answer, "1", "v1", "example.com/v2");
        match (outcome, expected) {
            (Ok(objects), Ok(name)) => assert_eq!(objects[0].name(), name),
            (Err(Refusal::Malformed(why) | Refusal::Said(why)), Err(expected)) => {
                assert!(why.contains(expected), "{why}");
            }
            (outcome, _) => panic!("{:?} instead of {expected:?}", outcome.map(|objects| objects.len()).ok()),
        }
    }

    #[test]
    fn an_answer_is_taken_only_for_the_objects_that_were_sent() {
        let success = json!({"status": "Success"});
        check(json!([widget("v2", "a")]), success.clone(), Ok("a"));
        check(json!([widget("v1", "a")]), success.clone(), Err("invalid groupVersion"));
        check(json!([widget("v2", "b")]), success.clone(), Err("metadata.name was changed"));
        check(json!([]), success.clone(), Err("expected 1 converted objects, got 0"));
        check(
            json!([widget("v2", "a"), widget("v2", "c")]),
            success,
            Err("expected 1 converted objects, got 2"),
        );
        check(json!([]), json!({"status": "Failure", "message": "no way"}), Err("no way"));
    }

    #[test]
    fn only_labels_and_annotations_of_the_metadata_are_the_webhooks() {
        let mut made = widget("v2", "a");
        made["metadata"]["labels"] = json!({"a": "b"});
        made["metadata"]["resourceVersion"] = "9".into();
        made["metadata"]["finalizers"] = json!(["mine"]);
        let object = one(widget("v1", "a"), made, 0, "example.com/v2").expect("an object");
        assert_eq!(object.label("a"), Some("b"));
        assert_eq!(object.resource_version(), "7");
        assert_eq!(object.finalizers().count(), 0);
    }

    #[test]
    fn conversion_webhooks_labels_and_annotations_are_validated_when_changed() {
        let with = |version: &str, field: &str, key: &str, value: &str| {
            let mut widget = widget(version, "a");
            widget["metadata"][field] = json!({key: value});
            widget
        };
        let check = |given: Value, made: Value, expected: Option<&str>| {
            let outcome = one(given, made, 0, "example.com/v2").err();
            match (&outcome, expected) {
                (None, None) => {}
                (Some(why), Some(expected)) if why.contains(expected) => {}
                _ => panic!("{outcome:?} instead of {expected:?}"),
            }
        };
        check(widget("v1", "a"), with("v2", "labels", "a/b/c", "d"), Some("metadata.labels"));
        check(widget("v1", "a"), with("v2", "labels", "a", "not a value"), Some("metadata.labels"));
        check(widget("v1", "a"), with("v2", "annotations", "a b", "c"), Some("metadata.annotations"));
        check(widget("v1", "a"), with("v2", "annotations", "a", "anything at all"), None);
        let old = with("v1", "labels", "a", "not a value");
        check(old, with("v2", "labels", "a", "not a value"), None);
    }
}
