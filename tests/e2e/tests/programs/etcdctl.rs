//! Debian's etcdctl against Ferry called as etcd.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::links::{Links, PATIENCE, free_port, http_get, installed};

struct Etcdctl {
    program: PathBuf,
    endpoint: String,
}

impl Etcdctl {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(&self.endpoint).args(words);
        command
    }

    fn try_run(&self, words: &[&str], input: &str) -> (bool, String) {
        use std::io::Write;
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("etcdctl starts");
        child.stdin.take().expect("its input").write_all(input.as_bytes()).expect("it reads");
        let output = child.wait_with_output().expect("etcdctl ends");
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    fn run(&self, words: &[&str]) -> String {
        let (fine, text) = self.try_run(words, "");
        assert!(fine, "etcdctl {}: {text}", words.join(" "));
        text
    }

    fn json(&self, words: &[&str]) -> Value {
        let text = self.run(&[words, &["--write-out=json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text:?} is no JSON: {error}"))
    }
}

#[test]
fn etcdctl_works_as_with_etcd() {
    let Some(links) = Links::make() else { return };
    let Some(program) = installed("etcdctl", "etcd-client") else { return };
    let directory = tempfile::tempdir().unwrap();
    let (etcd, endpoint) = links.etcd(&directory.path().join("data"), &["--name=ferry"]);
    // etcdctl 3.4 would name the whole URL as the HTTP/2 authority in some of its requests, which is refused.
    let etcdctl = Etcdctl { program, endpoint: endpoint.replace("http://", "") };

    assert_eq!(etcdctl.run(&["put", "/a", "1"]), "OK\n");
    assert_eq!(etcdctl.run(&["put", "/a", "2", "--prev-kv"]), "OK\n/a\n1\n");
    etcdctl.run(&["put", "/b", "3"]);
    assert_eq!(etcdctl.run(&["get", "/", "--prefix"]), "/a\n2\n/b\n3\n");
    assert_eq!(etcdctl.run(&["get", "/", "--prefix", "--keys-only", "--order=DESCEND"]), "/b\n\n/a\n\n");
    assert_eq!(etcdctl.run(&["get", "/a", "--rev=2"]), "/a\n1\n");
    let found = etcdctl.json(&["get", "/a"]);
    assert_eq!((&found["kvs"][0]["version"], &found["header"]["revision"]), (&2.into(), &4.into()));

    let txn = "value(\"/a\") = \"2\"\nversion(\"/c\") = \"0\"\n\nput /c yes\nget /c\n\nput /c no\n\n";
    let (fine, answer) = etcdctl.try_run(&["txn"], txn);
    assert!(fine && answer.starts_with("SUCCESS"), "{answer}");
    assert_eq!(etcdctl.run(&["get", "/c"]), "/c\nyes\n");
    assert_eq!(etcdctl.run(&["del", "/b", "--prev-kv"]), "1\n/b\n3\n");

    let mut watch = etcdctl
        .command(&["watch", "/w", "--prefix", "--rev=1", "--prev-kv"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(watch.stdout.take().unwrap());
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        output
            .lines()
            .map_while(Result::ok)
            .filter(|line| !line.is_empty())
            .try_for_each(|line| sender.send(line))
    });
    etcdctl.run(&["put", "/w/x", "first"]);
    etcdctl.run(&["put", "/w/x", "second"]);
    etcdctl.run(&["del", "/w/x"]);
    // Each with what was there before; the last one names its key once more, without a value.
    let expected = "PUT /w/x first PUT /w/x first /w/x second DELETE /w/x second /w/x";
    let words = expected.split(' ').count();
    let said: Vec<String> = (0..words).map_while(|_| lines.recv_timeout(PATIENCE).ok()).collect();
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_eq!(said.join(" "), expected);

    let granted = etcdctl.run(&["lease", "grant", "600"]);
    let lease = granted.split_whitespace().nth(1).expect("lease ID granted with …").to_owned();
    etcdctl.run(&["put", "/leased", "x", &format!("--lease={lease}")]);
    let left = etcdctl.run(&["lease", "timetolive", &lease, "--keys"]);
    assert!(left.contains("granted with TTL(600s)") && left.contains("/leased"), "{left}");
    assert!(etcdctl.run(&["lease", "keep-alive", "--once", &lease]).contains("keepalived with TTL(600)"));
    assert!(etcdctl.run(&["lease", "list"]).contains(&lease));
    etcdctl.run(&["lease", "revoke", &lease]);
    assert_eq!(etcdctl.run(&["get", "/leased"]), "");

    let revision = etcdctl.json(&["get", "/a"])["header"]["revision"].to_string();
    assert_eq!(etcdctl.run(&["compact", &revision]), format!("compacted revision {revision}\n"));
    let (fine, words) = etcdctl.try_run(&["get", "/a", "--rev=2"], "");
    assert!(!fine && words.contains("required revision has been compacted"), "{words}");

    assert!(etcdctl.run(&["member", "list"]).contains("started, ferry"));
    assert!(etcdctl.run(&["endpoint", "health"]).contains("is healthy"));
    let status = etcdctl.json(&["endpoint", "status"]);
    assert_eq!(status[0]["Status"]["version"], "3.5.21");
    assert!(etcdctl.run(&["defrag"]).contains("Finished defragmenting"));
    assert_eq!(etcdctl.run(&["alarm", "list"]), "");
    assert!(etcdctl.run(&["endpoint", "hashkv"]).contains(&etcdctl.endpoint));

    let page = |path| http_get(&endpoint, path).expect("a page");
    assert!(page("/version").contains("\"etcdserver\":\"3.5.21\""));
    assert!(page("/metrics").contains("\netcd_server_has_leader 1\n"));
    assert!(page("/nothing").starts_with("HTTP/1.1 404"));
    assert!(etcd.terminate().success());
}

/// What Ferry gives away real etcd takes: keys, versions and revisions, and the leases of keys.
#[test]
fn a_snapshot_is_restored_by_etcd_itself() {
    let Some(links) = Links::make() else { return };
    let Some(program) = installed("etcdctl", "etcd-client") else { return };
    let Some(real) = installed("etcd", "etcd-server") else { return };
    let directory = tempfile::tempdir().unwrap();
    let (etcd, endpoint) = links.etcd(&directory.path().join("data"), &[]);
    let ferry = Etcdctl { program: program.clone(), endpoint };
    ferry.run(&["lease", "grant", "600"]);
    let lease = ferry.run(&["lease", "list"]).lines().nth(1).expect("a lease").to_owned();
    for at in 0..300 {
        // Some are larger than a page of the file, one is deleted again, one has versions.
        let value = "x".repeat(if at % 50 == 0 { 20_000 } else { at });
        ferry.run(&["put", &format!("/k/{at:03}"), &value]);
    }
    ferry.run(&["put", "/k/000", "changed", &format!("--lease={lease}")]);
    ferry.run(&["del", "/k/001"]);
    let file = directory.path().join("snapshot.db");
    let file = file.to_str().unwrap();
    ferry.run(&["snapshot", "save", file]);
    let status = ferry.json(&["snapshot", "status", file]);
    assert_eq!(status["revision"], 302, "etcdctl names the last change it finds: {status}");
    let list = |etcdctl: &Etcdctl| {
        let mut found = etcdctl.json(&["get", "/k/", "--prefix"]);
        found["kvs"].take()
    };
    let expected = list(&ferry);
    assert_eq!(expected.as_array().map(Vec::len), Some(299));
    assert!(etcd.terminate().success());

    let restored = directory.path().join("restored");
    let restore = ["snapshot", "restore", file, "--data-dir", restored.to_str().unwrap()];
    ferry.run(&restore);
    let endpoint = format!("http://127.0.0.1:{}", free_port());
    let mut server = Command::new(real)
        .args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint])
        .args(["--listen-peer-urls", "http://127.0.0.1:0", "--log-level=error", "--data-dir"])
        .arg(&restored)
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    while !http_get(&endpoint, "/health").is_some_and(|page| page.contains("\"health\":\"true\"")) {
        assert!(std::time::Instant::now() < deadline, "etcd does not start on the snapshot");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let real = Etcdctl { program, endpoint };
    let found = list(&real);
    let leases = real.run(&["lease", "list"]);
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(found == expected, "etcd holds something else than Ferry did");
    assert!(leases.contains(&lease), "{leases}");
}
