//! The audit webhook: sends lists of events to a collector.

use std::{path::Path, sync::Arc, time::Duration};

use serde_json::json;

use super::{API_VERSION, Batching, Event, Sink};
use crate::outbound::{Endpoint, OutboundError, Retry};

#[derive(Clone, Copy, Debug)]
pub struct WebhookSinkConfig {
    pub batching: Batching,
    pub retry: Retry,
}

impl Default for WebhookSinkConfig {
    fn default() -> Self {
        let batching = Batching { buffer: 10_000, max_batch: 400, max_wait: Duration::from_secs(30) };
        WebhookSinkConfig { batching, retry: Retry { attempts: 5, first_delay: Duration::from_secs(1) } }
    }
}

pub struct WebhookSink {
    endpoint: Endpoint,
    config: WebhookSinkConfig,
}

impl WebhookSink {
    pub async fn open(kubeconfig: &Path, config: WebhookSinkConfig) -> Result<Self, OutboundError> {
        Ok(WebhookSink { endpoint: Endpoint::from_kubeconfig(kubeconfig).await?, config })
    }
}

impl Sink for WebhookSink {
    fn name(&self) -> &'static str {
        "webhook"
    }

    fn batching(&self) -> Batching {
        self.config.batching
    }

    async fn write(&mut self, events: Vec<Arc<Event>>) {
        let span = ferry_trace::span("auth.audit_webhook");
        let items: Vec<&Event> = events.iter().map(|event| &**event).collect();
        let list = json!({"kind": "EventList", "apiVersion": API_VERSION, "metadata": {}, "items": items});
        if let Err(error) = span.in_scope(self.endpoint.post_raw(&list, self.config.retry)).await {
            tracing::error!(%error, lost = events.len(), "the audit webhook failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{
        audit::{Audit, Policy, queue::tests::event},
        test_server::TestServer,
    };

    #[tokio::test]
    async fn events_arrive_in_lists_and_a_failure_is_tried_again() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let failures = Arc::new(Mutex::new(2));
        let server = TestServer::start({
            let (seen, failures) = (seen.clone(), failures.clone());
            move |request| {
                let mut failures = failures.lock().unwrap();
                if *failures > 0 {
                    *failures -= 1;
                    return (503, "busy".to_owned());
                }
                let list = request.json();
                assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!(API_VERSION)));
                seen.lock()
                    .unwrap()
                    .extend(list["items"].as_array().unwrap().iter().map(|item| item["auditID"].to_string()));
                (200, String::new())
            }
        })
        .await;
        let config = WebhookSinkConfig {
            batching: Batching { max_batch: 3, ..WebhookSinkConfig::default().batching },
            retry: Retry { attempts: 5, first_delay: Duration::from_millis(1) },
        };
        let sink =
            WebhookSink { endpoint: Endpoint::from_url(&server.url("/events"), None).unwrap(), config };
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]";
        let audit = Audit::new(Policy::parse(policy).unwrap()).with_sink(sink);
        for id in 0..7 {
            audit.emit(event(id));
        }
        audit.close().await;
        let expected: Vec<String> = (0..7).map(|id| format!("\"{id}\"")).collect();
        assert_eq!(*seen.lock().unwrap(), expected);
        assert_eq!(server.requests(), 2 + 3);
    }
}
