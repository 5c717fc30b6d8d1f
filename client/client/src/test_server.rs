//! A minimal API server in memory: list, watch with history, create, read, update. It can
//! fail, hang up and forget, which is what informers and leader election are about.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[derive(Clone, Default)]
pub struct TestServer {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    revision: i64,
    compacted: i64,
    objects: BTreeMap<String, Value>,
    history: Vec<(i64, &'static str, Value)>,
    watchers: Vec<(String, mpsc::UnboundedSender<Bytes>)>,
    failing: bool,
    lists: usize,
    requests: usize,
}

/// Waits for what another task brings about, as long as any machine may take for it.
pub async fn until(condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("it comes about");
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

impl TestServer {
    pub fn new() -> Self {
        TestServer::default()
    }

    pub fn client(&self) -> kube::Client {
        let server = self.clone();
        crate::over(tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { server.serve(request).await }
        }))
    }

    /// Creates or changes a ConfigMap.
    pub fn put(&self, name: &str) {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}});
        self.state.lock().write(&format!("{CONFIG_MAPS}/{name}"), object);
    }

    /// What no client should have been able to write.
    pub fn put_unreadable(&self, name: &str) {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": 5,
            "metadata": {"name": name, "namespace": "default"}});
        self.state.lock().write(&format!("{CONFIG_MAPS}/{name}"), object);
    }

    pub fn delete(&self, name: &str) {
        self.state.lock().remove(&format!("{CONFIG_MAPS}/{name}"));
    }

    pub fn revision(&self) -> i64 {
        self.state.lock().revision
    }

    /// Revisions that concern other kinds.
    pub fn pass_revisions(&self, count: i64) {
        self.state.lock().revision += count;
    }

    pub fn bookmark(&self) {
        let mut state = self.state.lock();
        let event = json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"resourceVersion": state.revision.to_string()}}});
        state.publish("", &event);
    }

    /// Ends every watch.
    pub fn disconnect(&self) {
        self.state.lock().watchers.clear();
    }

    /// Forgets the history up to now.
    pub fn compact(&self) {
        let mut state = self.state.lock();
        state.compacted = state.revision;
        state.history.clear();
    }

    pub fn fail(&self, failing: bool) {
        self.state.lock().failing = failing;
    }

    pub fn lists(&self) -> usize {
        self.state.lock().lists
    }

    pub fn requests(&self) -> usize {
        self.state.lock().requests
    }

    /// An object by its path.
    pub fn object(&self, path: &str) -> Option<Value> {
        self.state.lock().objects.get(path).cloned()
    }

    /// All objects under a path.
    pub fn objects(&self, prefix: &str) -> Vec<Value> {
        let state = self.state.lock();
        state
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(prefix))
            .map(|(_, object)| object.clone())
            .collect()
    }

    async fn serve(&self, request: Request<Body>) -> Result<Answer, Infallible> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let query: HashMap<String, String> = parts
            .uri
            .query()
            .into_iter()
            .flat_map(|query| query.split('&'))
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
        let mut state = self.state.lock();
        state.requests += 1;
        if state.failing {
            return Ok(status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"));
        }
        let path = parts.uri.path();
        Ok(match parts.method {
            Method::GET if query.get("watch").is_some_and(|watch| watch == "true") => {
                state.watch(path, query.get("resourceVersion").map_or("0", String::as_str))
            }
            Method::GET => state.get_or_list(path),
            Method::POST => state.create(path, &body),
            Method::PUT => state.update(path, &body),
            Method::PATCH => state.patch(path, &body),
            _ => status(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
        })
    }
}

impl State {
    fn write(&mut self, path: &str, mut object: Value) -> Value {
        self.revision += 1;
        let event = if self.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        object["metadata"]["uid"] = json!(path);
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.objects.insert(path.into(), object.clone());
        self.record(event, path, object.clone());
        object
    }

    fn remove(&mut self, path: &str) {
        if let Some(mut object) = self.objects.remove(path) {
            self.revision += 1;
            object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
            self.record("DELETED", path, object);
        }
    }

    fn record(&mut self, event: &'static str, path: &str, object: Value) {
        self.publish(path, &json!({"type": event, "object": object}));
        self.history.push((self.revision, event, object));
    }

    fn publish(&mut self, path: &str, event: &Value) {
        self.watchers.retain(|(resource, watcher)| {
            !(path.is_empty() || path.contains(resource.as_str())) || watcher.send(line(event)).is_ok()
        });
    }

    fn watch(&mut self, path: &str, from: &str) -> Answer {
        let from: i64 = from.parse().expect("the client sends what it was given");
        let (sender, receiver) = mpsc::unbounded_channel();
        if from < self.compacted {
            let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"});
            let _ = sender.send(line(&json!({"type": "ERROR", "object": gone})));
        } else {
            for (_, event, object) in self.history.iter().filter(|(revision, ..)| *revision > from) {
                let _ = sender.send(line(&json!({"type": event, "object": object})));
            }
            let resource = path.rsplit('/').next().expect("a path has a last part").to_string();
            self.watchers.push((format!("/{resource}/"), sender));
        }
        let frames = futures::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|bytes| (Ok(http_body::Frame::data(bytes)), receiver))
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    }

    fn get_or_list(&mut self, path: &str) -> Answer {
        if let Some(object) = self.objects.get(path) {
            return answer(StatusCode::OK, object);
        }
        if path.contains("/namespaces/") {
            return status(StatusCode::NOT_FOUND, "NotFound");
        }
        self.lists += 1;
        let resource = format!("/{}/", path.rsplit('/').next().expect("a path has a last part"));
        let items: Vec<&Value> =
            self.objects.iter().filter(|(key, _)| key.contains(&resource)).map(|(_, v)| v).collect();
        answer(
            StatusCode::OK,
            &json!({"apiVersion": "v1", "kind": "List", "items": items,
            "metadata": {"resourceVersion": self.revision.to_string()}}),
        )
    }

    fn create(&mut self, path: &str, body: &[u8]) -> Answer {
        let object: Value = serde_json::from_slice(body).expect("the client sends JSON");
        let path = format!("{path}/{}", object["metadata"]["name"].as_str().expect("objects have names"));
        if self.objects.contains_key(&path) {
            return status(StatusCode::CONFLICT, "AlreadyExists");
        }
        answer(StatusCode::CREATED, &self.write(&path, object))
    }

    fn update(&mut self, path: &str, body: &[u8]) -> Answer {
        let object: Value = serde_json::from_slice(body).expect("the client sends JSON");
        match self.objects.get(path) {
            None => status(StatusCode::NOT_FOUND, "NotFound"),
            Some(current)
                if current["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] =>
            {
                status(StatusCode::CONFLICT, "Conflict")
            }
            Some(_) => answer(StatusCode::OK, &self.write(path, object)),
        }
    }

    /// Top level fields only, which is all that is sent here.
    fn patch(&mut self, path: &str, body: &[u8]) -> Answer {
        let patch: Value = serde_json::from_slice(body).expect("the client sends JSON");
        let Some(mut object) = self.objects.get(path).cloned() else {
            return status(StatusCode::NOT_FOUND, "NotFound");
        };
        for (key, value) in patch.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
        answer(StatusCode::OK, &self.write(path, object))
    }
}

fn line(event: &Value) -> Bytes {
    format!("{event}\n").into()
}

fn answer(code: StatusCode, object: &Value) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(object.to_string())).boxed_unsync());
    *response.status_mut() = code;
    response
}

fn status(code: StatusCode, reason: &str) -> Answer {
    answer(
        code,
        &json!({"kind": "Status", "status": "Failure", "code": code.as_u16(), "reason": reason, "message": reason}),
    )
}
