//! What reading and writing an ordinary pod costs. Run with `cargo run --release --example codec_cost`.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use ferry_api::kinds::GroupVersionKind;
use ferry_api::openapi::Documents;
use ferry_api::{FieldValidation, Schema, defaulting, json, kinds, protobuf, yaml};

const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"example.org/checksum":"4f1d2c3b4a59687786a5b4c3d2e1f001"},"creationTimestamp":"2026-01-02T03:04:05Z","generateName":"web-6d4cf56db6-","labels":{"app":"web","pod-template-hash":"6d4cf56db6","tier":"front"},"name":"web-6d4cf56db6-x2x7k","namespace":"default","ownerReferences":[{"apiVersion":"apps/v1","blockOwnerDeletion":true,"controller":true,"kind":"ReplicaSet","name":"web-6d4cf56db6","uid":"8f2b0c9e-66f1-4f0c-8d5e-1f6f3a1b2c3d"}],"resourceVersion":"4711","uid":"0b7a1f9e-3c55-4d8a-9e2b-7d1f5a6b8c9d"},"spec":{"containers":[{"env":[{"name":"MODE","value":"production"},{"name":"POD_IP","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"status.podIP"}}}],"image":"registry.example.org/web:1.2.3","imagePullPolicy":"IfNotPresent","name":"web","ports":[{"containerPort":8080,"name":"http","protocol":"TCP"}],"resources":{"limits":{"cpu":"500m","memory":"256Mi"},"requests":{"cpu":"100m","memory":"128Mi"}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","volumeMounts":[{"mountPath":"/etc/web","name":"config","readOnly":true}]}],"dnsPolicy":"ClusterFirst","enableServiceLinks":true,"restartPolicy":"Always","schedulerName":"default-scheduler","securityContext":{},"serviceAccountName":"web","terminationGracePeriodSeconds":30,"volumes":[{"configMap":{"defaultMode":420,"name":"web"},"name":"config"}]},"status":{"phase":"Pending"}}"#;

/// The best of many short runs: what the work costs when nobody else is on the core.
fn measure(what: &str, mut step: impl FnMut()) {
    const STEPS: u32 = 50;
    let best = (0..600)
        .map(|_| {
            let start = Instant::now();
            (0..STEPS).for_each(|_| step());
            start.elapsed()
        })
        .min()
        .expect("at least one run");
    println!("{what:<34} {:>7.2} us", best.as_secs_f64() * 1e6 / f64::from(STEPS));
}

fn main() {
    let start = Instant::now();
    kinds::builtin();
    println!("reading the tables                 {:>7.2} ms", start.elapsed().as_secs_f64() * 1e3);
    let schema = Schema::builtin(&GroupVersionKind::new("", "v1", "Pod")).expect("pods are built in");
    println!("a pod of {} bytes", POD.len());
    measure("JSON into a plain value", || {
        black_box(serde_json::from_str::<serde_json::Value>(black_box(POD)).expect("JSON"));
    });
    measure("json::decode, strict", || {
        black_box(json::decode(black_box(POD.as_bytes()), &schema, FieldValidation::Strict).expect("a pod"));
    });
    let pod = json::decode(POD.as_bytes(), &schema, FieldValidation::Strict).expect("a pod").object;
    measure("Object::to_json", || {
        black_box(black_box(&pod).to_json());
    });
    measure("protobuf::encode", || {
        black_box(protobuf::encode(black_box(&pod), &schema).expect("encodes"));
    });
    let bytes = protobuf::encode(&pod, &schema).expect("encodes");
    println!("as protobuf {} bytes", bytes.len());
    measure("protobuf::decode", || {
        black_box(protobuf::decode(black_box(&bytes)).expect("decodes"));
    });
    let text = yaml::encode(&pod);
    measure("yaml::decode", || {
        black_box(yaml::decode(black_box(text.as_bytes()), &schema, FieldValidation::Strict).expect("a pod"));
    });
    measure("yaml::encode", || {
        black_box(yaml::encode(black_box(&pod)));
    });
    let mut defaulted = pod.clone();
    measure("defaulting::apply", || defaulting::apply(black_box(&mut defaulted), &schema));

    let start = Instant::now();
    let documents = Documents::new(kinds::builtin().to_vec());
    let size = documents.v3_index(&BTreeMap::new()).len();
    println!("index of OpenAPI v3, {size} bytes   {:>5} ms", start.elapsed().as_millis());
    let start = Instant::now();
    let size = documents.v2(ferry_api::openapi::Form::Json).len();
    println!("OpenAPI v2, {size} bytes        {:>5} ms", start.elapsed().as_millis());
}
