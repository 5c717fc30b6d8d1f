//! The format of a recorded request and its answer (`golden/answers/README.md`), and how it is asked of a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferry_apiserver::Api;
use ferry_apiserver::filters::{Connection, handle};
use http_body_util::{BodyExt, Full};
use serde_json::Value;

/// How long a request marked `UNTIL-` is repeated.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Case {
    pub file: String,
    pub user: String,
    pub method: String,
    pub path: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
    pub answer: Answer,
    /// The answer was recorded with its object and its warnings.
    is_whole: bool,
}

#[derive(Debug, Default, PartialEq)]
pub struct Answer {
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub warnings: Vec<String>,
    pub object: Option<Value>,
}

impl Case {
    /// Names the case in the list of differences.
    pub fn title(&self, number: usize) -> String {
        format!("{} #{number} {} {} {}", self.file, self.user, self.method, self.path)
    }

    /// Whether this is the recorded answer.
    pub fn fits(&self, answer: &Answer) -> bool {
        let message_fits = match self.answer.message.strip_suffix("\n...") {
            Some(start) => answer.message.starts_with(start),
            None => {
                answer.message == self.answer.message
                    || (self.is_whole && pieces(&answer.message) == pieces(&self.answer.message))
            }
        };
        let whole_fits = !self.is_whole
            || (answer.warnings == self.answer.warnings
                && (self.answer.object.is_none() || answer.object == self.answer.object));
        (answer.code, &answer.reason) == (self.answer.code, &self.answer.reason) && message_fits && whole_fits
    }

    /// The answer of a server. A request marked `UNTIL-` is repeated until its answer is the recorded one.
    pub async fn ask(&self, api: &Arc<Api>) -> Answer {
        let Some(method) = self.method.strip_prefix("UNTIL-") else {
            return self.once(api, &self.method).await;
        };
        let start = tokio::time::Instant::now();
        loop {
            let answer = self.once(api, method).await;
            if self.fits(&answer) || start.elapsed() > PATIENCE {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn once(&self, api: &Arc<Api>, method: &str) -> Answer {
        // The recording kept markup readable in one path; on the wire it is escaped.
        let path = self.path.replace('<', "%3C").replace('>', "%3E");
        let mut request = http::Request::builder().method(method).uri(path);
        if self.user != "-" {
            request = request.header("authorization", format!("Bearer {}-token", self.user));
        }
        if self.is_whole {
            request = request.header("user-agent", "golden");
        }
        let typed = self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        if self.body.is_some() && !typed {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let failed = |why: String| Answer { reason: "-".to_owned(), message: why, ..Answer::default() };
        let body = Full::new(bytes::Bytes::from(self.body.clone().unwrap_or_default()));
        let request = match request.body(body) {
            Ok(request) => request,
            Err(error) => return failed(format!("no request: {error}")),
        };
        let answer = handle(api.clone(), Connection::default(), request);
        let Ok(response) = tokio::time::timeout(Duration::from_secs(30), answer).await else {
            return failed("no answer in time".to_owned());
        };
        let code = response.status().as_u16();
        let warnings = response.headers().get_all("warning").iter();
        let mut warnings: Vec<String> =
            warnings.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect();
        warnings.sort_unstable();
        let watching = code == 200 && self.path.contains("watch");
        let body = match watching {
            true => bytes::Bytes::new(),
            false => response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default(),
        };
        let (reason, message, object) = self.describe(code, &String::from_utf8_lossy(&body));
        Answer { code, reason, message: normalize(&message), warnings, object }
    }

    fn describe(&self, code: u16, text: &str) -> (String, String, Option<Value>) {
        let none = || "-".to_owned();
        if self.method == "HEAD" {
            // The connection drops the body; this test is one layer above it.
            return (none(), String::new(), None);
        }
        let Ok(Value::Object(object)) = serde_json::from_str(text) else {
            let long = code == 200 && text.len() > 200;
            let message = if long { "" } else { text.trim() };
            return (none(), message.to_owned(), None);
        };
        let field = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
        let kind = field("kind");
        if kind == "Status" {
            let reason = match (field("status").as_str(), field("reason")) {
                ("Success", _) => "Success".to_owned(),
                (_, reason) if reason.is_empty() => none(),
                (_, reason) => reason,
            };
            return (reason, field("message"), None);
        }
        if kind.ends_with("Review") && kind != "SelfSubjectRulesReview" {
            let status = object.get("status").map_or(String::new(), Value::to_string);
            return (none(), status, None);
        }
        let mut object = Value::Object(object);
        let mut keeps_managers = self.path.contains("fieldManager=");
        match kind.as_str() {
            "Table" => hide_ages(&mut object),
            // In any order; subresources come after their resource in theirs.
            "APIResourceList" => {
                let resource =
                    |item: &Value| item["name"].as_str().unwrap_or("").split('/').next().map(str::to_owned);
                if let Some(resources) = object["resources"].as_array_mut() {
                    resources.sort_by_key(resource);
                }
            }
            // Its status may be a later one already, and somebody has written it.
            "CustomResourceDefinition" if self.method == "POST" && !self.path.contains("dryRun") => {
                object["status"] = Value::Null;
                keeps_managers = false;
            }
            _ => {}
        }
        scrub(&mut object, keeps_managers);
        hide_chosen(&mut object);
        (none(), String::new(), Some(object))
    }
}

/// The cases of a folder's files, in order; `shared` is where bodies that a file only names lie. Whole answers have
/// objects and warnings besides.
pub fn cases(folder: &Path, shared: &Path, is_whole: bool) -> Vec<Case> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    files.retain(|path| path.file_name().is_some_and(|name| name != "differences.txt"));
    files.sort();
    files.iter().flat_map(|path| parse(path, shared, is_whole)).collect()
}

fn parse(path: &Path, shared: &Path, is_whole: bool) -> Vec<Case> {
    let file = path.file_stem().unwrap().to_string_lossy().into_owned();
    let text = std::fs::read_to_string(path).unwrap();
    let mut cases: Vec<Case> = Vec::new();
    for line in text.split('\n').filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix("> ") {
            let (name, value) = header.split_once(": ").unwrap_or((header.trim_end_matches(':'), ""));
            cases.last_mut().unwrap().headers.push((name.to_owned(), value.to_owned()));
        } else if let Some(part) = line.strip_prefix("| ").or((line == "|").then_some("")) {
            let body = cases.last_mut().unwrap().body.get_or_insert_default();
            if !body.is_empty() {
                body.push('\n');
            }
            body.push_str(part);
        } else if let Some(name) = line.strip_prefix("@ ") {
            let case = cases.last_mut().unwrap();
            // Without the folder the file's cases are not run.
            case.body = Some(std::fs::read_to_string(shared.join(name)).unwrap_or_default());
            case.headers.push(("Content-Type".to_owned(), "application/yaml".to_owned()));
        } else if let Some(answer) = line.strip_prefix("= ") {
            let (code, reason) = answer.split_once(' ').unwrap();
            let answer = &mut cases.last_mut().unwrap().answer;
            (answer.code, answer.reason) = (code.parse().unwrap(), reason.to_owned());
        } else if let Some(part) = line.strip_prefix("  ") {
            let message = &mut cases.last_mut().unwrap().answer.message;
            if !message.is_empty() {
                message.push('\n');
            }
            message.push_str(part);
        } else if let Some(warning) = line.strip_prefix("! ") {
            let warnings = &mut cases.last_mut().unwrap().answer.warnings;
            warnings.push(warning.to_owned());
            warnings.sort_unstable();
        } else if let Some(object) = line.strip_prefix("~ ") {
            let mut object = serde_json::from_str(object).unwrap();
            hide_chosen(&mut object);
            cases.last_mut().unwrap().answer.object = Some(object);
        } else {
            let mut words = line.splitn(3, ' ').map(str::to_owned);
            let mut word = || words.next().unwrap_or_else(|| panic!("{file}: {line}"));
            let (user, method, path) = (word(), word(), word());
            let (headers, body, answer) = (Vec::new(), None, Answer::default());
            cases.push(Case { file: file.clone(), user, method, path, headers, body, answer, is_whole });
        }
    }
    cases
}

/// The errors of a message in order: upstream walks maps, which have none.
fn pieces(message: &str) -> Vec<&str> {
    let mut pieces: Vec<&str> = message.split(", ").flat_map(|piece| piece.split(['[', ']'])).collect();
    pieces.sort_unstable();
    pieces
}

fn sort_by(list: &mut Value, fields: &[&str]) {
    let key = |item: &Value| fields.iter().map(|field| item[*field].to_string()).collect::<Vec<_>>();
    if let Some(list) = list.as_array_mut() {
        list.sort_by_key(key);
    }
}

/// Ages of a table's rows, which differ from run to run.
fn hide_ages(table: &mut Value) {
    // Words of others about metadata are not repeated.
    for column in table["columnDefinitions"].as_array_mut().into_iter().flatten() {
        if matches!(column["name"].as_str(), Some("Name" | "Created At")) {
            column["description"] = Value::Null;
        }
    }
    let columns = table["columnDefinitions"].as_array().cloned().unwrap_or_default();
    for row in table["rows"].as_array_mut().into_iter().flatten() {
        let cells = row["cells"].as_array_mut().into_iter().flatten();
        for (cell, column) in cells.zip(&columns) {
            let is_age = column["type"] == "date" && cell.as_str().is_some_and(|text| !text.contains('<'));
            if is_age {
                *cell = "<age>".into();
            }
        }
    }
}

/// Takes out what differs from run to run; field ownership stays where a request names a manager.
fn scrub(value: &mut Value, keeps_managers: bool) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| scrub(value, keeps_managers)),
        Value::Object(fields) => {
            for (name, value) in fields {
                if matches!(name.as_str(), "lastTransitionTime" | "deletionTimestamp") && value.is_string() {
                    *value = "<time>".into();
                } else if name == "metadata"
                    && let Some(metadata) = value.as_object_mut()
                {
                    for field in ["uid", "creationTimestamp", "resourceVersion", "selfLink"] {
                        metadata.remove(field);
                    }
                    if !keeps_managers {
                        metadata.remove("managedFields");
                    }
                    let managers = metadata.get_mut("managedFields").and_then(Value::as_array_mut);
                    for manager in managers.into_iter().flatten().filter_map(Value::as_object_mut) {
                        manager.remove("time");
                    }
                    if let Some(managers) = metadata.get_mut("managedFields") {
                        // In the order of their times otherwise.
                        sort_by(managers, &["manager", "operation", "subresource"]);
                    }
                }
                scrub(value, keeps_managers);
            }
        }
        _ => {}
    }
}

/// Puts words in the place of what the server chooses: uids, addresses of services, and since when
/// something is tainted.
fn hide_chosen(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(hide_chosen),
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(address) if name == "clusterIP" && address.starts_with("10.") => {
                        *value = "<ip>".into()
                    }
                    _ if name == "clusterIPs" => *value = "<ips>".into(),
                    _ if name == "nodePort" => *value = "<port>".into(),
                    Some(_) if name == "timeAdded" => *value = "<time>".into(),
                    _ => hide_chosen(value),
                }
            }
        }
        Value::String(text) if is_uid(text) => *text = "<uid>".into(),
        _ => {}
    }
}

fn is_uid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        })
}

/// Puts `<uid>` and `<revision>` in the place of what differs from run to run.
fn normalize(message: &str) -> String {
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
