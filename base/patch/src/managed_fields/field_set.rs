//! A set of field paths, kept as the very JSON that stands in `managedFields`: an object whose keys
//! are path elements. A path is in the set when its object is empty or holds `"."`.
//!
//! Keeping this form makes reading and writing an entry plain, and what a write did not touch is never
//! looked at: the operations walk only where the other set leads.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write;

use ferry_api::MAX_DEPTH;
use serde_json::{Map, Value};

use super::element;

type Nodes = Map<String, Value>;

pub(super) const SELF: &str = ".";

#[derive(Debug, Clone, Default, PartialEq)]
pub struct FieldSet(Nodes);

/// Text that is no FieldsV1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadFields(pub String);

impl FieldSet {
    pub fn new() -> FieldSet {
        FieldSet::default()
    }

    /// The set of these paths of field names.
    pub fn of_fields<'a>(paths: impl IntoIterator<Item = &'a [&'a str]>) -> FieldSet {
        let mut set = FieldSet::new();
        for path in paths {
            set.insert(path.iter().map(|name| element::field(name)));
        }
        set
    }

    /// Reads a set from outside: elements get their one text, and what is unknown is left out.
    pub fn parse(fields: &Value) -> Result<FieldSet, BadFields> {
        match fields {
            Value::Null => Ok(FieldSet::new()),
            Value::Object(nodes) => {
                let mut nodes = parse(nodes, MAX_DEPTH + 1)?;
                nodes.remove(SELF);
                Ok(FieldSet(nodes))
            }
            _ => Err(BadFields("fields must be an object".to_string())),
        }
    }

    /// Takes a set that is known to be in order, as all that was stored is.
    pub(super) fn trust(fields: Value) -> FieldSet {
        match fields {
            Value::Object(nodes) => FieldSet(nodes),
            _ => FieldSet::new(),
        }
    }

    pub(super) fn from_nodes(nodes: Nodes) -> FieldSet {
        FieldSet(nodes)
    }

    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// The JSON text that is stored.
    pub(super) fn text(&self) -> String {
        let mut out = Vec::with_capacity(1024);
        ferry_api::write::object(&mut out, &self.0);
        String::from_utf8(out).expect("JSON is written as UTF-8")
    }

    pub fn as_nodes(&self) -> &Map<String, Value> {
        &self.0
    }

    pub(super) fn nodes_mut(&mut self) -> &mut Map<String, Value> {
        &mut self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes upstream writes: no spaces, elements in its order.
    pub fn print(&self) -> String {
        let mut out = String::new();
        print(&self.0, &mut out);
        out
    }

    /// Adds one path.
    pub fn insert(&mut self, path: impl IntoIterator<Item = String>) {
        let mut nodes = &mut self.0;
        let mut path = path.into_iter().peekable();
        while let Some(step) = path.next() {
            let last = path.peek().is_none();
            let slot = match nodes.entry(step) {
                serde_json::map::Entry::Vacant(slot) if last => {
                    slot.insert(Value::Object(Map::new()));
                    return;
                }
                // A path that is only passed through is no member.
                serde_json::map::Entry::Vacant(slot) => slot.insert(Value::Object(Map::new())),
                serde_json::map::Entry::Occupied(slot) => {
                    let node = slot.into_mut();
                    let inner = object(node);
                    if last || inner.is_empty() {
                        // It was a member before, or becomes one now.
                        if !(last && inner.is_empty()) {
                            inner.insert(SELF.to_string(), Value::Object(Map::new()));
                        }
                    }
                    if last {
                        return;
                    }
                    node
                }
            };
            nodes = object(slot);
        }
    }

    pub fn contains<'a>(&self, path: impl IntoIterator<Item = &'a str>) -> bool {
        let mut node: Option<&Nodes> = None;
        for step in path {
            match node.unwrap_or(&self.0).get(step).and_then(Value::as_object) {
                Some(next) => node = Some(next),
                None => return false,
            }
        }
        node.is_some_and(is_member)
    }

    /// Whether every path is in `other` as well.
    pub fn is_within(&self, other: &FieldSet) -> bool {
        is_within(&self.0, &other.0)
    }

    pub fn union(&mut self, other: FieldSet) {
        union(&mut self.0, other.0);
    }

    /// Takes the paths of `other` out; paths below them stay.
    pub fn subtract(&mut self, other: &FieldSet) {
        subtract(&mut self.0, &other.0);
    }

    /// Takes the paths of `other` out together with everything below them.
    pub fn subtract_below(&mut self, other: &FieldSet) {
        subtract_below(&mut self.0, &other.0);
    }

    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        FieldSet(intersection(&self.0, &other.0))
    }

    /// Takes out what lies at or below one of these patterns of field names; `*` stands for any element.
    pub fn remove_matching(&mut self, patterns: &[&[&str]]) {
        remove_matching(&mut self.0, patterns);
    }

    /// Keeps what lies at or below one of these patterns of field names; `*` stands for any element.
    pub fn retain_matching(&mut self, patterns: &[&[&str]]) {
        retain_matching(&mut self.0, patterns);
    }

    /// Every path, in the words of messages: `.spec.containers[name="web"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        collect_paths(&self.0, &mut String::new(), &mut paths, usize::MAX);
        paths
    }

    /// The first of them: as many as a message tells.
    pub(super) fn first_paths(&self, most: usize) -> Vec<String> {
        let mut paths = Vec::new();
        collect_paths(&self.0, &mut String::new(), &mut paths, most);
        paths
    }
}

pub(super) fn is_member(nodes: &Nodes) -> bool {
    nodes.is_empty() || nodes.contains_key(SELF)
}

/// The object of a node; what is no object was refused when it was read.
fn object(node: &mut Value) -> &mut Nodes {
    if !node.is_object() {
        *node = Value::Object(Map::new());
    }
    node.as_object_mut().expect("made an object above")
}

/// A node's object in the shortest form, or None when nothing is left of it.
pub(super) fn node(children: Nodes, member: bool) -> Option<Value> {
    let mut children = children;
    match (children.is_empty(), member) {
        (true, false) => None,
        (true, true) => Some(Value::Object(children)),
        (false, false) => Some(Value::Object(children)),
        (false, true) => {
            children.insert(SELF.to_string(), Value::Object(Map::new()));
            Some(Value::Object(children))
        }
    }
}

fn parse(nodes: &Nodes, depth: usize) -> Result<Nodes, BadFields> {
    if depth == 0 {
        return Err(BadFields("exceeded max depth".to_string()));
    }
    let mut out: BTreeMap<String, Value> = BTreeMap::new();
    for (text, value) in nodes {
        if text == SELF {
            continue;
        }
        let Some(text) = element::canonical(text).map_err(BadFields)? else { continue };
        let inner = match value {
            Value::Null => Map::new(),
            Value::Object(inner) => parse(inner, depth - 1)?,
            _ => return Err(BadFields(format!("{text} must hold an object"))),
        };
        match out.entry(text) {
            Entry::Vacant(slot) => {
                slot.insert(Value::Object(inner));
            }
            Entry::Occupied(mut slot) => {
                let both = merge_nodes(std::mem::take(object(slot.get_mut())), inner);
                slot.insert(both);
            }
        }
    }
    let mut children: Nodes = out.into_iter().collect();
    if nodes.contains_key(SELF) && !children.is_empty() {
        children.insert(SELF.to_string(), Value::Object(Map::new()));
    }
    Ok(children)
}

fn merge_nodes(mut a: Nodes, mut b: Nodes) -> Value {
    let member = is_member(&a) || is_member(&b);
    a.remove(SELF);
    b.remove(SELF);
    union(&mut a, b);
    node(a, member).unwrap_or_else(|| Value::Object(Map::new()))
}

fn union(a: &mut Nodes, b: Nodes) {
    for (text, theirs) in b {
        match a.get_mut(&text) {
            None => {
                a.insert(text, theirs);
            }
            Some(ours) => {
                let Value::Object(theirs) = theirs else { continue };
                let ours = object(ours);
                if theirs.is_empty() && is_member(ours) {
                    continue;
                }
                let merged = merge_nodes(std::mem::take(ours), theirs);
                if let Value::Object(merged) = merged {
                    *ours = merged;
                }
            }
        }
    }
}

fn is_within(a: &Nodes, b: &Nodes) -> bool {
    a.iter().filter(|(text, _)| *text != SELF).all(|(text, ours)| {
        match (ours.as_object(), b.get(text).and_then(Value::as_object)) {
            (Some(ours), Some(theirs)) => (!is_member(ours) || is_member(theirs)) && is_within(ours, theirs),
            _ => false,
        }
    })
}

fn subtract(a: &mut Nodes, b: &Nodes) {
    for (text, theirs) in b {
        let (Some(ours), Some(theirs)) = (a.get_mut(text), theirs.as_object()) else { continue };
        let ours = object(ours);
        let member = is_member(ours) && !is_member(theirs);
        if !member {
            ours.remove(SELF);
        }
        let leaf = ours.is_empty();
        if !leaf {
            subtract(ours, theirs);
            // "." alone says no more than an empty object does.
            if ours.len() == 1 && ours.contains_key(SELF) {
                ours.clear();
            }
        }
        if ours.is_empty() && !member {
            a.remove(text);
        }
    }
}

fn subtract_below(a: &mut Nodes, b: &Nodes) {
    for (text, theirs) in b {
        let Some(theirs) = theirs.as_object() else { continue };
        if is_member(theirs) {
            a.remove(text);
            continue;
        }
        let Some(ours) = a.get_mut(text) else { continue };
        let ours = object(ours);
        let member = is_member(ours);
        subtract_below(ours, theirs);
        if ours.len() == 1 && ours.contains_key(SELF) {
            ours.clear();
        }
        if ours.is_empty() && !member {
            a.remove(text);
        }
    }
}

fn intersection(a: &Nodes, b: &Nodes) -> Nodes {
    // Walk the smaller side: what is common cannot be larger.
    let (few, many) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    few.iter()
        .filter(|(text, _)| *text != SELF)
        .filter_map(|(text, few)| {
            let (few, many) = (few.as_object()?, many.get(text)?.as_object()?);
            let common = node(intersection(few, many), is_member(few) && is_member(many))?;
            Some((text.clone(), common))
        })
        .collect()
}

fn retain_matching(nodes: &mut Nodes, patterns: &[&[&str]]) {
    nodes.retain(|text, value| {
        if text == SELF {
            return false;
        }
        let mut below: Vec<&[&str]> = Vec::new();
        let mut matches = false;
        for pattern in patterns {
            if let Some((first, rest)) = pattern.split_first()
                && (*first == "*" || text.strip_prefix("f:") == Some(first))
            {
                matches = true;
                below.push(rest);
            }
        }
        if !matches {
            return false;
        }
        if below.iter().any(|rest| rest.is_empty()) {
            return true;
        }
        let inner = object(value);
        let member = is_member(inner);
        retain_matching(inner, &below);
        // Members on the way to a pattern stay, as upstream's filter keeps them.
        if member && !inner.is_empty() {
            inner.insert(SELF.to_string(), Value::Object(Map::new()));
        }
        member || !inner.is_empty()
    });
}

fn remove_matching(nodes: &mut Nodes, patterns: &[&[&str]]) {
    nodes.retain(|text, value| {
        let below: Vec<&[&str]> = patterns
            .iter()
            .filter_map(|pattern| pattern.split_first())
            .filter(|(first, _)| **first == "*" || text.strip_prefix("f:") == Some(**first))
            .map(|(_, rest)| rest)
            .collect();
        if text == SELF || below.is_empty() {
            return true;
        }
        if below.iter().any(|rest| rest.is_empty()) {
            return false;
        }
        let inner = object(value);
        let member = is_member(inner);
        remove_matching(inner, &below);
        if inner.len() == 1 && inner.contains_key(SELF) {
            inner.clear();
        }
        member || !inner.is_empty()
    });
}

fn collect_paths(nodes: &Nodes, prefix: &mut String, paths: &mut Vec<String>, most: usize) {
    let mut sorted: Vec<(&String, &Nodes)> = nodes
        .iter()
        .filter(|(text, _)| *text != SELF)
        .filter_map(|(text, value)| Some((text, value.as_object()?)))
        .collect();
    sorted.sort_by(|a, b| element::compare(a.0, b.0));
    for (text, inner) in &sorted {
        if paths.len() >= most {
            return;
        }
        if is_member(inner) {
            paths.push(format!("{prefix}{}", element::describe(text)));
        }
    }
    for (text, inner) in sorted {
        let length = prefix.len();
        prefix.push_str(&element::describe(text));
        collect_paths(inner, prefix, paths, most);
        prefix.truncate(length);
    }
}

fn print(nodes: &Nodes, out: &mut String) {
    let mut sorted: Vec<(&String, &Value)> = nodes.iter().collect();
    sorted.sort_by(|a, b| match (a.0.as_str(), b.0.as_str()) {
        (SELF, _) => std::cmp::Ordering::Less,
        (_, SELF) => std::cmp::Ordering::Greater,
        (a, b) => element::compare(a, b),
    });
    out.push('{');
    for (index, (text, value)) in sorted.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        let _ = write!(out, "{}:", Value::String(text.clone()));
        match value.as_object() {
            Some(inner) => print(inner, out),
            None => out.push_str("{}"),
        }
    }
    out.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(fields: Value) -> FieldSet {
        FieldSet::parse(&fields).expect("a field set")
    }

    #[test]
    fn reading_gives_each_set_one_form() {
        let check = |fields: Value, expected: Value| assert_eq!(set(fields).into_value(), expected);
        check(json!({"f:a": {".": {}}}), json!({"f:a": {}}));
        check(json!({"f:a": null, "z:q": {}}), json!({"f:a": {}}));
        check(json!({"f:a": {"z:q": {}}}), json!({"f:a": {}}));
        check(
            json!({"k:{\"b\":1,\"a\":2}": {"f:x": {}}, "k:{\"a\":2,\"b\":1}": {}}),
            json!({"k:{\"a\":2,\"b\":1}": {".": {}, "f:x": {}}}),
        );
        assert!(FieldSet::parse(&json!({"a": {}})).is_err());
        assert!(FieldSet::parse(&json!({"f:a": 1})).is_err());
        assert!(FieldSet::parse(&json!([])).is_err());
    }

    #[test]
    fn a_member_may_have_members_below() {
        let mut fields = FieldSet::of_fields([["a", "b"].as_slice(), &["a"], &["c"], &["c", "d"]]);
        assert_eq!(
            fields.clone().into_value(),
            json!({"f:a": {".": {}, "f:b": {}}, "f:c": {".": {}, "f:d": {}}})
        );
        fields.subtract(&FieldSet::of_fields([["a"].as_slice(), &["c", "d"]]));
        assert_eq!(fields.clone().into_value(), json!({"f:a": {"f:b": {}}, "f:c": {}}));
        assert!(fields.contains(["f:a", "f:b"]) && fields.contains(["f:c"]));
        assert!(!fields.contains(["f:a"]) && !fields.contains(["f:c", "f:d"]));
    }

    #[test]
    fn subtracting_below_takes_whole_branches() {
        let mut fields = set(json!({"f:s": {".": {}, "f:x": {"f:y": {}}}, "f:t": {"f:u": {}, "f:v": {}}}));
        fields.subtract_below(&set(json!({"f:s": {}, "f:t": {"f:u": {}}})));
        assert_eq!(fields.into_value(), json!({"f:t": {"f:v": {}}}));
    }

    #[test]
    fn patterns_keep_what_lies_below_them() {
        let mut fields = set(json!({"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {
            ".": {}, "f:image": {}, "f:resources": {"f:limits": {}}}}, "f:nodeName": {}}}));
        fields.retain_matching(&[&["spec", "containers", "*", "resources"]]);
        assert_eq!(
            fields.into_value(),
            json!({"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {
                ".": {}, "f:resources": {"f:limits": {}}}}}})
        );
    }

    #[test]
    fn printing_orders_as_upstream() {
        let fields =
            set(json!({"v:10": {}, "v:9": {}, "f:b": {".": {}, "k:{\"p\":80}": {}, "k:{\"p\":443}": {}}}));
        assert_eq!(
            fields.print(),
            r#"{"f:b":{".":{},"k:{\"p\":80}":{},"k:{\"p\":443}":{}},"v:9":{},"v:10":{}}"#
        );
        assert_eq!(fields.paths(), [".b", "[=9]", "[=10]", ".b[p=80]", ".b[p=443]"]);
    }
}
