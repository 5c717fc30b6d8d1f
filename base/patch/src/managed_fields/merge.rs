//! An applied configuration laid over the live object.

use std::collections::{HashMap, HashSet};

use ferry_api::Schema;
use serde_json::{Map, Value};

use super::rows::{Owned, Rows};

/// Every field of `applied` wins; what it does not mention stays as it is.
pub fn onto(
    live: &mut Map<String, Value>,
    applied: &Map<String, Value>,
    schema: &Schema,
) -> Result<(), NoElement> {
    let (rows, root) = Rows::of(schema);
    rows.merge_maps(root, live, applied)
}

/// A list holds what cannot be told from its other elements.
#[derive(Debug)]
pub struct NoElement;

impl<'s> Rows<'s> {
    fn merge(self, owned: Owned<'s>, live: &mut Value, applied: &Value) -> Result<(), NoElement> {
        match (owned, &mut *live, applied) {
            (Owned::Struct(_) | Owned::Map(_) | Owned::Free, Value::Object(live), Value::Object(applied)) => {
                self.merge_maps(owned, live, applied)
            }
            (Owned::List { .. } | Owned::Set(_), Value::Array(live), Value::Array(applied)) => {
                *live = self.merge_lists(owned, std::mem::take(live), applied)?;
                Ok(())
            }
            // Naming a map or list without saying what is in it leaves it alone.
            (Owned::Struct(_) | Owned::Map(_) | Owned::Free, Value::Object(live), Value::Null)
                if !live.is_empty() =>
            {
                Ok(())
            }
            (Owned::List { .. } | Owned::Set(_), Value::Array(live), Value::Null) if !live.is_empty() => {
                Ok(())
            }
            _ => {
                *live = applied.clone();
                Ok(())
            }
        }
    }

    fn merge_maps(
        self,
        owned: Owned<'s>,
        live: &mut Map<String, Value>,
        applied: &Map<String, Value>,
    ) -> Result<(), NoElement> {
        for (name, value) in applied {
            match live.get_mut(name) {
                Some(old) => self.merge(self.at(owned, name), old, value)?,
                None => {
                    live.insert(name.clone(), value.clone());
                }
            }
        }
        Ok(())
    }

    /// Applied elements come in the applied order, with the live ones that nobody mentioned between
    /// them, as near as can be to where they were.
    fn merge_lists(
        self,
        owned: Owned<'s>,
        live: Vec<Value>,
        applied: &[Value],
    ) -> Result<Vec<Value>, NoElement> {
        let elements = |items: &[Value]| -> Result<Vec<String>, NoElement> {
            items.iter().map(|item| self.element(owned, item).ok_or(NoElement)).collect()
        };
        let (live_elements, applied_elements) = (elements(&live)?, elements(applied)?);
        let places = places(&live_elements);
        let mut live: Vec<Option<Value>> = live.into_iter().map(Some).collect();
        let mut merged = Vec::with_capacity(live.len().max(applied.len()));
        for next in interleave(&live_elements, &applied_elements, &places) {
            let index = match next {
                Next::Live(place) => {
                    merged.extend(live[place].take());
                    continue;
                }
                Next::Applied(index) => index,
            };
            let place = places.get(applied_elements[index].as_str()).copied().flatten();
            match place.and_then(|place| live[place].take()) {
                Some(mut item) => {
                    self.merge(self.items(owned), &mut item, &applied[index])?;
                    merged.push(item);
                }
                None => merged.push(applied[index].clone()),
            }
        }
        Ok(merged)
    }
}

/// Where each live element is; `None` for elements that share their keys, which give way to the one that is applied.
type Places<'e> = HashMap<&'e str, Option<usize>>;

fn places(live: &[String]) -> Places<'_> {
    let mut places: Places = HashMap::with_capacity(live.len());
    for (place, element) in live.iter().enumerate() {
        places.entry(element).and_modify(|place| *place = None).or_insert(Some(place));
    }
    places
}

/// What comes next in a merged list: a live element that is not applied, or an applied one.
enum Next {
    Live(usize),
    Applied(usize),
}

/// The order of a merged list.
fn interleave(live: &[String], applied: &[String], places: &Places) -> Vec<Next> {
    let mentioned: HashSet<&str> = applied.iter().map(String::as_str).collect();
    // The applied elements that are live as well, in the applied order.
    let mut shared = applied.iter().filter(|element| places.contains_key(element.as_str())).peekable();
    let mut done: HashSet<&str> = HashSet::with_capacity(applied.len());
    let mut order = Vec::with_capacity(live.len().max(applied.len()));
    let (mut at_live, mut at_applied) = (0, 0);
    while at_live < live.len() || at_applied < applied.len() {
        if let (Some(here), Some(there)) = (live.get(at_live), applied.get(at_applied)) {
            if here == there {
                order.push(Next::Applied(at_applied));
                done.insert(there);
                shared.next();
                at_live += 1;
                at_applied += 1;
                continue;
            }
            // It comes later in the applied order than another one that is live.
            if mentioned.contains(here.as_str()) && shared.peek().is_some_and(|next| *next != here) {
                at_live += 1;
                continue;
            }
        }
        if let Some(here) = live.get(at_live) {
            if !mentioned.contains(here.as_str()) {
                order.push(Next::Live(at_live));
                at_live += 1;
                continue;
            }
            if done.contains(here.as_str()) {
                at_live += 1;
            }
        }
        if let Some(there) = applied.get(at_applied) {
            order.push(Next::Applied(at_applied));
            done.insert(there);
            if shared.peek() == Some(&there) {
                shared.next();
            }
            at_applied += 1;
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_api::GroupVersionKind;
    use serde_json::json;

    #[test]
    fn applied_order_wins_and_others_stay_near_their_place() {
        let schema = Schema::builtin(&GroupVersionKind::new("", "v1", "ConfigMap")).expect("ConfigMap");
        let check = |live: &[&str], applied: &[&str], expected: &[&str]| {
            let object = |list: &[&str]| json!({"metadata": {"finalizers": list}});
            let mut value = object(live);
            let applied = object(applied);
            onto(value.as_object_mut().expect("an object"), applied.as_object().expect("an object"), &schema)
                .expect("merges");
            assert_eq!(value, object(expected), "{live:?} {applied}");
        };
        check(&["a", "b", "c"], &["a", "b", "c"], &["a", "b", "c"]);
        check(&["a", "b", "c"], &["c", "a"], &["b", "c", "a"]);
        check(&["a", "b"], &["x", "b"], &["a", "x", "b"]);
        check(&["a", "b", "c"], &["x"], &["a", "b", "c", "x"]);
        check(&["a"], &["x", "a", "y"], &["x", "a", "y"]);
        check(&["a", "b", "c", "d"], &["d", "b"], &["a", "c", "d", "b"]);
    }
}
