//! Lists and watch events as loops want them. Half of an object may be managed fields, which no
//! loop reads; what is left out here is passed over in the text and never built.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use kube::api::WatchEvent;
use kube::core::ListMeta;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, IntoDeserializer, MapAccess,
    SeqAccess, Visitor,
};
use serde_json::{Map, Value};

/// What is kept of each object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All but the managed fields. A write without them leaves the server's own in place.
    Object,
    /// Who it is and whom it belongs to: metadata without labels and annotations.
    Identity,
}

/// A list, and its revision. What does not fit the type is read once more with patience.
pub fn list<K: DeserializeOwned>(text: &str, keep: Keep) -> Result<(ListMeta, Vec<K>), serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let list = List(keep, PhantomData).deserialize(&mut json).and_then(|list| json.end().map(|()| list));
    list.or_else(|_| list_one_by_one(text))
}

/// One line of a watch. It is known to be UTF-8 once, and not string by string.
pub fn event<K: DeserializeOwned>(line: &[u8], keep: Keep) -> Result<WatchEvent<K>, serde_json::Error> {
    let text = std::str::from_utf8(line).map_err(serde_json::Error::custom)?;
    let mut json = serde_json::Deserializer::from_str(text);
    Event(keep, PhantomData).deserialize(&mut json).or_else(|error| patiently(text).ok_or(error))
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
            tracing::error!(kind, name = object.name(), %error, "object cannot be read; passed over");
        }
        read.ok()
    });
    Ok((list.metadata, items.collect()))
}

/// A line that is not quite what the type says, or a Status where an event was due.
fn patiently<K: DeserializeOwned>(line: &str) -> Option<WatchEvent<K>> {
    let mut line: Map<String, Value> = serde_json::from_str(line).ok()?;
    if line.get("kind").is_some_and(|kind| kind == "Status") {
        return serde_json::from_value(Value::Object(line)).ok().map(WatchEvent::Error);
    }
    let object = ferry_api::Object::from_value(line.remove("object")?)?;
    match line.get("type")?.as_str()? {
        "ADDED" => object.view().ok().map(WatchEvent::Added),
        "MODIFIED" => object.view().ok().map(WatchEvent::Modified),
        "DELETED" => object.view().ok().map(WatchEvent::Deleted),
        "BOOKMARK" => object.view().ok().map(WatchEvent::Bookmark),
        "ERROR" => object.view().ok().map(WatchEvent::Error),
        _ => None,
    }
}

struct List<K>(Keep, PhantomData<K>);

impl<'de, K: DeserializeOwned> DeserializeSeed<'de> for List<K> {
    type Value = (ListMeta, Vec<K>);

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de, K: DeserializeOwned> Visitor<'de> for List<K> {
    type Value = (ListMeta, Vec<K>);

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut metadata, mut items) = (None, None);
        while let Some(Text(key)) = map.next_key()? {
            match &*key {
                "metadata" => metadata = Some(map.next_value()?),
                "items" => items = Some(map.next_value_seed(Items(self.0, PhantomData))?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        // a list without items is a failed one; Go writes `null` for an empty one
        let items = items.ok_or_else(|| A::Error::missing_field("items"))?;
        Ok((metadata.ok_or_else(|| A::Error::missing_field("metadata"))?, items))
    }
}

struct Items<K>(Keep, PhantomData<K>);

impl<'de, K: DeserializeOwned> DeserializeSeed<'de> for Items<K> {
    type Value = Vec<K>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Vec<K>, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de, K: DeserializeOwned> Visitor<'de> for Items<K> {
    type Value = Vec<K>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("the items of a list")
    }

    fn visit_unit<E: Error>(self) -> Result<Vec<K>, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<K>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Part::whole(self.0, PhantomData))? {
            items.push(item);
        }
        Ok(items)
    }
}

struct Event<K>(Keep, PhantomData<K>);

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
        let whole = Part::whole(self.0, PhantomData);
        Ok(match &*kind {
            "ADDED" => WatchEvent::Added(map.next_value_seed(whole)?),
            "MODIFIED" => WatchEvent::Modified(map.next_value_seed(whole)?),
            "DELETED" => WatchEvent::Deleted(map.next_value_seed(whole)?),
            "BOOKMARK" => WatchEvent::Bookmark(map.next_value()?),
            "ERROR" => WatchEvent::Error(map.next_value()?),
            other => return Err(A::Error::custom(format_args!("no event is called {other}"))),
        })
    }
}

/// Text that is borrowed where it can be.
struct Text<'de>(Cow<'de, str>);

impl<'de> serde::Deserialize<'de> for Text<'de> {
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

/// Where in an object we are: only the top and its metadata have anything to leave out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Top,
    Metadata,
}

impl Keep {
    fn leaves_out(self, depth: Depth, key: &str) -> bool {
        match (depth, self) {
            (Depth::Top, Keep::Object) => false,
            (Depth::Top, Keep::Identity) => !matches!(key, "apiVersion" | "kind" | "metadata"),
            (Depth::Metadata, Keep::Object) => key == "managedFields",
            (Depth::Metadata, Keep::Identity) => matches!(key, "managedFields" | "labels" | "annotations"),
        }
    }
}

/// An object or its metadata, on the way from the text to whatever asks for it: a seed, a
/// deserializer, a visitor or the fields of a map, each handing over to the next.
struct Part<T> {
    inner: T,
    keep: Keep,
    depth: Depth,
    /// Of a map: whether the value that comes next is the metadata.
    at_metadata: bool,
}

impl<T> Part<T> {
    fn whole(keep: Keep, inner: T) -> Self {
        Part { inner, keep, depth: Depth::Top, at_metadata: false }
    }

    fn around<U>(&self, inner: U) -> Part<U> {
        Part { inner, keep: self.keep, depth: self.depth, at_metadata: false }
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Part<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<S::Value, D::Error> {
        let json = self.around(json);
        self.inner.deserialize(json)
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Part<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let visitor = self.around(visitor);
        self.inner.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let visitor = self.around(visitor);
        self.inner.deserialize_option(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Part<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, json: D) -> Result<V::Value, D::Error> {
        let json = self.around(json);
        self.inner.visit_some(json)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let map = self.around(map);
        self.inner.visit_map(map)
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Part<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        while let Some(Text(key)) = self.inner.next_key()? {
            if self.keep.leaves_out(self.depth, &key) {
                self.inner.next_value::<IgnoredAny>()?;
                continue;
            }
            self.at_metadata = self.depth == Depth::Top && key == "metadata";
            return seed.deserialize(key.into_deserializer()).map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        if self.at_metadata {
            let metadata = Part { inner: seed, keep: self.keep, depth: Depth::Metadata, at_metadata: false };
            return self.inner.next_value_seed(metadata);
        }
        self.inner.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, Service};
    use serde_json::json;

    use super::super::Metadata;
    use super::*;

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
        // serde_json sorts keys: the object comes first, and is read patiently
        match event::<Pod>(line.as_bytes(), Keep::Object).unwrap() {
            WatchEvent::Modified(mut pod) => {
                pod.metadata.managed_fields = None;
                assert_eq!(pod, expected);
            }
            other => panic!("{other:?}"),
        }
        let line = format!(r#"{{"type":"ADDED","object":{}}}"#, pod());
        match event::<Pod>(line.as_bytes(), Keep::Object).unwrap() {
            WatchEvent::Added(pod) => assert_eq!(pod, expected),
            other => panic!("{other:?}"),
        }
        let text =
            format!(r#"{{"kind":"PodList","metadata":{{"resourceVersion":"7"}},"items":[{}]}}"#, pod());
        let (metadata, items) = list::<Pod>(&text, Keep::Object).unwrap();
        assert_eq!((metadata.resource_version.as_deref(), items), (Some("7"), vec![expected]));
    }

    #[test]
    fn an_identity_is_who_it_is_and_no_more() {
        let line = format!(r#"{{"type":"DELETED","object":{}}}"#, pod());
        let WatchEvent::Deleted(read) = event::<Metadata>(line.as_bytes(), Keep::Identity).unwrap() else {
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
        assert!(matches!(event::<Service>(line.as_bytes(), Keep::Object), Ok(WatchEvent::Added(_))));
        let text = format!(r#"{{"metadata":{{}},"items":[{service},{{"metadata":{{"name":7}}}}]}}"#);
        assert_eq!(list::<Service>(&text, Keep::Object).unwrap().1.len(), 1, "the second has no name");
    }

    #[test]
    fn what_is_not_an_event_is_told_apart() {
        let gone = r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410,"message":"","reason":"Expired"}}"#;
        assert!(
            matches!(event::<Pod>(gone.as_bytes(), Keep::Object), Ok(WatchEvent::Error(s)) if s.code == 410)
        );
        let plain = r#"{"kind":"Status","status":"Failure","code":500,"message":"m","reason":"r"}"#;
        assert!(
            matches!(event::<Pod>(plain.as_bytes(), Keep::Object), Ok(WatchEvent::Error(s)) if s.code == 500)
        );
        for broken in
            ["", "{", r#"{"type":"ADDED","object":{"metadata"#, r#"{"type":"HUH","object":{}}"#, "[]"]
        {
            assert!(event::<Pod>(broken.as_bytes(), Keep::Object).is_err(), "{broken}");
        }
        for broken in ["{}", r#"{"metadata":{}}"#, "null"] {
            assert!(list::<Pod>(broken, Keep::Object).is_err(), "{broken}");
        }
        assert!(list::<Pod>(r#"{"metadata":{},"items":null}"#, Keep::Object).unwrap().1.is_empty());
    }
}
