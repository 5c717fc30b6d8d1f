//! The schema of a custom resource, checked, compiled and used on an object. An input is the schema, then an object, then
//! the object before an update; each JSON or YAML.

use ferry_api::{FieldErrors, GroupVersionKind, yaml};
use ferry_schema::check::{self, CheckContext};
use ferry_schema::{Rules, Structural, default, prune, publish, validate};
use serde_json::Value;

use crate::parts;

pub fn run(data: &[u8]) {
    let Some(mut parts) = parts(data) else { return };
    let read = |text: &str| yaml::one::<Value>(text).ok();
    let Some(schema) = parts.next().and_then(read) else { return };
    let mut errors = FieldErrors::default();
    for preserve_unknown_fields in [false, true] {
        let context = CheckContext { preserve_unknown_fields, ..CheckContext::default() };
        check::schema(&schema, "spec.versions[0].schema.openAPIV3Schema", &context, &mut errors);
    }
    let gvk = GroupVersionKind::new("fuzz.example", "v1", "Thing");
    let structural = match Structural::parse(&schema) {
        Ok(structural) => structural,
        Err(why) => {
            assert!(!errors.0.is_empty(), "a schema without fault cannot be read: {why}");
            return;
        }
    };
    let rules = match Rules::compile(&structural) {
        Ok(rules) => rules,
        Err(why) => {
            assert!(!errors.0.is_empty(), "rules without fault do not compile: {why}");
            Rules::none()
        }
    };
    let _ = (publish::v2(Some(&schema), &gvk, true), publish::v3(Some(&schema), &gvk, true));
    let rows = structural.rows(&gvk);
    let Some(Value::Object(mut object)) = parts.next().and_then(read) else { return };
    let before = parts.next().and_then(read);
    prune::prune(&mut object, &structural, Some(&mut Vec::new()));
    default::apply(&mut object, &structural);
    // What defaults added is in the schema, and pruning keeps it.
    if errors.0.is_empty() {
        let mut again = object.clone();
        prune::prune(&mut again, &structural, None);
        default::apply(&mut again, &structural);
        assert_eq!(again, object);
    }
    let mut found = FieldErrors::default();
    let old = before.as_ref().and_then(Value::as_object);
    validate::object(&object, old, &structural, &rules, &mut found);
    validate::object(&object, None, &structural, &rules, &mut found);
    if let Some(old) = old {
        validate::status(&object, old, &structural, &rules, &mut found);
    }
    let _ = ferry_patch::managed_fields::fields_of(&ferry_api::Object::new(object), &rows);
}

pub fn seeds() -> Vec<Vec<u8>> {
    const SCHEMA: &str = r#"{"type":"object","required":["spec"],"properties":{"spec":{"type":"object","default":{"size":1},
        "x-kubernetes-validations":[{"rule":"self.size <= self.max","message":"too large","fieldPath":".size","reason":"FieldValueInvalid"},
        {"rule":"oldSelf.size <= self.size","messageExpression":"'was ' + string(oldSelf.size)"}],
        "properties":{"size":{"type":"integer","format":"int32","minimum":0,"maximum":10,"default":2},"max":{"type":"integer","default":5},
        "name":{"type":"string","maxLength":20,"pattern":"^[a-z]+$","enum":["a","b"]},"when":{"type":"string","format":"date-time"},
        "port":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}]},
        "list":{"type":"array","maxItems":3,"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","required":["k"],
        "properties":{"k":{"type":"string"},"v":{"type":"number","multipleOf":0.5,"nullable":true}}}},
        "set":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},
        "map":{"type":"object","additionalProperties":{"type":"string"},"maxProperties":2},
        "any":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
        "embedded":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}},
        "oneOf":[{"required":["name"]},{"required":["set"]}],"not":{"required":["x"]}},"status":{"type":"object"}}}"#;
    const OBJECT: &str = r#"{"apiVersion":"fuzz.example/v1","kind":"Thing","metadata":{"name":"a"},"spec":{"size":3,"name":"a","port":"http",
        "list":[{"k":"a","v":1.5},{"k":"b","v":null}],"set":["a","b"],"map":{"a":"b"},"any":{"x":[1]},"unknown":1,
        "embedded":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}}}}"#;
    let schema = SCHEMA.replace("\n        ", "");
    let object = OBJECT.replace("\n        ", "");
    vec![
        format!("{schema}\n---\n{object}\n---\n{object}").into_bytes(),
        format!("{{\"type\":\"object\"}}\n---\n{object}").into_bytes(),
        format!("type: object\nx-kubernetes-preserve-unknown-fields: true\n---\n{object}\n---\n{object}")
            .into_bytes(),
    ]
}
