//! Parses a URL into verb, group, version, resource, namespace and name. Pure; later stages never parse the path again.
//!
//! ```text
//!   /api/v1/namespaces/NS/pods/NAME/log          /apis/apps/v1/namespaces/NS/deployments
//!   /api/v1/nodes/NAME/proxy/any/path            /healthz, /version, …: no resource
//! ```

use ferry_api::selector::Operator;
use ferry_api::{FieldSelector, LabelSelector};
use ferry_auth::attributes::{SelectorOperator, SelectorRequirement};
use ferry_auth::{Attributes, User};
use http::Method;
use percent_encoding::percent_decode_str;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Decoded: what authorization and handlers read is the same text.
    pub path: String,
    /// As it was sent, for whoever hands it on (proxies).
    pub sent_path: String,
    /// A verb of the API for resources, the method in lower case for other paths.
    pub verb: &'static str,
    pub is_resource: bool,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub name: String,
    /// The one name that the field selector of a list or watch admits: who may read only this object may
    /// also list and watch it alone.
    pub selected_name: String,
    pub subresource: String,
    /// What follows the subresource (`nodes/x/proxy/metrics`).
    pub rest: String,
    pub field_requirements: Vec<SelectorRequirement>,
    pub label_requirements: Vec<SelectorRequirement>,
}

/// A path that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadPath;

/// Subresources of a namespace itself, not resources in it.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    /// Only slashes at both ends are passed over; an empty segment within is a segment, as upstream reads
    /// it. What authorization takes for a resource without a name must not be found by a handler that
    /// thinks otherwise, and both read this.
    pub fn parse(method: &Method, sent_path: &str, query: &Query) -> Result<RequestInfo, BadPath> {
        let path = percent_decode_str(sent_path).decode_utf8().map_err(|_| BadPath)?.into_owned();
        let mut info =
            RequestInfo { sent_path: sent_path.to_string(), verb: method_verb(method), ..Default::default() };
        let trimmed = path.trim_matches('/').to_string();
        info.path = path;
        let parts: Vec<&str> = trimmed.split('/').collect();
        let mut parts = match parts.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => {
                info.version = version.to_string();
                rest
            }
            ["apis", group, version, rest @ ..] if !rest.is_empty() => {
                info.group = group.to_string();
                info.version = version.to_string();
                rest
            }
            _ => return Ok(info),
        };
        info.is_resource = true;
        // The old form of a watch: /api/v1/watch/pods.
        let mut verb_in_path = None;
        if let ["watch", rest @ ..] | ["proxy", rest @ ..] = parts {
            verb_in_path = Some(if parts[0] == "watch" { "watch" } else { "proxy" });
            parts = if rest.is_empty() { return Err(BadPath) } else { rest };
        }
        if let ["namespaces", namespace, rest @ ..] = parts {
            info.namespace = namespace.to_string();
            if rest.first().is_some_and(|resource| !NAMESPACE_SUBRESOURCES.contains(resource)) {
                parts = rest;
            }
        }
        let mut parts = parts.iter();
        let mut next = || parts.next().map_or_else(String::new, ToString::to_string);
        (info.resource, info.name) = (next(), next());
        if verb_in_path != Some("proxy") {
            info.subresource = next();
        }
        info.rest = parts.copied().collect::<Vec<_>>().join("/");
        info.verb = match (method, info.name.is_empty()) {
            _ if verb_in_path.is_some() => verb_in_path.unwrap_or(""),
            (&Method::POST, _) => "create",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) => "patch",
            (&Method::DELETE, true) => "deletecollection",
            (&Method::DELETE, false) => "delete",
            (&Method::GET | &Method::HEAD, true) if query.flag("watch") => "watch",
            (&Method::GET | &Method::HEAD, true) => "list",
            (&Method::GET | &Method::HEAD, false) => "get",
            _ => "",
        };
        if verb_in_path.is_none() && ["list", "watch", "deletecollection"].contains(&info.verb) {
            info.read_selectors(query);
        }
        Ok(info)
    }

    /// A selector that cannot be parsed says nothing here; the verb refuses it later.
    fn read_selectors(&mut self, query: &Query) {
        if let Ok(fields) = FieldSelector::parse(query.text("fieldSelector")) {
            if let Some(name) = fields.exact("metadata.name")
                && self.verb != "deletecollection"
                && segment_problem(name).is_none()
            {
                self.selected_name = name.to_string();
            }
            self.field_requirements = fields
                .requirements()
                .map(|requirement| SelectorRequirement {
                    key: requirement.field.clone(),
                    operator: if requirement.equal { SelectorOperator::In } else { SelectorOperator::NotIn },
                    values: vec![requirement.value.clone()],
                })
                .collect();
        }
        if let Ok(labels) = LabelSelector::parse(query.text("labelSelector")) {
            let operator = |operator| match operator {
                Operator::Equals | Operator::DoubleEquals | Operator::In => Some(SelectorOperator::In),
                Operator::NotEquals | Operator::NotIn => Some(SelectorOperator::NotIn),
                Operator::Exists => Some(SelectorOperator::Exists),
                Operator::DoesNotExist => Some(SelectorOperator::DoesNotExist),
                // Authorizers have no word for these; leaving a requirement out only widens the question.
                Operator::GreaterThan | Operator::LessThan => None,
            };
            self.label_requirements = labels
                .requirements()
                .filter_map(|requirement| {
                    Some(SelectorRequirement {
                        key: requirement.key.clone(),
                        operator: operator(requirement.operator)?,
                        values: requirement.values.clone(),
                    })
                })
                .collect();
        }
    }

    /// The name that authorization and refusals speak of.
    pub fn authorized_name(&self) -> &str {
        if self.name.is_empty() { &self.selected_name } else { &self.name }
    }

    /// What authorizers are asked.
    pub fn attributes<'a>(&'a self, user: &'a User) -> Attributes<'a> {
        Attributes {
            api_group: &self.group,
            api_version: &self.version,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: self.authorized_name(),
            is_resource_request: self.is_resource,
            field_selector: &self.field_requirements,
            label_selector: &self.label_requirements,
            ..Attributes::path(user, self.verb, &self.path)
        }
    }

    /// Requests that may last: their deadline and their place in the limits are different.
    pub fn is_long_running(&self) -> bool {
        matches!(self.verb, "watch" | "proxy")
            || (self.is_resource
                && ["attach", "exec", "proxy", "log", "portforward"].contains(&self.subresource.as_str()))
    }

    pub fn is_mutating(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch" | "head" | "options")
    }
}

/// Why a name cannot be one: a path would read it as something else.
pub fn segment_problem(name: &str) -> Option<String> {
    match name {
        "." | ".." => Some(format!("may not be '{name}'")),
        _ => ['/', '%']
            .into_iter()
            .find(|sign| name.contains(*sign))
            .map(|sign| format!("may not contain '{sign}'")),
    }
}

fn method_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::HEAD => "head",
        Method::OPTIONS => "options",
        _ => "",
    }
}

/// The decoded parameters of a URL, in order.
#[derive(Debug, Clone, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(query: &str) -> Query {
        let decode =
            |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
        Query(
            query
                .split('&')
                .filter(|pair| !pair.is_empty())
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(key), decode(value))
                })
                .collect(),
        )
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The value, or "" when it is absent.
    pub fn text(&self, key: &str) -> &str {
        self.get(key).unwrap_or("")
    }

    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// `watch`, `watch=1` and `watch=true` are set; `0` and `false` are not.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !matches!(value, "0" | "false" | "False" | "FALSE" | "f" | "F"))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &Method, url: &str, expected: &str) {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let info = RequestInfo::parse(method, path, &Query::parse(query)).expect("a good path");
        let found = format!(
            "{} {}/{} ns={} {}/{} sub={} rest={}",
            info.verb,
            info.group,
            info.version,
            info.namespace,
            info.resource,
            info.name,
            info.subresource,
            info.rest
        );
        assert_eq!(found, expected, "{url}");
    }

    #[test]
    fn urls_are_read_as_verbs_on_resources() {
        let get = &Method::GET;
        check(get, "/api/v1/pods", "list /v1 ns= pods/ sub= rest=");
        check(get, "/api/v1/namespaces/a/pods?watch=true", "watch /v1 ns=a pods/ sub= rest=");
        check(get, "/api/v1/namespaces/a", "get /v1 ns=a namespaces/a sub= rest=");
        check(
            &Method::PUT,
            "/api/v1/namespaces/a/finalize",
            "update /v1 ns=a namespaces/a sub=finalize rest=",
        );
        check(
            get,
            "/apis/apps/v1/namespaces/a/deployments/b/scale",
            "get apps/v1 ns=a deployments/b sub=scale rest=",
        );
        check(&Method::DELETE, "/api/v1/namespaces/a/pods", "deletecollection /v1 ns=a pods/ sub= rest=");
        check(get, "/api/v1/watch/namespaces/a/pods", "watch /v1 ns=a pods/ sub= rest=");
        check(get, "/api/v1/nodes/n/proxy/a/b", "get /v1 ns= nodes/n sub=proxy rest=a/b");
        check(&Method::POST, "/version", "post / ns= / sub= rest=");
    }

    #[test]
    fn segments_are_read_where_they_stand() {
        let get = &Method::GET;
        check(get, "//api/v1/pods/", "list /v1 ns= pods/ sub= rest=");
        check(get, "/api/v1//pods", "get /v1 ns= /pods sub= rest=");
        check(get, "/api//v1/namespaces/a/pods", "get / ns= v1/namespaces sub=a rest=pods");
        check(get, "/api/v1/namespaces//pods", "list /v1 ns= pods/ sub= rest=");
        check(get, "/api/v1/namespaces/a/pods//log", "list /v1 ns=a pods/ sub=log rest=");
        check(get, "/api/v1/namespaces/a%2fpods", "list /v1 ns=a pods/ sub= rest=");
        check(get, "/api/v1/namespaces/a/%2e%2e/default/pods", "get /v1 ns=a ../default sub=pods rest=");
        check(get, "/%61pi/v1/pods", "list /v1 ns= pods/ sub= rest=");
        assert_eq!(RequestInfo::parse(get, "/api/v1/watch", &Query::default()), Err(BadPath));
        assert_eq!(RequestInfo::parse(get, "/api/v1/pods/%ff", &Query::default()), Err(BadPath));
    }

    #[test]
    fn a_selector_for_one_name_asks_for_that_object() {
        let parse = |method: &Method, query: &str| {
            RequestInfo::parse(method, "/api/v1/namespaces/a/pods", &Query::parse(query))
                .expect("a good path")
        };
        let name = |method: &Method, query: &str| parse(method, query).authorized_name().to_string();
        assert_eq!(name(&Method::GET, "fieldSelector=metadata.name%3Dweb"), "web");
        assert_eq!(name(&Method::GET, "watch=1&fieldSelector=metadata.name%3Dweb,spec.nodeName%3Dn"), "web");
        assert_eq!(name(&Method::GET, "fieldSelector=metadata.name!%3Dweb"), "");
        assert_eq!(name(&Method::GET, "fieldSelector=metadata.name%3D.."), "");
        assert_eq!(name(&Method::DELETE, "fieldSelector=metadata.name%3Dweb"), "");

        let info = parse(&Method::GET, "fieldSelector=spec.nodeName%3Dn&labelSelector=a+in+(b,c),!d");
        let requirement = |key: &str, operator, values: &[&str]| SelectorRequirement {
            key: key.into(),
            operator,
            values: values.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(info.field_requirements, [requirement("spec.nodeName", SelectorOperator::In, &["n"])]);
        assert_eq!(
            info.label_requirements,
            [
                requirement("a", SelectorOperator::In, &["b", "c"]),
                requirement("d", SelectorOperator::DoesNotExist, &[]),
            ]
        );
    }
}
