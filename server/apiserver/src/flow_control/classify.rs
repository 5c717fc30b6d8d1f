//! Which FlowSchema a request belongs to: the first that matches, in the order of matchingPrecedence and name. Pure.

use std::sync::Arc;

use ferry_auth::User;
use ferry_auth::user::split_service_account_username;
use k8s_openapi::api::flowcontrol::v1::{
    FlowSchema, NonResourcePolicyRule, PolicyRulesWithSubjects, ResourcePolicyRule, Subject,
};

use crate::request_info::RequestInfo;

pub const CATCH_ALL: &str = "catch-all";
pub const EXEMPT: &str = "exempt";
const ALL: &str = "*";

/// A FlowSchema whose priority level exists.
#[derive(Debug)]
pub struct Schema {
    pub name: Arc<str>,
    pub uid: String,
    pub level: Arc<str>,
    precedence: i32,
    distinguisher: Distinguisher,
    rules: Vec<PolicyRulesWithSubjects>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distinguisher {
    None,
    ByUser,
    ByNamespace,
}

impl Schema {
    pub fn new(schema: &FlowSchema) -> Schema {
        let spec = schema.spec.clone().unwrap_or_default();
        Schema {
            name: schema.metadata.name.as_deref().unwrap_or("").into(),
            uid: schema.metadata.uid.clone().unwrap_or_default(),
            level: spec.priority_level_configuration.name.as_str().into(),
            // The API sets 1000 where it is absent.
            precedence: spec.matching_precedence.unwrap_or(1000),
            distinguisher: match spec.distinguisher_method.as_ref().map(|method| method.type_.as_str()) {
                Some("ByUser") => Distinguisher::ByUser,
                Some("ByNamespace") => Distinguisher::ByNamespace,
                _ => Distinguisher::None,
            },
            rules: spec.rules.unwrap_or_default(),
        }
    }

    /// Requests of one schema with the same distinguisher are one flow.
    pub fn distinguish<'a>(&self, info: &'a RequestInfo, user: &'a User) -> &'a str {
        match self.distinguisher {
            Distinguisher::None => "",
            Distinguisher::ByUser => &user.name,
            Distinguisher::ByNamespace => &info.namespace,
        }
    }

    fn matches(&self, info: &RequestInfo, user: &User) -> bool {
        self.rules.iter().any(|rule| {
            rule.subjects.iter().any(|subject| matches_subject(subject, user))
                && match info.is_resource {
                    true => rule.resource_rules.iter().flatten().any(|rule| matches_resource(rule, info)),
                    false => rule.non_resource_rules.iter().flatten().any(|rule| matches_path(rule, info)),
                }
        })
    }
}

/// In the order in which they are asked.
pub fn sort(schemas: &mut [Arc<Schema>]) {
    schemas.sort_by(|one, other| (one.precedence, &one.name).cmp(&(other.precedence, &other.name)));
}

/// The schema of a request. Everybody is in a group of the catch-all schema; it is taken for whoever is not, too.
pub fn classify<'s>(schemas: &'s [Arc<Schema>], info: &RequestInfo, user: &User) -> Option<&'s Arc<Schema>> {
    let first = schemas.iter().find(|schema| schema.matches(info, user));
    first.or_else(|| schemas.iter().find(|schema| &*schema.name == CATCH_ALL))
}

fn matches_subject(subject: &Subject, user: &User) -> bool {
    match subject.kind.as_str() {
        "User" => subject.user.as_ref().is_some_and(|named| named.name == ALL || named.name == user.name),
        "Group" => subject.group.as_ref().is_some_and(|named| named.name == ALL || user.is_in(&named.name)),
        "ServiceAccount" => subject.service_account.as_ref().is_some_and(|account| {
            split_service_account_username(&user.name).is_some_and(|(namespace, name)| {
                account.namespace == namespace && (account.name == ALL || account.name == name)
            })
        }),
        _ => false,
    }
}

fn matches_resource(rule: &ResourcePolicyRule, info: &RequestInfo) -> bool {
    let resource = match info.subresource.as_str() {
        "" => info.resource.clone(),
        subresource => format!("{}/{subresource}", info.resource),
    };
    contains(&rule.verbs, info.verb)
        && contains(&rule.api_groups, &info.group)
        && contains(&rule.resources, &resource)
        && match info.namespace.as_str() {
            "" => rule.cluster_scope == Some(true),
            namespace => rule.namespaces.as_ref().is_some_and(|listed| contains(listed, namespace)),
        }
}

fn matches_path(rule: &NonResourcePolicyRule, info: &RequestInfo) -> bool {
    let fits = |pattern: &String| {
        let directory = pattern.strip_suffix('*').unwrap_or(pattern).trim_end_matches('/');
        pattern == ALL
            || *pattern == info.path
            || info.path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
    };
    contains(&rule.verbs, info.verb) && rule.non_resource_urls.iter().any(fits)
}

fn contains(listed: &[String], name: &str) -> bool {
    listed.iter().any(|listed| listed == ALL || listed == name)
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::super::bootstrap;
    use super::*;
    use crate::request_info::Query;

    fn schemas() -> Vec<Arc<Schema>> {
        let mut schemas: Vec<_> =
            bootstrap::flow_schemas().iter().map(|boot| Arc::new(Schema::new(&boot.object))).collect();
        sort(&mut schemas);
        schemas
    }

    fn check(user: &str, groups: &[&str], method: &Method, path: &str, expected: (&str, &str)) {
        let user = User::new(user).with_groups(groups.iter().copied());
        let info = RequestInfo::parse(method, path, &Query::default()).expect("a path");
        let schemas = schemas();
        let schema = classify(&schemas, &info, &user).expect("there is always one");
        assert_eq!(
            (&*schema.name, schema.distinguish(&info, &user)),
            expected,
            "{} {method} {path}",
            user.name
        );
    }

    #[test]
    fn requests_are_classified_as_by_upstream_defaults() {
        let (known, nodes) = (["system:authenticated"], ["system:nodes", "system:authenticated"]);
        let accounts = ["system:serviceaccounts", "system:authenticated"];
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        let pods = "/api/v1/namespaces/a/pods";
        let (get, put, post) = (&Method::GET, &Method::PUT, &Method::POST);
        check("admin", &["system:masters", "system:authenticated"], get, pods, ("exempt", ""));
        check("system:node:n", &nodes, put, lease, ("system-node-high", "system:node:n"));
        check("system:node:n", &nodes, get, "/api/v1/nodes/n", ("system-node-high", "system:node:n"));
        check("system:node:n", &nodes, get, "/api/v1/nodes/n/proxy", ("system-nodes", "system:node:n"));
        check("system:node:n", &nodes, get, "/api/v1/nodes/n/status", ("system-node-high", "system:node:n"));
        check("system:node:n", &nodes, get, "/api/v1/pods", ("system-nodes", "system:node:n"));
        check(
            "system:kube-scheduler",
            &known,
            put,
            lease,
            ("system-leader-election", "system:kube-scheduler"),
        );
        check("system:kube-scheduler", &known, post, pods, ("kube-scheduler", "a"));
        check("system:kube-controller-manager", &known, post, pods, ("kube-controller-manager", "a"));
        let account = "system:serviceaccount:kube-system:x";
        check(account, &accounts, post, pods, ("kube-system-service-accounts", "a"));
        check(account, &accounts, put, lease, ("system-leader-election", account));
        check(
            "system:serviceaccount:a:x",
            &accounts,
            get,
            pods,
            ("service-accounts", "system:serviceaccount:a:x"),
        );
        check("jane", &known, get, pods, ("global-default", "jane"));
        check("jane", &known, get, "/version", ("global-default", "jane"));
        check("jane", &known, get, "/healthz", ("probes", ""));
        check("jane", &known, get, "/livez/ping", ("probes", ""));
        check("jane", &known, get, "/livezoo", ("global-default", "jane"));
        check(
            "system:anonymous",
            &["system:unauthenticated"],
            get,
            pods,
            ("global-default", "system:anonymous"),
        );
        check("nobody", &[], get, pods, ("catch-all", "nobody"));
    }

    #[test]
    fn equal_precedences_are_ordered_by_name() {
        let names: Vec<String> = schemas().iter().map(|schema| schema.name.to_string()).collect();
        let expected = [
            "exempt",
            "probes",
            "system-leader-election",
            "system-node-high",
            "system-nodes",
            "kube-controller-manager",
            "kube-scheduler",
            "kube-system-service-accounts",
            "service-accounts",
            "global-default",
            "catch-all",
        ];
        assert_eq!(names, expected);
    }
}
