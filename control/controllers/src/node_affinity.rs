//! Does a node fit what a pod asks of it: node selector and required node affinity.

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};
use kube::ResourceExt;

pub fn fits(spec: &PodSpec, node: &Node) -> bool {
    let selector = spec.node_selector.iter().flatten();
    if !selector.into_iter().all(|(key, value)| node.labels().get(key) == Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    match affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref())
    {
        // Terms are alternatives; none at all fits nothing.
        Some(required) => required.node_selector_terms.iter().any(|term| fits_term(term, node)),
        None => true,
    }
}

fn fits_term(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if labels.is_empty() && fields.is_empty() {
        return false;
    }
    let name = node.name_any();
    labels.iter().all(|wanted| fits_value(wanted, node.labels().get(&wanted.key).map(String::as_str)))
        && fields
            .iter()
            .all(|wanted| fits_value(wanted, (wanted.key == "metadata.name").then_some(name.as_str())))
}

fn fits_value(wanted: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let listed = |value: &str| wanted.values.iter().flatten().any(|candidate| candidate == value);
    let compare = |smaller: bool| {
        let limit = wanted.values.iter().flatten().next().and_then(|limit| limit.parse::<i64>().ok());
        let number = value.and_then(|value| value.parse::<i64>().ok());
        matches!((number, limit), (Some(number), Some(limit)) if if smaller { number < limit } else { number > limit })
    };
    match wanted.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(false),
        "Lt" => compare(true),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{labels, named};

    #[test]
    fn a_requirement_is_met_by_the_nodes_labels() {
        let mut node: Node = named("n");
        node.metadata.labels = Some(labels(&[("disk", "ssd"), ("cores", "8")]));
        let check = |key: &str, operator: &str, values: &[&str], expected: bool| {
            let requirement = NodeSelectorRequirement {
                key: key.into(),
                operator: operator.into(),
                values: Some(values.iter().map(ToString::to_string).collect()),
            };
            let term = NodeSelectorTerm { match_expressions: Some(vec![requirement]), match_fields: None };
            assert_eq!(fits_term(&term, &node), expected, "{key} {operator} {values:?}");
        };
        check("disk", "In", &["hdd", "ssd"], true);
        check("disk", "NotIn", &["hdd"], true);
        check("none", "NotIn", &["hdd"], true);
        check("none", "In", &["x"], false);
        check("disk", "Exists", &[], true);
        check("none", "DoesNotExist", &[], true);
        check("cores", "Gt", &["4"], true);
        check("cores", "Lt", &["4"], false);
        check("disk", "Gt", &["4"], false);
        assert!(!fits_term(&NodeSelectorTerm::default(), &node));
    }
}
