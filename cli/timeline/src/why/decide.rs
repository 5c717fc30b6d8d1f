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
    Scaled,
    Changed,
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
    /// Nanoseconds since 1970.
    pub time: u64,
    /// When it was over, of something that lasts: nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    #[serde(flatten)]
    pub writer: Writer,
    /// In words: the scheduler's refusals, how a container ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
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
    match question {
        Question::Anything => worth_telling(reasons),
        Question::Only(_) | Question::Field(_) => {
            reasons.sort_by_key(|reason| std::cmp::Reverse(reason.time));
            reasons
        }
    }
}

/// How each life ended before everything else. That an object was made is told where nothing says more, and of the
/// newest life where nothing else does: what was deleted may be there again.
fn worth_telling(mut reasons: Vec<Reason>) -> Vec<Reason> {
    let says_more = |reason: &Reason| !matches!(reason.what, What::Created | What::Changed);
    if reasons.iter().any(says_more) {
        let made = reasons.iter().filter(|reason| reason.what == What::Created);
        let newest = made.max_by_key(|reason| reason.revision).and_then(|reason| reason.uid.clone());
        let is_told =
            newest.is_some() && !reasons.iter().any(|reason| reason.uid == newest && says_more(reason));
        reasons.retain(|reason| reason.what != What::Created || (is_told && reason.uid == newest));
    }
    reasons.sort_by_key(|reason| {
        let is_end = matches!(reason.what, What::Deleted | What::Evicted | What::Preempted);
        (!is_end, std::cmp::Reverse(reason.time))
    });
    reasons
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
            time: commit.start,
            until: None,
            revision: commit.committed,
            writer: self.writer(commit),
            detail: self.detail(commit, what, &changed),
            changes: telling(what, changed),
            because: self.because(commit),
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
                let ended = |field: &str| {
                    let ends = changed.iter().find(|change| {
                        change.field.contains(".lastState.terminated.") && change.field.ends_with(field)
                    });
                    ends.and_then(|change| change.to.clone())
                };
                let reason = ended(".reason").map(|reason| format!(" ({reason})")).unwrap_or_default();
                ended(".exitCode").map(|code| format!("its container ended with exit code {code}{reason}"))
            }
            _ => None,
        }
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
        let nodes = last.text("refused_nodes").map(|nodes| format!(" ({nodes})")).unwrap_or_default();
        Some(Reason {
            what: What::Pending,
            object: object.to_owned(),
            uid: None,
            time: last.start,
            until,
            revision: None,
            writer: Writer { component: Some("scheduler".into()), ..Writer::default() },
            detail: Some(format!("{refused}{nodes}")),
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
                "scheduler" | "kubelet" => Some(room.to_owned()),
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

    fn because(&self, commit: &'a Record) -> Vec<Cause> {
        let mut because: Vec<Cause> = Vec::new();
        let mut known = HashSet::from([commit.committed]);
        let mut at = commit;
        while let Some(cause) = self.cause_of(at).filter(|cause| known.insert(cause.committed)) {
            let changed = changes(cause.text("changed").unwrap_or_default());
            let what = self.what(cause, &changed).unwrap_or(What::Changed);
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
            at = cause;
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

/// The changes that belong to what happened, without those that go along with them.
fn telling(what: What, changed: Vec<Change>) -> Vec<Change> {
    let is_telling = |change: &Change| match what {
        What::Scaled => change.field == "spec.replicas",
        What::Deleted | What::Evicted | What::Preempted | What::Created => false,
        What::NotReady | What::Unreachable => change.field.starts_with("status.conditions[Ready]"),
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
        let [deleted, by_bob] = ["configmaps/default/c was deleted T (r6)", "  by bob"];
        let again = ["configmaps/default/c was created T (r7)", "  by carol"];
        let told = [deleted, by_bob, again[0], again[1]];
        check(made, "configmaps/default/c", Question::Anything, &told);
        let gone = format!(
            "{made}
            apiserver.request method=DELETE user=dave
            store.commit ^apiserver.request @configmaps/default/c >8 verb=delete uid=b"
        );
        let ends = ["configmaps/default/c was deleted T (r8)", "  by dave", deleted, by_bob];
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
        assert_eq!(reason.detail.as_deref(), Some("its container ended with exit code 137 (OOMKilled)"));
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
            &["pods/default/x is pending T: 0/1-nodes (one-cpu)", "  by the scheduler"],
        );
        let bound = format!("{refused}\nscheduler.schedule @pods/default/x node=one");
        check(&bound, "pods/default/x", Question::Anything, &[]);
        check(
            &bound,
            "pods/default/x",
            Question::Only(What::Pending),
            &[
                "pods/default/x was pending T until 1970-01-01T00:00:01.001Z: 0/1-nodes (one-cpu)",
                "  by the scheduler",
            ],
        );
        let gone = format!("{refused}\nstore.commit @pods/default/x >5 verb=delete");
        assert_eq!(why(&history(&gone), "pods/default/x", &Question::Anything)[0].what, What::Deleted);
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
