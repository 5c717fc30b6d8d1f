//! From records to reasons. Pure.
//!
//! Each commit of the object is judged by what it changed and by the spans above it: the request names the user, a
//! reconcile the controller, a preemption the pod that needed the room. The revisions that woke the first of them lead
//! to the commits of other objects that caused this one, and so on to somebody who is no part of the cluster.

use std::collections::{HashMap, HashSet};

use clap::ValueEnum;
use ferry_trace::lives::{CREATE, DELETE, MARK};
use ferry_trace::{Record, SpanId};
use serde::Serialize;

use super::change::{Change, changes};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
#[value(rename_all = "kebab-case")]
pub enum What {
    Deleted,
    Evicted,
    Preempted,
    Pending,
    Restarted,
    NotReady,
    Unreachable,
    /// Became ready.
    Ready,
    Scaled,
    Changed,
    Scheduled,
    Created,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whatever is worth telling.
    Anything,
    Only(What),
    /// Who set a field.
    Field(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reason {
    pub what: What,
    pub object: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Another object has taken the name since.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_earlier: bool,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// When it was over, of something that lasts: nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    #[serde(flatten)]
    pub writer: Writer,
    /// In words: the scheduler's refusal, how a container ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Of a pending pod: each node with the plugin that refused it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// What caused it, and what caused that, to the first cause.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub because: Vec<Cause>,
}

/// Who wrote, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Writer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// A controller, the scheduler, a kubelet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component: Option<String>,
    /// `kubectl scale`; of other programs the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    pub object: String,
    pub what: What,
    pub time: u64,
    pub revision: i64,
    #[serde(flatten)]
    pub writer: Writer,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

/// The newest first.
pub fn why(records: &[Record], object: &str, question: &Question) -> Vec<Reason> {
    let history = History::of(records);
    let mut reasons: Vec<Reason> = history
        .commits_of(object)
        .into_iter()
        .filter_map(|commit| history.reason(commit, question))
        .collect();
    let is_gone = |reason: &Reason| matches!(reason.what, What::Deleted | What::Evicted | What::Preempted);
    // An object is marked, and later removed: the first of the two is why it went.
    let mut gone: HashSet<Option<String>> = HashSet::new();
    if !matches!(question, Question::Field(_)) {
        reasons.retain(|reason| !is_gone(reason) || gone.insert(reason.uid.clone()));
    }
    // A pod that waits no longer is told about only when that is the question.
    let is_told = |reason: &Reason| match question {
        Question::Only(_) => asks_for(question, reason.what),
        _ => asks_for(question, reason.what) && reason.until.is_none(),
    };
    reasons.extend(history.pending(object).filter(is_told));
    let newest = history.commits_of(object).last().and_then(|commit| commit.text("uid").map(str::to_owned));
    for reason in &mut reasons {
        reason.is_earlier = reason.uid.is_some() && reason.uid != newest;
    }
    match question {
        Question::Anything => worth_telling(reasons),
        Question::Only(_) | Question::Field(_) => {
            reasons.sort_by_key(|reason| std::cmp::Reverse(reason.time));
            reasons
        }
    }
}

/// The object that has the name now before those that had it earlier; of each how it ended, then the latest first. That it
/// was made and scheduled is told where nothing says more.
fn worth_telling(mut reasons: Vec<Reason>) -> Vec<Reason> {
    let is_end = |reason: &Reason| matches!(reason.what, What::Deleted | What::Evicted | What::Preempted);
    let says_more = |reason: &Reason| {
        !matches!(reason.what, What::Created | What::Scheduled | What::Ready | What::Changed)
    };
    let ends: HashMap<Option<String>, u64> = reasons
        .iter()
        .filter(|reason| is_end(reason))
        .map(|reason| (reason.uid.clone(), reason.time))
        .collect();
    let eventful: HashSet<Option<String>> =
        reasons.iter().filter(|reason| says_more(reason)).map(|reason| reason.uid.clone()).collect();
    reasons.retain(|reason| match reason.what {
        What::Ready => false,
        // What ends is no longer ready.
        What::NotReady => ends.get(&reason.uid).is_none_or(|end| reason.time < *end),
        What::Created | What::Scheduled => !eventful.contains(&reason.uid),
        What::Changed => !is_book_keeping(reason),
        _ => true,
    });
    let mut latest: HashMap<Option<String>, u64> = HashMap::new();
    for reason in &reasons {
        let time = latest.entry(reason.uid.clone()).or_default();
        *time = reason.time.max(*time);
    }
    reasons.sort_by_key(|reason| {
        let life = latest.get(&reason.uid).copied();
        (reason.is_earlier, std::cmp::Reverse(life), !is_end(reason), std::cmp::Reverse(reason.time))
    });
    reasons
}

/// A component that notes something in labels and annotations.
fn is_book_keeping(reason: &Reason) -> bool {
    let is_metadata = |change: &Change| change.field.starts_with("metadata.");
    reason.writer.component.is_some() && !reason.changes.is_empty() && reason.changes.iter().all(is_metadata)
}

fn asks_for(question: &Question, what: What) -> bool {
    match question {
        Question::Anything => true,
        Question::Field(_) => false,
        // Whoever asks why it is gone is told, however it went.
        Question::Only(What::Deleted) => {
            matches!(what, What::Deleted | What::Evicted | What::Preempted)
        }
        Question::Only(asked) => *asked == what,
    }
}

struct History<'a> {
    records: &'a [Record],
    by_span: HashMap<SpanId, &'a Record>,
    writers: HashMap<i64, &'a Record>,
}

/// From a pod to the command that made its Deployment there are four; more is no story any more.
const MAX_CAUSES: usize = 8;

impl<'a> History<'a> {
    fn of(records: &'a [Record]) -> Self {
        let by_span = records.iter().map(|record| (record.span, record)).collect();
        let commits = records.iter().filter(|record| record.object.is_some());
        let writers = commits.filter_map(|record| Some((record.committed?, record))).collect();
        History { records, by_span, writers }
    }

    /// Oldest first.
    fn commits_of(&self, object: &str) -> Vec<&'a Record> {
        let mut commits: Vec<&Record> = self
            .records
            .iter()
            .filter(|record| record.committed.is_some() && record.object.as_deref() == Some(object))
            .collect();
        commits.sort_by_key(|record| record.committed);
        commits
    }

    fn reason(&self, commit: &'a Record, question: &Question) -> Option<Reason> {
        let changed = changes(commit.text("changed").unwrap_or_default());
        let (what, changed) = match question {
            Question::Field(field) => {
                let of_field: Vec<Change> =
                    changed.into_iter().filter(|change| change.is_of(field)).collect();
                let is_born = commit.text("verb") == Some(CREATE);
                if of_field.is_empty() && !is_born {
                    return None;
                }
                (if is_born { What::Created } else { What::Changed }, of_field)
            }
            _ => (self.what(commit, &changed)?, changed),
        };
        if !matches!(question, Question::Field(_)) && !asks_for(question, what) {
            return None;
        }
        Some(Reason {
            what,
            object: commit.object.as_deref().unwrap_or_default().to_owned(),
            uid: commit.text("uid").map(str::to_owned),
            is_earlier: false,
            time: commit.start,
            until: None,
            revision: commit.committed,
            writer: self.writer(commit),
            detail: self.detail(commit, what, &changed),
            nodes: Vec::new(),
            changes: telling(what, changed),
            because: self.because(commit, what),
        })
    }

    /// Nothing for a change that nobody would ask about: a status that moved on.
    fn what(&self, commit: &Record, changed: &[Change]) -> Option<What> {
        let named = |field: &str| changed.iter().find(|change| change.field == field);
        let became =
            |field: &str, value: &str| named(field).is_some_and(|change| change.to.as_deref() == Some(value));
        let disruption =
            named("status.conditions[DisruptionTarget].reason").and_then(|change| change.to.clone());
        match commit.text("verb") {
            Some(CREATE) => return Some(What::Created),
            Some(MARK | DELETE) => return Some(self.how_it_went(commit, disruption.as_deref())),
            _ => {}
        }
        let is_node = commit.object.as_deref().is_some_and(|object| object.starts_with("nodes/"));
        if became("status.reason", "Evicted") {
            return Some(What::Evicted);
        }
        if changed.iter().any(|change| change.field.ends_with(".restartCount") && change.from.is_some()) {
            return Some(What::Restarted);
        }
        if is_node && became("status.conditions[Ready].status", "Unknown") {
            return Some(What::Unreachable);
        }
        let ready = named("status.conditions[Ready].status");
        if ready.is_some_and(|change| change.from.as_deref() == Some("True")) {
            return Some(What::NotReady);
        }
        if ready.is_some_and(|change| change.to.as_deref() == Some("True")) {
            return Some(What::Ready);
        }
        if named("spec.nodeName").is_some_and(|change| change.from.is_none()) {
            return Some(What::Scheduled);
        }
        if named("spec.replicas").is_some() {
            return Some(What::Scaled);
        }
        changed.iter().any(Change::is_wanted).then_some(What::Changed)
    }

    fn how_it_went(&self, commit: &Record, disruption: Option<&str>) -> What {
        let lineage = self.lineage(commit);
        let is_called_by = |name: &str| lineage.iter().any(|record| record.name == name);
        let is_eviction =
            lineage.iter().any(|record| record.text("path").is_some_and(|path| path.ends_with("/eviction")));
        // Told to the pod before it was marked, by whoever ends it.
        let told = disruption.or_else(|| self.disruption_of(commit));
        match told {
            Some("PreemptionByScheduler") => What::Preempted,
            Some(_) => What::Evicted,
            None if is_called_by("scheduler.preempt") => What::Preempted,
            None if is_eviction || is_called_by("taint-eviction.evict") => What::Evicted,
            None => What::Deleted,
        }
    }

    fn disruption_of(&self, commit: &Record) -> Option<&'a str> {
        let is_earlier = |record: &&'a Record| {
            record.object == commit.object
                && record.committed < commit.committed
                && record.text("uid") == commit.text("uid")
        };
        let mut told: Option<&'a str> = None;
        for record in self.records.iter().filter(is_earlier) {
            let text = record.text("changed").unwrap_or_default();
            if let Some((_, behind)) = text.split_once("status.conditions[DisruptionTarget].reason=") {
                let values = behind.split("; ").next().unwrap_or_default();
                told = values.split_once('→').map(|(_, to)| to).or(told);
            }
        }
        told.filter(|reason| !reason.is_empty())
    }

    fn detail(&self, commit: &Record, what: What, changed: &[Change]) -> Option<String> {
        let lineage = self.lineage(commit);
        match what {
            What::Preempted => {
                let schedule = lineage.iter().find(|record| record.name == "scheduler.schedule")?;
                let node = lineage.iter().find_map(|record| record.text("node"));
                let on = node.map(|node| format!(" on node {node}")).unwrap_or_default();
                Some(format!("to make room for {}{on}", schedule.object.as_deref()?))
            }
            What::Evicted => {
                let told = changed.iter().find(|change| change.field.ends_with("[DisruptionTarget].reason"));
                let told =
                    told.and_then(|change| change.to.as_deref()).or_else(|| self.disruption_of(commit));
                told.map(str::to_owned)
            }
            What::Restarted => {
                let ended = |field: &str| self.last_end(commit, changed, field);
                let reason = ended(".reason").map(|reason| format!(" ({reason})")).unwrap_or_default();
                let code = ended(".exitCode").map(|code| format!("exit code {code}{reason}"));
                let probe = self.failed_probe(commit, changed);
                let told: Vec<String> = code.into_iter().chain(probe).collect();
                (!told.is_empty()).then(|| told.join(", "))
            }
            What::NotReady | What::Unreachable => {
                let reason = changed.iter().find(|change| change.field == "status.conditions[Ready].reason");
                reason.and_then(|change| change.to.clone())
            }
            _ => None,
        }
    }

    /// How the container ended that was restarted. A commit tells what differs: an exit code like the one before stands in an
    /// earlier one.
    fn last_end(&self, commit: &Record, changed: &[Change], field: &str) -> Option<String> {
        let container = changed.iter().find_map(|change| container_of(&change.field))?;
        let list = format!("[{container}].");
        let of_container = |change: &Change| {
            change.field.contains(&list)
                && change.field.contains(".terminated.")
                && change.field.ends_with(field)
        };
        let told = |changed: Vec<Change>| changed.into_iter().find(of_container).and_then(|change| change.to);
        let commits = self.commits_of(commit.object.as_deref()?);
        let own = commits
            .into_iter()
            .rev()
            .filter(|other| other.committed <= commit.committed && other.text("uid") == commit.text("uid"));
        own.filter_map(|other| told(changes(other.text("changed").unwrap_or_default()))).next()
    }

    /// The probe that had a container restarted: its verdict came after the restart before.
    fn failed_probe(&self, commit: &Record, changed: &[Change]) -> Option<String> {
        let container = changed.iter().find_map(|change| container_of(&change.field))?;
        let of_container = |record: &&Record| {
            record.object == commit.object
                && record.text("container") == Some(container)
                && record.start < commit.start
        };
        let is_before = |record: &&&Record| {
            record.start < commit.start
                && record
                    .text("changed")
                    .is_some_and(|text| text.contains(&format!("[{container}].restartCount=")))
        };
        let commits = self.commits_of(commit.object.as_deref()?);
        let before = commits.iter().filter(is_before).map(|record| record.start).max().unwrap_or(0);
        let failed = |record: &&Record| {
            let stops = matches!(record.text("probe"), Some("Liveness" | "Startup"));
            record.name == "kubelet.probe" && stops && record.text("verdict") == Some("Failure")
        };
        let probes = self.records.iter().filter(of_container).filter(failed);
        let probe = probes.filter(|record| record.start > before).max_by_key(|record| record.start)?;
        Some(format!("after its {} probe failed", probe.text("probe")?.to_lowercase()))
    }

    /// The last attempt to find a node that found none, and when another one did or the pod went.
    fn pending(&self, object: &str) -> Option<Reason> {
        let attempts = || {
            let of_pod = |record: &&Record| {
                record.name == "scheduler.schedule" && record.object.as_deref() == Some(object)
            };
            self.records.iter().filter(of_pod)
        };
        let refusal =
            |record: &Record| record.text("refused").filter(|text| !text.is_empty()).map(str::to_owned);
        let last = attempts().filter(|record| refusal(record).is_some()).max_by_key(|record| record.start)?;
        let refused = refusal(last)?;
        let is_gone = |commit: &&Record| matches!(commit.text("verb"), Some(MARK | DELETE));
        let ends = self.commits_of(object).into_iter().filter(is_gone).chain(attempts());
        let until = ends.map(|record| record.start).filter(|start| *start > last.start).min();
        let nodes = last.text("refused_nodes").unwrap_or_default().split("; ");
        let commits = self.commits_of(object);
        let own = commits.iter().rev().find(|commit| commit.start <= last.start);
        Some(Reason {
            what: What::Pending,
            object: object.to_owned(),
            uid: own.and_then(|commit| commit.text("uid")).map(str::to_owned),
            is_earlier: false,
            time: last.start,
            until,
            revision: None,
            writer: Writer { component: Some("scheduler".into()), ..Writer::default() },
            detail: Some(refused),
            nodes: nodes.filter(|node| !node.is_empty()).map(str::to_owned).collect(),
            changes: Vec::new(),
            because: Vec::new(),
        })
    }

    /// A record and what called it, the nearest first.
    fn lineage(&self, record: &Record) -> Vec<&'a Record> {
        let mut lineage: Vec<&Record> = Vec::new();
        let mut at = self.by_span.get(&record.span).copied();
        while let Some(record) = at {
            if lineage.iter().any(|known| known.span == record.span) {
                break;
            }
            lineage.push(record);
            at = record.parent.and_then(|parent| self.by_span.get(&parent).copied());
        }
        lineage
    }

    fn writer(&self, commit: &Record) -> Writer {
        let lineage = self.lineage(commit);
        let request = lineage.iter().find(|record| record.name == "apiserver.request");
        let user = request.and_then(|request| request.text("user"));
        let component = lineage.iter().find_map(|record| {
            let (room, _) = record.name.split_once('.').unwrap_or((&record.name, ""));
            match room {
                "reconcile" => {
                    let name = record.text("controller")?;
                    Some(format!("{} controller", name.strip_suffix("-controller").unwrap_or(name)))
                }
                "kubelet" => user.and_then(component_of).or_else(|| Some(room.to_owned())),
                "scheduler" => Some(room.to_owned()),
                _ => None,
            }
        });
        // A controller's own process need not hand in its spans; its name still says what it is.
        let component = component.or_else(|| user.and_then(component_of));
        let command = lineage.iter().find(|record| record.name == "kubectl.command");
        let command = command.and_then(|command| command.text("command"));
        // A program of somebody else's tells at least its name.
        let program = request.and_then(|request| request.text("program")).filter(|_| component.is_none());
        Writer { user: user.map(str::to_owned), component, command: command.or(program).map(str::to_owned) }
    }

    /// Statuses that moved on lead to causes and are none themselves.
    fn because(&self, commit: &'a Record, what: What) -> Vec<Cause> {
        let is_status = matches!(what, What::Restarted | What::NotReady | What::Unreachable | What::Ready);
        let mut because: Vec<Cause> = Vec::new();
        let mut known = HashSet::from([commit.committed]);
        let mut at = commit;
        while let Some(cause) = self.cause_of(at).filter(|cause| known.insert(cause.committed)) {
            at = cause;
            let changed = changes(cause.text("changed").unwrap_or_default());
            let is_own = cause.object == commit.object;
            let what = match self.what(cause, &changed) {
                // That a pod was made is no reason for what became of it.
                Some(What::Created) if is_own && is_status => break,
                Some(What::Restarted | What::NotReady | What::Ready) if is_own => continue,
                None | Some(What::Scheduled) => continue,
                Some(what) => what,
            };
            because.push(Cause {
                object: cause.object.as_deref().unwrap_or_default().to_owned(),
                what,
                time: cause.start,
                revision: cause.committed.unwrap_or_default(),
                writer: self.writer(cause),
                changes: telling(what, changed),
            });
            if because.len() == MAX_CAUSES {
                break;
            }
        }
        if what == What::Scheduled {
            because.truncate(1);
        }
        because
    }

    /// The commit that woke whoever made this one. Of several, the one that somebody wanted rather than a status; of
    /// those the latest.
    fn cause_of(&self, commit: &Record) -> Option<&'a Record> {
        let lineage = self.lineage(commit);
        let causes = lineage.iter().rev().find(|record| !record.causes.is_empty())?.causes.iter();
        let candidates = causes.filter_map(|cause| self.writers.get(cause).copied());
        candidates.max_by_key(|candidate| {
            let changed = changes(candidate.text("changed").unwrap_or_default());
            let weight = match candidate.text("verb") {
                Some(MARK | DELETE) => 3,
                Some(CREATE) => 1,
                _ if changed.iter().any(Change::is_wanted) => 2,
                _ => 0,
            };
            (weight, candidate.committed)
        })
    }
}

/// A component by its account: `system:serviceaccount:kube-system:replicaset-controller`, `system:kube-scheduler`.
fn component_of(user: &str) -> Option<String> {
    let name = user.strip_prefix("system:")?;
    if let Some(node) = name.strip_prefix("node:") {
        return Some(format!("kubelet of {node}"));
    }
    let name = name.rsplit(':').next().unwrap_or(name);
    let name = name.strip_prefix("kube-").unwrap_or(name);
    (!["admin", "masters", "anonymous"].contains(&name)).then(|| match name.strip_suffix("-controller") {
        Some(controller) => format!("{controller} controller"),
        None => name.to_owned(),
    })
}

/// `status.containerStatuses[NAME].restartCount`
pub(super) fn container_of(field: &str) -> Option<&str> {
    let (list, rest) = field.strip_prefix("status.")?.split_once('[')?;
    let (name, of) = rest.split_once(']')?;
    (list.ends_with("ontainerStatuses") && of == ".restartCount").then_some(name)
}

/// The changes that belong to what happened, without those that go along with them.
fn telling(what: What, changed: Vec<Change>) -> Vec<Change> {
    let is_telling = |change: &Change| match what {
        What::Scaled => change.field == "spec.replicas",
        What::Scheduled => change.field == "spec.nodeName",
        What::Deleted | What::Evicted | What::Preempted | What::Created => false,
        What::NotReady | What::Unreachable | What::Ready => change.field == "status.conditions[Ready].status",
        What::Restarted => change.field.ends_with(".restartCount"),
        What::Changed | What::Pending => true,
    };
    let wants = what == What::Changed && changed.iter().any(Change::is_wanted);
    changed.into_iter().filter(|change| is_telling(change) && (!wants || change.is_wanted())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::tell::tell;
    use ferry_trace::script::history;

    fn check(script: &str, object: &str, question: Question, expected: &[&str]) {
        let mut reasons = why(&history(script), object, &question);
        // Times are the script's own; words are what is checked.
        reasons.iter_mut().for_each(|reason| reason.time = 0);
        let told = tell(&reasons, None).replace("1970-01-01T00:00:00.000Z", "T");
        assert_eq!(told.lines().collect::<Vec<_>>(), expected);
    }

    const SCALED: &str = "
        kubectl.command command=kubectl-scale
        apiserver.request ^kubectl.command method=PATCH path=/apis/apps/v1/namespaces/default/deployments/web/scale user=alice
        store.commit ^apiserver.request @deployments.apps/default/web >10 verb=update uid=d changed=spec.replicas=3→1
        reconcile <10 @deployments.apps/default/web controller=deployment-controller
        apiserver.request ^reconcile method=PUT user=system:kube-controller-manager <10
        store.commit ^apiserver.request @replicasets.apps/default/web-1 >11 verb=update uid=r changed=spec.replicas=3→1
        reconcile <11 @replicasets.apps/default/web-1 controller=replicaset-controller
        pods.delete ^reconcile pods=2
        apiserver.request ^pods.delete method=DELETE user=system:kube-controller-manager
        store.commit ^apiserver.request @pods/default/web-1-x >12 verb=mark uid=p
        apiserver.request method=DELETE user=system:node:one
        store.commit ^apiserver.request @pods/default/web-1-x >14 verb=delete uid=p
    ";

    #[test]
    fn a_deleted_pod_leads_to_the_person_who_scaled_its_deployment() {
        check(
            SCALED,
            "pods/default/web-1-x",
            Question::Anything,
            &[
                "pods/default/web-1-x was deleted T (r12)",
                "  by the replicaset controller (system:kube-controller-manager)",
                "  because replicasets.apps/default/web-1: spec.replicas 3→1 (r11), by the deployment controller (system:kube-controller-manager)",
                "  because deployments.apps/default/web: spec.replicas 3→1 (r10), by alice with kubectl-scale",
            ],
        );
    }

    #[test]
    fn what_was_deleted_and_made_again_is_told_to_be_there() {
        let made = "
            apiserver.request method=POST user=alice
            store.commit ^apiserver.request @configmaps/default/c >5 verb=create uid=a
            apiserver.request method=DELETE user=bob
            store.commit ^apiserver.request @configmaps/default/c >6 verb=delete uid=a
            apiserver.request method=POST user=carol
            store.commit ^apiserver.request @configmaps/default/c >7 verb=create uid=b
        ";
        let by_bob = "  by bob";
        let again = ["configmaps/default/c was created T (r7)", "  by carol"];
        let earlier = "configmaps/default/c (an earlier object of this name) was deleted T (r6)";
        let told = [again[0], again[1], earlier, by_bob];
        check(made, "configmaps/default/c", Question::Anything, &told);
        let gone = format!(
            "{made}
            apiserver.request method=DELETE user=dave
            store.commit ^apiserver.request @configmaps/default/c >8 verb=delete uid=b"
        );
        let ends = ["configmaps/default/c was deleted T (r8)", "  by dave", earlier, by_bob];
        check(&gone, "configmaps/default/c", Question::Anything, &ends);
    }

    #[test]
    fn a_field_names_its_writer_revision_and_cause() {
        let field = |name: &str| Question::Field(name.into());
        check(
            SCALED,
            "replicasets.apps/default/web-1",
            field("spec.replicas"),
            &[
                "replicasets.apps/default/web-1: spec.replicas 3→1 T (r11)",
                "  by the deployment controller (system:kube-controller-manager)",
                "  because deployments.apps/default/web: spec.replicas 3→1 (r10), by alice with kubectl-scale",
            ],
        );
        check(SCALED, "deployments.apps/default/web", field("spec.paused"), &[]);
    }

    #[test]
    fn scaled_and_changed_name_the_person() {
        check(
            SCALED,
            "deployments.apps/default/web",
            Question::Only(What::Scaled),
            &[
                "deployments.apps/default/web was scaled: spec.replicas 3→1 T (r10)",
                "  by alice with kubectl-scale",
            ],
        );
        let script = "
            apiserver.request method=PUT user=bob
            store.commit ^apiserver.request @configmaps/default/c >5 verb=update changed=data[a]
        ";
        check(
            script,
            "configmaps/default/c",
            Question::Anything,
            &["configmaps/default/c was changed: data[a] changed T (r5)", "  by bob"],
        );
    }

    #[test]
    fn evictions_and_preemptions_are_told_apart_from_deletions() {
        let evicted = "
            apiserver.request method=POST path=/api/v1/namespaces/default/pods/x/eviction user=alice
            store.commit ^apiserver.request @pods/default/x >5 verb=mark changed=status.conditions[DisruptionTarget].reason=→EvictionByEvictionAPI
        ";
        let expected = ["pods/default/x was evicted T (r5): EvictionByEvictionAPI", "  by alice"];
        check(evicted, "pods/default/x", Question::Only(What::Evicted), &expected);
        check(evicted, "pods/default/x", Question::Only(What::Deleted), &expected);
        check(evicted, "pods/default/x", Question::Only(What::Preempted), &[]);
        let preempted = "
            scheduler.schedule @pods/default/big
            scheduler.preempt ^scheduler.schedule node=one victims=1
            apiserver.request ^scheduler.preempt method=DELETE user=system:kube-scheduler
            store.commit ^apiserver.request @pods/default/x >5 verb=mark
        ";
        check(
            preempted,
            "pods/default/x",
            Question::Anything,
            &[
                "pods/default/x was preempted T (r5): to make room for pods/default/big on node one",
                "  by the scheduler (system:kube-scheduler)",
            ],
        );
        let tainted = "
            apiserver.request method=PATCH user=alice
            store.commit ^apiserver.request @nodes/one >4 verb=update changed=spec.taints[k]
            reconcile <4 @pods/default/x controller=taint-eviction-controller
            taint-eviction.evict ^reconcile @pods/default/x
            apiserver.request ^taint-eviction.evict method=DELETE user=system:x
            store.commit ^apiserver.request @pods/default/x >5 verb=mark
        ";
        check(
            tainted,
            "pods/default/x",
            Question::Anything,
            &[
                "pods/default/x was evicted T (r5)",
                "  by the taint-eviction controller (system:x)",
                "  because nodes/one: spec.taints[k] changed (r4), by alice",
            ],
        );
    }

    #[test]
    fn a_kubelets_word_about_restarts_readiness_and_nodes_is_read_from_the_status() {
        let restarted = "
            apiserver.request method=PATCH user=system:node:one
            store.commit ^apiserver.request @pods/default/x >5 verb=update changed=REPLACED
        ";
        let mut records = history(restarted);
        records[1].attributes[1].1 = "status.containerStatuses[c].lastState.terminated.exitCode=→137; \
            status.containerStatuses[c].lastState.terminated.reason=→OOMKilled; \
            status.containerStatuses[c].restartCount=0→1"
            .into();
        let reason = &why(&records, "pods/default/x", &Question::Anything)[0];
        assert_eq!(reason.what, What::Restarted);
        assert_eq!(reason.detail.as_deref(), Some("exit code 137 (OOMKilled)"));
        assert_eq!(reason.writer.component.as_deref(), Some("kubelet of one"));
        let ready = "
            store.commit @pods/default/x >5 verb=update changed=status.conditions[Ready].status=True→False
            store.commit @nodes/one >6 verb=update changed=status.conditions[Ready].status=True→Unknown
            store.commit @pods/default/x >7 verb=update changed=status.podIP
        ";
        let what = |object: &str| {
            let reasons = why(&history(ready), object, &Question::Anything);
            reasons.iter().map(|reason| reason.what).collect::<Vec<_>>()
        };
        assert_eq!(what("pods/default/x"), [What::NotReady]);
        assert_eq!(what("nodes/one"), [What::Unreachable]);
    }

    #[test]
    fn a_pending_pod_names_the_scheduler_until_it_is_bound_or_gone() {
        let refused = "scheduler.schedule @pods/default/x refused=0/1-nodes refused_nodes=one-cpu";
        check(
            refused,
            "pods/default/x",
            Question::Anything,
            &["pods/default/x is pending T: 0/1-nodes", "  node one-cpu", "  by the scheduler"],
        );
        let bound = format!("{refused}\nscheduler.schedule @pods/default/x node=one");
        check(&bound, "pods/default/x", Question::Anything, &[]);
        check(
            &bound,
            "pods/default/x",
            Question::Only(What::Pending),
            &[
                "pods/default/x was pending T until 1970-01-01T00:00:01.001Z: 0/1-nodes",
                "  node one-cpu",
                "  by the scheduler",
            ],
        );
        let gone = format!("{refused}\nstore.commit @pods/default/x >5 verb=delete");
        assert_eq!(why(&history(&gone), "pods/default/x", &Question::Anything)[0].what, What::Deleted);
    }

    #[test]
    fn a_container_restarted_by_a_probe_names_the_probe_and_no_earlier_status() {
        let script = "
            apiserver.request method=POST user=alice
            store.commit ^apiserver.request @pods/default/x >4 verb=create uid=a
            apiserver.request method=POST user=system:kube-scheduler <4
            store.commit ^apiserver.request @pods/default/x >5 verb=update uid=a changed=spec.nodeName=→one
            apiserver.request method=PATCH user=system:node:one <5
            store.commit ^apiserver.request @pods/default/x >6 verb=update uid=a changed=status.conditions[Ready].status=False→True
            kubelet.probe <6 @pods/default/x container=c probe=Liveness verdict=Failure
            apiserver.request method=PATCH user=system:node:one <6
            store.commit ^apiserver.request @pods/default/x >7 verb=update uid=a changed=status.containerStatuses[c].restartCount=0→1
        ";
        check(
            script,
            "pods/default/x",
            Question::Anything,
            &[
                "pods/default/x was restarted: container c, restartCount 0→1 T (r7): after its liveness probe failed",
                "  by the kubelet of one (system:node:one)",
            ],
        );
        let scheduled =
            ["pods/default/x was scheduled to node one T (r5)", "  by the scheduler (system:kube-scheduler)"];
        let because = "  because pods/default/x was created (r4), by alice";
        check(
            script,
            "pods/default/x",
            Question::Only(What::Scheduled),
            &[scheduled[0], scheduled[1], because],
        );
    }

    #[test]
    fn a_restart_like_the_one_before_names_the_same_exit_code() {
        let script = "
            store.commit @pods/default/x >5 verb=update uid=a changed=REPLACED
            store.commit @pods/default/x >6 verb=update uid=a changed=status.containerStatuses[c].restartCount=1→2
        ";
        let mut records = history(script);
        records[0].attributes[2].1 =
            "status.containerStatuses[c].restartCount=0→1; status.containerStatuses[c].lastState.terminated.exitCode=→3".into();
        let reasons = why(&records, "pods/default/x", &Question::Only(What::Restarted));
        let told: Vec<Option<&str>> = reasons.iter().map(|reason| reason.detail.as_deref()).collect();
        assert_eq!(told, [Some("exit code 3"), Some("exit code 3")]);
    }

    #[test]
    fn what_goes_along_with_an_end_and_book_keeping_are_not_told_unasked() {
        let script = "
            apiserver.request method=DELETE user=alice
            store.commit ^apiserver.request @pods/default/x >5 verb=mark uid=a
            apiserver.request method=PATCH user=system:node:one <5
            store.commit ^apiserver.request @pods/default/x >6 verb=update uid=a changed=status.conditions[Ready].status=True→False
            apiserver.request method=PUT user=system:serviceaccount:kube-system:deployment-controller
            store.commit ^apiserver.request @pods/default/x >7 verb=update uid=a changed=metadata.annotations[a]
        ";
        let deleted = ["pods/default/x was deleted T (r5)", "  by alice"];
        check(script, "pods/default/x", Question::Anything, &deleted);
        check(
            script,
            "pods/default/x",
            Question::Only(What::NotReady),
            &[
                "pods/default/x became not ready: Ready True→False T (r6)",
                "  by the kubelet of one (system:node:one)",
                "  because pods/default/x was deleted (r5), by alice",
            ],
        );
    }

    #[test]
    fn a_rolling_update_leads_from_pod_to_pod_to_who_changed_the_image() {
        let script = "
            apiserver.request method=PATCH user=alice
            store.commit ^apiserver.request @deployments.apps/default/web >10 verb=update uid=d changed=spec.template.spec.containers[web].image=a→b
            reconcile <10 @deployments.apps/default/web controller=deployment-controller
            store.commit ^reconcile @replicasets.apps/default/web-2 >11 verb=create uid=r
            reconcile <11 @replicasets.apps/default/web-2 controller=replicaset-controller
            store.commit ^reconcile @pods/default/one >12 verb=create uid=p
            apiserver.request method=PATCH user=system:node:n <12
            store.commit ^apiserver.request @pods/default/one >13 verb=update uid=p changed=status.conditions[Ready].status=False→True
            reconcile <13 @replicasets.apps/default/web-2 controller=replicaset-controller
            store.commit ^reconcile @replicasets.apps/default/web-2 >14 verb=update uid=r changed=status.readyReplicas=0→1
            reconcile <14 @deployments.apps/default/web controller=deployment-controller
            store.commit ^reconcile @replicasets.apps/default/web-2 >15 verb=update uid=r changed=spec.replicas=1→2
            reconcile <15 @replicasets.apps/default/web-2 controller=replicaset-controller
            store.commit ^reconcile @pods/default/two >16 verb=create uid=q
        ";
        check(
            script,
            "pods/default/two",
            Question::Anything,
            &[
                "pods/default/two was created T (r16)",
                "  by the replicaset controller",
                "  because replicasets.apps/default/web-2: spec.replicas 1→2 (r15), by the deployment controller",
                "  because pods/default/one became ready: Ready False→True (r13), by the kubelet of n (system:node:n)",
                "  because pods/default/one was created (r12), by the replicaset controller",
                "  because replicasets.apps/default/web-2 was created (r11), by the deployment controller",
                "  because deployments.apps/default/web: spec.template.spec.containers[web].image a→b (r10), by alice",
            ],
        );
    }

    #[test]
    fn a_garbage_collected_object_leads_to_who_deleted_its_owner() {
        let script = "
            apiserver.request method=DELETE user=alice
            store.commit ^apiserver.request @deployments.apps/default/web >7 verb=delete
            reconcile <3 <7 @objects/uid controller=garbage-collector-controller
            garbage-collector.delete ^reconcile @replicasets.apps/default/web-1
            apiserver.request ^garbage-collector.delete method=DELETE user=system:kube-controller-manager
            store.commit ^apiserver.request @replicasets.apps/default/web-1 >8 verb=delete
        ";
        check(
            script,
            "replicasets.apps/default/web-1",
            Question::Anything,
            &[
                "replicasets.apps/default/web-1 was deleted T (r8)",
                "  by the garbage-collector controller (system:kube-controller-manager)",
                "  because deployments.apps/default/web was deleted (r7), by alice",
            ],
        );
    }

    #[test]
    fn records_that_cause_each_other_end_the_story() {
        let script = "
            store.commit @a/x >1 <2 verb=update changed=spec.a
            store.commit @a/y >2 <1 verb=update changed=spec.b
        ";
        assert_eq!(why(&history(script), "a/x", &Question::Anything)[0].because.len(), 1);
    }
}
