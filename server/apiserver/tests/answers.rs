//! Ferry's answers beside Kubernetes': the recorded requests of `golden/answers`, one after the other, on one
//! fresh server. `README.md` there explains the format.
//!
//! What still differs is listed in `golden/answers/differences.txt`, and the list is checked in both directions:
//! an answer that is wrong and not listed fails, and so does one that is listed and has become right.
//! `FERRY_REWRITE=1` rewrites the list; the diff is reviewed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferry_apiserver::filters::{Connection, handle};
use ferry_apiserver::run::{Config, start};
use http_body_util::{BodyExt, Full};
use serde_json::Value;

/// A recorded request and its answer.
struct Case {
    file: String,
    user: String,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
    code: u16,
    reason: String,
    message: String,
}

impl Case {
    /// Names the case in the list of differences.
    fn title(&self, number: usize) -> String {
        format!("{} #{number} {} {} {}", self.file, self.user, self.method, self.path)
    }
}

fn folder() -> PathBuf {
    PathBuf::from("tests/golden/answers")
}

fn cases() -> Vec<Case> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    files.retain(|path| path.file_name().is_some_and(|name| name != "differences.txt"));
    files.sort();
    files.iter().flat_map(|path| parse(path)).collect()
}

fn parse(path: &Path) -> Vec<Case> {
    let file = path.file_stem().unwrap().to_string_lossy().into_owned();
    let text = std::fs::read_to_string(path).unwrap();
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix("> ") {
            let (name, value) = header.split_once(": ").unwrap_or((header.trim_end_matches(':'), ""));
            cases.last_mut().unwrap().headers.push((name.to_owned(), value.to_owned()));
        } else if let Some(part) = line.strip_prefix("| ").or((line == "|").then_some("")) {
            let body = cases.last_mut().unwrap().body.get_or_insert_default();
            if !body.is_empty() {
                body.push('\n');
            }
            body.push_str(part);
        } else if let Some(answer) = line.strip_prefix("= ") {
            let (code, reason) = answer.split_once(' ').unwrap();
            let case = cases.last_mut().unwrap();
            (case.code, case.reason) = (code.parse().unwrap(), reason.to_owned());
        } else if let Some(part) = line.strip_prefix("  ") {
            let message = &mut cases.last_mut().unwrap().message;
            if !message.is_empty() {
                message.push('\n');
            }
            message.push_str(part);
        } else {
            let mut words = line.splitn(3, ' ').map(str::to_owned);
            let mut word = || words.next().unwrap_or_else(|| panic!("{file}: {line}"));
            let (user, method, path) = (word(), word(), word());
            let (headers, body, code, reason, message) = (Vec::new(), None, 0, String::new(), String::new());
            cases.push(Case { file: file.clone(), user, method, path, headers, body, code, reason, message });
        }
    }
    cases
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_kubernetes() {
    let home = tempfile::tempdir().unwrap();
    let mut config = Config::new(home.path());
    config.bind = ([127, 0, 0, 1], 0).into();
    config.token_auth_file = Some(folder().join("users.csv"));
    let store =
        ferry_store::Embedded::open(ferry_store::embedded::Config::new(home.path().join("store"))).unwrap();
    let server = start(config, std::sync::Arc::new(store)).await.unwrap();

    let mut differences = String::new();
    let cases = cases();
    assert!(cases.len() >= 1_400, "the table has lost rows");
    for (number, case) in cases.iter().enumerate() {
        let (code, reason, message) = ask(&server.api, case).await;
        let message_fits = match case.message.strip_suffix("\n...") {
            Some(start) => message.starts_with(start),
            None => message == case.message,
        };
        if (code, reason.as_str()) == (case.code, case.reason.as_str()) && message_fits {
            continue;
        }
        writeln!(differences, "{}", case.title(number)).unwrap();
        writeln!(differences, "  expected {} {} {:?}", case.code, case.reason, case.message).unwrap();
        writeln!(differences, "  answered {code} {reason} {message:?}\n").unwrap();
    }
    server.stop().await;

    let list = folder().join("differences.txt");
    if std::env::var_os("FERRY_REWRITE").is_some() {
        std::fs::write(&list, &differences).unwrap();
    }
    let known = std::fs::read_to_string(&list).unwrap();
    let titles = |text: &str| -> BTreeSet<String> {
        text.lines().filter(|line| !line.is_empty() && !line.starts_with(' ')).map(str::to_owned).collect()
    };
    let (known, found) = (titles(&known), titles(&differences));
    let new: Vec<_> = found.difference(&known).collect();
    let mended: Vec<_> = known.difference(&found).collect();
    assert!(
        new.is_empty() && mended.is_empty(),
        "differ now: {new:#?}\nare right now: {mended:#?}\n{differences}"
    );
}

/// Code, reason and message of the answer, as the recording has them.
async fn ask(api: &std::sync::Arc<ferry_apiserver::Api>, case: &Case) -> (u16, String, String) {
    // The recording kept markup readable in one path; on the wire it is escaped.
    let path = case.path.replace('<', "%3C").replace('>', "%3E");
    let mut request = http::Request::builder().method(case.method.as_str()).uri(path);
    if case.user != "-" {
        request = request.header("authorization", format!("Bearer {}-token", case.user));
    }
    let typed = case.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    if case.body.is_some() && !typed {
        request = request.header("content-type", "application/json");
    }
    for (name, value) in &case.headers {
        request = request.header(name, value);
    }
    let body = Full::new(bytes::Bytes::from(case.body.clone().unwrap_or_default()));
    let request = match request.body(body) {
        Ok(request) => request,
        Err(error) => return (0, "-".to_owned(), format!("no request: {error}")),
    };
    let answer =
        tokio::time::timeout(Duration::from_secs(30), handle(api.clone(), Connection::default(), request));
    let Ok(response) = answer.await else { return (0, "-".to_owned(), "no answer in time".to_owned()) };
    let code = response.status().as_u16();
    let watching = code == 200 && case.path.contains("watch");
    let body = match watching {
        true => bytes::Bytes::new(),
        false => response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default(),
    };
    let (reason, message) = describe(case, code, &String::from_utf8_lossy(&body));
    (code, reason, normalize(&message))
}

fn describe(case: &Case, code: u16, text: &str) -> (String, String) {
    let none = || "-".to_owned();
    if case.method == "HEAD" {
        // The connection drops the body; this test is one layer above it.
        return (none(), String::new());
    }
    let Ok(Value::Object(object)) = serde_json::from_str(text) else {
        let long = code == 200 && text.len() > 200;
        let message = if long { "" } else { text.trim() };
        return (none(), message.to_owned());
    };
    let field = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    let kind = field("kind");
    if kind == "Status" {
        let reason = match (field("status").as_str(), field("reason")) {
            ("Success", _) => "Success".to_owned(),
            (_, reason) if reason.is_empty() => none(),
            (_, reason) => reason,
        };
        return (reason, field("message"));
    }
    if kind.ends_with("Review") && kind != "SelfSubjectRulesReview" {
        let status = object.get("status").map_or(String::new(), Value::to_string);
        return (none(), status);
    }
    (none(), String::new())
}

/// Puts `<uid>` and `<revision>` in the place of what differs from run to run.
fn normalize(message: &str) -> String {
    let is_uid = |text: &str| {
        text.len() == 36
            && text.bytes().enumerate().all(|(at, byte)| match at {
                8 | 13 | 18 | 23 => byte == b'-',
                _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            })
    };
    let mut normalized = String::new();
    let mut rest = message;
    while let Some(first) = rest.chars().next() {
        if rest.get(..36).is_some_and(is_uid) {
            normalized.push_str("<uid>");
            rest = &rest[36..];
        } else if let Some(after) = rest.strip_prefix("current: ") {
            normalized.push_str("current: <revision>");
            rest = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
        } else {
            normalized.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    normalized
}
