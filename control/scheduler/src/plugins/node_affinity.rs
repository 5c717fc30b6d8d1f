//! NodeAffinity: node selectors, required terms, preferred terms with weights.

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use super::{Cycle, Refusal, Relevance, normalize};
use crate::pod_info::PodInfo;
use crate::snapshot::{NodeIndex, Snapshot};
use crate::symbols::Symbol;

/// What a pod asks of a node's labels, in the snapshot's symbols.
#[derive(Clone, Default)]
pub struct Compiled {
    /// All of these hold, and each list has one term that does.
    selector: Vec<Requirement>,
    required: Vec<Vec<Term>>,
}

#[derive(Clone)]
pub struct Term {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq)]
enum Requirement {
    In(Symbol, Vec<Symbol>),
    NotIn(Symbol, Vec<Symbol>),
    Exists(Symbol),
    DoesNotExist(Symbol),
    Gt(Symbol, i64),
    Lt(Symbol, i64),
    NameIn(Vec<String>),
    NameNotIn(Vec<String>),
    Never,
    Always,
}

pub fn prepare(cycle: &mut Cycle, snapshot: &Snapshot) -> Result<Relevance, Refusal> {
    let mut compiled = required_of(cycle.pod, snapshot);
    if let Some(added) = &cycle.profile.added_affinity {
        compiled.required.push(compile_all(added, snapshot));
    }
    if compiled.selector.is_empty() && compiled.required.is_empty() {
        return Ok(Relevance::Skips);
    }
    if let Some(names) = compiled.names() {
        cycle.state.only = Some(names.iter().filter_map(|name| snapshot.find(name)).collect());
    }
    cycle.state.node_affinity = compiled;
    Ok(Relevance::Judges)
}

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    if cycle.state.node_affinity.matches(snapshot, node) {
        return Ok(());
    }
    Err(Refusal::unresolvable("node(s) didn't match Pod's node affinity/selector"))
}

pub fn score(cycle: &Cycle, snapshot: &Snapshot, nodes: &[NodeIndex], scores: &mut [i64]) -> Relevance {
    let affinity = cycle.pod.affinity_spec().and_then(|affinity| affinity.node_affinity.as_ref());
    let preferred = affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let preferred = preferred.into_iter().flatten().filter(|term| term.weight != 0);
    // an empty preference prefers every node, and so none
    let terms: Vec<(i64, Term)> =
        preferred.map(|term| (term.weight.into(), compile(&term.preference, snapshot))).collect();
    if terms.is_empty() {
        return Relevance::Skips;
    }
    for (score, node) in scores.iter_mut().zip(nodes) {
        let matching = terms.iter().filter(|(_, term)| term.matches(snapshot, *node));
        *score = matching.map(|(weight, _)| weight).sum();
    }
    normalize(scores, false);
    Relevance::Judges
}

/// The pod's own requirements, without what a profile adds.
pub fn required_of(pod: &PodInfo, snapshot: &Snapshot) -> Compiled {
    let spec = pod.spec();
    let selector = spec.node_selector.iter().flatten().map(|(key, value)| {
        match (snapshot.symbols.find(key), snapshot.symbols.find(value)) {
            (Some(key), Some(value)) => Requirement::In(key, vec![value]),
            _ => Requirement::Never,
        }
    });
    let affinity = pod.affinity_spec().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    Compiled {
        selector: selector.collect(),
        required: required.map(|selector| compile_all(selector, snapshot)).into_iter().collect(),
    }
}

/// Whether a node selector, of a volume say, takes a node.
pub fn selector_matches(selector: &NodeSelector, snapshot: &Snapshot, node: NodeIndex) -> bool {
    compile_all(selector, snapshot).iter().any(|term| term.matches(snapshot, node))
}

fn compile_all(selector: &NodeSelector, snapshot: &Snapshot) -> Vec<Term> {
    selector.node_selector_terms.iter().map(|term| compile(term, snapshot)).collect()
}

fn compile(term: &NodeSelectorTerm, snapshot: &Snapshot) -> Term {
    let by_label = term.match_expressions.iter().flatten().map(|r| label_requirement(r, snapshot));
    let by_field = term.match_fields.iter().flatten().map(field_requirement);
    let mut requirements: Vec<Requirement> = by_label.chain(by_field).collect();
    if requirements.is_empty() {
        // a term that says nothing takes nothing
        requirements.push(Requirement::Never);
    }
    Term { requirements }
}

fn label_requirement(requirement: &NodeSelectorRequirement, snapshot: &Snapshot) -> Requirement {
    let key = snapshot.symbols.find(&requirement.key);
    let texts = || requirement.values.iter().flatten();
    let values = || texts().filter_map(|value| snapshot.symbols.find(value)).collect();
    let number = || texts().next().and_then(|value| value.parse::<i64>().ok());
    match (&*requirement.operator, key) {
        ("In", Some(key)) => Requirement::In(key, values()),
        ("NotIn", Some(key)) => Requirement::NotIn(key, values()),
        ("Exists", Some(key)) => Requirement::Exists(key),
        ("DoesNotExist", Some(key)) => Requirement::DoesNotExist(key),
        ("Gt", Some(key)) => number().map_or(Requirement::Never, |number| Requirement::Gt(key, number)),
        ("Lt", Some(key)) => number().map_or(Requirement::Never, |number| Requirement::Lt(key, number)),
        ("NotIn" | "DoesNotExist", None) => Requirement::Always,
        _ => Requirement::Never,
    }
}

fn field_requirement(requirement: &NodeSelectorRequirement) -> Requirement {
    let values = requirement.values.clone().unwrap_or_default();
    match (&*requirement.key, &*requirement.operator) {
        ("metadata.name", "In") => Requirement::NameIn(values),
        ("metadata.name", "NotIn") => Requirement::NameNotIn(values),
        _ => Requirement::Never,
    }
}

impl Compiled {
    pub fn matches(&self, snapshot: &Snapshot, node: NodeIndex) -> bool {
        self.selector.iter().all(|requirement| requirement.matches(snapshot, node))
            && self.required.iter().all(|terms| terms.iter().any(|term| term.matches(snapshot, node)))
    }

    /// The only nodes that can match, if every term of some list names them: pods of a DaemonSet
    /// need not be tried on the whole cluster.
    fn names(&self) -> Option<Vec<&str>> {
        self.required.iter().find_map(|terms| {
            let mut names = Vec::new();
            for term in terms {
                let named = term.requirements.iter().find_map(|requirement| match requirement {
                    Requirement::NameIn(names) => Some(names),
                    _ => None,
                });
                names.extend(named?.iter().map(String::as_str));
            }
            names.sort_unstable();
            names.dedup();
            Some(names)
        })
    }
}

impl Term {
    fn matches(&self, snapshot: &Snapshot, node: NodeIndex) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(snapshot, node))
    }
}

impl Requirement {
    fn matches(&self, snapshot: &Snapshot, node: NodeIndex) -> bool {
        let number =
            |key: &Symbol| -> Option<i64> { snapshot.symbols.text(snapshot.label(node, *key)?).parse().ok() };
        match self {
            Requirement::In(key, values) => {
                snapshot.label(node, *key).is_some_and(|value| values.contains(&value))
            }
            Requirement::NotIn(key, values) => {
                snapshot.label(node, *key).is_none_or(|value| !values.contains(&value))
            }
            Requirement::Exists(key) => snapshot.label(node, *key).is_some(),
            Requirement::DoesNotExist(key) => snapshot.label(node, *key).is_none(),
            Requirement::Gt(key, bound) => number(key).is_some_and(|number| number > *bound),
            Requirement::Lt(key, bound) => number(key).is_some_and(|number| number < *bound),
            Requirement::NameIn(names) => names.iter().any(|name| name == &**snapshot.name(node)),
            Requirement::NameNotIn(names) => !names.iter().any(|name| name == &**snapshot.name(node)),
            Requirement::Never => false,
            Requirement::Always => true,
        }
    }
}
