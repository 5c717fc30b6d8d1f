use std::path::Path;

use serde_json::{Value, json};

use super::*;

/// What upstream publishes with v1.36, in part as facts taken from it.
const PUBLISHED: &str = "../../shared/k8s-1.36";

/// The facts hold every message of upstream's protocol files, but in no order: the table's stands for Go's.
fn messages_of_facts(facts: &Value, table: &Table) -> Messages {
    let mut messages = Messages::new();
    let mut add = |name: String, fields: Vec<(&String, &Value)>| {
        let package = name.rsplit_once('.').map_or("", |(package, _)| package);
        let fields = fields.into_iter().filter(|(_, field)| field.get("tag").is_some());
        let mut fields: Vec<ProtoField> = fields
            .map(|(field, facts)| {
                let kind = facts["proto"].as_str().expect("a type");
                let is_repeated = facts["label"] == "repeated";
                ProtoField::new(package, field, kind, &facts["tag"].to_string(), is_repeated)
            })
            .collect();
        let rows = table.types.get(&name).map(|of| &of.rows[..]).unwrap_or_default();
        fields.sort_by_key(|field| rows.iter().position(|row| row.tag == field.tag));
        messages.insert(name, fields);
    };
    for (name, facts) in facts["types"].as_object().expect("types") {
        if facts.get("scalar").is_some() {
            continue;
        }
        let both = ["fields", "proto_only"].into_iter().filter_map(|part| facts[part].as_object());
        let fields: Vec<_> = both.flatten().collect();
        let is_message = fields.iter().any(|(_, field)| field.get("tag").is_some());
        if is_message || table.types.get(name).is_some_and(|of| of.rows.is_empty()) {
            add(name.clone(), fields);
        }
    }
    for (name, fields) in facts["proto_only_messages"].as_object().expect("messages") {
        add(messages::openapi_name(name), fields.as_object().expect("fields").iter().collect());
    }
    messages
}

#[test]
fn the_table_of_v1_36_is_what_its_published_files_make() {
    let directory = Path::new(PUBLISHED);
    if !directory.is_dir() {
        ferry_skip::missing("what upstream publishes with v1.36");
        return;
    }
    let text = std::fs::read_to_string(Path::new("..").join(TABLE)).expect("the table");
    let old = rows::parse(&text).expect("the table");
    assert!(rows::print(&old) == text, "the table is not in the order that it is written in");

    let schemas = schemas::read(directory).expect("OpenAPI");
    let facts = std::fs::read_to_string(directory.join("types.json")).expect("the facts");
    let messages = messages_of_facts(&serde_json::from_str(&facts).expect("the facts"), &old);
    let (new, review) = generate(&old, &schemas, &messages);
    assert_eq!(review, [""; 0]);
    for (name, before) in &old.types {
        assert_eq!(new.types.get(name), Some(before), "{name}");
    }
    assert!(rows::print(&new) == text);
}

#[test]
fn fields_come_and_go_with_the_version_and_what_is_of_go_stays() {
    let old = "# head\n\npackage g.v1 io.k8s.api.g.v1\ntype A published\n  gvk g/v1 A\n  typemeta\n  \
               size int32 1 ptr assume=3\n  old string 2\n  ours B 9 ptr unpublished\ntype B\n  x string 1\n\
               type Gone published\n  x string 1\n";
    let old = rows::parse(old).expect("a table");
    let mut schemas = Schemas::new();
    let document = json!({"components": {"schemas": {"io.k8s.api.g.v1.A": {
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "size": {"type": "integer", "default": 2},
            "x-names": {"type": "array", "x-kubernetes-list-type": "set", "items": {"enum": ["b", "a c"], "default": ""}},
            "word": {"type": "string", "default": ""},
            "c": {"allOf": []},
        },
        "required": ["word"],
        "x-kubernetes-map-type": "atomic",
        "x-kubernetes-group-version-kind": [{"group": "g", "version": "v1", "kind": "A"}],
    }}}});
    schemas::add(&document, &mut schemas);
    let mut messages = Messages::new();
    let protocol = "package k8s.io.api.g.v1; import \"x\"; // comment\nmessage A { optional int32 size = 1; \
                    repeated string xNames = 4; optional string Word = 5; optional C c = 6; \
                    optional .k8s.io.api.g.v1.D d = 7; } message B { optional string x = 1; } \
                    message C { map<string, .k8s.io.apimachinery.pkg.api.resource.Quantity> q = 1; } message D { }";
    messages::parse(protocol, &mut messages).expect("a protocol file");
    let (new, review) = generate(&old, &schemas, &messages);
    let expected = "# head\n\npackage g.v1 io.k8s.api.g.v1\ntype A map=atomic published\n  gvk g/v1 A\n  typemeta\n  \
                    size int32 1 ptr default=2 assume=3\n  ours B 9 ptr unpublished\n  \
                    x-names []string 4 list=set enum=a~c,b\n  \
                    word string 5 keep required\n  c C 6 ptr\n  inline d D 7\ntype B\n  x string 1\n\
                    type C\n  q map<quantity> 1\ntype D\n";
    assert_eq!(rows::print(&new), expected);
    assert!(review.contains(&"io.k8s.api.g.v1.A.old is gone".to_owned()), "{review:?}");
    assert!(review.contains(&"io.k8s.api.g.v1.Gone is gone".to_owned()), "{review:?}");
    assert!(review.contains(&"io.k8s.api.g.v1.A.c is new, taken for [\"ptr\"]".to_owned()), "{review:?}");
}
