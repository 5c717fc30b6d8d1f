//! Keeps the zone what Services and EndpointSlices say. Each event changes its own service's names at
//! once, on the informer's task: there is nothing to wait for.

use std::sync::Arc;

use ferry_client::{Informers, NamespacedName};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use parking_lot::RwLock;

use crate::zone::{Zone, records_of};

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Returns when the zone is complete; it is kept up to date from then on, as long as the informers run.
pub async fn keep(informers: &Informers, zone: &Arc<RwLock<Zone>>) {
    let services = informers.of::<Service>();
    let slices = informers.of::<EndpointSlice>();
    let by_service = slices
        .index(SERVICE_NAME, |slice| service_of(slice).map(|key| key.to_string()).into_iter().collect());
    let refresh = {
        let (services, zone) = (services.clone(), zone.clone());
        Arc::new(move |key: &NamespacedName, revision: Option<i64>| {
            // On the informer's task, whose own span is about reading and not recorded.
            let mut span = ferry_trace::Span::root("dns.update", None);
            span.object("services", &key.namespace, &key.name);
            if let Some(revision) = revision {
                span.caused_by(revision);
            }
            let records =
                services.get(key).and_then(|service| records_of(&service, &by_service.get(&key.to_string())));
            span.set("present", records.is_some());
            zone.write().update(&key.namespace, &key.name, records);
        })
    };
    let on_service = refresh.clone();
    services.handle(move |event| on_service(&event.key(), event.revision()));
    slices.handle(move |event| {
        for slice in event.old().into_iter().chain([event.object()]) {
            if let Some(key) = service_of(slice) {
                refresh(&key, event.revision());
            }
        }
    });
    services.synced().await;
    slices.synced().await;
}

fn service_of(slice: &EndpointSlice) -> Option<NamespacedName> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(NamespacedName::new(slice.metadata.namespace.clone().unwrap_or_default(), name))
}
