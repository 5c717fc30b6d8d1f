//! Which fields two versions of an object differ in.

use std::collections::HashMap;
use std::sync::LazyLock;

use ferry_api::Schema;
use serde_json::{Map, Value};

use super::element;
use super::field_set::{FieldSet, SELF};
use super::rows::{Owned, Rows, same};

type Fields = Map<String, Value>;

#[derive(Debug, Default, Clone, PartialEq)]
pub struct Changes {
    pub removed: FieldSet,
    pub modified: FieldSet,
    pub added: FieldSet,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    pub fn each(&mut self, mut change: impl FnMut(&mut FieldSet)) {
        change(&mut self.removed);
        change(&mut self.modified);
        change(&mut self.added);
    }
}

/// What the server itself writes into every object; nobody manages it.
const UNMANAGED_META: [&str; 9] = [
    "creationTimestamp",
    "clusterName",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
];

pub fn is_unmanaged_meta(field: &str) -> bool {
    UNMANAGED_META.contains(&field)
}

/// The fields nobody manages, as a set.
pub fn unmanaged() -> &'static FieldSet {
    static UNMANAGED: LazyLock<FieldSet> = LazyLock::new(|| {
        let top = [["apiVersion"].as_slice(), &["kind"], &["metadata"]];
        let mut set = FieldSet::of_fields(top);
        for field in UNMANAGED_META {
            set.union(FieldSet::of_fields([["metadata", field].as_slice()]));
        }
        set
    });
    &UNMANAGED
}

/// Compares two objects, leaving out what nobody manages.
pub fn objects(old: &Fields, new: &Fields, schema: &Schema) -> Changes {
    let (rows, root) = Rows::of(schema);
    let nothing = Map::new();
    let mut metadata = Node::default();
    side_by_side(
        old.get("metadata").and_then(Value::as_object).unwrap_or(&nothing),
        new.get("metadata").and_then(Value::as_object).unwrap_or(&nothing),
        |name, old, new| {
            if !is_unmanaged_meta(name) {
                let owned = rows.at(rows.at(root, "metadata"), name);
                metadata.attach(name, rows.compare(owned, old, new));
            }
        },
    );
    let mut node = Node::default();
    node.attach("metadata", metadata);
    side_by_side(old, new, |name, old, new| {
        if !matches!(name, "apiVersion" | "kind" | "metadata") {
            node.attach(name, rows.compare(rows.at(root, name), old, new));
        }
    });
    let set = |branch: Branch| FieldSet::from_nodes(branch.unwrap_or_default());
    Changes { removed: set(node.removed), modified: set(node.modified), added: set(node.added) }
}

/// The children of a node that is in a set, with "." where it is a member and has children.
type Branch = Option<Fields>;

/// What a node contributes to the three sets.
#[derive(Default)]
struct Node {
    removed: Branch,
    modified: Branch,
    added: Branch,
}

impl Node {
    fn leaf(old: Option<&Value>, new: Option<&Value>) -> Node {
        let here = || Some(Map::new());
        match (old, new) {
            (None, None) => Node::default(),
            (None, Some(_)) => Node { added: here(), ..Node::default() },
            (Some(_), None) => Node { removed: here(), ..Node::default() },
            (Some(old), Some(new)) if same(old, new) => Node::default(),
            _ => Node { modified: here(), ..Node::default() },
        }
    }

    fn attach(&mut self, name: &str, child: Node) {
        if child.removed.is_some() || child.modified.is_some() || child.added.is_some() {
            self.attach_element(element::field(name), child);
        }
    }

    fn attach_element(&mut self, element: String, child: Node) {
        let mut branches = [
            (&mut self.removed, child.removed),
            (&mut self.modified, child.modified),
            (&mut self.added, child.added),
        ]
        .into_iter()
        .filter_map(|(branch, inner)| Some((branch, inner?)))
        .peekable();
        let mut element = Some(element);
        while let Some((branch, inner)) = branches.next() {
            // As a rule it goes into one of them.
            let name = if branches.peek().is_some() { element.clone() } else { element.take() };
            branch.get_or_insert_default().extend(name.map(|name| (name, Value::Object(inner))));
        }
    }

    /// A node that came or went is itself added or removed, along with what it holds.
    fn with_self(mut self, old: Option<&Value>, new: Option<&Value>) -> Node {
        let mark = |branch: &mut Branch| {
            let inner = branch.get_or_insert_default();
            if !inner.is_empty() {
                inner.insert(SELF.to_string(), Value::Object(Map::new()));
            }
        };
        if old.is_none() {
            mark(&mut self.added);
        } else if new.is_none() {
            mark(&mut self.removed);
        }
        self
    }
}

impl<'s> Rows<'s> {
    fn compare(self, owned: Owned<'s>, old: Option<&Value>, new: Option<&Value>) -> Node {
        match (old, new) {
            (None, Some(new)) => return Node { added: Some(self.below(owned, new)), ..Node::default() },
            (Some(old), None) => return Node { removed: Some(self.below(owned, old)), ..Node::default() },
            _ => {}
        }
        match owned {
            Owned::Scalar(_) | Owned::Whole(_) => Node::leaf(old, new),
            Owned::Struct(_) | Owned::Map(_) => self.compare_maps(owned, old, new),
            Owned::List { .. } | Owned::Set(_) => self.compare_lists(owned, old, new),
            Owned::Free => self.compare_free(old, new),
        }
    }

    /// What lies below a value that came or went: all of it, which is most of what a new object says.
    fn below(self, owned: Owned<'s>, value: &Value) -> Fields {
        let mut nodes = Vec::new();
        let mut attach = |element: String, below: Fields| {
            if nodes.is_empty() {
                nodes.push((SELF.to_string(), Value::Object(Map::new())));
            }
            nodes.push((element, Value::Object(below)));
        };
        match (owned, value) {
            (Owned::Struct(_) | Owned::Map(_) | Owned::Free, Value::Object(fields)) => {
                for (name, value) in fields {
                    attach(element::field(name), self.below(self.at(owned, name), value));
                }
            }
            (Owned::List { .. } | Owned::Set(_), Value::Array(_)) => {
                for (element, _, items) in self.pairs(owned, None, Some(value)) {
                    // Elements that share their keys are owned together.
                    let below = match items.as_slice() {
                        [one] => self.below(self.items(owned), one),
                        _ => Map::new(),
                    };
                    attach(element, below);
                }
            }
            _ => {}
        }
        nodes.into_iter().collect()
    }

    fn compare_maps(self, owned: Owned<'s>, old: Option<&Value>, new: Option<&Value>) -> Node {
        let empty = Map::new();
        let (before, after) = match (filled(old), filled(new)) {
            (None, None) => return Node::leaf(old, new),
            (before, after) => (before.unwrap_or(&empty), after.unwrap_or(&empty)),
        };
        let mut node = Node::default();
        side_by_side(before, after, |name, old, new| {
            node.attach(name, self.compare(self.at(owned, name), old, new));
        });
        node.with_self(old, new)
    }

    fn compare_lists(self, owned: Owned<'s>, old: Option<&Value>, new: Option<&Value>) -> Node {
        let items = |value: Option<&Value>| value.and_then(Value::as_array).map_or(0, Vec::len);
        if items(old) == 0 && items(new) == 0 {
            return Node::leaf(old, new);
        }
        let mut node = Node::default();
        for (element, before, after) in self.pairs(owned, old, new) {
            let child = match (before.as_slice(), after.as_slice()) {
                (before @ ([] | [_]), after @ ([] | [_])) => {
                    self.compare(self.items(owned), before.first().copied(), after.first().copied())
                }
                // Elements that share their keys cannot be told apart and are owned together.
                ([_, _, ..], [_, _, ..]) => {
                    let equal =
                        before.len() == after.len() && before.iter().zip(&after).all(|(a, b)| same(a, b));
                    if equal {
                        Node::default()
                    } else {
                        Node { modified: Some(Map::new()), ..Node::default() }
                    }
                }
                (many, one) if many.len() > 1 => {
                    let mut child = match one.first() {
                        Some(one) => self.compare(self.items(owned), None, Some(one)),
                        None => Node::default(),
                    };
                    child.removed = Some(Map::new());
                    child
                }
                (one, _) => {
                    let mut child = match one.first() {
                        Some(one) => self.compare(self.items(owned), Some(one), None),
                        None => Node::default(),
                    };
                    child.added = Some(Map::new());
                    child
                }
            };
            if child.removed.is_some() || child.modified.is_some() || child.added.is_some() {
                node.attach_element(element, child);
            }
        }
        node.with_self(old, new)
    }

    /// The items of two lists by path element, in the order they appear. Items without an element of
    /// their own cannot be owned and are passed over.
    fn pairs<'v>(
        self,
        owned: Owned<'s>,
        old: Option<&'v Value>,
        new: Option<&'v Value>,
    ) -> Vec<(String, Vec<&'v Value>, Vec<&'v Value>)> {
        let mut pairs: Vec<(String, Vec<&Value>, Vec<&Value>)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        let length = |value: Option<&Value>| value.and_then(Value::as_array).map_or(0, Vec::len);
        let long = length(old) + length(new) > 32;
        for (value, is_old) in [(old, true), (new, false)] {
            for item in value.and_then(Value::as_array).into_iter().flatten() {
                let Some(element) = self.element(owned, item) else { continue };
                let place = match long {
                    true => places.get(&element).copied(),
                    false => pairs.iter().position(|(other, _, _)| *other == element),
                };
                let place = place.unwrap_or_else(|| {
                    if long {
                        places.insert(element.clone(), pairs.len());
                    }
                    pairs.push((element, Vec::new(), Vec::new()));
                    pairs.len() - 1
                });
                if is_old { pairs[place].1.push(item) } else { pairs[place].2.push(item) }
            }
        }
        pairs
    }

    /// Without rows, the values themselves say whether they are maps.
    fn compare_free(self, old: Option<&Value>, new: Option<&Value>) -> Node {
        let is_map = |value: Option<&Value>| value.is_none_or(Value::is_object);
        if is_map(old) && is_map(new) {
            return self.compare_maps(Owned::Free, old, new);
        }
        if filled(old).is_none() && filled(new).is_none() {
            return Node::leaf(old, new);
        }
        // A map that becomes something else takes its fields with it, and the other way round.
        let mut node = Node::default();
        let nothing = Map::new();
        let before = old.and_then(Value::as_object).unwrap_or(&nothing);
        let after = new.and_then(Value::as_object).unwrap_or(&nothing);
        side_by_side(before, after, |name, old, new| {
            node.attach(name, self.compare_free(old, new));
        });
        let turned = |value: Option<&Value>| !value.is_some_and(|value| value.is_object() || value.is_null());
        if turned(old) || turned(new) {
            let own = Node::leaf(old, new);
            if own.modified.is_some() {
                node.modified.get_or_insert_default();
            }
        }
        node.with_self(old, new)
    }
}

/// The fields of an object that has any.
fn filled(value: Option<&Value>) -> Option<&Fields> {
    value.and_then(Value::as_object).filter(|map| !map.is_empty())
}

/// Walks two objects side by side, over the fields in which they differ.
fn side_by_side<'v>(
    old: &'v Fields,
    new: &'v Fields,
    mut visit: impl FnMut(&str, Option<&'v Value>, Option<&'v Value>),
) {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        // Both are ordered by name.
        let order = match (old.peek(), new.peek()) {
            (None, None) => break,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.as_str().cmp(b.as_str()),
        };
        let before = if order.is_le() { old.next() } else { None };
        let after = if order.is_ge() { new.next() } else { None };
        match (before, after) {
            // Most of an object is as it was; saying so needs no rows.
            (Some((_, before)), Some((_, after))) if before == after => {}
            (Some((name, before)), after) => visit(name, Some(before), after.map(|(_, value)| value)),
            (None, Some((name, after))) => visit(name, None, Some(after)),
            (None, None) => {}
        }
    }
}
