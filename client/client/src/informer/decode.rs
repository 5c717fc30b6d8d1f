//! Decodes lists and watch events without the fields that [`Projection`] removes.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use kube::api::WatchEvent;
use kube::core::ListMeta;
use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::projection::{self, Projection};

/// A list, and its revision. What does not fit the type is read once more leniently.
pub fn list<K: DeserializeOwned>(
    text: String,
    projection: &Projection,
) -> Result<(ListMeta, Vec<K>), serde_json::Error> {
    let mut text = text.into_bytes();
    projection::cut_list(&mut text, projection);
    let text = as_text(&text)?;
    match serde_json::from_str::<List<K>>(text) {
        Ok(list) => Ok((list.metadata, list.items.unwrap_or_default())),
        Err(_) => list_one_by_one(text),
    }
}

/// One line of a watch, which is cut on the way.
pub fn event<K: DeserializeOwned>(
    line: &mut Vec<u8>,
    projection: &Projection,
) -> Result<WatchEvent<K>, serde_json::Error> {
    projection::cut_event(line, projection);
    let text = as_text(line)?;
    let mut json = serde_json::Deserializer::from_str(text);
    Event(PhantomData).deserialize(&mut json).or_else(|error| leniently(text).ok_or(error))
}

/// UTF-8 is checked once, and not string by string.
fn as_text(bytes: &[u8]) -> Result<&str, serde_json::Error> {
    std::str::from_utf8(bytes).map_err(serde_json::Error::custom)
}

/// Item by item: most fit the type, some only write a zero time as `null`, and what cannot be read at all
/// is left out and said so.
fn list_one_by_one<K: DeserializeOwned>(text: &str) -> Result<(ListMeta, Vec<K>), serde_json::Error> {
    let list: kube::core::ObjectList<Value> = serde_json::from_str(text)?;
    let items = list.items.into_iter().filter_map(|item| {
        let object = ferry_api::Object::from_value(item)?;
        let read = object.view();
        if let Err(error) = &read {
            let kind = std::any::type_name::<K>();
            tracing::error!(kind, name = object.name(), %error, "cannot decode an object; skipping it");
        }
        read.ok()
    });
    Ok((list.metadata, items.collect()))
}

/// A line that is not quite what the type says, or a Status where an event was due.
fn leniently<K: DeserializeOwned>(line: &str) -> Option<WatchEvent<K>> {
    let mut line: Map<String, Value> = serde_json::from_str(line).ok()?;
    if line.get("kind").is_some_and(|kind| kind == "Status") {
        return serde_json::from_value(Value::Object(line)).ok().map(WatchEvent::Error);
    }
    let object = ferry_api::Object::from_value(line.remove("object")?)?;
    match line.get("type")?.as_str()? {
        "BOOKMARK" => object.view().ok().map(WatchEvent::Bookmark),
        "ERROR" => object.view().ok().map(WatchEvent::Error),
        kind => {
            let of = of_object(kind)?;
            object.view().ok().map(of)
        }
    }
}

/// An event that holds an object. Told before the object is read: its decoder then stands here once.
fn of_object<K>(kind: &str) -> Option<fn(K) -> WatchEvent<K>> {
    match kind {
        "ADDED" => Some(WatchEvent::Added),
        "MODIFIED" => Some(WatchEvent::Modified),
        "DELETED" => Some(WatchEvent::Deleted),
        _ => None,
    }
}

#[derive(Deserialize)]
#[serde(bound = "K: DeserializeOwned")]
struct List<K> {
    metadata: ListMeta,
    /// Go writes `null` for an empty one; a list without any is a failed one.
    #[serde(deserialize_with = "Option::deserialize")]
    items: Option<Vec<K>>,
}

struct Event<K>(PhantomData<K>);

impl<'de, K: DeserializeOwned> DeserializeSeed<'de> for Event<K> {
    type Value = WatchEvent<K>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de, K: DeserializeOwned> Visitor<'de> for Event<K> {
    type Value = WatchEvent<K>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an event with its type first")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (Some((Text(first), Text(kind))), Some(Text(second))) = (map.next_entry()?, map.next_key()?)
        else {
            return Err(A::Error::custom("an event has a type and an object"));
        };
        if (&*first, &*second) != ("type", "object") {
            return Err(A::Error::custom("an event has a type and then an object"));
        }
        match &*kind {
            "BOOKMARK" => map.next_value().map(WatchEvent::Bookmark),
            "ERROR" => map.next_value().map(WatchEvent::Error),
            kind => match of_object(kind) {
                Some(of) => map.next_value().map(of),
                None => Err(A::Error::custom(format_args!("no event is called {kind}"))),
            },
        }
    }
}

/// Text that is borrowed where it can be.
struct Text<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("text")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        json.deserialize_str(Read)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, Service};
    use serde_json::json;

    use super::super::Metadata;
    use super::*;

    fn read<K: DeserializeOwned>(
        line: &str,
        projection: &Projection,
    ) -> Result<WatchEvent<K>, serde_json::Error> {
        event(&mut line.as_bytes().to_vec(), projection)
    }

    fn pod() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "labels": {"app": "web"},
                "annotations": {"managedFields": "only a name"},
                "managedFields": [{"manager": "m", "fieldsV1": {"f:metadata": {"f:labels": {}}}}],
            },
            "spec": {"containers": [{"name": "c", "image": "a \u{00e4} \"quoted\""}]},
        })
    }

    #[test]
    fn an_object_comes_whole_but_for_its_managed_fields() {
        let mut expected: Pod = serde_json::from_value(pod()).unwrap();
        expected.metadata.managed_fields = None;
        let line = json!({"type": "MODIFIED", "object": pod()}).to_string();
        let line = line.replace(r#""object""#, r#" "object" "#);
        // serde_json sorts keys: the object comes first, and is read leniently
        match read::<Pod>(&line, &Projection::OBJECT).unwrap() {
            WatchEvent::Modified(mut pod) => {
                pod.metadata.managed_fields = None;
                assert_eq!(pod, expected);
            }
            other => panic!("{other:?}"),
        }
        let line = format!(r#"{{"type":"ADDED","object":{}}}"#, pod());
        match read::<Pod>(&line, &Projection::OBJECT).unwrap() {
            WatchEvent::Added(pod) => assert_eq!(pod, expected),
            other => panic!("{other:?}"),
        }
        let text =
            format!(r#"{{"kind":"PodList","metadata":{{"resourceVersion":"7"}},"items":[{}]}}"#, pod());
        let (metadata, items) = list::<Pod>(text, &Projection::OBJECT).unwrap();
        assert_eq!((metadata.resource_version.as_deref(), items), (Some("7"), vec![expected]));
    }

    #[test]
    fn an_identity_is_who_it_is_and_no_more() {
        let line = format!(r#"{{"type":"DELETED","object":{}}}"#, pod());
        let WatchEvent::Deleted(read) = read::<Metadata>(&line, &Projection::IDENTITY).unwrap() else {
            panic!("a deletion");
        };
        assert_eq!(read.metadata.uid.as_deref(), Some("u"));
        assert_eq!((read.metadata.labels, read.metadata.annotations), (None, None));
        assert_eq!(read.types.unwrap().kind, "Pod");
    }

    #[test]
    fn a_zero_time_written_as_null_hides_nothing() {
        let condition =
            json!({"type": "T", "status": "True", "reason": "r", "message": "", "lastTransitionTime": null});
        let service = json!({"metadata": {"name": "a"}, "status": {"conditions": [condition]}});
        let line = format!(r#"{{"type":"ADDED","object":{service}}}"#);
        assert!(matches!(read::<Service>(&line, &Projection::OBJECT), Ok(WatchEvent::Added(_))));
        let text = format!(r#"{{"metadata":{{}},"items":[{service},{{"metadata":{{"name":7}}}}]}}"#);
        assert_eq!(list::<Service>(text, &Projection::OBJECT).unwrap().1.len(), 1, "the second has no name");
    }

    #[test]
    fn watch_errors_are_distinguished_from_events() {
        let gone = r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410,"message":"","reason":"Expired"}}"#;
        assert!(matches!(read::<Pod>(gone, &Projection::OBJECT), Ok(WatchEvent::Error(s)) if s.code == 410));
        let plain = r#"{"kind":"Status","status":"Failure","code":500,"message":"m","reason":"r"}"#;
        assert!(matches!(read::<Pod>(plain, &Projection::OBJECT), Ok(WatchEvent::Error(s)) if s.code == 500));
        for broken in
            ["", "{", r#"{"type":"ADDED","object":{"metadata"#, r#"{"type":"HUH","object":{}}"#, "[]"]
        {
            assert!(read::<Pod>(broken, &Projection::OBJECT).is_err(), "{broken}");
        }
        for broken in ["{}", r#"{"metadata":{}}"#, "null"] {
            assert!(list::<Pod>(broken.into(), &Projection::OBJECT).is_err(), "{broken}");
        }
        assert!(
            list::<Pod>(r#"{"metadata":{},"items":null}"#.into(), &Projection::OBJECT).unwrap().1.is_empty()
        );
    }
}
