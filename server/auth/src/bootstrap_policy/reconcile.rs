//! What an existing cluster lacks of the built-in policy.
//!
//! Permissions and subjects are only ever added: what an administrator put on top stays. An
//! object that opted out is left alone. Run at every start, since a new version knows new roles.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::rbac::v1::{AggregationRule, ClusterRole, PolicyRule, RoleRef, Subject},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{AUTO_UPDATE_ANNOTATION, Policy};
use crate::authorize::rbac::covers;

/// What to write. The namespaces of [`Policy::roles`] and [`Policy::role_bindings`] have to exist first.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    pub create: Policy,
    pub update: Policy,
    /// A binding's role cannot change: these are deleted, then created as given.
    pub recreate: Policy,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        let nothing = |policy: &Policy| {
            policy.cluster_roles.is_empty()
                && policy.cluster_role_bindings.is_empty()
                && policy.roles.is_empty()
                && policy.role_bindings.is_empty()
        };
        nothing(&self.create) && nothing(&self.update) && nothing(&self.recreate)
    }
}

/// Compares what exists with what is wanted.
pub fn plan(existing: &Policy, wanted: &Policy) -> Changes {
    let mut changes = Changes::default();
    macro_rules! plan_roles {
        ($field:ident) => {
            let known = by_name(&existing.$field, |role| &role.metadata);
            for role in &wanted.$field {
                match known.get(&name_of(&role.metadata)) {
                    None => changes.create.$field.push(role.clone()),
                    Some(found) => changes.update.$field.extend(complete_role(*found, role)),
                }
            }
        };
    }
    macro_rules! plan_bindings {
        ($field:ident) => {
            let known = by_name(&existing.$field, |binding| &binding.metadata);
            for binding in &wanted.$field {
                let Some(found) = known.get(&name_of(&binding.metadata)) else {
                    changes.create.$field.push(binding.clone());
                    continue;
                };
                let mut completed = (*found).clone();
                match complete_binding(
                    BindingParts {
                        metadata: &mut completed.metadata,
                        role_ref: &completed.role_ref,
                        subjects: &mut completed.subjects,
                    },
                    &binding.metadata,
                    &binding.role_ref,
                    binding.subjects.as_deref().unwrap_or(&[]),
                ) {
                    BindingPlan::Keep => {}
                    BindingPlan::Update => changes.update.$field.push(completed),
                    BindingPlan::Recreate => changes.recreate.$field.push(binding.clone()),
                }
            }
        };
    }
    plan_roles!(cluster_roles);
    plan_roles!(roles);
    plan_bindings!(cluster_role_bindings);
    plan_bindings!(role_bindings);
    changes
}

type Name<'a> = (&'a str, &'a str);

fn name_of(metadata: &ObjectMeta) -> Name<'_> {
    (metadata.namespace.as_deref().unwrap_or(""), metadata.name.as_deref().unwrap_or(""))
}

fn by_name<T>(objects: &[T], metadata: impl Fn(&T) -> &ObjectMeta) -> BTreeMap<Name<'_>, &T> {
    objects.iter().map(|object| (name_of(metadata(object)), object)).collect()
}

fn opted_out(metadata: &ObjectMeta) -> bool {
    let annotations = metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(AUTO_UPDATE_ANNOTATION)).is_some_and(|value| value == "false")
}

/// What [`Role`](k8s_openapi::api::rbac::v1::Role) and [`ClusterRole`] have in common.
trait RoleLike: Clone + PartialEq {
    fn metadata(&mut self) -> &mut ObjectMeta;
    fn rules(&mut self) -> &mut Option<Vec<PolicyRule>>;
    /// `None` for a kind that cannot aggregate.
    fn aggregation(&mut self) -> Option<&mut Option<AggregationRule>>;
}

impl RoleLike for ClusterRole {
    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
    fn rules(&mut self) -> &mut Option<Vec<PolicyRule>> {
        &mut self.rules
    }
    fn aggregation(&mut self) -> Option<&mut Option<AggregationRule>> {
        Some(&mut self.aggregation_rule)
    }
}

impl RoleLike for k8s_openapi::api::rbac::v1::Role {
    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
    fn rules(&mut self) -> &mut Option<Vec<PolicyRule>> {
        &mut self.rules
    }
    fn aggregation(&mut self) -> Option<&mut Option<AggregationRule>> {
        None
    }
}

/// The role with what it lacks, or `None` if it lacks nothing.
fn complete_role<R: RoleLike>(found: &R, wanted: &R) -> Option<R> {
    let (mut completed, mut wanted) = (found.clone(), wanted.clone());
    if opted_out(completed.metadata()) {
        return None;
    }
    add_missing_entries(&mut completed.metadata().annotations, &wanted.metadata().annotations);
    add_missing_entries(&mut completed.metadata().labels, &wanted.metadata().labels);
    let held = completed.rules().as_deref().unwrap_or(&[]);
    let missing = covers(held, wanted.rules().as_deref().unwrap_or(&[]));
    if !missing.is_empty() {
        completed.rules().get_or_insert_default().extend(missing);
    }
    if let (Some(has), Some(wants)) = (completed.aggregation(), wanted.aggregation()) {
        complete_aggregation(has, wants.as_ref());
    }
    (completed != *found).then_some(completed)
}

fn complete_aggregation(has: &mut Option<AggregationRule>, wants: Option<&AggregationRule>) {
    let Some(wants) = wants else {
        // A role that is not gathered from others must not start to be.
        *has = None;
        return;
    };
    let selectors = has.get_or_insert_default().cluster_role_selectors.get_or_insert_default();
    for selector in wants.cluster_role_selectors.iter().flatten() {
        if !selectors.contains(selector) {
            selectors.push(selector.clone());
        }
    }
}

enum BindingPlan {
    Keep,
    Update,
    Recreate,
}

struct BindingParts<'a> {
    metadata: &'a mut ObjectMeta,
    role_ref: &'a RoleRef,
    subjects: &'a mut Option<Vec<Subject>>,
}

fn complete_binding(
    found: BindingParts<'_>,
    wanted_metadata: &ObjectMeta,
    wanted_role: &RoleRef,
    wanted_subjects: &[Subject],
) -> BindingPlan {
    if opted_out(found.metadata) {
        return BindingPlan::Keep;
    }
    if found.role_ref != wanted_role {
        return BindingPlan::Recreate;
    }
    let mut changed = add_missing_entries(&mut found.metadata.annotations, &wanted_metadata.annotations);
    changed |= add_missing_entries(&mut found.metadata.labels, &wanted_metadata.labels);
    for subject in wanted_subjects {
        let subjects = found.subjects.get_or_insert_default();
        if !subjects.contains(subject) {
            subjects.push(subject.clone());
            changed = true;
        }
    }
    if changed { BindingPlan::Update } else { BindingPlan::Keep }
}

fn add_missing_entries(
    has: &mut Option<BTreeMap<String, String>>,
    wants: &Option<BTreeMap<String, String>>,
) -> bool {
    let mut changed = false;
    for (key, value) in wants.iter().flatten() {
        let entries = has.get_or_insert_default();
        if !entries.contains_key(key) {
            entries.insert(key.clone(), value.clone());
            changed = true;
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap_policy::policy;

    fn edit(change: impl FnOnce(&mut Policy)) -> Changes {
        let mut existing = policy();
        change(&mut existing);
        plan(&existing, &policy())
    }

    #[test]
    fn an_empty_cluster_gets_everything_and_a_complete_one_nothing() {
        let wanted = policy();
        let changes = plan(&Policy::default(), &wanted);
        assert_eq!(changes.create.cluster_roles, wanted.cluster_roles);
        assert_eq!(changes.create.role_bindings, wanted.role_bindings);
        assert!(edit(|_| {}).is_empty());
    }

    #[test]
    fn lost_permissions_come_back_and_extra_ones_stay() {
        let extra = PolicyRule { verbs: vec!["frob".to_owned()], ..PolicyRule::default() };
        let changes = edit(|existing| {
            let role = existing
                .roles
                .iter_mut()
                .find(|role| role.metadata.name.as_deref() == Some("system:controller:token-cleaner"))
                .unwrap();
            let rules = role.rules.as_mut().unwrap();
            rules[0].verbs.retain(|verb| verb != "delete");
            rules.push(extra.clone());
        });
        let [role] = changes.update.roles.as_slice() else { panic!("{changes:?}") };
        let rules = role.rules.as_ref().unwrap();
        assert!(rules.contains(&extra));
        assert_eq!(rules.last().unwrap().verbs, ["delete"]);
        assert!(changes.create.roles.is_empty());
    }

    #[test]
    fn an_object_that_opted_out_is_left_alone() {
        let changes = edit(|existing| {
            let out = || Some(BTreeMap::from([(AUTO_UPDATE_ANNOTATION.to_owned(), "false".to_owned())]));
            let role = &mut existing.cluster_roles[1];
            role.rules = None;
            role.metadata.annotations = out();
            let binding = &mut existing.cluster_role_bindings[0];
            binding.subjects = None;
            binding.metadata.annotations = out();
        });
        assert!(changes.is_empty());
    }

    #[test]
    fn a_binding_to_another_role_is_made_anew_and_a_lost_subject_comes_back() {
        let changes = edit(|existing| {
            existing.cluster_role_bindings[0].role_ref.name = "other".to_owned();
            existing.cluster_role_bindings[1].subjects = None;
        });
        assert_eq!(changes.recreate.cluster_role_bindings, policy().cluster_role_bindings[..1]);
        assert_eq!(changes.update.cluster_role_bindings, policy().cluster_role_bindings[1..2]);
    }

    #[test]
    fn aggregation_is_restored_or_taken_away() {
        let changes = edit(|existing| {
            let selectors = existing.cluster_roles[0].aggregation_rule.take();
            existing.cluster_roles[1].aggregation_rule = selectors;
        });
        assert_eq!(changes.update.cluster_roles, policy().cluster_roles[..2]);
    }
}
