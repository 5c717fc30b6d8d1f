//! The fields of a new object, all of which are its writer's. They are what comparing it with a blank one gives, written
//! as text in one walk: no sets are made of what nobody takes apart.

use ferry_api::{ManagedFieldsEntry, write as json};
use serde_json::{Map, Value};

use super::compare::is_unmanaged_meta;
use super::entry::{self, Operation};
use super::in_text::comma;
use super::rows::{Owned, Rows, same};
use super::{Reset, Write};

/// The managers of a new object. None where it takes a comparison to tell.
pub fn managers(new: &Map<String, Value>, write: &Write<'_>) -> Option<Vec<ManagedFieldsEntry>> {
    let fields = fields(new, write)?;
    if fields == "{}" {
        return Some(Vec::new());
    }
    let mut row = entry::row(write.manager(), Operation::Update, write.api_version, write.subresource);
    row.time = ferry_api::time::format_seconds(write.now);
    row.fields_v1 = fields;
    Some(vec![row])
}

fn fields(new: &Map<String, Value>, write: &Write<'_>) -> Option<String> {
    let reset: &[&[&str]] = match write.reset {
        Reset::Nothing => &[],
        Reset::Fields(paths) if paths.iter().all(|path| path.len() == 1) => paths,
        Reset::Fields(_) | Reset::AllBut(_) => return None,
    };
    let blank = write.blank();
    let (rows, root) = Rows::of(write.schema);
    let mut text = Text { rows, out: Vec::with_capacity(1024) };
    text.out.push(b'{');
    for (name, value) in new {
        let owned = rows.at(root, name);
        match name.as_str() {
            "apiVersion" | "kind" => {}
            name if reset.contains(&[name].as_slice()) => {}
            "metadata" => {
                let metadata = value.as_object()?;
                let blank = blank.get(name).and_then(Value::as_object)?;
                text.member(name, |text| {
                    text.differences(owned, blank, metadata, |name| !is_unmanaged_meta(name))
                })?;
            }
            name => text.difference(name, owned, blank.get(name), value)?,
        }
    }
    text.out.push(b'}');
    Some(String::from_utf8(text.out).expect("JSON is written as UTF-8"))
}

struct Text<'s> {
    rows: Rows<'s>,
    out: Vec<u8>,
}

/// Nothing, where it takes a comparison to tell.
type Told = Option<()>;

impl<'s> Text<'s> {
    /// A field with what `inner` writes into it, or nothing at all.
    fn member(&mut self, name: &str, inner: impl FnOnce(&mut Self) -> Told) -> Told {
        let before = self.out.len();
        self.name(name);
        self.out.push(b'{');
        let start = self.out.len();
        inner(self)?;
        if self.out.len() == start {
            self.out.truncate(before);
        } else {
            self.out.push(b'}');
        }
        Some(())
    }

    /// Where a struct or map is not what it was in the blank object.
    fn differences(
        &mut self,
        owned: Owned<'s>,
        blank: &Map<String, Value>,
        new: &Map<String, Value>,
        wanted: impl Fn(&str) -> bool,
    ) -> Told {
        for (name, value) in new.iter().filter(|(name, _)| wanted(name)) {
            self.difference(name, self.rows.at(owned, name), blank.get(name), value)?;
        }
        Some(())
    }

    fn difference(&mut self, name: &str, owned: Owned<'s>, blank: Option<&Value>, new: &Value) -> Told {
        let Some(blank) = blank else {
            self.name(name);
            self.below(owned, new);
            return Some(());
        };
        match (owned, blank, new) {
            _ if same(blank, new) => {}
            (Owned::Scalar(_) | Owned::Whole(_), _, _) => {
                self.name(name);
                self.out.extend_from_slice(b"{}");
            }
            (Owned::Struct(_) | Owned::Map(_), Value::Object(blank), Value::Object(new)) => {
                self.member(name, |text| text.differences(owned, blank, new, |_| true))?;
            }
            (Owned::Struct(_) | Owned::Map(_), Value::Null, Value::Object(new)) if !new.is_empty() => {
                self.member(name, |text| text.differences(owned, &Map::new(), new, |_| true))?;
            }
            (Owned::List { .. } | Owned::Set(_), Value::Null, Value::Array(items)) if !items.is_empty() => {
                self.member(name, |text| {
                    text.items(owned, items);
                    Some(())
                })?;
            }
            _ => return None,
        }
        Some(())
    }

    /// A value of which nothing was there before: it is a member of the set, and so is all that it holds.
    fn below(&mut self, owned: Owned<'s>, value: &Value) {
        self.out.push(b'{');
        let start = self.out.len();
        self.out.extend_from_slice(br#"".":{}"#);
        let alone = self.out.len();
        match (owned, value) {
            (Owned::Struct(_) | Owned::Map(_) | Owned::Free, Value::Object(fields)) => {
                for (name, value) in fields {
                    self.name(name);
                    self.below(self.rows.at(owned, name), value);
                }
            }
            (Owned::List { .. } | Owned::Set(_), Value::Array(items)) => self.items(owned, items),
            _ => {}
        }
        if self.out.len() == alone {
            self.out.truncate(start);
        }
        self.out.push(b'}');
    }

    /// Elements in the order of their texts. Those that share their keys are owned together.
    fn items(&mut self, owned: Owned<'s>, items: &[Value]) {
        let mut elements: Vec<(String, Option<&Value>)> = Vec::with_capacity(items.len());
        for item in items {
            elements.extend(self.rows.element(owned, item).map(|element| (element, Some(item))));
        }
        elements.sort_by(|(a, _), (b, _)| a.cmp(b));
        elements.dedup_by(|later, first| {
            let again = later.0 == first.0;
            if again {
                first.1 = None;
            }
            again
        });
        for (element, item) in elements {
            comma(&mut self.out);
            json::text(&mut self.out, &element);
            self.out.push(b':');
            match item {
                Some(item) => self.below(self.rows.items(owned), item),
                None => self.out.extend_from_slice(b"{}"),
            }
        }
    }

    fn name(&mut self, name: &str) {
        comma(&mut self.out);
        json::text_after(&mut self.out, "f:", name);
        self.out.push(b':');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::managed_fields::OneVersion;
    use ferry_api::{GroupVersionKind, Schema};
    use serde_json::json;

    #[test]
    fn a_pods_fields_are_told_without_a_comparison() {
        let schema = Schema::builtin(&GroupVersionKind::new("", "v1", "Pod")).expect("Pod");
        let write = Write {
            manager: "ann",
            subresource: "",
            api_version: "v1",
            now: jiff::Timestamp::UNIX_EPOCH,
            schema: &schema,
            reset: Reset::Fields(&[&["status"]]),
            versions: &OneVersion,
        };
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}]},
                {"name": "b"}]},
            "status": {"phase": "Running"}});
        let managers = managers(pod.as_object().expect("an object"), &write).expect("told");
        let [row] = managers.as_slice() else { panic!("one manager, not {managers:?}") };
        assert_eq!((row.manager.as_str(), row.operation.as_str()), ("ann", "Update"));
        assert_eq!(
            row.fields_v1,
            r#"{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"b\"}":{".":{},"f:name":{}},"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},"f:protocol":{}}}}}}}"#
        );
    }
}
