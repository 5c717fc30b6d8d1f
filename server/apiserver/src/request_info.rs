//! What a URL asks for: verb, group, version, resource, namespace, name. Pure; everything after it works
//! on this and never looks at the path again.
//!
//! ```text
//!   /api/v1/namespaces/NS/pods/NAME/log          /apis/apps/v1/namespaces/NS/deployments
//!   /api/v1/nodes/NAME/proxy/any/path            /healthz, /version, …: no resource
//! ```

use http::Method;
use percent_encoding::percent_decode_str;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    pub path: String,
    /// A verb of the API for resources, the method in lower case for other paths.
    pub verb: &'static str,
    pub is_resource: bool,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub name: String,
    pub subresource: String,
    /// What follows the subresource (`nodes/x/proxy/metrics`).
    pub rest: String,
}

/// A path that no handler must see: it decodes to something else than it seems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadPath;

/// Subresources of a namespace itself, not resources in it.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

impl RequestInfo {
    pub fn parse(method: &Method, path: &str, query: &Query) -> Result<RequestInfo, BadPath> {
        let mut info =
            RequestInfo { path: path.to_string(), verb: method_verb(method), ..Default::default() };
        let mut parts: Vec<String> = Vec::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            parts.push(percent_decode_str(part).decode_utf8().map_err(|_| BadPath)?.into_owned());
        }
        let mut parts = parts.as_slice();
        match parts {
            [api, version, rest @ ..] if api == "api" && !rest.is_empty() => {
                info.version.clone_from(version);
                parts = rest;
            }
            [apis, group, version, rest @ ..] if apis == "apis" && !rest.is_empty() => {
                info.group.clone_from(group);
                info.version.clone_from(version);
                parts = rest;
            }
            _ => return Ok(info),
        }
        info.is_resource = true;
        // The old form of a watch: /api/v1/watch/pods.
        let mut old_watch = false;
        if let [watch, rest @ ..] = parts
            && watch == "watch"
            && !rest.is_empty()
        {
            old_watch = true;
            parts = rest;
        }
        if let [namespaces, namespace, rest @ ..] = parts
            && namespaces == "namespaces"
        {
            info.namespace.clone_from(namespace);
            if let [resource, ..] = rest
                && !NAMESPACE_SUBRESOURCES.contains(&resource.as_str())
            {
                parts = rest;
            }
        }
        let mut parts = parts.iter();
        info.resource = parts.next().cloned().unwrap_or_default();
        info.name = parts.next().cloned().unwrap_or_default();
        info.subresource = parts.next().cloned().unwrap_or_default();
        info.rest = parts.map(String::as_str).collect::<Vec<_>>().join("/");
        // A name that could be read as a path would pass authorization as one thing and be used as another.
        if [&info.name, &info.namespace]
            .iter()
            .any(|part| part.contains('/') || *part == "." || *part == "..")
        {
            return Err(BadPath);
        }
        info.verb = match (method, info.name.is_empty()) {
            (&Method::POST, _) => "create",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) => "patch",
            (&Method::DELETE, true) => "deletecollection",
            (&Method::DELETE, false) => "delete",
            (&Method::GET | &Method::HEAD, _) if old_watch => "watch",
            (&Method::GET | &Method::HEAD, true) if query.flag("watch") => "watch",
            (&Method::GET | &Method::HEAD, true) => "list",
            (&Method::GET | &Method::HEAD, false) => "get",
            _ => "",
        };
        Ok(info)
    }

    /// Requests that may last: their deadline and their place in the limits are different.
    pub fn is_long_running(&self) -> bool {
        self.verb == "watch"
            || (self.is_resource
                && ["attach", "exec", "proxy", "log", "portforward"].contains(&self.subresource.as_str()))
    }

    pub fn is_mutating(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch" | "head" | "options")
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
    fn names_that_hide_a_path_are_refused() {
        for path in [
            "/api/v1/namespaces/a/pods/%2e%2e",
            "/api/v1/namespaces/a%2fb/pods",
            "/api/v1/namespaces/a/pods/x%2fy",
        ] {
            assert!(RequestInfo::parse(&Method::GET, path, &Query::default()).is_err(), "{path}");
        }
    }
}
