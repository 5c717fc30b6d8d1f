//! `--authorization-policy-file`: one JSON policy per line.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{Authorizer, Decision, NonResourceRule, Reason, ResourceRule, Rules};
use crate::{
    MaybeReady,
    attributes::Attributes,
    user::{ALL_AUTHENTICATED, User},
};

#[derive(Debug, thiserror::Error)]
pub enum AbacError {
    #[error("reading {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("line {line} of the policy file: {problem}")]
    Line { line: usize, problem: String },
}

pub struct Abac(Vec<Policy>);

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Policy {
    user: String,
    group: String,
    readonly: bool,
    #[serde(rename = "apiGroup")]
    api_group: String,
    resource: String,
    namespace: String,
    #[serde(rename = "nonResourcePath")]
    non_resource_path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    api_version: Option<String>,
    kind: Option<String>,
    spec: Option<Policy>,
    #[serde(flatten)]
    unversioned: serde_json::Map<String, serde_json::Value>,
}

const API_VERSION: &str = "abac.authorization.kubernetes.io/v1beta1";

impl Abac {
    pub fn open(path: &Path) -> Result<Self, AbacError> {
        let text = std::fs::read_to_string(path);
        Abac::parse(&text.map_err(|source| AbacError::Read { path: path.to_owned(), source })?)
    }

    pub fn parse(text: &str) -> Result<Self, AbacError> {
        let mut policies = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let trimmed = line.trim();
            if trimmed.is_empty() || trimmed.starts_with('#') {
                continue;
            }
            let policy =
                parse_line(trimmed).map_err(|problem| AbacError::Line { line: index + 1, problem })?;
            policies.push(policy);
        }
        Ok(Abac(policies))
    }
}

fn parse_line(line: &str) -> Result<Policy, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    match (line.api_version.as_deref(), line.kind.as_deref(), line.spec) {
        (Some(API_VERSION), Some("Policy"), Some(policy)) => Ok(policy),
        (None, None, None) => {
            let old = serde_json::Value::Object(line.unversioned);
            Ok(from_unversioned(serde_json::from_value(old).map_err(|error| error.to_string())?))
        }
        (version, kind, _) => Err(format!(
            "expected a Policy of {API_VERSION}, found {} of {}",
            kind.unwrap_or("no kind"),
            version.unwrap_or("no version")
        )),
    }
}

/// A line from before policies had a version: what it leaves out matches everything, and
/// everyone is whoever has logged in.
fn from_unversioned(old: Policy) -> Policy {
    let or_all = |text: &str| if text.is_empty() { "*".to_owned() } else { text.to_owned() };
    let everyone = old.user == "*" || old.group == "*" || old.user.is_empty() && old.group.is_empty();
    let whole = old.resource.is_empty() && old.namespace.is_empty();
    Policy {
        group: if everyone { ALL_AUTHENTICATED.to_owned() } else { old.group },
        user: old.user,
        readonly: old.readonly,
        api_group: "*".to_owned(),
        resource: or_all(&old.resource),
        namespace: or_all(&old.namespace),
        non_resource_path: if whole { "*".to_owned() } else { String::new() },
    }
}

impl Policy {
    fn is_about(&self, user: &User) -> bool {
        let user_fits = self.user.is_empty() || self.user == "*" || self.user == user.name;
        let group_fits = self.group.is_empty() || self.group == "*" || user.is_in(&self.group);
        let names_someone = !self.user.is_empty() || !self.group.is_empty();
        names_someone && user_fits && group_fits
    }

    fn allows(&self, attributes: &Attributes<'_>) -> bool {
        let fits = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        if !self.is_about(attributes.user) || self.readonly && !attributes.is_read_only() {
            return false;
        }
        if attributes.is_resource_request {
            return fits(&self.namespace, attributes.namespace)
                && fits(&self.resource, attributes.resource)
                && fits(&self.api_group, attributes.api_group);
        }
        let path = &self.non_resource_path;
        path == attributes.path
            || path.ends_with('*') && attributes.path.starts_with(path.trim_end_matches('*'))
    }
}

impl Authorizer for Abac {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeReady<'a, Decision> {
        let allowed = self.0.iter().any(|policy| policy.allows(attributes));
        MaybeReady::Now(if allowed {
            Decision::Allow { reason: Reason::None }
        } else {
            Decision::NoOpinion { reason: Reason::Static("No policy matched.") }
        })
    }

    fn rules_for(&self, user: &User, namespace: &str) -> Rules {
        let mut rules = Rules::default();
        let in_namespace = |policy: &&Policy| policy.namespace == "*" || policy.namespace == namespace;
        for policy in self.0.iter().filter(|policy| policy.is_about(user)).filter(in_namespace) {
            let verbs: &[&str] = if policy.readonly { &["get", "list", "watch"] } else { &["*"] };
            let verbs: Vec<String> = verbs.iter().map(|verb| (*verb).to_owned()).collect();
            if !policy.resource.is_empty() {
                rules.resource_rules.push(ResourceRule {
                    verbs: verbs.clone(),
                    api_groups: vec![policy.api_group.clone()],
                    resources: vec![policy.resource.clone()],
                    resource_names: Vec::new(),
                });
            }
            if !policy.non_resource_path.is_empty() {
                let non_resource_urls = vec![policy.non_resource_path.clone()];
                rules.non_resource_rules.push(NonResourceRule { verbs, non_resource_urls });
            }
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
# administrators
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user": "alice", "namespace": "*", "resource": "*", "apiGroup": "*", "nonResourcePath": "*"}}
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"user": "bob", "namespace": "projects", "resource": "pods", "readonly": true}}
{"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": {"group": "dev", "readonly": true, "nonResourcePath": "/api*"}}
{"user": "carol", "resource": "events"}
{"user": "*", "namespace": "open"}
"#;

    async fn may(user: User, verb: &str, resource: &str, namespace: &str) -> bool {
        let abac = Abac::parse(FILE).unwrap();
        let attributes = match resource.starts_with('/') {
            true => Attributes::path(&user, verb, resource),
            false => Attributes { namespace, ..Attributes::resource(&user, verb, "", resource) },
        };
        abac.authorize(&attributes).get().await.is_allowed()
    }

    #[tokio::test]
    async fn policies_allow_what_they_name() {
        let dev = || User::new("dave").with_groups(["dev"]);
        for (user, verb, resource, namespace, expected) in [
            (User::new("alice"), "delete", "nodes", "", true),
            (User::new("alice"), "post", "/anything", "", true),
            (User::new("bob"), "list", "pods", "projects", true),
            (User::new("bob"), "create", "pods", "projects", false),
            (User::new("bob"), "list", "pods", "other", false),
            (User::new("bob"), "list", "secrets", "projects", false),
            (dev(), "get", "/apis/apps", "", true),
            (dev(), "get", "/metrics", "", false),
            (dev(), "get", "pods", "projects", false),
            (User::new("carol"), "create", "events", "any", true),
            (User::new("carol"), "create", "pods", "any", false),
            (User::new("eve"), "get", "/api", "", false),
            (User::new("eve").with_groups([ALL_AUTHENTICATED]), "create", "pods", "open", true),
            (User::anonymous(), "create", "pods", "open", false),
        ] {
            let name = user.name.clone();
            assert_eq!(may(user, verb, resource, namespace).await, expected, "{name} {verb} {resource}");
        }
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, line) in
            [("\n{", 2), (r#"{"apiVersion": "v7", "kind": "Policy", "spec": {}}"#, 1), (r#"{"usr": "x"}"#, 1)]
        {
            match Abac::parse(text) {
                Err(AbacError::Line { line: found, .. }) => assert_eq!(found, line),
                _ => panic!("{text} should not parse"),
            }
        }
    }
}
