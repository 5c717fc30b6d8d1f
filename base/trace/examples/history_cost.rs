//! What a write's spans cost, with and without the history on disk, in instructions:
//! `cargo build --release -p ferry-trace --example history_cost`, then
//! `valgrind --tool=callgrind target/release/examples/history_cost [disk|ring|none]`: the total, divided by the writes.

use std::time::Duration;

use ferry_trace::{Context, History, Retention, Span, span};

const WRITES: u64 = 4_000;

/// The steps of a pod's creation, as the API server opens them.
fn write(number: u64, is_sampled: bool) {
    let caller = Context { sampled: is_sampled, ..Context::generate() };
    let mut request = Span::root("apiserver.request", Some(caller));
    request
        .set("method", "POST")
        .set("path", "/api/v1/namespaces/default/pods")
        .set("user", "kubernetes-admin");
    request.enter(|| {
        let mut authentication = span("filter.authentication");
        authentication.enter(|| {
            span("auth.authenticator").set("name", "X509").set("verdict", "authenticated");
        });
        authentication.set("user", "kubernetes-admin");
        drop(authentication);
        let steps =
            ["filter.authorization", "apiserver.decode", "apiserver.default", "registry.managedFields"];
        steps.into_iter().for_each(|step| drop(span(step)));
        for plugin in ["LimitRanger", "Priority", "DefaultTolerationSeconds", "PodSecurity"] {
            span("admission.mutate").set("plugin", plugin);
            span("admission.validate").set("plugin", plugin);
        }
        let mut commit = span("store.commit");
        let name = format!("web-7d8b49557c-{number:05x}");
        let uid = format!("{number:08x}-1d5e-4f5b-8c55-{:012x}", number.wrapping_mul(0x9e37_79b9_7f4a));
        commit
            .object("pods", "default", &name)
            .set("verb", "create")
            .set("uid", uid)
            .committed(number as i64);
        commit.enter(|| {
            span("store.write").set("bytes", 2_000 + number % 300).committed(number as i64);
            drop(span("watch.cache"));
        });
    });
    request.set("code", 201);
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
