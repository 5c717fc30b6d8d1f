//! What is asked of the server: records, and the pods they are about.

use std::fmt;
use std::path::PathBuf;

use ferry_client::{Client, Kubeconfig};
use ferry_trace::clocks::Correction;
use ferry_trace::{Life, Record};
use futures::stream::BoxStream;
use futures::{AsyncBufRead, AsyncBufReadExt, StreamExt};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::Api;
use kube::api::ListParams;
use serde::Deserialize;

use crate::error::Error;

const PATH: &str = "/ferry/v1/trace";

/// Which records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    Object { object: String, namespace: String, lives: Lives },
    Trace(String),
    Revision(i64),
    User(String),
    Last,
}

/// Which lives of an object that was deleted and created again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lives {
    Latest,
    Uid(String),
    All,
    /// All of them, with what led to each write and not what came of it.
    Writes,
}

/// The server's answer.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    pub records: Vec<Record>,
    /// `resource/namespace/name`, if an object was asked for.
    #[serde(default)]
    pub object: Option<String>,
    /// Its lives as far as they are recorded, oldest first.
    #[serde(default)]
    pub lives: Vec<Life>,
    /// The life that the records are of, if it is one.
    #[serde(default)]
    pub uid: Option<String>,
    /// There is more than is answered at once.
    #[serde(default)]
    pub is_cut: bool,
    /// Clocks of other hosts that were wrong; the records are as they should have said.
    #[serde(default)]
    pub clocks: Vec<Correction>,
    /// Spans that came too fast to be written to disk.
    #[serde(default)]
    pub dropped: u64,
    /// Why nothing is written to disk at the moment.
    #[serde(default)]
    pub failure: Option<String>,
}

impl fmt::Display for Selection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selection::Object { object, namespace, .. } => {
                write!(formatter, "{object} in namespace {namespace}")
            }
            Selection::Trace(trace) => write!(formatter, "trace {trace}"),
            Selection::Revision(revision) => write!(formatter, "revision {revision}"),
            Selection::User(user) => write!(formatter, "writes of {user}"),
            Selection::Last => formatter.write_str("a write that somebody made"),
        }
    }
}

impl Selection {
    fn path(&self) -> String {
        match self {
            Selection::Object { object, namespace, lives } => {
                let object = format!("{PATH}?object={}&namespace={}", escape(object), escape(namespace));
                match lives {
                    Lives::Latest => object,
                    Lives::Uid(uid) => format!("{object}&uid={}", escape(uid)),
                    Lives::All => format!("{object}&lives=all"),
                    Lives::Writes => format!("{object}&lives=all&direction=back"),
                }
            }
            Selection::Trace(trace) => format!("{PATH}?trace={}", escape(trace)),
            Selection::Revision(revision) => format!("{PATH}?revision={revision}"),
            Selection::User(user) => format!("{PATH}?user={}", escape(user)),
            Selection::Last => format!("{PATH}?last=true"),
        }
    }
}

pub async fn connect(kubeconfig: Option<PathBuf>) -> Result<Client, Error> {
    let kubeconfig =
        Kubeconfig { path: kubeconfig, user_agent: Some("ferry-trace".into()), ..Kubeconfig::default() };
    Ok(ferry_client::connect(&kubeconfig).await?)
}

pub async fn found(client: &Client, selection: &Selection) -> Result<Found, Error> {
    let request = http::Request::get(selection.path()).body(Vec::new())?;
    let text = client.request_text(request).await.map_err(refused)?;
    Ok(serde_json::from_str(&text)?)
}

pub async fn records(client: &Client, selection: &Selection) -> Result<Vec<Record>, Error> {
    Ok(found(client, selection).await?.records)
}

/// Every record from now on, as its span ends. Returns when the server listens.
pub async fn follow(client: &Client) -> Result<BoxStream<'static, Result<Record, Error>>, Error> {
    let mut body = followed(client, None).await?;
    // The first, empty line says that the server listens: from here on nothing is missed.
    read_line(&mut body).await?;
    Ok(records_of(body))
}

/// The same behind the record with this sequence, what ended since included.
pub async fn follow_after(
    client: &Client,
    sequence: u64,
) -> Result<BoxStream<'static, Result<Record, Error>>, Error> {
    Ok(records_of(followed(client, Some(sequence)).await?))
}

async fn followed(
    client: &Client,
    after: Option<u64>,
) -> Result<impl AsyncBufRead + Send + Unpin + use<>, Error> {
    let after = after.map(|sequence| format!("&after={sequence}")).unwrap_or_default();
    let request = http::Request::get(format!("{PATH}?follow=true{after}")).body(Vec::new())?;
    Ok(Box::pin(client.request_stream(request).await.map_err(refused)?))
}

fn records_of(body: impl AsyncBufRead + Send + Unpin + 'static) -> BoxStream<'static, Result<Record, Error>> {
    let lines = body.lines().filter_map(async |line| match line {
        Ok(line) if line.is_empty() => None,
        Ok(line) => Some(serde_json::from_str(&line).map_err(Error::Read)),
        Err(error) => Some(Err(Error::Follow(error))),
    });
    lines.boxed()
}

async fn read_line(body: &mut (impl AsyncBufRead + Unpin)) -> Result<String, Error> {
    let mut line = String::new();
    body.read_line(&mut line).await.map_err(Error::Follow)?;
    Ok(line)
}

/// A pod as it is now, and what was said about it, oldest first; nothing if it is gone.
pub async fn pod(client: &Client, namespace: &str, name: &str) -> Result<Option<(Pod, Vec<Event>)>, Error> {
    let failed = |error| Error::Pod(format!("{namespace}/{name}"), words(error));
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let Some(pod) = pods.get_opt(name).await.map_err(failed)? else { return Ok(None) };
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let about = ListParams::default().fields(&format!("involvedObject.name={name},involvedObject.kind=Pod"));
    let mut events = events.list(&about).await.map_err(failed)?.items;
    events.sort_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0));
    Ok(Some((pod, events)))
}

/// A node as it is now; nothing if there is none.
pub async fn node(client: &Client, name: &str) -> Result<Option<Node>, Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.get_opt(name).await.map_err(|error| Error::Node(name.to_owned(), words(error)))
}

fn refused(error: kube::Error) -> Error {
    match error {
        kube::Error::Api(status) if status.code == 404 => Error::NotKept,
        kube::Error::Api(status) => Error::Refused(status.message),
        error => Error::Ask(error),
    }
}

/// What the server said, without what the client's library adds.
fn words(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        error => error.to_string(),
    }
}

/// Names of objects need no more than this; what else is typed must not change the question.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'/' => {
                escaped.push(char::from(byte))
            }
            byte => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_stays_one_question() {
        let object = Selection::Object {
            object: "pod/a&last=true".into(),
            namespace: "x y".into(),
            lives: Lives::Uid("&".into()),
        };
        assert_eq!(object.path(), "/ferry/v1/trace?object=pod/a%26last%3Dtrue&namespace=x%20y&uid=%26");
    }
}
