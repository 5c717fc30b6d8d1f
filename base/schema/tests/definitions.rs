//! The definitions of projects that are widely used, where they lie beside the repository.

use std::fs;
use std::path::{Path, PathBuf};

use ferry_api::{FieldErrors, GroupVersionKind};
use ferry_schema::check::{self, CheckContext};
use ferry_schema::{Rules, Structural, default, prune, publish, validate};
use serde_json::Value;

/// Each version of each definition: file, definition, its index, schema.
fn versions() -> Vec<(String, Value, usize, Value)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/crds");
    let mut found = Vec::new();
    for file in files(&root) {
        let text = fs::read_to_string(&file).expect("a readable file");
        for document in text.split("\n---") {
            if document.trim().trim_start_matches('-').trim().is_empty() {
                continue;
            }
            let read = ferry_api::yaml::one::<Value>(document);
            let definition = read.unwrap_or_else(|why| panic!("{}: {why}", file.display()));
            if definition["kind"] != "CustomResourceDefinition" {
                continue;
            }
            let versions = definition["spec"]["versions"].as_array().cloned().unwrap_or_default();
            for (index, version) in versions.into_iter().enumerate() {
                let schema = version["schema"]["openAPIV3Schema"].clone();
                let name = format!("{}/{}", definition["metadata"]["name"], version["name"]);
                found.push((name, definition.clone(), index, schema));
            }
        }
    }
    found
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let deeper: Vec<PathBuf> =
        paths.iter().filter(|path| path.is_dir()).flat_map(|path| files(path)).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.extend(deeper);
    paths
}

/// What a version's schema may hold on average: 1,000 definitions must fit into 256 MB with all that
/// is kept of them.
const BYTES_PER_VERSION: usize = 128 << 10;

#[test]
fn schemas_are_read_and_stay_small() {
    let versions = versions();
    if versions.is_empty() {
        return;
    }
    let mut total = 0;
    for (name, definition, _, schema) in &versions {
        let structural = Structural::parse(schema).unwrap_or_else(|why| panic!("{name}: {why}"));
        let bytes = structural.heap_bytes();
        println!("{bytes:>8} bytes of {:>8} {name}", schema.to_string().len());
        total += bytes;
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap_or_default().to_string();
        let group = definition["spec"]["group"].as_str().unwrap_or_default().to_string();
        let gvk = GroupVersionKind { group: group.into(), version: "v1".into(), kind: kind.into() };
        let rows = structural.rows(&gvk);
        assert!(rows.root().field("metadata").is_some(), "{name}");
        let fields: usize = rows.types.iter().map(|ty| ty.fields.len()).sum();
        println!("         {} types, {fields} fields as rows", rows.types.iter().count());
    }
    println!("{total} bytes in {} versions", versions.len());
    assert!(total / versions.len() < BYTES_PER_VERSION, "{total} bytes in {} versions", versions.len());
}

#[test]
fn schemas_are_found_without_fault_and_their_rules_compile() {
    let mut rules = 0;
    for (name, definition, index, schema) in versions() {
        let status = !definition["spec"]["versions"][index]["subresources"]["status"].is_null();
        let context = CheckContext { status_subresource: status, ..CheckContext::default() };
        let mut errors = FieldErrors::default();
        check::schema(&schema, "spec.versions[0].schema.openAPIV3Schema", &context, &mut errors);
        let told: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert!(told.is_empty(), "{name}: {told:#?}");
        let structural = Structural::parse(&schema).expect("a schema");
        Rules::compile(&structural).unwrap_or_else(|why| panic!("{name}: {why}"));
        rules += schema.to_string().matches("\"rule\":").count();
        let gvk = GroupVersionKind::new("example.com", "v1", "Widget");
        assert!(publish::v3(Some(&schema), &gvk, true)["properties"]["spec"].is_object(), "{name}");
        assert!(publish::v2(Some(&schema), &gvk, true)["properties"]["metadata"].is_object(), "{name}");
        // What is empty is judged without harm, and keeps its metadata.
        let mut object =
            serde_json::json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "a"}, "x": 1});
        let object = object.as_object_mut().expect("an object");
        prune::prune(object, &structural, None);
        default::apply(object, &structural);
        assert!(object.contains_key("metadata") && !object.contains_key("x"), "{name}");
        let compiled = Rules::compile(&structural).expect("rules");
        validate::object(object, None, &structural, &compiled, &mut FieldErrors::default());
    }
    println!("{rules} rules");
}
