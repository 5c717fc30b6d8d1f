//! What a write's spans cost, with and without the history on disk, in instructions:
//! `cargo build --release -p ferry-trace --example history_cost`, then
//! `valgrind --tool=callgrind target/release/examples/history_cost [disk|ring|none]`: the total, divided by the writes.

use std::time::Duration;

use ferry_trace::{Context, History, Moment, Retention, Span, span, span_since};

const WRITES: u64 = 4_000;

/// The steps of a pod's creation, as the API server opens them: 25.
fn write(number: u64, is_sampled: bool) {
    let caller = Context { sampled: is_sampled, ..Context::generate() };
    let mut request = Span::root("apiserver.request", Some(caller));
    request.set("method", "POST").set("path", "/api/v1/namespaces/default/pods").set("program", "kload");
    request.enter(|| {
        authenticate();
        timed("filter.authorization", None);
        for step in ["apiserver.decode", "apiserver.default", "registry.managedFields"] {
            drop(span(step));
        }
        for plugin in MUTATING {
            timed("admission.mutate", Some(plugin));
        }
        drop(span("registry.validate"));
        for plugin in VALIDATING {
            timed("admission.validate", Some(plugin));
        }
        commit(number);
        drop(span("apiserver.encode"));
    });
    request.set("code", 201).set("user", "kubernetes-admin");
}

const MUTATING: [&str; 6] = [
    "LimitRanger",
    "ServiceAccount",
    "Priority",
    "DefaultTolerationSeconds",
    "RuntimeClass",
    "PodTopologyLabels",
];
const VALIDATING: [&str; 6] =
    ["NamespaceLifecycle", "LimitRanger", "ServiceAccount", "PodSecurity", "Priority", "RuntimeClass"];

fn authenticate() {
    let began = Moment::now();
    let mut authentication = span_since("filter.authentication", began);
    authentication.enter(|| {
        span("auth.authenticator").set("name", "RequestHeader").set("verdict", "not mine");
        span("auth.authenticator").set("name", "X509").set("verdict", "authenticated");
    });
    authentication.set("user", "kubernetes-admin").took(began.elapsed());
}

/// A step whose time is measured for a metric, recorded or not.
fn timed(name: &'static str, plugin: Option<&str>) {
    let began = Moment::now();
    let mut step = span_since(name, began);
    if let Some(plugin) = plugin {
        step.set("plugin", plugin);
    }
    step.enter(|| {});
    step.took(began.elapsed());
}

fn commit(number: u64) {
    let mut commit = span("store.commit");
    let name = format!("web-7d8b49557c-{number:05x}");
    let uid = format!("{number:08x}-1d5e-4f5b-8c55-{:012x}", number.wrapping_mul(0x9e37_79b9_7f4a));
    commit.object("pods", "default", &name).set("verb", "create").set("uid", uid).committed(number as i64);
    commit.enter(|| {
        span("store.write").set("bytes", 2_000 + number % 300).committed(number as i64);
        drop(span("watch.cache"));
    });
}

fn main() {
    let kind = std::env::args().nth(1).unwrap_or_else(|| "disk".into());
    let directory = tempfile::tempdir().expect("a directory");
    let history =
        (kind == "disk").then(|| History::start(directory.path(), Retention::default()).expect("starts"));
    for number in 0..WRITES {
        write(number, kind != "none");
        if number % 250 == 249 && history.is_some() {
            // The writer comes twice a second, as it does on a server.
            std::thread::sleep(Duration::from_millis(600));
        }
    }
    if let Some(history) = &history {
        history.close();
    }
    let bytes: u64 = std::fs::read_dir(directory.path())
        .into_iter()
        .flatten()
        .filter_map(|file| file.ok()?.metadata().ok())
        .map(|file| file.len())
        .sum();
    let spans = ferry_trace::ring().latest();
    println!(
        "{WRITES} writes, {spans} spans, {bytes} bytes on disk, {} KB in memory",
        ferry_trace::ring().bytes() >> 10
    );
}
