//! Chooses the action for a request: a pure decision from the request and the row of its kind.
//!
//! A verb has one action for every kind and for subresources that are the object itself (`status`, `finalize`, `approval`,
//! `resize`, `ephemeralcontainers`). All other actions are rows of [`ACTIONS`].

use ferry_api::{Kind, Status};
use http::Method;

use crate::request_info::RequestInfo;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    Scale,
    /// POST of a Binding to its pod.
    BindPod,
    /// POST of a Binding that names its pod.
    BindNamedPod,
    EvictPod,
    RequestToken,
    /// A stream from or to the kubelet of a pod: logs, exec, attach, port-forward.
    PodStream,
    /// HTTP to a node, pod or service, by any method.
    Proxy,
    Review(Review),
    /// Node and pod usage, fetched from kubelets.
    ResourceMetrics,
    /// The health of the store and of the other components.
    ComponentStatuses,
}

/// A review, which the server answers in the object's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Review {
    Token,
    SelfSubject,
    SelfSubjectAccess,
    SelfSubjectRules,
    SubjectAccess,
    LocalSubjectAccess,
}

struct Row {
    /// `*` for every group.
    group: &'static str,
    /// `*` for every resource.
    resource: &'static str,
    subresource: &'static str,
    action: Action,
}

const fn row(group: &'static str, resource: &'static str, subresource: &'static str, action: Action) -> Row {
    Row { group, resource, subresource, action }
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";
const METRICS: &str = "metrics.k8s.io";

const ACTIONS: &[Row] = &[
    row("*", "*", "scale", Action::Scale),
    row("", "componentstatuses", "", Action::ComponentStatuses),
    row("", "pods", "binding", Action::BindPod),
    row("", "bindings", "", Action::BindNamedPod),
    row("", "pods", "eviction", Action::EvictPod),
    row("", "serviceaccounts", "token", Action::RequestToken),
    row("", "pods", "log", Action::PodStream),
    row("", "pods", "exec", Action::PodStream),
    row("", "pods", "attach", Action::PodStream),
    row("", "pods", "portforward", Action::PodStream),
    row("", "pods", "proxy", Action::Proxy),
    row("", "nodes", "proxy", Action::Proxy),
    row("", "services", "proxy", Action::Proxy),
    row(AUTHENTICATION, "tokenreviews", "", Action::Review(Review::Token)),
    row(AUTHENTICATION, "selfsubjectreviews", "", Action::Review(Review::SelfSubject)),
    row(AUTHORIZATION, "selfsubjectaccessreviews", "", Action::Review(Review::SelfSubjectAccess)),
    row(AUTHORIZATION, "selfsubjectrulesreviews", "", Action::Review(Review::SelfSubjectRules)),
    row(AUTHORIZATION, "subjectaccessreviews", "", Action::Review(Review::SubjectAccess)),
    row(AUTHORIZATION, "localsubjectaccessreviews", "", Action::Review(Review::LocalSubjectAccess)),
    row(METRICS, "nodes", "", Action::ResourceMetrics),
    row(METRICS, "pods", "", Action::ResourceMetrics),
];

impl Row {
    fn is_for(&self, kind: &Kind, subresource: &str) -> bool {
        let fits = |pattern: &str, name: &str| pattern == "*" || pattern == name;
        self.subresource == subresource && fits(self.group, &kind.group) && fits(self.resource, &kind.plural)
    }
}

/// 404 if the path does not exist, 405 if it does not support the method.
pub fn decide(method: &Method, info: &RequestInfo, kind: &Kind) -> Result<Action, Status> {
    if !exists(info, kind) {
        return Err(Status::no_such_path());
    }
    let own = ACTIONS.iter().find(|row| row.is_for(kind, &info.subresource)).map(|row| row.action);
    if !takes_method(method, info, kind, own) {
        return Err(Status::method_not_allowed());
    }
    own.or_else(|| of_verb(info.verb)).ok_or_else(Status::method_not_allowed)
}

fn exists(info: &RequestInfo, kind: &Kind) -> bool {
    let scope_fits = match kind.is_namespaced() {
        // Without a namespace the collection spans all namespaces.
        true => !info.namespace.is_empty() || info.name.is_empty(),
        false => info.namespace.is_empty() || kind.plural == "namespaces",
    };
    let name_fits = info.name.is_empty() || !kind.is_virtual();
    // The deprecated path prefixes `/watch` and `/proxy` do not lead to subresources.
    let subresource_fits = info.subresource.is_empty()
        || (!info.name.is_empty()
            && !["watch", "proxy"].contains(&info.verb)
            && kind.is_stored()
            && kind.subresource(&info.subresource).is_some());
    scope_fits && name_fits && subresource_fits
}

fn takes_method(method: &Method, info: &RequestInfo, kind: &Kind, own: Option<Action>) -> bool {
    if !info.subresource.is_empty() {
        return match own {
            Some(Action::Proxy) => true,
            Some(Action::PodStream) if *method == Method::HEAD => info.subresource == "log",
            _ => kind
                .subresource(&info.subresource)
                .is_some_and(|sub| sub.verbs.iter().any(|verb| verb == info.verb)),
        };
    }
    let fits = match info.verb {
        "watch" => [Method::GET, Method::HEAD].contains(method),
        "list" => true,
        _ if kind.is_namespaced() && info.namespace.is_empty() => false,
        "create" => info.name.is_empty(),
        "update" | "patch" => !info.name.is_empty(),
        _ => true,
    };
    fits && kind.has_verb(info.verb)
}

fn of_verb(verb: &str) -> Option<Action> {
    match verb {
        "get" => Some(Action::Get),
        "list" => Some(Action::List),
        "watch" => Some(Action::Watch),
        "create" => Some(Action::Create),
        "update" => Some(Action::Update),
        "patch" => Some(Action::Patch),
        "delete" => Some(Action::Delete),
        "deletecollection" => Some(Action::DeleteCollection),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_info::Query;

    fn decided(method: &Method, kind: &Kind, path: &str) -> Result<Action, u16> {
        let root =
            if kind.group.is_empty() { "/api/v1".into() } else { format!("/apis/{}", kind.api_version()) };
        let path = format!("{root}/{path}");
        let (path, query) = path.split_once('?').unwrap_or((&path, ""));
        let info = RequestInfo::parse(method, path, &Query::parse(query)).expect("a path");
        assert_eq!(
            (&*info.group, &*info.version, &*info.resource),
            (&*kind.group, &*kind.version, &*kind.plural)
        );
        decide(method, &info, kind).map_err(|status| status.code)
    }

    const METHODS: [Method; 5] = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

    /// The paths of a kind: collection, object, all namespaces.
    fn paths(kind: &Kind) -> (String, String) {
        let place = if kind.is_namespaced() { "namespaces/a/" } else { "" };
        (format!("{place}{}", kind.plural), format!("{place}{}/b", kind.plural))
    }

    fn verb_of(method: &Method, is_object: bool) -> &'static str {
        match (method.as_str(), is_object) {
            ("GET", true) => "get",
            ("GET", false) => "list",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", true) => "delete",
            _ => "deletecollection",
        }
    }

    #[test]
    fn every_kind_answers_the_verbs_of_its_row_and_no_others() {
        for kind in ferry_api::kinds::builtin() {
            let (collection, object) = paths(kind);
            for method in &METHODS {
                let verb = verb_of(method, false);
                let on_collection = ["GET", "POST", "DELETE"].contains(&method.as_str());
                let expected = on_collection && kind.has_verb(verb);
                let found = decided(method, kind, &collection);
                assert_eq!(found.is_ok(), expected, "{method} {collection}: {found:?}");
                assert!(expected || found == Err(405), "{method} {collection}: {found:?}");
                let verb = verb_of(method, true);
                let expected = *method != Method::POST && kind.has_verb(verb) && !kind.is_virtual();
                let found = decided(method, kind, &object);
                assert_eq!(found.is_ok(), expected, "{method} {object}: {found:?}");
                let refused = if kind.is_virtual() { 404 } else { 405 };
                assert!(expected || found == Err(refused), "{method} {object}: {found:?}");
                // What follows a namespace is a resource in it.
                if kind.plural != "namespaces" {
                    assert_eq!(decided(method, kind, &format!("{object}/nothing")), Err(404));
                }
                for sub in &kind.subresources {
                    let found = decided(method, kind, &format!("{object}/{}", sub.name));
                    let expected = sub.verbs.iter().any(|listed| listed == verb);
                    assert_eq!(found.is_ok(), expected, "{method} {object}/{}: {found:?}", sub.name);
                    assert!(expected || found == Err(405), "{method} {object}/{}: {found:?}", sub.name);
                }
            }
            let watched = decided(&Method::GET, kind, &format!("{collection}?watch=1"));
            assert_eq!(watched.is_ok(), kind.has_verb("watch"), "{collection}: {watched:?}");
        }
    }

    #[test]
    fn every_row_of_the_table_decides_for_a_served_path() {
        for row in ACTIONS {
            let kinds = ferry_api::kinds::builtin().iter().filter(|kind| row.is_for(kind, row.subresource));
            let mut answered = 0;
            for kind in kinds {
                let (collection, object) = paths(kind);
                let path = match row.subresource {
                    "" => collection,
                    sub if kind.subresource(sub).is_some() => format!("{object}/{sub}"),
                    _ => continue,
                };
                let mut found =
                    METHODS.iter().filter_map(|method| decided(method, kind, &path).ok()).peekable();
                assert!(found.peek().is_some(), "{path} takes no method");
                assert!(found.all(|action| action == row.action), "{path}");
                answered += 1;
            }
            assert!(answered > 0, "{}/{}/{} is no path", row.group, row.resource, row.subresource);
        }
    }

    #[test]
    fn paths_that_lead_nowhere_are_not_found_and_methods_not_taken_are_refused() {
        let row = |plural: &str| {
            let mut rows = ferry_api::kinds::builtin().iter();
            rows.find(|kind| kind.group.is_empty() && kind.plural == plural).expect("a row of the table")
        };
        let check = |method: Method, plural: &str, path: &str, expected: Result<Action, u16>| {
            assert_eq!(decided(&method, row(plural), path), expected, "{method} {path}");
        };
        check(Method::GET, "pods", "pods", Ok(Action::List));
        check(Method::GET, "pods", "pods?watch=1", Ok(Action::Watch));
        check(Method::GET, "pods", "watch/pods", Ok(Action::Watch));
        check(Method::POST, "pods", "watch/pods", Err(405));
        check(Method::GET, "pods", "watch/namespaces/a/pods/b", Ok(Action::Watch));
        check(Method::GET, "pods", "watch/namespaces/a/pods/b/log", Err(404));
        check(Method::GET, "pods", "proxy/namespaces/a/pods/b", Err(405));
        check(Method::POST, "pods", "pods", Err(405));
        check(Method::DELETE, "pods", "pods", Err(405));
        check(Method::GET, "pods", "pods/b", Err(404));
        check(Method::GET, "nodes", "namespaces/a/nodes", Err(404));
        check(Method::GET, "namespaces", "namespaces/a", Ok(Action::Get));
        check(Method::PUT, "namespaces", "namespaces/a/finalize", Ok(Action::Update));
        check(Method::GET, "namespaces", "namespaces/a/finalize", Err(405));
        check(Method::PATCH, "pods", "namespaces/a/pods/b/resize", Ok(Action::Patch));
        check(Method::HEAD, "pods", "namespaces/a/pods/b/log", Ok(Action::PodStream));
        check(Method::HEAD, "pods", "namespaces/a/pods/b/exec", Err(405));
        check(Method::OPTIONS, "nodes", "nodes/b/proxy/metrics", Ok(Action::Proxy));
        check(Method::OPTIONS, "nodes", "nodes/b", Err(405));
    }
}
