//! Matches a request with a rule. Pure.

use ferry_api::Kind;
use ferry_registry::verbs::Operation;
use serde::Deserialize;

/// A rule of a webhook, a policy or an initializer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    pub operations: Vec<String>,
    pub api_groups: Vec<String>,
    pub api_versions: Vec<String>,
    pub resources: Vec<String>,
    pub scope: Option<String>,
    /// Policies may narrow a rule to objects of these names.
    pub resource_names: Vec<String>,
}

/// The attributes of a request that rules match.
#[derive(Debug, Clone, Copy)]
pub struct RequestAttributes<'a> {
    pub operation: Operation,
    pub kind: &'a Kind,
    pub subresource: &'a str,
    pub name: &'a str,
}

impl Rule {
    pub fn matches(&self, attributes: RequestAttributes<'_>) -> bool {
        self.has_scope(attributes.kind)
            && one_of(&self.operations, operation_word(attributes.operation))
            && one_of(&self.api_groups, &attributes.kind.group)
            && one_of(&self.api_versions, &attributes.kind.version)
            && self.has_resource(&attributes.kind.plural, attributes.subresource)
            && (self.resource_names.is_empty()
                || self.resource_names.iter().any(|name| name == attributes.name))
    }

    /// Namespaces themselves are objects of the cluster.
    fn has_scope(&self, kind: &Kind) -> bool {
        match self.scope.as_deref() {
            None | Some("*") => true,
            Some("Namespaced") => kind.is_namespaced(),
            Some("Cluster") => !kind.is_namespaced(),
            Some(_) => false,
        }
    }

    fn has_resource(&self, plural: &str, subresource: &str) -> bool {
        self.resources.iter().any(|resource| {
            let (wanted, wanted_sub) = resource.split_once('/').unwrap_or((resource, ""));
            (wanted == "*" || wanted == plural) && (wanted_sub == "*" || wanted_sub == subresource)
        })
    }
}

pub fn operation_word(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
        Operation::Connect => "CONNECT",
    }
}

fn one_of(items: &[String], wanted: &str) -> bool {
    items.iter().any(|item| item == "*" || item == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_api::GroupVersionKind;
    use serde_json::json;

    #[test]
    fn a_rule_names_operations_groups_versions_and_resources() {
        let check =
            |rule: serde_json::Value, resource: (&str, &str, &str), subresource: &str, expected: bool| {
                let rule: Rule = serde_json::from_value(rule).expect("a rule");
                let (group, version, kind) = resource;
                let kind = ferry_api::kinds::builtin_row(&GroupVersionKind::new(
                    group.to_string(),
                    version.to_string(),
                    kind.to_string(),
                ))
                .expect("a row");
                let attributes =
                    RequestAttributes { operation: Operation::Create, kind, subresource, name: "x" };
                assert_eq!(rule.matches(attributes), expected, "{rule:?} {kind:?}");
            };
        let rule = |resources: &[&str]| json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": resources});
        let pods = ("", "v1", "Pod");
        check(rule(&["pods"]), pods, "", true);
        check(rule(&["pods"]), pods, "status", false);
        check(rule(&["pods/*"]), pods, "status", true);
        check(rule(&["*/status"]), pods, "status", true);
        check(rule(&["*"]), pods, "", true);
        check(rule(&["*"]), pods, "status", false);
        check(rule(&["*/*"]), pods, "status", true);
        check(rule(&["services", "pods"]), pods, "", true);
        check(rule(&["*"]), ("apps", "v1", "Deployment"), "", false);
        let all = |scope| json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "scope": scope});
        check(all("Namespaced"), pods, "", true);
        check(all("Cluster"), pods, "", false);
        check(all("Cluster"), ("", "v1", "Namespace"), "", true);
        check(all("*"), ("", "v1", "Namespace"), "", true);
        let deletes =
            json!({"operations": ["DELETE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]});
        check(deletes, pods, "", false);
    }
}
