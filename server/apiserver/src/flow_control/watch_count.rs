//! How many watches a write reaches: those of its resource as a whole, of its namespace, and of its object.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::request_info::RequestInfo;

/// Group and plural.
type Resource = (String, String);
/// Namespace and name; empty for all.
type Scope = (String, String);

#[derive(Default)]
pub struct WatchCount {
    counts: Mutex<HashMap<Resource, HashMap<Scope, usize>>>,
}

/// A watch, until it is dropped.
pub struct CountedWatch {
    all: Arc<WatchCount>,
    resource: Resource,
    scope: Scope,
}

impl WatchCount {
    pub fn add(self: &Arc<Self>, info: &RequestInfo) -> CountedWatch {
        let resource = (info.group.clone(), info.resource.clone());
        let scope = (info.namespace.clone(), info.authorized_name().to_string());
        *self.counts.lock().entry(resource.clone()).or_default().entry(scope.clone()).or_default() += 1;
        CountedWatch { all: self.clone(), resource, scope }
    }

    pub fn reached_by(&self, info: &RequestInfo) -> usize {
        let counts = self.counts.lock();
        let Some(scopes) = counts.get(&(info.group.clone(), info.resource.clone())) else { return 0 };
        let (namespace, name) = (info.namespace.as_str(), info.name.as_str());
        let mut reached = vec![("", "")];
        for scope in [(namespace, ""), ("", name), (namespace, name)] {
            if !reached.contains(&scope) {
                reached.push(scope);
            }
        }
        let count = |(namespace, name): (&str, &str)| scopes.get(&(namespace.into(), name.into())).copied();
        reached.into_iter().filter_map(count).sum()
    }
}

impl Drop for CountedWatch {
    fn drop(&mut self) {
        let mut counts = self.all.counts.lock();
        let Some(scopes) = counts.get_mut(&self.resource) else { return };
        if let Some(count) = scopes.get_mut(&self.scope) {
            *count -= 1;
            if *count == 0 {
                scopes.remove(&self.scope);
            }
        }
        if scopes.is_empty() {
            counts.remove(&self.resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::request_info::Query;

    #[test]
    fn a_write_reaches_the_watches_of_its_object_namespace_and_resource() {
        let count = Arc::new(WatchCount::default());
        let info = |method: &Method, url: &str| {
            let (path, query) = url.split_once('?').unwrap_or((url, ""));
            RequestInfo::parse(method, path, &Query::parse(query)).expect("a path")
        };
        let watch = |url: &str| count.add(&info(&Method::GET, url));
        let reached = |url: &str| count.reached_by(&info(&Method::PUT, url));
        let all = watch("/api/v1/pods?watch=1");
        let namespaced = watch("/api/v1/namespaces/a/pods?watch=1");
        let single = watch("/api/v1/namespaces/a/pods?watch=1&fieldSelector=metadata.name%3Db");
        assert_eq!(reached("/api/v1/namespaces/a/pods/b"), 3);
        assert_eq!(reached("/api/v1/namespaces/a/pods/c"), 2);
        assert_eq!(reached("/api/v1/namespaces/x/pods/b"), 1);
        assert_eq!(reached("/api/v1/namespaces/a/services/b"), 0);
        drop((all, namespaced, single));
        assert!(count.counts.lock().is_empty());
        let _nodes = watch("/api/v1/nodes?watch=1");
        assert_eq!(reached("/api/v1/nodes/n"), 1);
    }
}
