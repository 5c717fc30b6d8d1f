//! What a span takes on disk, of spans like those of a server: pods created, reconciled and bound.

use std::path::Path;
use std::time::{Duration, Instant};

use ferry_trace::history::{Wanted, read};
use ferry_trace::{Context, History, Retention, Span, span};

/// The steps of one write, as the API server opens them.
fn write(number: u64, user: &str) {
    let name = format!("web-7d8b49557c-{:05x}", number.wrapping_mul(0x9e37_79b9) % (1 << 20));
    let mut request = Span::root("apiserver.request", None);
    request
        .set("method", "POST")
        .set("path", "/api/v1/namespaces/default/pods")
        .set("user", user)
        .set("code", 201);
    request.enter(|| {
        let mut authentication = span("filter.authentication");
        authentication.set("user", user);
        authentication.enter(|| {
            span("auth.authenticator").set("name", "X509").set("verdict", "authenticated");
        });
        drop(authentication);
        for step in
            ["filter.authorization", "apiserver.decode", "apiserver.default", "registry.managedFields"]
        {
            drop(span(step));
        }
        for plugin in ["LimitRanger", "ServiceAccount", "Priority", "PodSecurity"] {
            span("admission.mutate").set("plugin", plugin);
            span("admission.validate").set("plugin", plugin);
        }
        let mut commit = span("store.commit");
        let id = Context::generate().trace.to_string();
        let uid = format!("{}-{}-{}-{}-{}", &id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]);
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
}

fn reconcile(number: u64) {
    let mut reconcile = Span::root("reconcile", None);
    reconcile.object("replicasets.apps", "default", "web-7d8b49557c").caused_by(number as i64 - 1);
    reconcile.set("controller", "replicaset-controller").set("waitMicros", 40 + number % 50);
    reconcile.enter(|| write(number, "system:serviceaccount:kube-system:replicaset-controller"));
}

fn bytes(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).expect("is there");
    files.map(|file| file.and_then(|file| file.metadata()).expect("a file").len()).sum()
}

#[test]
fn a_span_takes_less_than_a_hundred_bytes() {
    let directory = tempfile::tempdir().expect("a directory");
    let history = History::start(directory.path(), Retention::default()).expect("starts");
    let give_up = Instant::now() + Duration::from_secs(60);
    let mut number = 1;
    for _ in 0..4 {
        for _ in 0..100 {
            write(number, "alice");
            reconcile(number + 1);
            number += 2;
        }
        // The next wave must not push out what is not written yet.
        let last = Wanted::revisions([number as i64 - 2]);
        while !read(directory.path(), &last)
            .expect("is read")
            .records
            .iter()
            .any(|record| record.name == "reconcile")
        {
            let dropped = history.dropped();
            assert!(Instant::now() < give_up, "{dropped} dropped: {:?}", history.failure());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    history.close();
    let spans = read(directory.path(), &Wanted::default()).expect("is read").records.len() as u64;
    let each = bytes(directory.path()) / spans;
    assert_eq!(history.dropped(), 0);
    // Three spans of each write, and the reconcile of every second one.
    let made = ferry_trace::ring().latest();
    assert!((2_800..made / 2).contains(&spans), "{spans} spans of {made}");
    println!("{each} bytes a span, of {spans}");
    assert!(each < 100, "{each} bytes a span");
}
