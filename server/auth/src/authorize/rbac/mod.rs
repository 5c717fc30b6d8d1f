//! RBAC: roles are sets of rules, bindings give them to subjects.
//!
//! Upstream walks every binding for every request. Here the question starts from the other end:
//! a table from subject to what it was granted, each entry compiled on first use into an index
//! by resource. Changes to roles and bindings touch only the subjects concerned, and readers keep
//! the snapshot they started with.
//!
//! ```text
//! Change ─▶ Rbac::apply ─▶ Tables (roles, bindings, subjects) ─ swapped ─▶ authorize
//!                                                └ subject ─▶ Grants (compiled lazily)
//! ```

mod escalation;
mod grants;
mod rule;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use crate::{
    MaybeReady,
    attributes::{Attributes, quote},
    authorize::{Authorizer, Decision, NonResourceRule, Reason, ResourceRule, Rules, aggregate},
    user::{User, service_account_username},
};

pub use escalation::{EscalationError, RoleWrite, covers, full_authority};
use grants::Grants;
use rule::Rule;
pub use rule::rule_allows;

pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The RBAC authorizer. Fed by [`Rbac::apply`], read by everyone at once.
#[derive(Default)]
pub struct Rbac {
    writer: Mutex<Writer>,
    current: RwLock<Arc<Tables>>,
}

/// One object that came, changed or went.
#[derive(Clone, Debug)]
pub enum Change {
    Role(Role),
    ClusterRole(ClusterRole),
    RoleBinding(RoleBinding),
    ClusterRoleBinding(ClusterRoleBinding),
    RemoveRole { namespace: String, name: String },
    RemoveClusterRole { name: String },
    RemoveRoleBinding { namespace: String, name: String },
    RemoveClusterRoleBinding { name: String },
}

impl Rbac {
    pub fn new() -> Self {
        Rbac::default()
    }

    /// Takes changes over, in order, and makes them visible together. Costs what the changes
    /// cost, not what the cluster holds.
    pub fn apply(&self, changes: impl IntoIterator<Item = Change>) {
        let mut writer = self.writer.lock();
        for change in changes {
            match change {
                Change::Role(role) => {
                    writer.set_role(Scoped::of(role.metadata.namespace, role.metadata.name), role.rules);
                }
                Change::ClusterRole(role) => {
                    writer.set_role(Scoped::of(None, role.metadata.name), role.rules)
                }
                Change::RoleBinding(binding) => {
                    let key = Scoped::of(binding.metadata.namespace, binding.metadata.name);
                    writer.set_binding(Binding::new(key, binding.role_ref, binding.subjects));
                }
                Change::ClusterRoleBinding(binding) => {
                    let key = Scoped::of(None, binding.metadata.name);
                    writer.set_binding(Binding::new(key, binding.role_ref, binding.subjects));
                }
                Change::RemoveRole { namespace, name } => writer.remove_role(&Scoped { namespace, name }),
                Change::RemoveClusterRole { name } => writer.remove_role(&Scoped::cluster(name)),
                Change::RemoveRoleBinding { namespace, name } => {
                    writer.remove_binding(&Scoped { namespace, name })
                }
                Change::RemoveClusterRoleBinding { name } => writer.remove_binding(&Scoped::cluster(name)),
            }
        }
        *self.current.write() = Arc::new(writer.tables.clone());
    }

    /// Decides without waiting. `namespace` of the attributes names the bindings that count
    /// besides the cluster's.
    pub fn decide(&self, attributes: &Attributes<'_>) -> Decision {
        let tables = self.tables();
        let mut missing: Vec<String> = Vec::new();
        for grants in tables.granted_to(attributes.user, attributes.namespace) {
            let compiled = grants.compiled(&tables);
            if let Some(source) = compiled.allowing(attributes) {
                return Decision::Allow { reason: Reason::Shared(source.clone()) };
            }
            missing.extend(compiled.missing_roles.iter().cloned());
        }
        let reason =
            if missing.is_empty() { Reason::None } else { format!("RBAC: {}", aggregate(&missing)).into() };
        Decision::NoOpinion { reason }
    }

    /// Every rule that applies to the user in the namespace, and what could not be resolved.
    pub fn policy_rules_for(&self, user: &User, namespace: &str) -> (Vec<PolicyRule>, Vec<String>) {
        let tables = self.tables();
        let (mut rules, mut errors) = (Vec::new(), Vec::new());
        let mut seen: BTreeSet<&Scoped> = BTreeSet::new();
        let granted: Vec<_> = tables.granted_to(user, namespace).collect();
        for binding in granted.iter().flat_map(|grants| &grants.bindings) {
            if !seen.insert(&binding.key) {
                continue;
            }
            match tables.role(binding) {
                Ok(role) => rules.extend(role.iter().map(|rule| rule.policy.clone())),
                Err(error) => errors.push(error),
            }
        }
        (rules, errors)
    }

    /// The rules a binding in `namespace` (empty for a ClusterRoleBinding) would hand out.
    pub fn role_reference_rules(
        &self,
        role_ref: &RoleRef,
        namespace: &str,
    ) -> Result<Vec<PolicyRule>, String> {
        let key = Scoped { namespace: namespace.to_owned(), name: String::new() };
        let binding = Binding::new(key, role_ref.clone(), None);
        Ok(self.tables().role(&binding)?.iter().map(|rule| rule.policy.clone()).collect())
    }

    fn tables(&self) -> Arc<Tables> {
        self.current.read().clone()
    }
}

impl Authorizer for Rbac {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeReady<'a, Decision> {
        MaybeReady::Now(self.decide(attributes))
    }

    fn rules_for(&self, user: &User, namespace: &str) -> Rules {
        let (policy_rules, errors) = self.policy_rules_for(user, namespace);
        let mut rules = Rules { errors, ..Rules::default() };
        for rule in policy_rules {
            let non_empty = |list: Option<Vec<String>>| list.filter(|list| !list.is_empty());
            if let Some(resources) = non_empty(rule.resources) {
                rules.resource_rules.push(ResourceRule {
                    verbs: rule.verbs.clone(),
                    api_groups: rule.api_groups.unwrap_or_default(),
                    resources,
                    resource_names: rule.resource_names.unwrap_or_default(),
                });
            }
            if let Some(non_resource_urls) = non_empty(rule.non_resource_urls) {
                rules.non_resource_rules.push(NonResourceRule { verbs: rule.verbs, non_resource_urls });
            }
        }
        rules
    }
}

/// A name in a namespace, or in the cluster when the namespace is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Scoped {
    namespace: String,
    name: String,
}

impl Scoped {
    fn of(namespace: Option<String>, name: Option<String>) -> Self {
        Scoped { namespace: namespace.unwrap_or_default(), name: name.unwrap_or_default() }
    }

    fn cluster(name: String) -> Self {
        Scoped { namespace: String::new(), name }
    }
}

struct Binding {
    key: Scoped,
    role_ref: RoleRef,
    subjects: Vec<BoundSubject>,
}

struct BoundSubject {
    key: SubjectKey,
    /// Why a request of this subject was allowed; computed once, shared by every answer.
    source: Arc<str>,
}

impl Binding {
    fn new(key: Scoped, role_ref: RoleRef, subjects: Option<Vec<Subject>>) -> Self {
        let mut bound: Vec<BoundSubject> = Vec::new();
        for subject in subjects.into_iter().flatten() {
            let Some(subject_key) = subject_key(&key.namespace, &subject) else { continue };
            if bound.iter().any(|earlier| earlier.key == subject_key) {
                continue;
            }
            let source = describe(&key, &role_ref, &subject).into();
            bound.push(BoundSubject { key: subject_key, source });
        }
        Binding { key, role_ref, subjects: bound }
    }

    /// The key of the role this binding refers to. A RoleBinding may also refer to a ClusterRole.
    fn role_key(&self) -> Option<Scoped> {
        let name = self.role_ref.name.clone();
        match self.role_ref.kind.as_str() {
            "ClusterRole" => Some(Scoped::cluster(name)),
            "Role" if !self.key.namespace.is_empty() => {
                Some(Scoped { namespace: self.key.namespace.clone(), name })
            }
            _ => None,
        }
    }
}

fn describe(binding: &Scoped, role_ref: &RoleRef, subject: &Subject) -> String {
    let subject_name = match subject.kind.as_str() {
        "ServiceAccount" => {
            let namespace = subject.namespace.as_deref().filter(|namespace| !namespace.is_empty());
            format!("{}/{}", subject.name, namespace.unwrap_or(&binding.namespace))
        }
        _ => subject.name.clone(),
    };
    let (kind, name) = match binding.namespace.as_str() {
        "" => ("ClusterRoleBinding", binding.name.clone()),
        namespace => ("RoleBinding", format!("{}/{namespace}", binding.name)),
    };
    format!(
        "RBAC: allowed by {kind} {} of {} {} to {} {}",
        quote(&name),
        role_ref.kind,
        quote(&role_ref.name),
        subject.kind,
        quote(&subject_name)
    )
}

/// Scope, kind and name of a subject as one byte string, so that a lookup needs neither an
/// allocation nor a nested map. NUL can occur in none of the three.
type SubjectKey = SmallVec<[u8; 96]>;

#[derive(Clone, Copy)]
enum SubjectKind {
    User = b'u' as isize,
    Group = b'g' as isize,
}

fn compose_key(kind: SubjectKind, namespace: &str, name: &str) -> SubjectKey {
    let mut key = SubjectKey::new();
    key.push(kind as u8);
    key.extend_from_slice(namespace.as_bytes());
    key.push(0);
    key.extend_from_slice(name.as_bytes());
    key
}

/// `None` for a subject that can match nobody.
fn subject_key(binding_namespace: &str, subject: &Subject) -> Option<SubjectKey> {
    match subject.kind.as_str() {
        "User" => Some(compose_key(SubjectKind::User, binding_namespace, &subject.name)),
        "Group" => Some(compose_key(SubjectKind::Group, binding_namespace, &subject.name)),
        "ServiceAccount" => {
            // A subject without a namespace is of the binding's own.
            let given = subject.namespace.as_deref().filter(|namespace| !namespace.is_empty());
            let namespace = given.unwrap_or(binding_namespace);
            if namespace.is_empty() {
                return None;
            }
            let username = service_account_username(namespace, &subject.name);
            Some(compose_key(SubjectKind::User, binding_namespace, &username))
        }
        _ => None,
    }
}

/// An immutable state of all roles and bindings; cloning shares structure.
#[derive(Clone, Default)]
struct Tables {
    roles: imbl::HashMap<Scoped, Arc<[Rule]>>,
    subjects: imbl::HashMap<SubjectKey, Arc<SubjectGrants>>,
}

/// All bindings that name one subject in one scope.
struct SubjectGrants {
    key: SubjectKey,
    bindings: Vec<Arc<Binding>>,
    compiled: OnceLock<Grants>,
}

impl SubjectGrants {
    fn new(key: SubjectKey, bindings: Vec<Arc<Binding>>) -> Self {
        SubjectGrants { key, bindings, compiled: OnceLock::new() }
    }

    /// Stays true for the life of this entry: whenever a role it refers to changes, the writer
    /// replaces the entry.
    fn compiled(&self, tables: &Tables) -> &Grants {
        self.compiled.get_or_init(|| {
            let mut grants = Grants::default();
            for binding in &self.bindings {
                let Some(subject) = binding.subjects.iter().find(|subject| subject.key == self.key) else {
                    continue;
                };
                match tables.role(binding) {
                    Ok(rules) => grants.add(rules, &subject.source),
                    Err(error) => grants.missing_roles.push(error),
                }
            }
            grants
        })
    }
}

impl Tables {
    /// What was granted to the user itself and to its groups, cluster-wide and in the namespace.
    fn granted_to<'a>(
        &'a self,
        user: &'a User,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Arc<SubjectGrants>> {
        let scopes = [Some(""), Some(namespace).filter(|namespace| !namespace.is_empty())];
        scopes.into_iter().flatten().flat_map(move |scope| {
            let groups = user.groups.iter().map(|group| (SubjectKind::Group, group.as_str()));
            std::iter::once((SubjectKind::User, user.name.as_str()))
                .chain(groups)
                .filter_map(move |(kind, name)| self.subjects.get(&compose_key(kind, scope, name)))
        })
    }

    fn role(&self, binding: &Binding) -> Result<&Arc<[Rule]>, String> {
        let unsupported = || format!("unsupported role reference kind: {}", quote(&binding.role_ref.kind));
        let key = binding.role_key().ok_or_else(unsupported)?;
        self.roles.get(&key).ok_or_else(|| {
            let kind = binding.role_ref.kind.to_lowercase();
            format!("{kind}.{GROUP} {} not found", quote(&key.name))
        })
    }
}

/// The one place where tables change.
#[derive(Default)]
struct Writer {
    tables: Tables,
    bindings: BTreeMap<Scoped, Arc<Binding>>,
    /// Which bindings refer to a role, whether or not it exists.
    bindings_of_role: BTreeMap<Scoped, BTreeSet<Scoped>>,
}

impl Writer {
    fn set_role(&mut self, key: Scoped, rules: Option<Vec<PolicyRule>>) {
        let rules = rules.into_iter().flatten().map(Rule::new).collect();
        self.tables.roles.insert(key.clone(), rules);
        self.forget_compiled(&key);
    }

    fn remove_role(&mut self, key: &Scoped) {
        self.tables.roles.remove(key);
        self.forget_compiled(key);
    }

    fn set_binding(&mut self, binding: Binding) {
        self.remove_binding(&binding.key);
        let binding = Arc::new(binding);
        if let Some(role) = binding.role_key() {
            self.bindings_of_role.entry(role).or_default().insert(binding.key.clone());
        }
        for subject in &binding.subjects {
            let mut bindings =
                self.tables.subjects.get(&subject.key).map_or(Vec::new(), |grants| grants.bindings.clone());
            bindings.push(binding.clone());
            self.set_subject(&subject.key, bindings);
        }
        self.bindings.insert(binding.key.clone(), binding);
    }

    fn remove_binding(&mut self, key: &Scoped) {
        let Some(binding) = self.bindings.remove(key) else { return };
        if let Some(role) = binding.role_key()
            && let Some(bindings) = self.bindings_of_role.get_mut(&role)
        {
            bindings.remove(key);
            if bindings.is_empty() {
                self.bindings_of_role.remove(&role);
            }
        }
        for subject in &binding.subjects {
            if let Some(grants) = self.tables.subjects.get(&subject.key) {
                let rest = grants.bindings.iter().filter(|other| other.key != *key).cloned().collect();
                self.set_subject(&subject.key, rest);
            }
        }
    }

    /// Gives every subject bound to the role a fresh entry, to be compiled when next asked.
    fn forget_compiled(&mut self, role: &Scoped) {
        let Some(bindings) = self.bindings_of_role.get(role) else { return };
        let bindings = bindings.iter().filter_map(|key| self.bindings.get(key));
        let subjects: BTreeSet<&SubjectKey> =
            bindings.flat_map(|binding| binding.subjects.iter().map(|subject| &subject.key)).collect();
        for key in subjects {
            if let Some(grants) = self.tables.subjects.get(key) {
                let fresh = SubjectGrants::new(key.clone(), grants.bindings.clone());
                self.tables.subjects.insert(key.clone(), Arc::new(fresh));
            }
        }
    }

    fn set_subject(&mut self, key: &SubjectKey, bindings: Vec<Arc<Binding>>) {
        if bindings.is_empty() {
            self.tables.subjects.remove(key);
        } else {
            self.tables.subjects.insert(key.clone(), Arc::new(SubjectGrants::new(key.clone(), bindings)));
        }
    }
}

#[cfg(test)]
mod tests;
