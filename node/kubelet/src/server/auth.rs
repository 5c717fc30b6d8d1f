//! What of the node a path of the kubelet's server belongs to.

use ferry_serving::{Access, Guard, User, verb};
use http::Request;

/// One of the subresources that cover the path must be allowed.
pub async fn authorize<B>(
    guard: &Guard,
    user: &User,
    node: &str,
    request: &Request<B>,
) -> Result<bool, String> {
    let verb = verb(request.method());
    for subresource in subresources(request.uri().path()) {
        if guard.may(user, Access::Node { verb, name: node.to_owned(), subresource }).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The subresources of the node that cover a path, the narrowest first;
/// `proxy` covers everything.
fn subresources(path: &str) -> &'static [&'static str] {
    let within =
        |root: &str| path == root || path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'));
    if within("/stats") {
        &["stats"]
    } else if within("/metrics") {
        &["metrics"]
    } else if within("/logs") {
        &["log"]
    } else if within("/healthz") {
        &["healthz", "proxy"]
    } else if within("/configz") {
        &["configz", "proxy"]
    } else if within("/pods") || within("/runningpods") {
        &["pods", "proxy"]
    } else {
        &["proxy"]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_covered_by_subresources() {
        for (path, expected) in [
            ("/stats/summary", ["stats"].as_slice()),
            ("/metrics", &["metrics"]),
            ("/metrics/resource", &["metrics"]),
            ("/metricsx", &["proxy"]),
            ("/pods", &["pods", "proxy"]),
            ("/healthz", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/exec/ns/pod/c", &["proxy"]),
            ("/containerLogs/ns/pod/c", &["proxy"]),
        ] {
            assert_eq!(subresources(path), expected, "{path}");
        }
    }
}
