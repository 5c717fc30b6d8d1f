//! The kubelets' ports.

use super::Item;
use crate::cluster::security::Finding;
use crate::cluster::security::facts::{Facts, KubeletFacts};

pub(super) fn kubelets(facts: &Facts) -> Vec<Finding> {
    let nodes = |select: fn(&KubeletFacts) -> bool| -> Vec<String> {
        let kubelets = facts.kubelets.iter().filter(|kubelet| select(kubelet));
        kubelets.map(|kubelet| kubelet.node.clone()).collect()
    };
    let open = facts.kubelets.iter().filter_map(|kubelet| match kubelet.anonymous {
        None | Some(401 | 403) => None,
        Some(code) => Some(format!("{} answers {code}", kubelet.node)),
    });
    let answered = facts.kubelets.iter().filter(|kubelet| kubelet.anonymous.is_some()).count();
    let mut findings = vec![
        Item(
            "4.2.1",
            "kubelets refuse requests without credentials",
            "authentication.anonymous.enabled: false and authorization.mode: Webhook in the kubelet's file",
        )
        .must_find_none(open.collect(), format!("{answered} asked")),
        Item("4.2.4", "kubelets have no read-only port", "readOnlyPort: 0 in the kubelet's file")
            .must_find_none(nodes(|kubelet| kubelet.read_only_port), "10255 is closed"),
    ];
    let silent = nodes(|kubelet| kubelet.anonymous.is_none());
    if !silent.is_empty() {
        findings.push(
            Item("4.2.2", "kubelets answer", "look at these nodes by themselves")
                .should_find_none(silent, ""),
        );
    }
    findings
}
