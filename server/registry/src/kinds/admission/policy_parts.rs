//! What policies and bindings of both sorts have in common: what they are about, with which parameters, and
//! expressions, which are compiled when they are written, so that one that can never work is refused then.

use ferry_api::{FieldErrors, GroupVersionKind, names};
use ferry_cel::{Environment, Type};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;

use super::super::checks::{self, Path};
use super::rule::{self, Rule};
use super::webhook_configuration::{MatchCondition, match_conditions_in};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MatchResources {
    pub resource_rules: Vec<NamedRule>,
    exclude_resource_rules: Vec<NamedRule>,
    match_policy: Option<String>,
    namespace_selector: Option<LabelSelector>,
    object_selector: Option<LabelSelector>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NamedRule {
    #[serde(flatten)]
    pub rule: Rule,
    resource_names: Vec<String>,
}

impl MatchResources {
    pub fn validate(&self, path: Path<'_>, errors: &mut FieldErrors) {
        let policies = ["Equivalent", "Exact"];
        checks::one_of(errors, path.child("matchPolicy"), self.match_policy.as_deref(), &policies);
        for (field, selector) in
            [("namespaceSelector", &self.namespace_selector), ("objectSelector", &self.object_selector)]
        {
            match selector {
                Some(selector) => checks::selector(errors, path.child(field), selector),
                None => errors.required(path.child(field), ""),
            }
        }
        for (field, rules) in
            [("resourceRules", &self.resource_rules), ("excludeResourceRules", &self.exclude_resource_rules)]
        {
            let list = path.child(field);
            for (index, one) in rules.iter().enumerate() {
                one.validate(list.index(index), errors);
            }
        }
    }

    /// What is deleted cannot be changed.
    pub fn validate_mutable(&self, path: Path<'_>, errors: &mut FieldErrors) {
        let rules = path.child("resourceRules");
        for operation in self.resource_rules.iter().flat_map(|named| &named.rule.operations) {
            let mutable = ["*", "CONNECT", "CREATE", "UPDATE"];
            checks::may_be(errors, rules.child("operations"), Some(operation), &mutable);
        }
    }

    /// A policy has to say what it is about.
    pub fn required(constraints: Option<&MatchResources>, path: Path<'_>, errors: &mut FieldErrors) {
        let Some(constraints) = constraints else { return errors.required(path, "") };
        constraints.validate(path, errors);
        if constraints.resource_rules.is_empty() {
            errors.required(path.child("resourceRules"), "");
        }
    }
}

impl NamedRule {
    fn validate(&self, path: Path<'_>, errors: &mut FieldErrors) {
        let list = path.child("resourceNames");
        for (index, name) in self.resource_names.iter().enumerate() {
            checks::named(errors, list.index(index), name, names::path_segment);
            if self.resource_names[..index].contains(name) {
                errors.duplicate(list.index(index), name.as_str());
            }
        }
        rule::validate(&self.rule, path, errors);
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParamKind {
    api_version: String,
    kind: String,
}

impl ParamKind {
    pub fn validate(&self, path: Path<'_>, errors: &mut FieldErrors) {
        let place = path.child("apiVersion");
        let gvk = GroupVersionKind::from_api_version(&self.api_version, &self.kind);
        match self.api_version.as_str() {
            "" => errors.required(place, ""),
            text if text.matches('/').count() > 1 => {
                errors.invalid(place, text, &format!("unexpected GroupVersion string: {text}"));
            }
            text => {
                if !gvk.group.is_empty() {
                    checks::named(errors, place, &gvk.group, names::dns1123_subdomain);
                }
                match gvk.version.is_empty() {
                    true => errors.invalid(place, text, "version must be specified"),
                    false => checks::named(errors, place, &gvk.version, names::dns1035_label),
                }
            }
        }
        let place = path.child("kind");
        if self.kind.is_empty() {
            return errors.required(place, "");
        }
        for why in names::dns1035_label(&self.kind.to_lowercase()) {
            let why = format!("may have mixed case, but should otherwise match: {why}");
            errors.invalid(place, self.kind.as_str(), &why);
        }
    }
}

/// The environment of a policy's expressions after its conditions and variables, each of which is judged.
pub fn environment_of(
    has_params: bool,
    conditions: &[MatchCondition],
    variables: &[MatchCondition],
    root: Path<'_>,
    errors: &mut FieldErrors,
) -> Environment {
    let mut environment = ferry_cel::admission::environment(has_params, true);
    match_conditions_in(&environment, conditions, root.child("matchConditions"), errors);
    let list = root.child("variables");
    for (index, variable) in variables.iter().enumerate() {
        let path = list.index(index);
        if variable.name.trim().is_empty() {
            errors.required(path.child("name"), "name is not specified");
        } else if !is_identifier(&variable.name) {
            errors.invalid(path.child("name"), variable.name.as_str(), "must be a valid CEL identifier");
        }
        let kind = expression(&environment, &variable.expression, &[], path.child("expression"), errors);
        environment = environment.with(&format!("variables.{}", variable.name), kind);
    }
    environment
}

fn is_identifier(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(|sign| sign.is_ascii_alphanumeric() || sign == '_')
}

/// The type that the expression comes to; anything, where it is wrong.
pub fn expression(
    environment: &Environment,
    source: &str,
    returns: &[Type],
    path: Path<'_>,
    errors: &mut FieldErrors,
) -> Type {
    if source.trim().is_empty() {
        errors.required(path, "expression is not specified");
        return Type::Dyn;
    }
    match environment.compile(source, returns) {
        Ok(program) => program.result().clone(),
        Err(error) => {
            errors.invalid(path, source, &error.0);
            Type::Dyn
        }
    }
}
