//! ClusterRoles that are the sum of others: `admin`, `edit`, `view` grow with every role that
//! carries their label.

use std::sync::Arc;

use ferry_client::{Attempt, Client, Error, Event, Informer, NamespacedName, Outcome, error};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::ResourceExt;
use kube::api::{Api, PostParams};

use crate::context::{Context, Running};
use crate::ownership::{selector, selects};

const CONTROLLER: &str = "clusterrole-aggregation-controller";

/// The rules an aggregating role should have: those of all roles it selects, each once, in the
/// order of their names.
fn plan(role: &ClusterRole, all: &[impl AsRef<ClusterRole>]) -> Option<Vec<PolicyRule>> {
    let aggregation = role.aggregation_rule.as_ref()?;
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in aggregation.cluster_role_selectors.iter().flatten().filter_map(selector) {
        let mut chosen: Vec<&ClusterRole> =
            all.iter().map(AsRef::as_ref).filter(|other| selects(&selector, *other)).collect();
        chosen.sort_by_key(|other| other.name_any());
        for rule in chosen
            .iter()
            .filter(|other| other.name_any() != role.name_any())
            .flat_map(|other| other.rules.iter().flatten())
        {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    (role.rules.as_ref().unwrap_or(&Vec::new()) != &rules).then_some(rules)
}

struct Controller {
    client: Client,
    roles: Informer<ClusterRole>,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let roles = builder.informer::<ClusterRole>();
    let controller = Controller { client: context.client.clone(), roles: roles.clone() };
    let controller = builder.keys_of::<ClusterRole, _>(Arc::new(controller));
    controller.watches(&roles, Controller::role_changed).run(Controller::reconcile)
}

impl Controller {
    /// Any role may be part of any aggregate; there are few of these.
    fn role_changed(&self, _: &Event<ClusterRole>) -> Vec<NamespacedName> {
        let mut roles = self.roles.list();
        roles.retain(|role| role.aggregation_rule.is_some());
        roles.iter().map(|role| NamespacedName::of(&**role)).collect()
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(role) = self.roles.get(&key) else { return Ok(Outcome::Done) };
        if let Some(rules) = plan(&role, &self.roles.list()) {
            let mut next = (*role).clone();
            next.rules = Some(rules);
            let api: Api<ClusterRole> = Api::all(self.client.clone());
            error::ignore_not_found(api.replace(&key.name, &PostParams::default(), &next).await)
                .attempting("write aggregated rules")?;
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::rbac::v1::AggregationRule;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

    use super::*;
    use crate::testing::{labels, named};

    fn role(name: &str, labelled: bool, verbs: &[&str]) -> Arc<ClusterRole> {
        let mut role: ClusterRole = named(name);
        role.metadata.labels = labelled.then(|| labels(&[("aggregate", "yes")]));
        role.rules = Some(
            verbs
                .iter()
                .map(|verb| PolicyRule { verbs: vec![verb.to_string()], ..Default::default() })
                .collect(),
        );
        Arc::new(role)
    }

    #[test]
    fn an_aggregate_is_the_sum_of_what_it_selects() {
        let mut sum = (*role("sum", true, &["stale"])).clone();
        let wanted =
            LabelSelector { match_labels: Some(labels(&[("aggregate", "yes")])), ..Default::default() };
        sum.aggregation_rule = Some(AggregationRule { cluster_role_selectors: Some(vec![wanted]) });
        let all = [
            Arc::new(sum.clone()),
            role("b", true, &["get", "list"]),
            role("a", true, &["watch", "get"]),
            role("c", false, &["delete"]),
        ];
        let rules = plan(&sum, &all).expect("is stale");
        let verbs: Vec<&str> = rules.iter().map(|rule| rule.verbs[0].as_str()).collect();
        assert_eq!(verbs, ["watch", "get", "list"]);
        sum.rules = Some(rules);
        assert_eq!(plan(&sum, &all), None);
        assert_eq!(plan(&all[1], &all), None);
    }
}
