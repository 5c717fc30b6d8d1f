//! What can be told of a set that is still text, by passing over it. Most writes change a few fields that one manager
//! has already and no other does; then no set is made of anybody's text.

use std::borrow::Cow;
use std::cmp::Ordering;

use ferry_api::{read, write};

use super::field_set::{FieldSet, SELF, is_member};

/// More names in one place than these cost as much to look for as reading the text does.
const MANY_NAMES: usize = 8;

/// Whether any path of `set` may be in the set that `text` is of; sure when it says no.
pub fn may_have(text: &str, set: &FieldSet) -> bool {
    // A name that stands nowhere in it is no reason to walk it. What has to be escaped stands there in other words.
    let is_escaped = |c: char| matches!(c, '"' | '\\') || c.is_control();
    let is_named = |first: &String| first.contains(is_escaped) || text.contains(first.as_str());
    set.as_nodes().keys().any(is_named) && any(text.as_bytes(), set.as_nodes()).unwrap_or(true)
}

/// Whether all paths of `set` are in the set that `text` is of. None where that takes reading it.
pub fn has_all(text: &str, set: &FieldSet) -> Option<bool> {
    all(text.as_bytes(), set.as_nodes())
}

/// The text of the set with all paths of `set` added. None where that takes reading it.
pub fn union(text: &str, set: &FieldSet) -> Option<String> {
    let mut out = Vec::with_capacity(text.len() + 256);
    merge(text.as_bytes(), set.as_nodes(), &mut out)?;
    String::from_utf8(out).ok()
}

type Nodes = serde_json::Map<String, serde_json::Value>;

/// Both are in the order of their elements, and so is what is written. Only where `nodes` leads is looked into the text.
fn merge(text: &[u8], nodes: &Nodes, out: &mut Vec<u8>) -> Option<()> {
    let mut nodes = nodes.iter().peekable();
    let mut last: Option<Cow<'_, str>> = None;
    out.push(b'{');
    for member in read::MemberTexts::of(text)? {
        let (key, below) = member?;
        let element = unescaped(key)?;
        // Others may have written it in another order.
        if last.as_ref().is_some_and(|last| *last >= element) {
            return None;
        }
        let mut ours = None;
        while let Some((name, node)) = nodes.peek() {
            match name.as_str().cmp(&element) {
                Ordering::Less => add(name, node, out),
                Ordering::Equal => ours = node.as_object(),
                Ordering::Greater => break,
            }
            nodes.next();
        }
        comma(out);
        out.push(b'"');
        out.extend_from_slice(key);
        out.extend_from_slice(b"\":");
        match ours {
            Some(node) if !node.is_empty() => {
                // A member that gets members of its own says of itself that it is one.
                let below = if below == b"{}" { br#"{".":{}}"# } else { below };
                merge(below, node, out)?;
            }
            Some(_) if !is_member_text(below)? => merge(below, &member_alone(), out)?,
            _ => out.extend_from_slice(below),
        }
        last = Some(element);
    }
    nodes.for_each(|(name, node)| add(name, node, out));
    out.push(b'}');
    Some(())
}

fn add(element: &str, node: &serde_json::Value, out: &mut Vec<u8>) {
    comma(out);
    write::text(out, element);
    out.push(b':');
    write::value(out, node);
}

/// Before a member that is not the first of its object.
pub(super) fn comma(out: &mut Vec<u8>) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
}

fn member_alone() -> Nodes {
    Nodes::from_iter([(SELF.to_string(), Nodes::new().into())])
}

/// An element as it is, of its text between the quotes.
fn unescaped(key: &[u8]) -> Option<Cow<'_, str>> {
    let key = std::str::from_utf8(key).ok()?;
    match key.contains('\\') {
        true => serde_json::from_str(&format!("\"{key}\"")).ok().map(Cow::Owned),
        false => Some(Cow::Borrowed(key)),
    }
}

fn any(text: &[u8], nodes: &Nodes) -> Option<bool> {
    for (element, node) in elements(nodes)? {
        let Some(there) = at(text, element)? else { continue };
        if is_member(node) && is_member_text(there)? || any(there, node)? {
            return Some(true);
        }
    }
    Some(false)
}

fn all(text: &[u8], nodes: &Nodes) -> Option<bool> {
    for (element, node) in elements(nodes)? {
        let Some(there) = at(text, element)? else { return Some(false) };
        if is_member(node) && !is_member_text(there)? || !all(there, node)? {
            return Some(false);
        }
    }
    Some(true)
}

fn elements(nodes: &Nodes) -> Option<impl Iterator<Item = (&String, &Nodes)>> {
    let elements = nodes.iter().filter(|(element, _)| *element != SELF);
    (nodes.len() <= MANY_NAMES)
        .then(|| elements.filter_map(|(element, node)| Some((element, node.as_object()?))))
}

/// What stands below an element.
fn at<'t>(text: &'t [u8], element: &str) -> Option<Option<&'t [u8]>> {
    let mut quoted = Vec::with_capacity(element.len() + 2);
    write::text(&mut quoted, element);
    let written = std::str::from_utf8(&quoted[1..quoted.len() - 1]).ok()?;
    let [found] = read::members(text, [written])?;
    Some(found)
}

fn is_member_text(text: &[u8]) -> Option<bool> {
    Some(text == b"{}" || at(text, SELF)?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(fields: Value) -> FieldSet {
        FieldSet::parse(&fields).expect("a set")
    }

    #[test]
    fn a_text_is_asked_as_its_set_would_be() {
        let fields = json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:image": {}}}}});
        let text = fields.to_string();
        let check = |asked: Value, any: bool, all: bool| {
            let asked = set(asked);
            assert_eq!((may_have(&text, &asked), has_all(&text, &asked)), (any, Some(all)), "{asked:?}");
            assert_eq!(!set(fields.clone()).intersection(&asked).is_empty(), any, "{asked:?}");
            assert_eq!(asked.is_within(&set(fields.clone())), all, "{asked:?}");
        };
        check(json!({}), false, true);
        check(json!({"f:metadata": {"f:labels": {"f:a": {}}}}), true, true);
        check(json!({"f:metadata": {"f:labels": {}}}), true, true);
        check(json!({"f:metadata": {}}), false, false);
        check(json!({"f:metadata": {"f:labels": {"f:a": {}, "f:b": {}}}}), true, false);
        check(json!({"f:status": {"f:labels": {"f:a": {}}}}), false, false);
        check(json!({"f:spec": {"f:nodeName": {}}}), false, false);
        check(json!({"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {"f:image": {}}}}}), true, true);
        check(json!({"f:spec": {"f:containers": {"k:{\"name\":\"b\"}": {"f:image": {}}}}}), false, false);
        check(json!({"f:spec": {"f:containers": {}}}), false, false);
    }

    #[test]
    fn paths_are_added_as_to_the_set() {
        let fields = json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:image": {}}, "k:{\"name\":\"b\"}": {}}}});
        for added in [
            json!({}),
            json!({"f:metadata": {"f:labels": {"f:a": {}}}}),
            json!({"f:metadata": {"f:annotations": {".": {}, "f:b": {}}, "f:labels": {"f:0": {}, "f:b": {}}}}),
            json!({"f:metadata": {}}),
            json!({"f:metadata": {".": {}, "f:z": {}}}),
            json!({"f:metadata": {"f:labels": {"f:a": {"f:b": {}}}}}),
            json!({"f:a": {}, "f:nnn": {"f:b": {}}, "f:z": {}}),
            json!({"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {"f:name": {}}, "k:{\"name\":\"aa\"}": {".": {}, "f:x": {}}}}}),
            json!({"f:spec": {"f:containers": {"k:{\"name\":\"b\"}": {".": {}, "f:x": {}}}}}),
            json!({"f:spec": {"f:containers": {}}}),
        ] {
            let mut expected = set(fields.clone());
            expected.union(set(added.clone()));
            let united = union(&fields.to_string(), &set(added.clone())).expect("our text");
            assert_eq!(united, expected.text(), "{added}");
            assert_eq!(union("{}", &set(added.clone())), Some(set(added).text()));
        }
    }

    #[test]
    fn managed_fields_text_in_another_order_is_not_edited() {
        let added = set(json!({"f:a": {}}));
        for text in
            [r#"{"f:b":{},"f:a":{}}"#, r#"{"f:a":{},"f:a":{}}"#, r#"{"f:b":{}, "f:c":{}}"#, "", r#"{"f:b""#]
        {
            assert_eq!(union(text, &added), None, "{text}");
        }
    }

    #[test]
    fn other_text_and_many_names_have_to_be_read() {
        let asked = set(json!({"f:a": {}}));
        assert!(may_have(r#"{ "f:b": {"f:a": {}} }"#, &asked));
        assert_eq!(has_all("no JSON", &asked), None);
        let many: Value = (0..9).map(|name| (format!("f:{name}"), json!({}))).collect();
        assert!(may_have(r#"{"f:b":{"f:0":{}}}"#, &set(many)));
        let escaped = set(json!({"f:\"\n": {}}));
        assert!(may_have(&escaped.clone().into_value().to_string(), &escaped));
    }
}
