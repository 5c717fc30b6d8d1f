//! What `kubectl apply` v1.36 sends. Every case of `golden/three_way.json` was recorded: the last
//! applied configuration, the new one, the live object, and the patch that went out.

use ferry_api::{GroupVersionKind, Schema};
use ferry_patch::{merge, strategic};
use serde_json::Value;

#[test]
fn apply_sends_the_recorded_patch() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("golden/three_way.json")).expect("golden data");
    assert!(cases.len() >= 20, "cases are missing");
    for case in &cases {
        let (original, modified, current) = (&case["original"], &case["modified"], &case["current"]);
        let patch = if case["merge"] == true {
            merge::three_way(original, modified, current)
        } else {
            let text = |field: &str| current[field].as_str().expect("type").to_string();
            let kind = GroupVersionKind::from_api_version(&text("apiVersion"), &text("kind"));
            strategic::three_way(original, modified, current, &Schema::builtin(&kind).expect("built in"))
        };
        assert_eq!(patch.as_ref(), Ok(&case["patch"]), "{}", case["name"]);
    }
}
