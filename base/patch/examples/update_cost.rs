//! What keeping managers costs a write: `cargo run --release -p ferry-patch --example update_cost`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ferry_api::{GroupVersionKind, Object, Schema};
use ferry_patch::managed_fields::{OneVersion, Reset, Write, apply, update};
use ferry_patch::strategic;
use serde_json::Value;

const BATCHES: u32 = 50;
const ROUNDS: u32 = 200;

fn main() {
    let steps: Vec<Value> =
        serde_json::from_str(include_str!("../tests/golden/managed_fields.json")).expect("golden data");
    let step = |title: &str| steps.iter().find(|step| step["title"] == title).expect("a recorded step");
    let schema = Schema::builtin(&GroupVersionKind::new("", "v1", "Pod")).expect("Pod");
    let write = |subresource, reset| Write {
        manager: "kubelet",
        subresource,
        api_version: "v1",
        now: "2026-01-01T00:00:00Z".parse().expect("a time"),
        schema: &schema,
        reset,
        versions: &OneVersion,
    };
    let object = |value: &Value| Object::from_value(value.clone()).expect("an object");

    let created = object(&step("create a pod")["new"]);
    println!("pod of {} bytes", created.to_json().len());
    let to_create = write("", Reset::Fields(&[&["status"]]));
    measure(
        "create",
        || created.clone(),
        |mut new| {
            update(None, &mut new, &to_create);
            new
        },
    );

    let ready = step("ready");
    let live = object(&ready["live"]);
    let mut new = object(&ready["new"]);
    new.set_managers(live.managers().to_vec());
    let to_status = write("status", Reset::Fields(&[&["spec"]]));
    measure(
        "status patch",
        || new.clone(),
        |mut new| {
            update(Some(&live), &mut new, &to_status);
            new
        },
    );
    measure(
        "nothing changed",
        || live.clone(),
        |mut new| {
            update(Some(&live), &mut new, &to_status);
            new
        },
    );

    let patch = serde_json::json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    measure(
        "strategic patch of the status",
        || (live.clone(), patch.clone()),
        |(live, patch)| {
            let mut value = live.into_value();
            strategic::apply(&mut value, patch, &schema).expect("applies");
            value
        },
    );

    let kind = GroupVersionKind::new("apps", "v1", "Deployment");
    let schema = Schema::builtin(&kind).expect("Deployment");
    let gitops =
        Write { manager: "gitops", subresource: "", api_version: "apps/v1", schema: &schema, ..to_create };
    for title in ["apply adds a container", "apply drops a container"] {
        let (live, applied) = (object(&step(title)["live"]), object(&step(title)["applied"]));
        let run = |()| apply(Some(&live), &applied, true, &gitops).expect("applies");
        measure(title, || (), run);
        let again = run(());
        measure(
            &format!("{title}, again"),
            || (),
            |()| apply(Some(&again), &applied, true, &gitops).expect("applies"),
        );
    }
}

/// The mean of the best batch: others were disturbed by whatever else the machine does.
fn measure<I, O>(name: &str, mut input: impl FnMut() -> I, mut run: impl FnMut(I) -> O) {
    let mut best = Duration::MAX;
    for _ in 0..BATCHES {
        let mut spent = Duration::ZERO;
        for _ in 0..ROUNDS {
            let input = black_box(input());
            let start = Instant::now();
            let output = black_box(run(input));
            spent += start.elapsed();
            drop(output);
        }
        best = best.min(spent / ROUNDS);
    }
    println!("{name}: {:.1} us", best.as_secs_f64() * 1e6);
}
