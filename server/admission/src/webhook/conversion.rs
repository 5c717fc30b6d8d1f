//! Conversion webhooks of custom resources (`spec.conversion.webhook`).

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ferry_api::go_json::json_type;
use ferry_api::{FieldErrors, GroupVersionKind, Object, Status, excerpt};
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

/// Named after what was to be converted, as upstream's: by its version, a reader knows the direction. Upstream gives these
/// failures no reason.
fn failed(kind: &GroupVersionKind, why: impl Display) -> Status {
    Status::unexpected(format!("conversion webhook for {kind} failed: {why}"))
}

#[async_trait]
impl ConversionWebhook for ConversionHook {
    async fn convert(&self, objects: Vec<Object>, to: &str) -> Result<Vec<Object>, Status> {
        let mut span = ferry_trace::span("webhook.convert");
        span.set("objects", objects.len() as i64);
        let Some(first) = objects.first() else { return Ok(objects) };
        let kind = GroupVersionKind::from_api_version(first.api_version(), first.kind());
        let version = self.conversion.conversion_review_versions.iter();
        let version = version.map(String::as_str).find(|version| REVIEW_VERSIONS.contains(version));
        let version = version.ok_or_else(|| Status::unexpected("no supported conversion review versions"))?;
        let uid = uuid::Uuid::new_v4().to_string();
        let values: Vec<Value> = objects.into_iter().map(Object::into_value).collect();
        let review = json!({
            "apiVersion": format!("apiextensions.k8s.io/{version}"), "kind": "ConversionReview",
            "request": {"uid": uid, "desiredAPIVersion": to, "objects": values},
        });
        let body = review.to_string().into_bytes();
        let config = &self.conversion.client_config;
        let answer = span.in_scope(self.endpoint.post(&self.registry, config, TIMEOUT, body)).await;
        let answer = answer.map_err(|why| failed(&kind, why))?;
        let made = made_objects(&answer, &uid, version).map_err(|why| failed(&kind, why))?;
        converted(values, made, to, &kind)
    }
}

/// The objects of an answer. Pure.
fn made_objects(answer: &[u8], uid: &str, version: &str) -> Result<Vec<Value>, String> {
    if answer.is_empty() {
        return Err("0-length response with status code: 200 and content type: application/json".into());
    }
    let unreadable = |why: String| format!("couldn't get version/kind; json parse error: {why}");
    let mut answer: Value = serde_json::from_slice(answer).map_err(|error| unreadable(error.to_string()))?;
    if !answer.is_object() {
        let why = format!("json: cannot unmarshal {} into a ConversionReview", json_type(&answer));
        return Err(unreadable(why));
    }
    let given = GroupVersionKind::from_api_version(text(&answer["apiVersion"]), text(&answer["kind"]));
    let expected = GroupVersionKind::new("apiextensions.k8s.io", version.to_string(), "ConversionReview");
    // Reviews of v1beta1 were never asked for their type and uid.
    let is_strict = version == "v1";
    if is_strict && given != expected {
        let given = format!("{}/{}, Kind={}", given.group, given.version, given.kind);
        return Err(format!("expected webhook response of {expected}, got {given}"));
    }
    let response = &mut answer["response"];
    if response.is_null() {
        return Err("no response provided".into());
    }
    if is_strict && response["uid"] != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", text(&response["uid"])));
    }
    match response.pointer("/result/status").and_then(Value::as_str).unwrap_or("") {
        "Success" => {}
        status => {
            let message = response.pointer("/result/message").and_then(Value::as_str).unwrap_or("");
            return Err(match message {
                "" => format!("response.result.status was '{status}', not 'Success'"),
                message => message.to_string(),
            });
        }
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// The objects that a webhook made, each checked against the one it was made of. Pure.
fn converted(
    given: Vec<Value>,
    made: Vec<Value>,
    to: &str,
    kind: &GroupVersionKind,
) -> Result<Vec<Object>, Status> {
    let returned = |why: String| Status::unexpected(format!("conversion webhook for {kind} returned {why}"));
    if made.len() != given.len() {
        return Err(returned(format!("{} objects, expected {}", made.len(), given.len())));
    }
    let pairs = given.into_iter().zip(made).enumerate();
    let objects = pairs.map(|(index, (given, made))| {
        one(given, made, to).map_err(|fault| match fault {
            Fault::Unreadable(why) => Status::unexpected(why),
            Fault::Type(why) => returned(format!("invalid object at index {index}: {why}")),
            Fault::Object(why) => returned(format!("invalid object: {why}")),
            Fault::Metadata(why) => returned(format!("invalid metadata: {why}")),
        })
    });
    objects.collect()
}

/// What is wrong with an object that a webhook made.
#[derive(Debug)]
enum Fault {
    Unreadable(String),
    Type(String),
    Object(String),
    Metadata(String),
}

/// A webhook may change everything but the type it was not asked for and the metadata others than labels and annotations.
fn one(given: Value, mut made: Value, to: &str) -> Result<Object, Fault> {
    match &made {
        Value::Null => return Err(Fault::Unreadable("unexpected end of JSON input".into())),
        Value::Object(fields) if fields.get("kind").is_none_or(|kind| kind.as_str() == Some("")) => {
            let shown = excerpt::of(&made.to_string(), excerpt::LONGEST_VALUE).into_owned();
            return Err(Fault::Unreadable(format!("Object 'Kind' is missing in '{shown}'")));
        }
        Value::Object(_) => {}
        other => {
            let target = "Go value of type map[string]interface {}";
            let why = format!("json: cannot unmarshal {} into {target}", json_type(other));
            return Err(Fault::Unreadable(why));
        }
    }
    if made["apiVersion"] != to {
        let received = text(&made["apiVersion"]);
        return Err(Fault::Type(format!("invalid groupVersion (expected {to}, received {received})")));
    }
    if made["kind"] != given["kind"] {
        let (expected, received) = (text(&given["kind"]), text(&made["kind"]));
        return Err(Fault::Type(format!("invalid kind (expected {expected}, received {received})")));
    }
    for (field, shown) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let (expected, received) = (text(&given["metadata"][field]), text(&made["metadata"][field]));
        if expected != received {
            return Err(Fault::Object(format!("must have the same {shown}: {expected} != {received}")));
        }
    }
    if !made["metadata"].is_object() {
        return Err(Fault::Metadata("missing metadata in converted object".into()));
    }
    let mut kept = given["metadata"].clone();
    for field in ["labels", "annotations"] {
        match made["metadata"].get(field) {
            Some(Value::Object(map)) => {
                if let Some((key, value)) = map.iter().find(|(_, value)| !value.is_string()) {
                    // As Go names what it decodes.
                    let found = match value {
                        Value::Number(number) if number.is_f64() => "float64",
                        Value::Number(_) => "int64",
                        other => json_type(other),
                    };
                    return Err(Fault::Metadata(format!(
                        "metadata.{field}[{key}] must be a string, but is {found} in converted object"
                    )));
                }
                kept[field] = Value::Object(map.clone());
            }
            None | Some(Value::Null) => {
                if let Value::Object(kept) = &mut kept {
                    kept.remove(field);
                }
            }
            Some(other) => {
                let found = json_type(other);
                return Err(Fault::Metadata(format!(
                    "invalid metadata.{field} of type {found} in converted object"
                )));
            }
        }
    }
    made["metadata"] = kept;
    let made = Object::from_value(made);
    let made = made.ok_or_else(|| Fault::Metadata("invalid metadata in converted object".into()))?;
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
        false => Err(Fault::Metadata(errors.to_string())),
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

    /// What is said of an answer in the place of an honest one, after the words that all of them begin with.
    fn check(version: &str, change: impl Fn(&mut Value), expected: Result<&str, &str>) {
        let mut answer = json!({"apiVersion": format!("apiextensions.k8s.io/{version}"), "kind": "ConversionReview",
            "response": {"uid": "1", "result": {"status": "Success"}, "convertedObjects": [widget("v2", "a")]}});
        change(&mut answer);
        let kind = GroupVersionKind::new("example.com", "v1", "Widget");
        let outcome = made_objects(answer.to_string().as_bytes(), "1", version)
            .map_err(|why| failed(&kind, why))
            .and_then(|made| converted(vec![widget("v1", "a")], made, "example.com/v2", &kind));
        let outcome = outcome.map(|objects| objects[0].name().to_string()).map_err(|status| {
            assert_eq!((status.code, status.reason.as_str()), (500, ""), "{status:?}");
            let start = "conversion webhook for example.com/v1, Kind=Widget ";
            status.message.strip_prefix(start).unwrap_or(&status.message).to_string()
        });
        assert_eq!(outcome.as_deref().map_err(String::as_str), expected);
    }

    /// The words that a kube-apiserver 1.36.4 said of the same answers.
    #[test]
    fn an_answer_is_taken_only_for_the_objects_that_were_sent() {
        let one = |change: fn(&mut Value)| {
            move |answer: &mut Value| change(&mut answer["response"]["convertedObjects"])
        };
        check("v1", |_| {}, Ok("a"));
        let review =
            "failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got";
        let untyped = format!("{review} apiextensions.k8s.io/v1, Kind=");
        check("v1", |answer| answer["kind"] = "".into(), Err(&untyped));
        check(
            "v1",
            |answer| answer["apiVersion"] = Value::Null,
            Err(&format!("{review} /, Kind=ConversionReview")),
        );
        check("v1", |answer| answer["response"] = Value::Null, Err("failed: no response provided"));
        let uid = |answer: &mut Value| answer["response"]["uid"] = "abc".into();
        check("v1", uid, Err(r#"failed: expected response.uid="1", got "abc""#));
        check("v1beta1", uid, Ok("a"));
        let result = |answer: &mut Value| answer["response"]["result"] = Value::Null;
        check("v1", result, Err("failed: response.result.status was '', not 'Success'"));
        let no = |answer: &mut Value| {
            answer["response"]["result"] = json!({"status": "Failure", "message": "no way"})
        };
        check("v1", no, Err("failed: no way"));
        check("v1", one(|made| *made = Value::Null), Err("returned 0 objects, expected 1"));
        let twice = |made: &mut Value| *made = json!([made[0], made[0]]);
        check("v1", one(twice), Err("returned 2 objects, expected 1"));
        check("v1", one(|made| made[0] = Value::Null), Err("unexpected end of JSON input"));
        let text = "json: cannot unmarshal string into Go value of type map[string]interface {}";
        check("v1", one(|made| made[0] = "x".into()), Err(text));
        check("v1", one(|made| made[0] = json!({})), Err("Object 'Kind' is missing in '{}'"));
        check(
            "v1",
            one(|made| made[0]["kind"] = "Other".into()),
            Err("returned invalid object at index 0: invalid kind (expected Widget, received Other)"),
        );
        check(
            "v1",
            one(|made| made[0]["apiVersion"] = "example.com/v9".into()),
            Err(
                "returned invalid object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v9)",
            ),
        );
        let of_another = "returned invalid object: must have the same";
        check("v1", one(|made| made[0]["metadata"] = "x".into()), Err(&format!("{of_another} name: a != ")));
        check(
            "v1",
            one(|made| made[0]["metadata"]["name"] = "b".into()),
            Err(&format!("{of_another} name: a != b")),
        );
        check(
            "v1",
            one(|made| made[0]["metadata"]["uid"] = "w".into()),
            Err(&format!("{of_another} UID: u != w")),
        );
        let namespace = |made: &mut Value| made[0]["metadata"]["namespace"] = "other".into();
        check("v1", one(namespace), Err(&format!("{of_another} namespace:  != other")));
    }

    #[test]
    fn an_answer_that_is_none_is_told() {
        let why = |answer: &[u8]| made_objects(answer, "1", "v1").expect_err("an answer");
        assert!(why(b"").starts_with("0-length response with status code: 200"));
        for garbage in [&b"<html>"[..], b"[]", b"\"x\"", b"{"] {
            assert!(why(garbage).starts_with("couldn't get version/kind; json parse error: "));
        }
    }

    #[test]
    fn only_labels_and_annotations_of_the_metadata_are_the_webhooks() {
        let mut made = widget("v2", "a");
        made["metadata"]["labels"] = json!({"a": "b"});
        made["metadata"]["resourceVersion"] = "9".into();
        made["metadata"]["finalizers"] = json!(["mine"]);
        let object = one(widget("v1", "a"), made, "example.com/v2").expect("an object");
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
            let outcome = one(given, made, "example.com/v2").err();
            match (&outcome, expected) {
                (None, None) => {}
                (Some(Fault::Metadata(why)), Some(expected)) if why.contains(expected) => {}
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
