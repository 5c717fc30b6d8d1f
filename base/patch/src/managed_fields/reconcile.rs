//! Sets written before their kind changed its mind. Where a list or map has come to be owned in one
//! piece, whoever managed a part of it manages all of it.

use ferry_api::Schema;
use serde_json::{Map, Value};

use super::field_set::FieldSet;
use super::rows::{Owned, Rows};

pub fn reconcile_with_schema(set: &mut FieldSet, schema: &Schema) {
    let (rows, root) = Rows::of(schema);
    rows.reconcile(root, set.nodes_mut());
}

impl<'s> Rows<'s> {
    fn reconcile(self, owned: Owned<'s>, nodes: &mut Map<String, Value>) {
        for (text, value) in nodes.iter_mut() {
            let Value::Object(inner) = value else { continue };
            if inner.is_empty() {
                continue;
            }
            let below = match text.strip_prefix("f:") {
                Some(name) => self.at(owned, name),
                None => self.items(owned),
            };
            match below {
                Owned::Whole(_) => inner.clear(),
                Owned::Scalar(_) | Owned::Free => {}
                below => self.reconcile(below, inner),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_api::GroupVersionKind;
    use serde_json::json;

    #[test]
    fn a_part_of_what_is_whole_becomes_the_whole() {
        let schema = Schema::builtin(&GroupVersionKind::new("apps", "v1", "Deployment")).expect("Deployment");
        let fields = json!({"f:spec": {
            "f:selector": {"f:matchLabels": {"f:a": {}}},
            "f:template": {"f:spec": {"f:tolerations": {".": {}, "i:0": {}}, "f:nodeSelector": {"f:a": {}}}}}});
        let mut set = FieldSet::parse(&fields).expect("a set");
        reconcile_with_schema(&mut set, &schema);
        assert_eq!(
            set.into_value(),
            json!({"f:spec": {"f:selector": {}, "f:template": {"f:spec": {
                "f:tolerations": {}, "f:nodeSelector": {}}}}})
        );
    }
}
