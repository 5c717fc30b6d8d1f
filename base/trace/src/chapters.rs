//! From records to a story: which steps are worth a line, in which chapter they stand, and in what words.
//!
//! The chapters are those of a command's life, from the command line to the name in DNS. A component's own requests
//! go through the same filters as a person's; shown in full they would drown everything, so each is one line in its
//! component's chapter. A reconcile that wrote nothing is no line at all.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use crate::arrange::arrange;
use crate::axis::{Axis, Fold, Interval};
use crate::critical::critical_path;
use crate::timeline::{Entry, Link, in_causal_order};
use crate::{Record, SpanId, Value};

/// In the order of a command's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Chapter {
    Command,
    Authentication,
    Authorization,
    Admission,
    Storage,
    Controllers,
    Scheduling,
    Pod,
    Sandbox,
    Containers,
    Service,
    Dns,
    GarbageCollection,
    Other,
}

impl Chapter {
    pub fn title(self) -> &'static str {
        match self {
            Chapter::Command => "Command",
            Chapter::Authentication => "Authentication",
            Chapter::Authorization => "Authorization",
            Chapter::Admission => "Admission",
            Chapter::Storage => "Storage and watch",
            Chapter::Controllers => "Controllers",
            Chapter::Scheduling => "Scheduling",
            Chapter::Pod => "Pod on its node",
            Chapter::Sandbox => "Sandbox and network",
            Chapter::Containers => "Containers",
            Chapter::Service => "Endpoints and proxy",
            Chapter::Dns => "DNS",
            Chapter::GarbageCollection => "Removal",
            Chapter::Other => "Other",
        }
    }

    /// Steps of answering one request.
    fn is_of_request(self) -> bool {
        matches!(
            self,
            Chapter::Authentication | Chapter::Authorization | Chapter::Admission | Chapter::Storage
        )
    }
}

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    Chapters,
    All,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    #[serde(serialize_with = "as_title")]
    pub chapter: Chapter,
    pub indent: usize,
    pub label: String,
    /// Small facts, in the order they were recorded.
    pub facts: String,
    /// Nanoseconds since 1970.
    pub start: u64,
    /// Of all times together.
    pub duration: u64,
    /// When it was over for the last time.
    pub end: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How often the same was seen, and when each time.
    pub times: usize,
    pub intervals: Vec<Interval>,
    /// How long the critical path stayed here, in nanoseconds.
    pub critical: u64,
    pub is_reconcile: bool,
    pub span: SpanId,
    /// The revisions that woke it, and when it began because of each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<(i64, u64)>,
    /// The revisions that it wrote, itself or in calls that have no line of their own, and when each was written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<(i64, u64)>,
    /// Steps of one chapter that were called one by the other share it.
    #[serde(skip)]
    pub(crate) group: usize,
}

impl Step {
    fn of(entry: &Entry, place: &Place, outcome: &Outcome, commits: &HashMap<i64, u64>) -> Step {
        let record = &entry.record;
        Step {
            chapter: place.chapter,
            indent: place.indent,
            label: label(record, outcome),
            facts: facts(entry, commits, outcome),
            start: record.start,
            duration: record.duration,
            end: record.end(),
            error: record.error.as_deref().map(str::to_owned),
            times: 1,
            intervals: vec![(record.start, record.end())],
            critical: 0,
            is_reconcile: record.name == "reconcile",
            span: record.span,
            causes: record.causes.iter().map(|cause| (*cause, record.start)).collect(),
            writes: Vec::new(),
            group: place.group,
        }
    }
}

fn as_title<S: serde::Serializer>(chapter: &Chapter, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(chapter.title())
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Story {
    /// By chapter, and in a chapter by time; what a step called stands below it.
    pub steps: Vec<Step>,
    /// Nanoseconds since 1970.
    pub start: u64,
    pub end: u64,
    /// All records, shown or not.
    pub spans: usize,
    /// Reconciles that looked and found nothing to do.
    pub idle_reconciles: usize,
    /// The length of the critical path, and how much of it went to watches and queues: nanoseconds.
    pub critical: u64,
    pub waited: u64,
    #[serde(skip)]
    pods: BTreeSet<(String, String)>,
}

impl Story {
    /// The stretches without a step that an axis of `width` columns leaves out.
    pub fn folds(&self, width: usize) -> Vec<Fold> {
        let intervals = self.steps.iter().flat_map(|step| step.intervals.iter().copied());
        Axis::of(intervals, width).folds()
    }

    /// Namespace and name of the pods it is about.
    pub fn pods(&self) -> Vec<(String, String)> {
        self.pods.iter().cloned().collect()
    }
}

/// Tells the story of records that already are one causal chain.
pub fn story(records: &[Record], detail: Detail) -> Story {
    let entries = in_causal_order(records).entries;
    let mut told = Story { spans: entries.len(), ..Story::default() };
    let commits: HashMap<i64, u64> =
        records.iter().filter_map(|record| Some((record.committed?, record.end()))).collect();
    let outcomes = outcomes(&entries);
    let critical = critical_path(records);
    (told.critical, told.waited) = (critical.length(), critical.waited);
    // What is not shown is part of the step that called it.
    let mut shares: HashMap<SpanId, u64> = HashMap::new();
    let mut writes: HashMap<SpanId, Vec<(i64, u64)>> = HashMap::new();
    // The path from the first cause to the entry at hand.
    let mut path: Vec<Place> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        path.truncate(entry.depth);
        let above = path.last();
        let called_by = above.filter(|_| entry.link == Link::Child);
        let chapter = chapter(&entry.record, called_by);
        let is_hidden = called_by.is_some_and(|above| above.hides_requests && chapter.is_of_request());
        let is_idle =
            entry.record.name == "reconcile" && !outcomes[index].has_written && entry.record.error.is_none();
        let is_shown = detail == Detail::All || !(is_hidden || is_idle || is_noise(entry, called_by));
        told.idle_reconciles += usize::from(is_idle);
        let (indent, group) = match called_by.filter(|above| above.chapter == chapter) {
            Some(above) if above.is_shown => (above.indent + 1, above.group),
            Some(above) => (above.indent, above.group),
            None => (0, index),
        };
        let hides_requests = is_hidden || hides_requests(entry, called_by);
        let shown_as =
            if is_shown { Some(entry.record.span) } else { called_by.and_then(|above| above.shown_as) };
        if let Some((step, time)) = shown_as.zip(critical.spans.get(&entry.record.span)) {
            *shares.entry(step).or_default() += time;
        }
        if let Some((step, revision)) = shown_as.zip(entry.record.committed) {
            writes.entry(step).or_default().push((revision, entry.record.end()));
        }
        note_pod(&entry.record, &mut told.pods);
        let place = Place { chapter, indent, group, is_shown, shown_as, hides_requests };
        if is_shown {
            told.steps.push(Step::of(entry, &place, &outcomes[index], &commits));
        }
        path.push(place);
    }
    for step in &mut told.steps {
        step.critical = shares.get(&step.span).copied().unwrap_or(0);
        step.writes = writes.remove(&step.span).unwrap_or_default();
    }
    told.steps = arrange(told.steps);
    told.start = told.steps.iter().map(|step| step.start).min().unwrap_or(0);
    told.end = told.steps.iter().map(|step| step.end).max().unwrap_or(0);
    told
}

/// Where an entry of the path stands, for those below it.
struct Place {
    chapter: Chapter,
    indent: usize,
    group: usize,
    is_shown: bool,
    /// The line that stands for it.
    shown_as: Option<SpanId>,
    hides_requests: bool,
}

fn chapter(record: &Record, called_by: Option<&Place>) -> Chapter {
    let (room, step) = record.name.split_once('.').unwrap_or((&record.name, ""));
    match (room, step) {
        ("kubectl", _) => Chapter::Command,
        // A component's request is a step of the component.
        ("apiserver", "request") => called_by.map_or(Chapter::Command, |above| above.chapter),
        ("filter", "authorization") | ("auth", "authorizer" | "webhook_authorize") => Chapter::Authorization,
        ("filter" | "auth", _) => Chapter::Authentication,
        ("admission", _) => Chapter::Admission,
        ("apiserver" | "registry" | "store" | "watch" | "cache", _) => Chapter::Storage,
        ("reconcile", _) => match controller(record) {
            name if name.starts_with("endpoint") => Chapter::Service,
            "garbage-collector" | "pod-garbage-collector" | "namespace" | "ttl-after-finished" => {
                Chapter::GarbageCollection
            }
            _ => Chapter::Controllers,
        },
        ("garbage-collector" | "pod-gc" | "namespace", _) => Chapter::GarbageCollection,
        ("pods" | "statefulset" | "volume" | "taint-eviction", _) => Chapter::Controllers,
        ("scheduler", _) => Chapter::Scheduling,
        ("kubelet", "sandbox") | ("cni", _) => Chapter::Sandbox,
        ("kubelet", "container" | "pull" | "create" | "start" | "hook" | "probe") => Chapter::Containers,
        ("kubelet", "terminate" | "delete") => Chapter::GarbageCollection,
        ("kubelet", _) => Chapter::Pod,
        ("proxy", _) => Chapter::Service,
        ("dns", _) => Chapter::Dns,
        _ => Chapter::Other,
    }
}

/// A component's request hides its filters; so does a read, whoever makes it.
fn hides_requests(entry: &Entry, called_by: Option<&Place>) -> bool {
    entry.record.name == "apiserver.request"
        && (called_by.is_some_and(|above| above.chapter != Chapter::Command) || is_read(&entry.record))
}

fn is_read(record: &Record) -> bool {
    matches!(text(record, "method"), Some("GET" | "HEAD"))
}

/// Steps that say nothing a reader of chapters asks for.
fn is_noise(entry: &Entry, called_by: Option<&Place>) -> bool {
    let record = &entry.record;
    let is_component_read = record.name == "apiserver.request"
        && is_read(record)
        && called_by.is_some_and(|above| above.chapter != Chapter::Command);
    // The server's side of a request that kubectl's side already shows.
    let is_other_side = record.name == "apiserver.request" && is_read(record);
    record.error.is_none() && (is_component_read || is_other_side || record.name == "apiserver.encode")
}

/// What came of an entry, below it.
#[derive(Clone, Debug, Default)]
struct Outcome {
    has_written: bool,
    /// The first object that was written, with its revision.
    written: Option<(String, i64)>,
}

fn outcomes(entries: &[Entry]) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::default(); entries.len()];
    let mut path: Vec<usize> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        path.truncate(entry.depth);
        path.push(index);
        if let (Some(revision), Some(object)) = (entry.record.committed, &entry.record.object) {
            // Up to what called it; what was only woken by a revision did not write it.
            for (depth, &above) in path.iter().enumerate().rev() {
                outcomes[above].has_written = true;
                outcomes[above].written.get_or_insert_with(|| (object.to_string(), revision));
                if depth == 0 || entries[above].link != Link::Child {
                    break;
                }
            }
        }
    }
    outcomes
}

fn label(record: &Record, outcome: &Outcome) -> String {
    let object = record.object.as_deref().unwrap_or("");
    match &*record.name {
        "kubectl.command" => text(record, "command").unwrap_or("kubectl").to_owned(),
        "kubectl.request" => {
            format!("{} {}", text(record, "method").unwrap_or(""), text(record, "path").unwrap_or(""))
        }
        "apiserver.request" => match &outcome.written {
            Some((object, _)) => format!("{} {object}{}", verb(record), subresource(record, object)),
            None => {
                format!("{} {}", text(record, "method").unwrap_or(""), text(record, "path").unwrap_or(""))
            }
        },
        "auth.authenticator" | "auth.authorizer" => text(record, "name").unwrap_or("").to_owned(),
        "admission.mutate" | "admission.validate" => {
            let (_, step) = record.name.split_once('.').unwrap_or_default();
            format!("{} {step}s", text(record, "plugin").unwrap_or("plugin"))
        }
        "admission.reserve" => format!("{} charges quota", text(record, "plugin").unwrap_or("plugin")),
        "store.commit" => format!("commit {object}"),
        "store.write" => "write to disk".to_owned(),
        "watch.cache" => "apply to the watch cache".to_owned(),
        "reconcile" => format!("{} {object}", controller(record)),
        "pods.create" if object.is_empty() => "create pods".to_owned(),
        "pods.delete" if object.is_empty() => "delete pods".to_owned(),
        "cni.call" => format!(
            "CNI {} by {}",
            text(record, "command").unwrap_or(""),
            text(record, "plugin").unwrap_or("")
        ),
        "kubelet.container" => format!("container {} of {object}", text(record, "container").unwrap_or("")),
        "kubelet.probe" => format!("{} probe of {object}", text(record, "probe").unwrap_or("")),
        name => {
            let step = name.split_once('.').map_or(name, |(_, step)| step).replace('_', " ");
            format!("{step} {object}").trim_end().to_owned()
        }
    }
}

/// `/binding` of a request to `…/pods/x/binding`.
fn subresource(record: &Record, object: &str) -> String {
    let name = object.rsplit('/').next().unwrap_or_default();
    let path = text(record, "path").unwrap_or("");
    let behind = path.rsplit_once(&format!("/{name}/")).map(|(_, behind)| behind);
    behind.map_or_else(String::new, |behind| format!("/{behind}"))
}

fn verb(record: &Record) -> &'static str {
    match text(record, "method") {
        Some("POST") => "create",
        Some("PUT") => "update",
        Some("PATCH") => "patch",
        Some("DELETE") => "delete",
        _ => "write",
    }
}

/// Attributes that the label already says.
const IN_LABEL: &[&str] = &[
    "method",
    "path",
    "command",
    "name",
    "plugin",
    "controller",
    "container",
    "probe",
    "waitMicros",
    "uid",
    "verb",
];

fn facts(entry: &Entry, commits: &HashMap<i64, u64>, outcome: &Outcome) -> String {
    let record = &entry.record;
    let mut facts: Vec<String> = Vec::new();
    let waited = record.attribute("waitMicros").and_then(|value| value.as_i64()).unwrap_or(0);
    let waited = u64::try_from(waited).unwrap_or(0).saturating_mul(1_000);
    if let Link::CausedBy(revision) = entry.link {
        let delivered = commits
            .get(&revision)
            .map(|committed| record.start.saturating_sub(waited.saturating_add(*committed)));
        facts.push(match delivered {
            Some(delay) => format!("by r{revision} after {}", duration(delay)),
            None => format!("by r{revision}"),
        });
    }
    if waited > 0 {
        facts.push(format!("queued {}", duration(waited)));
    }
    if record.name == "apiserver.request"
        && let Some((_, revision)) = &outcome.written
    {
        facts.push(format!("r{revision}"));
    } else if let Some(revision) = record.committed {
        facts.push(format!("r{revision}"));
    }
    // A component's own account says no more than the chapter does.
    let is_component = |value: &Value| value.as_str().is_some_and(|user| user.starts_with("system:"));
    let said = |key: &str, value: &Value| IN_LABEL.contains(&key) || (key == "user" && is_component(value));
    for (key, value) in record.attributes.iter().filter(|(key, value)| !said(key, value)) {
        let is_plain = matches!(&**key, "verdict" | "code");
        facts.push(if is_plain { value.to_string() } else { format!("{key}={value}") });
    }
    if let Some(source) = &record.source
        && record.name == "kubectl.command"
    {
        facts.push(format!("by {source}"));
    }
    facts.join(" ")
}

fn note_pod(record: &Record, pods: &mut BTreeSet<(String, String)>) {
    if let Some(object) = &record.object
        && let Some((namespace, name)) = object.strip_prefix("pods/").and_then(|rest| rest.split_once('/'))
    {
        pods.insert((namespace.to_owned(), name.to_owned()));
    }
}

/// `deployment` of `deployment-controller`.
fn controller(record: &Record) -> &str {
    let name = text(record, "controller").unwrap_or("reconcile");
    name.strip_suffix("-controller").unwrap_or(name)
}

fn text<'a>(record: &'a Record, key: &str) -> Option<&'a str> {
    record.attribute(key).and_then(|value| value.as_str())
}

/// For stretches that nobody counts in seconds: `5 min 27 s`, `2 d 3 h`.
pub fn long_duration(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    match seconds {
        0..100 => duration(nanoseconds),
        100..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Three digits and a unit: `412 µs`, `1.84 s`.
pub fn duration(nanoseconds: u64) -> String {
    let (value, unit) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds} ns"),
        1_000..1_000_000 => (nanoseconds as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (nanoseconds as f64 / 1e6, "ms"),
        _ => (nanoseconds as f64 / 1e9, "s"),
    };
    match value {
        value if value < 9.995 => format!("{value:.2} {unit}"),
        value if value < 99.95 => format!("{value:.1} {unit}"),
        value => format!("{value:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{COMMAND, history};

    fn check(script: &str, detail: Detail, expected: &[(Chapter, usize, &str)]) {
        let story = story(&history(script), detail);
        let seen: Vec<(Chapter, usize, &str)> =
            story.steps.iter().map(|step| (step.chapter, step.indent, step.label.as_str())).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_command_is_told_in_chapters() {
        use Chapter::*;
        check(
            COMMAND,
            Detail::Chapters,
            &[
                (Command, 0, "kubectl-run"),
                (Command, 1, "POST /apis/apps/v1/namespaces/default/deployments"),
                (Command, 2, "create deployments.apps/default/nginx"),
                (Authentication, 0, "authentication"),
                (Authentication, 1, "X509"),
                (Authorization, 0, "authorization"),
                (Admission, 0, "LimitRanger mutates"),
                (Storage, 0, "commit deployments.apps/default/nginx"),
                (Storage, 1, "write to disk"),
                (Controllers, 0, "deployment deployments.apps/default/nginx"),
                (Controllers, 1, "create replicasets.apps/default/nginx-1"),
                (Scheduling, 0, "schedule pods/default/a"),
                (Pod, 0, "sync pods/default/a"),
                (Sandbox, 0, "sandbox pods/default/a"),
                (Containers, 0, "container nginx of pods/default/a"),
                (Containers, 1, "create"),
                (Service, 0, "endpointslice services/default/nginx"),
                (Service, 1, "create endpointslices.discovery.k8s.io/default/nginx-x"),
                (Service, 0, "sync"),
                (Dns, 0, "update services/default/nginx"),
            ],
        );
    }

    #[test]
    fn all_shows_what_the_chapters_leave_out() {
        let whole = story(&history(COMMAND), Detail::All);
        let chosen = story(&history(COMMAND), Detail::Chapters);
        assert_eq!(whole.steps.iter().map(|step| step.times).sum::<usize>(), whole.spans);
        assert_eq!(chosen.idle_reconciles, 1, "the second reconcile of the deployment wrote nothing");
        assert!(chosen.steps.len() < whole.steps.len());
        assert_eq!(chosen.pods(), [("default".to_owned(), "a".to_owned())]);
    }

    #[test]
    fn a_line_knows_the_revisions_that_woke_it_and_those_it_wrote() {
        let story = story(&history(COMMAND), Detail::Chapters);
        let step = |label: &str| story.steps.iter().find(|step| step.label == label).expect("a line");
        let reconcile = step("deployment deployments.apps/default/nginx");
        assert_eq!((&reconcile.causes[..], &reconcile.writes[..]), (&[(10, reconcile.start)][..], &[][..]));
        // Its commit has no line of its own: the request stands for it.
        let revisions = |step: &Step| step.writes.iter().map(|(revision, _)| *revision).collect::<Vec<_>>();
        assert_eq!(revisions(step("create replicasets.apps/default/nginx-1")), [11]);
        let commit = step("commit deployments.apps/default/nginx");
        assert_eq!(commit.writes, [(10, commit.end), (10, commit.end)][..commit.writes.len()]);
        let json = serde_json::to_value(reconcile).expect("JSON");
        assert_eq!((&json["chapter"], &json["causes"][0][0]), (&"Controllers".into(), &10.into()));
    }

    #[test]
    fn a_write_names_its_subresource() {
        let script = "
            scheduler.bind @pods/default/a
            apiserver.request ^scheduler.bind method=POST path=/api/v1/namespaces/default/pods/a/binding
            store.commit ^apiserver.request @pods/default/a >1
        ";
        let story = story(&history(script), Detail::Chapters);
        assert_eq!(story.steps[1].label, "create pods/default/a/binding");
    }

    #[test]
    fn a_reconcile_tells_how_long_its_revision_took_to_arrive_and_how_long_it_queued() {
        let story = story(&history(COMMAND), Detail::Chapters);
        let reconcile = story.steps.iter().find(|step| step.chapter == Chapter::Controllers).expect("one");
        assert_eq!(reconcile.facts, "by r10 after 0 ns queued 100 µs");
    }

    #[test]
    fn what_a_step_called_stays_below_it_whatever_was_woken_in_between() {
        let script = "
            reconcile @sets/a controller=set
            apiserver.request ^reconcile method=POST path=/one
            store.commit ^apiserver.request @pods/default/one >1
            reconcile <1 @pods/default/one controller=pod
            apiserver.request ^reconcile method=PUT path=/api/v1/namespaces/default/pods/one
            store.commit ^apiserver.request @pods/default/one >2
        ";
        let mut records = history(script);
        // The first reconcile writes again, after its first write has woken another.
        let mut second = history("apiserver.request method=POST path=/two").remove(0);
        (second.trace, second.parent, second.start) = (records[0].trace, Some(records[0].span), u64::MAX / 2);
        records.push(second);
        let told = story(&records, Detail::Chapters);
        let labels: Vec<&str> = told.steps.iter().map(|step| step.label.as_str()).collect();
        assert_eq!(
            labels[..4],
            ["set sets/a", "create pods/default/one", "POST /two", "pod pods/default/one"]
        );
    }

    #[test]
    fn the_same_failure_again_and_again_is_one_line() {
        let script = "
            kubelet.sync @pods/default/a
            kubelet.container ^kubelet.sync @pods/default/a container=c !ErrImagePull
            kubelet.sync @pods/default/a
            kubelet.container ^kubelet.sync @pods/default/a container=c !ErrImagePull
            kubelet.sync @pods/default/a
            kubelet.container ^kubelet.sync @pods/default/a container=c !ErrImagePull
        ";
        let story = story(&history(script), Detail::Chapters);
        let times: Vec<(Chapter, usize)> =
            story.steps.iter().map(|step| (step.chapter, step.times)).collect();
        assert_eq!(times, [(Chapter::Pod, 3), (Chapter::Containers, 3)]);
    }

    #[test]
    fn a_controllers_reconciles_of_an_object_are_one_line_whatever_each_did() {
        let script = "
            reconcile @sets/a controller=set
            apiserver.request ^reconcile method=POST path=/x
            store.commit ^apiserver.request @pods/default/x >1
            reconcile @sets/a controller=set
            apiserver.request ^reconcile method=POST path=/y
            store.commit ^apiserver.request @pods/default/y >2
            reconcile @sets/a controller=set
            apiserver.request ^reconcile method=PUT path=/api/v1/namespaces/default/pods/x
            store.commit ^apiserver.request @pods/default/x >3
            reconcile @sets/b controller=set
            apiserver.request ^reconcile method=POST path=/z
            store.commit ^apiserver.request @pods/default/z >4
        ";
        let story = story(&history(script), Detail::Chapters);
        let seen: Vec<(&str, usize)> =
            story.steps.iter().map(|step| (step.label.as_str(), step.times)).collect();
        let expected = [
            ("set sets/a", 3),
            ("update pods/default/x", 1),
            ("create pods/default/y", 1),
            ("create pods/default/x", 1),
            ("set sets/b", 1),
            ("create pods/default/z", 1),
        ];
        assert_eq!(seen, expected);
        assert_eq!(story.steps[0].intervals.len(), 3);
    }

    #[test]
    fn long_times_are_told_in_minutes_and_days() {
        for (seconds, expected) in
            [(99, "99.0 s"), (327, "5 min 27 s"), (7_260, "2 h 1 min"), (183_600, "2 d 3 h")]
        {
            assert_eq!(long_duration(seconds * 1_000_000_000), expected);
        }
    }

    #[test]
    fn durations_have_three_digits() {
        for (nanoseconds, expected) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_500, "1.50 µs"),
            (41_230, "41.2 µs"),
            (999_900, "1000 µs"),
            (1_840_000_000, "1.84 s"),
        ] {
            assert_eq!(duration(nanoseconds), expected);
        }
    }
}
