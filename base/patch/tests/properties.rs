//! Laws that hold for all values, tried on seeded random ones.

mod random;

use std::collections::BTreeSet;

use ferry_api::{GroupVersionKind, Object, Schema};
use ferry_patch::managed_fields::{self, FieldSet, OneVersion, Reset, Write};
use ferry_patch::{json_patch, merge, strategic};
use random::Random;
use serde_json::{Value, json};

fn schema(group: &'static str, kind: &'static str) -> Schema {
    Schema::builtin(&GroupVersionKind::new(group, "v1", kind)).expect("built in")
}

fn write<'a>(schema: &'a Schema, reset: Reset<'a>) -> Write<'a> {
    Write {
        manager: "ann",
        subresource: "",
        api_version: "v1",
        now: "2026-01-01T00:00:00Z".parse().expect("a time"),
        schema,
        reset,
        versions: &OneVersion,
    }
}

fn kinds() -> [Schema; 4] {
    [schema("apps", "Deployment"), schema("", "Pod"), schema("", "Service"), schema("", "Node")]
}

fn fields(random: &mut Random) -> FieldSet {
    let elements = ["f:a", "f:b", "k:{\"name\":\"a\"}", "v:1"];
    let mut set = FieldSet::new();
    for _ in 0..random.below(8) {
        let length = 1 + random.below(4);
        set.insert((0..length).map(|_| random.pick(&elements).to_string()));
    }
    set
}

fn paths(set: &FieldSet) -> BTreeSet<String> {
    set.paths().into_iter().collect()
}

#[test]
fn field_sets_are_sets_of_paths() {
    let random = &mut Random(1);
    for _ in 0..3_000 {
        let (a, b) = (fields(random), fields(random));
        let (in_a, in_b) = (paths(&a), paths(&b));

        let mut union = a.clone();
        union.union(b.clone());
        assert_eq!(paths(&union), &in_a | &in_b);
        let mut other_way = b.clone();
        other_way.union(a.clone());
        assert_eq!(union, other_way);

        let mut difference = a.clone();
        difference.subtract(&b);
        assert_eq!(paths(&difference), &in_a - &in_b);

        let common = a.intersection(&b);
        assert_eq!(paths(&common), &in_a & &in_b);
        assert_eq!(common, b.intersection(&a));
        let mut parts = difference.clone();
        parts.union(common);
        assert_eq!(parts, a);

        let mut above = a.clone();
        above.subtract_below(&b);
        let below = |path: &String| in_b.iter().any(|top| path.starts_with(top.as_str()));
        assert_eq!(paths(&above), in_a.iter().filter(|path| !below(path)).cloned().collect());

        assert_eq!(a.is_within(&b), in_a.is_subset(&in_b));
        assert!(a.is_within(&union));
    }
}

#[test]
fn a_printed_set_reads_back() {
    let random = &mut Random(2);
    for _ in 0..3_000 {
        let set = fields(random);
        let printed: Value = serde_json::from_str(&set.print()).expect("JSON");
        assert_eq!(FieldSet::parse(&printed), Ok(set.clone()));
        assert_eq!(FieldSet::parse(&set.clone().into_value()), Ok(set));
    }
}

#[test]
fn a_merge_patch_leads_from_one_value_to_the_other() {
    let random = &mut Random(3);
    for schema in &kinds() {
        for _ in 0..100 {
            let (from, to) = (random::object(random, schema), random::object(random, schema));
            let mut value = from.clone();
            merge::apply(&mut value, &merge::diff(&from, &to));
            assert_eq!(value, to);
        }
    }
}

#[test]
fn a_strategic_patch_leads_from_one_object_to_the_other() {
    let random = &mut Random(4);
    for schema in &kinds() {
        for _ in 0..60 {
            let (from, to) = (random::object(random, schema), random::object(random, schema));
            for patch in [
                strategic::two_way(&from, &to, schema).expect("a patch"),
                strategic::three_way(&from, &to, &from, schema).expect("a patch"),
            ] {
                let mut value = from.clone();
                strategic::apply(&mut value, patch.clone(), schema)
                    .unwrap_or_else(|error| panic!("{error}\nfrom  {from}\nto    {to}\npatch {patch}"));
                assert_eq!(value, to, "\nfrom  {from}\npatch {patch}");
            }
        }
    }
}

#[test]
fn a_three_way_patch_keeps_what_others_added() {
    let random = &mut Random(5);
    for schema in &kinds() {
        for _ in 0..60 {
            let (original, modified, current) = (
                random::object(random, schema),
                random::object(random, schema),
                random::object(random, schema),
            );
            let patch = strategic::three_way(&original, &modified, &current, schema).expect("a patch");
            let mut value = current.clone();
            strategic::apply(&mut value, patch.clone(), schema)
                .unwrap_or_else(|error| panic!("{error}\ncurrent {current}\npatch {patch}"));
            drop_unknown(&mut value);
            // Once applied, applying again asks for nothing but the removals it asked for before.
            let again = strategic::three_way(&modified, &modified, &value, schema).expect("a patch");
            let mut settled = value.clone();
            strategic::apply(&mut settled, again, schema).expect("applies");
            drop_unknown(&mut settled);
            assert_eq!(settled, value, "\nmodified {modified}\ncurrent {current}\npatch {patch}");
        }
    }
}

/// As the decoder does: a directive in a value that is new to the object is a field nobody knows, and
/// null is no value.
fn drop_unknown(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| !name.starts_with('$') && !value.is_null());
            fields.values_mut().for_each(drop_unknown);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_unknown),
        _ => {}
    }
}

#[test]
fn applying_twice_changes_nothing_and_giving_up_takes_all_back() {
    let random = &mut Random(6);
    for schema in &kinds() {
        for _ in 0..25 {
            let object = |random: &mut Random| {
                let mut object = Object::from_value(random::object(random, schema)).expect("an object");
                object.set_type("v1", "Kind");
                object.set_managers(Vec::new());
                object
            };
            let write = write(schema, Reset::Nothing);
            let other = Write { manager: "ben", ..write };
            let later = Write { now: "2026-01-02T00:00:00Z".parse().expect("a time"), ..write };
            let (hers, his) = (object(random), object(random));
            let created = managed_fields::apply(None, &hers, false, &write).expect("creates");
            let again = managed_fields::apply(Some(&created), &hers, false, &later).expect("applies again");
            assert_eq!(again, created);

            // Another who forces wins every field of his, and neither loses what only they applied.
            let both = managed_fields::apply(Some(&created), &his, true, &other).expect("applies");
            let settled = managed_fields::apply(Some(&both), &his, false, &other).expect("applies again");
            assert_eq!(settled, both);

            // An update that changes nothing changes no manager.
            let mut same = both.clone();
            managed_fields::update(Some(&both), &mut same, &later);
            assert_eq!(same, both);

            // What nobody manages any more is gone: only his fields are left of hers.
            let mut nothing = Object::default();
            nothing.set_type("v1", "Kind");
            let left = managed_fields::apply(Some(&both), &nothing, false, &write).expect("gives up");
            let entries = managed_fields::entries(&left).expect("entries");
            assert!(entries.iter().all(|entry| entry.manager() == "ben"), "{left:?}");
        }
    }
}

/// A new object's managers are written in one walk; comparing it with one that has nothing must give the same.
#[test]
fn all_of_a_new_object_is_its_writers() {
    let random = &mut Random(8);
    let paths: &[&[&str]] = &[&["status"]];
    // A pattern that is no top-level field, and matches nothing, asks for the comparison.
    let compared: &[&[&str]] = &[&["status"], &["none", "none"]];
    for (schema, _) in kinds().iter().flat_map(|schema| (0..200).map(move |round| (schema, round))) {
        let mut one = Object::from_value(random::object(random, schema)).expect("an object");
        one.set_managers(Vec::new());
        if random.chance(30) {
            one.0.extend([("odd \"name\"".to_string(), json!({"a\\": [1, {"b": {}}], "c": {"d": null}}))]);
        }
        let mut other = one.clone();
        managed_fields::update(None, &mut one, &write(schema, Reset::Fields(paths)));
        managed_fields::update(None, &mut other, &write(schema, Reset::Fields(compared)));
        assert_eq!(one, other);
    }
}

#[test]
fn patches_never_panic_on_random_input() {
    let random = &mut Random(7);
    let schema = schema("apps", "Deployment");
    let strategic_cases: Value =
        serde_json::from_str(include_str!("golden/strategic.json")).expect("golden data");
    let patches: Vec<&Value> =
        strategic_cases["cases"].as_array().expect("cases").iter().map(|case| &case["patch"]).collect();
    let base = strategic_cases["objects"]["deployment"].clone();
    let steps: Vec<Value> =
        serde_json::from_str(include_str!("golden/managed_fields.json")).expect("golden data");
    let steps: Vec<&Value> = steps.iter().filter(|step| step["kind"] == "deployment").collect();
    for _ in 0..700 {
        let mut patch = (*random.pick(&patches)).clone();
        (0..1 + random.below(4)).for_each(|_| random::mutate(random, &mut patch));
        let mut value = base.clone();
        if random.chance(20) {
            random::mutate(random, &mut value);
        }
        let modified = value.clone();
        let _ = strategic::apply(&mut value, patch.clone(), &schema);
        let _ = strategic::three_way(&patch, &modified, &value, &schema);
        let _ = merge::three_way(&patch, &modified, &value);
        merge::apply(&mut value, &patch);

        let operations = json!([{"op": random.pick(&["add", "remove", "replace", "move", "copy", "test"]),
            "path": format!("/spec/{}/{}", random.pick(&["template", "replicas", "x", "-", "0"]), random.below(3)),
            "from": random.pick(&["/spec", "", "/", "/spec/template/spec/containers/-1", "x"]), "value": patch}]);
        let _ = json_patch::apply(&mut value, operations.to_string().as_bytes());
        let _ = FieldSet::parse(&patch).map(|set| set.print());

        let step = random.pick(&steps);
        let mut object = |value: &Value| {
            let mut value = value.clone();
            (0..random.below(3)).for_each(|_| random::mutate(random, &mut value));
            Object::from_value(value)
        };
        let write = Write { api_version: "apps/v1", ..write(&schema, Reset::Fields(&[&["status"]])) };
        let live = object(&step["live"]);
        if let Some(applied) = object(&step["applied"]) {
            let _ = managed_fields::apply(live.as_ref(), &applied, true, &write);
            let _ =
                managed_fields::apply(live.as_ref(), &applied, false, &Write { manager: "kubectl", ..write });
        }
        if let Some(mut new) = object(&step["new"]) {
            managed_fields::update(live.as_ref(), &mut new, &write);
        }
    }
}

#[test]
fn field_sets_that_nest_too_deep_are_refused() {
    let mut deep = json!({});
    for _ in 0..500 {
        deep = json!({ "f:a": deep });
    }
    assert!(FieldSet::parse(&deep).is_err());
}
