//! The availability of an aggregated API server, with upstream's messages. [`before_asking`] checks its Service and
//! endpoints, [`check`] also calls it.

use std::time::Duration;

use bytes::Bytes;
use ferry_admission::service_address;
use ferry_api::{GroupResource, Object, Status};
use ferry_registry::{Registry, metadata};
use futures::FutureExt;
use http_body_util::{BodyExt, Empty};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::backend::{Backend, PassedBody};
use super::identity;
use super::registration::ServiceReference;

/// One answer has to come within this.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many more are asked at once when the first failed: one endpoint of several may be bad.
const MORE: usize = 4;

/// What the condition `Available` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub status: &'static str,
    pub reason: &'static str,
    pub message: String,
}

impl Condition {
    fn new(status: &'static str, reason: &'static str, message: impl Into<String>) -> Condition {
        Condition { status, reason, message: message.into() }
    }

    pub fn local() -> Condition {
        Condition::new("True", "Local", "Local APIServices are always available")
    }

    pub fn is_true(&self) -> bool {
        self.status == "True"
    }

    /// The status with this condition; `None` where it has it already. Its time changes only with its status.
    pub fn put(&self, object: &Object, now: Timestamp) -> Option<Value> {
        let old = object.0.get("status").cloned().unwrap_or_else(|| json!({}));
        let mut conditions: Vec<Value> =
            old.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default();
        let at = conditions.iter().position(|condition| condition["type"] == "Available");
        let since = at.map(|at| &conditions[at]).filter(|old| old["status"] == self.status);
        let since = since.and_then(|old| old["lastTransitionTime"].as_str().map(str::to_string));
        let condition = json!({
            "type": "Available", "status": self.status, "reason": self.reason, "message": self.message,
            "lastTransitionTime": since.unwrap_or_else(|| metadata::timestamp(now.as_second())),
        });
        match at {
            Some(at) => conditions[at] = condition,
            None => conditions.push(condition),
        }
        let mut new = old.clone();
        new["conditions"] = conditions.into();
        (new != old).then_some(new)
    }
}

/// The condition of a backend as it is now.
pub async fn check(registry: &Registry, backend: &Backend) -> Condition {
    let reference = &backend.service;
    let service = read(registry, "services", &reference.namespace, &reference.name);
    let slices = service_address::slices(registry, &reference.namespace, &reference.name);
    if let Some(condition) = before_asking(reference, service, slices) {
        return condition;
    }
    let answer = match probe(backend).await {
        Ok(()) => Ok(()),
        Err(_) => futures::future::select_ok((0..MORE).map(|_| probe(backend).boxed())).await.map(|_| ()),
    };
    match answer {
        Ok(()) => Condition::new("True", "Passed", "all checks passed"),
        Err(why) => Condition::new("False", "FailedDiscoveryCheck", why),
    }
}

/// What is to be said without asking; `None` where only an answer can tell.
fn before_asking(
    reference: &ServiceReference,
    service: Result<Option<Object>, Status>,
    slices: Result<Vec<Object>, Status>,
) -> Option<Condition> {
    let ServiceReference { namespace, name, port } = reference;
    let failed = |reason, status: Status| {
        let why = status.message;
        let message = format!("service/{name} in {namespace:?} cannot be checked due to: {why}");
        Some(Condition::new("Unknown", reason, message))
    };
    let unavailable = |reason, message: String| Some(Condition::new("False", reason, message));
    let service = match service {
        Ok(Some(service)) => service,
        Ok(None) => {
            return unavailable("ServiceNotFound", format!("service/{name} in {namespace:?} is not present"));
        }
        Err(status) => return failed("ServiceAccessError", status),
    };
    // Others than those with a cluster address are somebody else's to lead on.
    if service.text_at(&["spec", "type"]) != "ClusterIP" {
        return None;
    }
    let Some(port_name) = service_address::port_name(&service, *port) else {
        let message = format!("service/{name} in {namespace:?} is not listening on port {port}");
        return unavailable("ServicePortError", message);
    };
    match slices {
        Err(status) => failed("EndpointsAccessError", status),
        Ok(slices) if slices.is_empty() => {
            let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
            unavailable("EndpointsNotFound", message)
        }
        Ok(slices) if service_address::ready(&slices, port_name).is_empty() => {
            let message = format!(
                "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
            );
            unavailable("MissingEndpoints", message)
        }
        Ok(_) => None,
    }
}

/// Requests the discovery path that every API server must serve, as a user with all rights.
async fn probe(backend: &Backend) -> Result<(), String> {
    let url = backend.url(&backend.path());
    let request = identity::as_aggregator(&url).body(nothing()).map_err(|error| error.to_string())?;
    let failed = |why: String| format!("failing or missing response from {url}: {why}");
    match tokio::time::timeout(PATIENCE, backend.probe(request)).await {
        Ok(Ok(response)) if response.status().is_success() => Ok(()),
        Ok(Ok(response)) => Err(failed(format!("bad status from {url}: {}", response.status().as_u16()))),
        Ok(Err(why)) => Err(failed(format!("Get {url:?}: {why}"))),
        Err(_) => Err(failed(format!("Get {url:?}: context deadline exceeded"))),
    }
}

pub fn nothing() -> PassedBody {
    Empty::<Bytes>::new().map_err(|never| match never {}).boxed_unsync()
}

fn read(
    registry: &Registry,
    plural: &'static str,
    namespace: &str,
    name: &str,
) -> Result<Option<Object>, Status> {
    let Some(resource) = registry.resource(&GroupResource::new("", plural)) else { return Ok(None) };
    resource.cache.get(&resource.key(namespace, name)).map(|entry| entry.read_object()).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Object {
        Object::from_value(value).expect("an object")
    }

    fn check(service: Option<Value>, slices: Vec<Value>, expected: Option<(&str, &str)>) {
        let reference = ServiceReference { namespace: "ns".into(), name: "api".into(), port: 443 };
        let slices = slices.into_iter().map(object).collect();
        let found = before_asking(&reference, Ok(service.map(object)), Ok(slices));
        let found = found.as_ref().map(|condition| {
            assert_eq!(condition.status, "False");
            (condition.reason, condition.message.as_str())
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn the_objects_that_lead_to_a_backend_tell_why_it_is_not_there() {
        let service =
            |port: u16| json!({"spec": {"type": "ClusterIP", "ports": [{"name": "tls", "port": port}]}});
        let slice = |port: &str, ready: bool| {
            let endpoint = json!({"addresses": ["10.0.0.1"], "conditions": {"ready": ready}});
            json!({"ports": [{"name": port, "port": 8443}], "endpoints": [endpoint]})
        };
        check(None, vec![], Some(("ServiceNotFound", "service/api in \"ns\" is not present")));
        check(
            Some(service(80)),
            vec![],
            Some(("ServicePortError", "service/api in \"ns\" is not listening on port 443")),
        );
        check(
            Some(service(443)),
            vec![],
            Some(("EndpointsNotFound", "cannot find endpointslices for service/api in \"ns\"")),
        );
        let missing = "endpointslices for service/api in \"ns\" have no addresses with port name \"tls\"";
        check(Some(service(443)), vec![slice("tls", false)], Some(("MissingEndpoints", missing)));
        check(Some(service(443)), vec![slice("other", true)], Some(("MissingEndpoints", missing)));
        check(Some(service(443)), vec![slice("tls", false), slice("tls", true)], None);
        check(Some(json!({"spec": {"type": "ExternalName", "externalName": "example.com"}})), vec![], None);
    }

    #[test]
    fn the_time_of_the_condition_changes_with_its_status_only() {
        let fresh = object(json!({"metadata": {}}));
        let time = |status: &Value| status["conditions"][0]["lastTransitionTime"].clone();
        let failing = Condition::new("False", "FailedDiscoveryCheck", "a");
        let first = failing.put(&fresh, Timestamp::UNIX_EPOCH).expect("it is new");
        let told = object(json!({"metadata": {}, "status": first}));
        assert_eq!(failing.put(&told, Timestamp::now()), None);
        let other =
            Condition::new("False", "MissingEndpoints", "b").put(&told, Timestamp::now()).expect("another");
        assert_eq!(time(&other), time(&told.0["status"]));
        let fine = Condition::new("True", "Passed", "c").put(&told, Timestamp::now()).expect("another");
        assert_ne!(time(&fine), time(&told.0["status"]));
    }
}
