//! Fields that hold the name of another resource follow when that name changed.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::configuration::NameReference;
use crate::error::{Error, Result, Within};
use crate::field_spec::{Create, FieldSpec};
use crate::id::{Gvk, Id};
use crate::resource::{Resource, scalar_text};
use crate::resources::Resources;
use crate::schema::Schemas;

pub fn fix(resources: &mut Resources, references: &[NameReference], schemas: &Schemas) -> Result<()> {
    let all: Vec<Candidate> = resources.0.iter().map(|resource| Candidate::of(resource, schemas)).collect();
    for (at, resource) in resources.0.iter_mut().enumerate() {
        let referrer = &all[at];
        let candidates = reachable(resource, referrer, &all)?;
        let role = role_of(&resource.value);
        for reference in references {
            let target = reference.gvk();
            for spec in &reference.field_specs {
                if !referrer.original.gvk.is_selected_by(&spec.gvk()) {
                    continue;
                }
                let search = Search {
                    referrer,
                    candidates: &candidates,
                    target: &target,
                    role: role.as_ref().filter(|_| spec.path.ends_with("roleRef/name")),
                };
                // the kind may have changed since
                let path = FieldSpec { path: spec.path.clone(), create: spec.create, ..FieldSpec::default() };
                path.visit(resource, Create::Nothing, &mut |value| search.set(value)).within(format!(
                    "updating name reference in '{}' field of '{}'",
                    spec.path, referrer.id
                ))?;
            }
        }
    }
    Ok(())
}

/// What is to be known of a resource that others may refer to.
struct Candidate {
    id: Id,
    original: Id,
    previous: Vec<Id>,
    prefixes: Vec<String>,
    suffixes: Vec<String>,
}

impl Candidate {
    fn of(resource: &Resource, schemas: &Schemas) -> Candidate {
        Candidate {
            id: resource.id(schemas),
            original: resource.original_id(schemas),
            previous: resource.previous_ids(),
            prefixes: resource.prefixes.clone(),
            suffixes: resource.suffixes.clone(),
        }
    }

    /// Whether both were renamed by the same layers; the shorter list is compared with the other's end.
    fn same_layers(&self, other: &Candidate, empty_fits: bool) -> bool {
        let same = |own: &[String], others: &[String]| {
            if own.is_empty() || others.is_empty() {
                return empty_fits || own.len() == others.len();
            }
            own.iter().rev().zip(others.iter().rev()).all(|(a, b)| a == b)
        };
        same(&self.prefixes, &other.prefixes) && same(&self.suffixes, &other.suffixes)
    }
}

/// Those in the referrer's namespace and those in none; a role binding reaches its service accounts too.
fn reachable<'c>(
    resource: &Resource,
    referrer: &Candidate,
    all: &'c [Candidate],
) -> Result<Vec<&'c Candidate>> {
    if referrer.id.cluster {
        return Ok(all.iter().collect());
    }
    let mut namespaces = BTreeSet::new();
    if resource.kind() == "RoleBinding" {
        let subjects = resource.value.get("subjects").and_then(Value::as_array).into_iter().flatten();
        for subject in subjects {
            let is_account = subject.get("kind").and_then(Value::as_str) == Some("ServiceAccount");
            match subject.get("namespace").filter(|_| is_account) {
                None => {}
                Some(Value::String(namespace)) => {
                    namespaces.insert(namespace.clone());
                }
                Some(_) => {
                    return Err(Error::new(format!(
                        "Invalid Input: namespace is blank for resource {:?}\n",
                        referrer.id.to_string()
                    )));
                }
            }
        }
    }
    Ok(all
        .iter()
        .filter(|candidate| {
            candidate.id.cluster
                || candidate.id.same_namespace(&referrer.id)
                || namespaces.contains(&candidate.id.namespace)
        })
        .collect())
}

/// The kind of role that a binding binds.
fn role_of(binding: &Value) -> Option<Gvk> {
    let role = binding.get("roleRef")?;
    let text = |field: &str| role.get(field).map(scalar_text);
    Some(Gvk { group: text("apiGroup")?, version: String::new(), kind: text("kind")? })
}

struct Search<'s> {
    referrer: &'s Candidate,
    candidates: &'s [&'s Candidate],
    target: &'s Gvk,
    role: Option<&'s Gvk>,
}

impl Search<'_> {
    fn set(&self, value: &mut Value) -> Result<()> {
        match value {
            Value::Null => Ok(()),
            Value::Array(items) => items.iter_mut().try_for_each(|item| match item {
                Value::Array(_) => Err(Error::new("a list is expected to hold strings or maps")),
                item => self.set(item),
            }),
            Value::Object(_) => self.set_in_map(value),
            scalar => {
                let name = scalar_text(scalar);
                let same = |a: &Candidate, b: &Candidate| a.id.name == b.id.name;
                if let Some(found) = self.find(&name, self.candidates, &same)?
                    && found.id.name != name
                {
                    *scalar = Value::String(found.id.name.clone());
                }
                Ok(())
            }
        }
    }

    /// A map holds a name and may hold a namespace; both follow.
    fn set_in_map(&self, value: &mut Value) -> Result<()> {
        let Some(name) = value.get("name").map(scalar_text) else {
            return Err(Error::new("path config error; no 'name' field in node"));
        };
        let candidates: Vec<&Candidate> = match value.get("namespace").map(scalar_text) {
            None => self.candidates.to_vec(),
            Some(namespace) => {
                let within = |id: fn(&Candidate) -> &Id| -> Vec<&Candidate> {
                    let found = self.candidates.iter().filter(|candidate| {
                        let id = id(candidate);
                        !id.cluster && id.effective_namespace() == namespace
                    });
                    found.copied().collect()
                };
                let first = within(|candidate| &candidate.original);
                if first.is_empty() { within(|candidate| &candidate.id) } else { first }
            }
        };
        let same = |a: &Candidate, b: &Candidate| a.id.name == b.id.name && a.id.namespace == b.id.namespace;
        let Some(found) = self.find(&name, &candidates, &same)? else { return Ok(()) };
        if let Value::Object(map) = value {
            map.insert("name".into(), found.id.name.clone().into());
            if !found.id.namespace.is_empty() {
                map.insert("namespace".into(), found.id.namespace.clone().into());
            }
        }
        Ok(())
    }

    fn find<'c>(
        &self,
        name: &str,
        candidates: &[&'c Candidate],
        are_same: &dyn Fn(&Candidate, &Candidate) -> bool,
    ) -> Result<Option<&'c Candidate>> {
        let was =
            |candidate: &Candidate, gvk: &Gvk| candidate.previous.iter().any(|id| id.gvk.is_selected_by(gvk));
        let mut left: Vec<&Candidate> = candidates
            .iter()
            .copied()
            .filter(|candidate| candidate.previous.iter().any(|id| id.name == name))
            .filter(|candidate| was(candidate, self.target))
            .filter(|candidate| self.role.is_none_or(|role| was(candidate, role)))
            .filter(|candidate| {
                self.referrer.id.cluster
                    || candidate.id.cluster
                    || candidate.id.gvk.kind == "ServiceAccount"
                    || candidate.id.same_namespace(&self.referrer.id)
            })
            .collect();
        if left.len() > 1 {
            left.retain(|candidate| candidate.same_layers(self.referrer, true));
        }
        if left.len() > 1 {
            left.retain(|candidate| candidate.same_layers(self.referrer, false));
        }
        match left.as_slice() {
            [] => Ok(None),
            [first, rest @ ..] if rest.iter().all(|other| are_same(first, other)) => Ok(Some(first)),
            many => {
                let ids: Vec<String> = many.iter().map(|candidate| candidate.id.to_string()).collect();
                Err(Error::new(format!("found multiple possible referrals: {}", ids.join(", "))))
            }
        }
    }
}
