//! Services and slices for tests, from JSON: as short as a test wants them.

use std::sync::Arc;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::{Value, json};

use crate::ledger::{Owner, Rank};

pub fn service(name: &str, spec: Value) -> Service {
    let object = json!({ "metadata": { "namespace": "ns", "name": name }, "spec": spec });
    serde_json::from_value(object).expect("a test's service is well formed")
}

pub fn slice(service: &str, port: i32, endpoints: &[Value]) -> Arc<EndpointSlice> {
    let object = json!({
        "metadata": { "namespace": "ns", "name": format!("{service}-1") },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": port, "protocol": "TCP" }],
        "endpoints": endpoints,
    });
    Arc::new(serde_json::from_value(object).expect("a test's slice is well formed"))
}

pub fn owner(service: &Service) -> Owner {
    let name = service.metadata.name.clone().unwrap_or_default();
    Arc::new(Rank { created: String::new(), name: format!("ns/{name}") })
}
