//! How long RBAC takes to answer in a cluster with 5,000 roles and 5,000 bindings.
//! The budget is 20 us; run with `cargo bench -p ferry-auth`. Counts the thread's processor time: on a
//! machine that does other things too, the clock says little.

use std::{hint::black_box, time::Duration};

use ferry_auth::{
    Attributes, Rbac, User,
    authorize::rbac::{Change, GROUP},
};
use serde_json::json;

const SIZE: usize = 5_000;
const NAMESPACES: usize = 100;
const ROUNDS: u32 = 200_000;

fn main() {
    let rbac = Rbac::new();
    let all: Vec<Change> = (0..SIZE).flat_map(objects).collect();
    let started = processor_time();
    rbac.apply(all);
    println!("taking over {SIZE} roles and {SIZE} bindings: {:?}", processor_time() - started);

    let user = |name: &str| User::new(name).with_groups(["team-7", "system:authenticated"]);
    let cases = [
        ("a user with one binding, allowed", user("user-4207"), "get", "namespace-7"),
        ("a user with one binding, refused", user("user-4207"), "delete", "namespace-7"),
        ("a user nobody knows, refused", user("stranger"), "get", "namespace-7"),
        (
            "a group with 500 bindings, allowed by the last",
            User::new("x").with_groups(["crowd"]),
            "get",
            "namespace-0",
        ),
        ("a group with 500 bindings, refused", User::new("x").with_groups(["crowd"]), "patch", "namespace-0"),
    ];
    for (case, user, verb, namespace) in &cases {
        let attributes =
            Attributes { namespace, name: "web", ..Attributes::resource(user, verb, "apps", "deployments") };
        let started = processor_time();
        for _ in 0..ROUNDS {
            black_box(rbac.decide(black_box(&attributes)));
        }
        println!("{case}: {:?}", (processor_time() - started) / ROUNDS);
    }

    let changes: Vec<Change> = (0..1_000).flat_map(objects).collect();
    let count = changes.len() as u32;
    let changed = processor_time();
    for change in changes {
        rbac.apply([change]);
    }
    println!("one change: {:?}", (processor_time() - changed) / count);
}

/// What the kernel has given this thread so far.
fn processor_time() -> Duration {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has this file");
    let nanoseconds = statistics.split(' ').next().and_then(|text| text.parse().ok());
    Duration::from_nanos(nanoseconds.expect("its first number is the time on a processor"))
}

fn objects(index: usize) -> [Change; 2] {
    let namespace = format!("namespace-{}", index % NAMESPACES);
    let rules = json!([
        {"apiGroups": [""], "resources": ["pods", "services", "configmaps"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["apps"], "resources": [format!("resource-{index}"), "deployments"], "verbs": ["get", "update"]},
    ]);
    let role = json!({"metadata": {"name": format!("role-{index}"), "namespace": namespace}, "rules": rules});
    // Every tenth binding is cluster-wide and all of those name one group.
    if index.is_multiple_of(10) {
        let role = json!({"metadata": {"name": format!("role-{index}")}, "rules": rules});
        let binding = json!({
            "metadata": {"name": format!("binding-{index}")},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": format!("role-{index}")},
            "subjects": [{"kind": "Group", "name": "crowd"}],
        });
        return [Change::ClusterRole(read(role)), Change::ClusterRoleBinding(read(binding))];
    }
    let binding = json!({
        "metadata": {"name": format!("binding-{index}"), "namespace": namespace},
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": format!("role-{index}")},
        "subjects": [{"kind": "User", "name": format!("user-{index}")}],
    });
    [Change::Role(read(role)), Change::RoleBinding(read(binding))]
}

fn read<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> T {
    serde_json::from_value(json).expect("the object is well formed")
}
