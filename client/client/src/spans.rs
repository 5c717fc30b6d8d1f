//! Hands the spans of this process to the server that keeps the trace of the whole cluster.
//!
//! Only for a process of its own: where components share the server's process they share its ring.

use std::time::Duration;

use ferry_trace::{Record, ring};
use kube::Client;

const PATH: &str = "/ferry/v1/trace";
/// Spans come in bursts; one request takes a burst along.
const GATHER: Duration = Duration::from_secs(1);
/// Well below what the server takes in one request.
const BATCH: usize = 256;
const RETRY: Duration = Duration::from_secs(10);

/// Works until dropped, or until the server says that it keeps no trace or takes none from us. What the ring lets go
/// of before it could be sent is not sent: the server's own is bounded too.
pub async fn hand_in(client: Client) {
    // What is sent here is part of no story.
    let silent = ferry_trace::span("spans").unsampled();
    let mut sent = 0;
    loop {
        ring().ended_after(sent).await;
        tokio::time::sleep(GATHER).await;
        for batch in ring().after(sent).chunks(BATCH) {
            match silent.in_scope(send(&client, batch)).await {
                Ok(()) => {
                    sent = batch.last().map_or(sent, |record| record.sequence);
                    // the server has them now, and it is the server that people ask
                    ring().let_go(sent);
                }
                Err(error) if is_final(&error) => {
                    tracing::debug!(%error, "spans are not sent to the API server");
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot send spans to the API server, trying again");
                    tokio::time::sleep(RETRY).await;
                    break;
                }
            }
        }
    }
}

async fn send(client: &Client, batch: &[Record]) -> Result<(), kube::Error> {
    let body = serde_json::to_vec(batch).map_err(kube::Error::SerdeError)?;
    let request = http::Request::post(PATH).header(http::header::CONTENT_TYPE, "application/json");
    let request = request.body(body).map_err(kube::Error::HttpError)?;
    client.request_text(request).await.map(|_| ())
}

/// Upstream's server has no such path, ours may not let us.
fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::BodyExt;
    use kube::client::Body;
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ended_spans_are_sent_once_until_the_server_refuses() {
        let (sender, mut received) = mpsc::channel::<Vec<Record>>(16);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let sender = sender.clone();
            async move {
                assert!(!ferry_trace::current().is_some_and(|context| context.sampled));
                let bytes = request.into_body().collect().await.unwrap().to_bytes();
                let records: Vec<Record> = serde_json::from_slice(&bytes).unwrap();
                let is_last = records.iter().any(|record| record.name == "test.last");
                sender.send(records).await.unwrap();
                let refusal =
                    r#"{"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403}"#;
                let (code, body) = if is_last { (403, refusal) } else { (200, "{}") };
                let response =
                    http::Response::builder().status(code).body(Body::from(body.as_bytes().to_vec()));
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        let task = tokio::spawn(hand_in(crate::over(service)));
        let mut mine = Vec::new();
        for name in ["test.first", "test.second", "test.last"] {
            let span = ferry_trace::Span::root(name, None).context().span;
            mine.push(span);
            while !received.recv().await.unwrap().iter().any(|record| record.span == span) {}
        }
        task.await.unwrap();
        while let Some(batch) = received.recv().await {
            assert!(!batch.iter().any(|record| mine.contains(&record.span)), "sent twice");
        }
    }
}
