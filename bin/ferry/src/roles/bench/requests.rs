//! What benches ask of a server: requests whose answers are not decoded, many at a time, and watches of which only
//! the number of events counts.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use ferry_client::Client;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use http::Method;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::Value;

pub const JSON: &str = "application/json";
pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";

pub async fn get(client: &Client, path: &str) -> anyhow::Result<Bytes> {
    sent(client, path, http::Request::get(path).body(Body::empty())?).await
}

pub async fn delete(client: &Client, path: &str) -> anyhow::Result<Bytes> {
    sent(client, path, http::Request::delete(path).body(Body::empty())?).await
}

pub async fn post(client: &Client, path: &str, object: Value) -> anyhow::Result<()> {
    send(client, Method::POST, path, JSON, object).await
}

pub async fn send(
    client: &Client,
    method: Method,
    path: &str,
    content_type: &str,
    object: Value,
) -> anyhow::Result<()> {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content_type)
        .body(Body::from(serde_json::to_vec(&object)?))?;
    sent(client, path, request).await.map(drop)
}

/// Only what the answer says of success counts.
async fn sent(client: &Client, path: &str, request: http::Request<Body>) -> anyhow::Result<Bytes> {
    let response = client.send(request).await.with_context(|| path.to_owned())?;
    let status = response.status();
    let body = response.into_body().collect_bytes().await.with_context(|| path.to_owned())?;
    ensure!(status.is_success(), "{path}: {}", String::from_utf8_lossy(&body));
    Ok(body)
}

/// Does something for every number, many at a time.
pub async fn many<F: Future<Output = anyhow::Result<()>>>(
    count: usize,
    each: impl Fn(usize) -> F,
) -> anyhow::Result<()> {
    const AT_A_TIME: usize = 32;
    futures::stream::iter((0..count).map(each)).buffer_unordered(AT_A_TIME).try_collect::<()>().await
}

/// Counts the events of one type, in the lines of a watch that no one decodes.
pub struct Seen {
    data: BoxStream<'static, Result<Bytes, kube::Error>>,
    marker: Vec<u8>,
    /// The end of what was read, where a marker may have begun.
    rest: Vec<u8>,
    count: usize,
}

impl Seen {
    /// A cluster that does nothing for so long is stuck.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// What happens from now on to what `path` lists, narrowed by a query; `event` is `ADDED` or `DELETED`.
    pub async fn watch(client: &Client, path: &str, query: &str, event: &str) -> anyhow::Result<Seen> {
        let list: Value = serde_json::from_slice(&get(client, &format!("{path}?limit=1")).await?)?;
        let from = list["metadata"]["resourceVersion"].as_str().context("a list has a revision")?;
        let request = http::Request::get(format!("{path}?watch=1&resourceVersion={from}{query}"));
        let response = client.send(request.body(Body::empty())?).await.context("watch")?;
        ensure!(response.status().is_success(), "watch {path}: {}", response.status());
        Ok(Seen {
            data: response.into_body().into_data_stream().boxed(),
            marker: format!(r#"{{"type":"{event}""#).into_bytes(),
            rest: Vec::new(),
            count: 0,
        })
    }

    pub async fn wait_for(&mut self, count: usize) -> anyhow::Result<usize> {
        while self.count < count {
            let next = tokio::time::timeout(Self::PATIENCE, self.data.next()).await;
            let Some(bytes) = next.with_context(|| format!("{} of {count} were seen", self.count))? else {
                bail!("the watch ended after {} of {count}", self.count);
            };
            self.look_at(&bytes.context("read the watch")?);
        }
        Ok(self.count)
    }

    fn look_at(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        self.count += self.rest.windows(self.marker.len()).filter(|window| *window == self.marker).count();
        // too short for a marker that was counted, long enough for all but the last byte of one that was not
        let keep = self.rest.len().saturating_sub(self.marker.len() - 1);
        self.rest.drain(..keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_wherever_the_stream_is_cut() {
        let text = br#"{"type":"ADDED","object":{}}
{"type":"MODIFIED","object":{"type":"ADDE"}}
{"type":"ADDED","object":{"a":"{\"type\":\"ADDED\""}}
"#;
        for step in 1..text.len() {
            let data = futures::stream::empty().boxed();
            let marker = br#"{"type":"ADDED""#.to_vec();
            let mut seen = Seen { data, marker, rest: Vec::new(), count: 0 };
            text.chunks(step).for_each(|chunk| seen.look_at(chunk));
            assert_eq!(seen.count, 2, "in pieces of {step}");
        }
    }
}
