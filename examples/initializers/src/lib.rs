//! Three initializers: functions over an object, and the loop that waits for an initializer's turn.
//!
//! The functions ([`sidecar()`], [`test_certificates()`], [`long_secrets()`]) are pure; [`run`] watches, calls them and
//! writes the result. Start reading at [`run`].

mod long_secrets;
mod sidecar;
mod test_certificates;

use futures::TryStreamExt;
use kube::Client;
use kube::core::WatchEvent;
use serde_json::{Value, json};

pub use long_secrets::long_secrets;
pub use sidecar::sidecar;
pub use test_certificates::test_certificates;

/// What is to become of an object.
#[derive(Debug, PartialEq)]
pub enum Decision {
    /// It goes on as it is now.
    Finished,
    /// It is not to be, and this is why.
    Refused(String),
}

/// Which objects an initializer is about, and who it is.
#[derive(Debug, Clone)]
pub struct Initializer {
    /// Its name in `metadata.initializers.pending`.
    pub name: String,
    /// Where the objects are: `/api/v1/pods`.
    pub path: String,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("watch {path}: {source}")]
    Watch { path: String, source: Box<kube::Error> },
    #[error("the watch of {path} ended: {why}")]
    Ended { path: String, why: String },
    #[error("write {path}: {source}")]
    Write { path: String, source: Box<kube::Error> },
}

/// Finishes objects until the watch ends. Whoever calls this decides about trying again.
pub async fn run(
    client: &Client,
    initializer: &Initializer,
    decide: impl Fn(&mut Value) -> Decision,
) -> Result<(), RunError> {
    let path = format!("{}?watch=true&includeUninitialized=true", initializer.path);
    let failed = |source| RunError::Watch { path: path.clone(), source: Box::new(source) };
    let request = http::Request::get(&path).body(Vec::new()).expect("a path is a well-formed URI");
    let mut events = Box::pin(client.request_events::<Value>(request).await.map_err(failed)?);
    while let Some(event) = events.try_next().await.map_err(failed)? {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                act(client, initializer, object, &decide).await?;
            }
            WatchEvent::Error(error) => {
                return Err(RunError::Ended { path, why: error.message.clone() });
            }
            WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => {}
        }
    }
    Ok(())
}

/// Changes the object, if it is this initializer's turn.
async fn act(
    client: &Client,
    initializer: &Initializer,
    mut object: Value,
    decide: &impl Fn(&mut Value) -> Decision,
) -> Result<(), RunError> {
    if !is_turn_of(&initializer.name, &object) {
        return Ok(());
    }
    match decide(&mut object) {
        Decision::Finished => take_off(&mut object),
        Decision::Refused(why) => {
            object["metadata"]["initializers"]["result"] =
                json!({"status": "Failure", "reason": "Forbidden", "code": 403, "message": why});
        }
    }
    let path = path_of(&initializer.path, &object);
    let request = http::Request::put(&path)
        .header("content-type", "application/json")
        .body(object.to_string().into_bytes())
        .expect("a path is a well-formed URI");
    match client.request::<Value>(request).await {
        Ok(_) => Ok(()),
        // It changed or went in the meantime; the watch tells.
        Err(kube::Error::Api(answer)) if [404, 409].contains(&answer.code) => Ok(()),
        Err(source) => Err(RunError::Write { path, source: Box::new(source) }),
    }
}

fn is_turn_of(name: &str, object: &Value) -> bool {
    let initializers = &object["metadata"]["initializers"];
    initializers["pending"][0]["name"] == name && initializers["result"].is_null()
}

/// The first name goes; with the last, the whole field does.
fn take_off(object: &mut Value) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    let pending =
        metadata.get_mut("initializers").and_then(|initializers| initializers["pending"].as_array_mut());
    let left = pending.map_or(0, |pending| {
        pending.remove(0);
        pending.len()
    });
    if left == 0 {
        metadata.remove("initializers");
    }
}

/// `/api/v1/namespaces/NS/pods/NAME` of `/api/v1/pods`.
fn path_of(collection: &str, object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or("").to_string();
    let (root, resource) = collection.rsplit_once('/').unwrap_or(("", collection));
    match (text("namespace"), root.contains("/namespaces/")) {
        (namespace, false) if !namespace.is_empty() => {
            format!("{root}/namespaces/{namespace}/{resource}/{}", text("name"))
        }
        _ => format!("{collection}/{}", text("name")),
    }
}

/// For the programs: runs with the kubeconfig of the user, again after every failure.
pub async fn run_for_ever(
    initializer: Initializer,
    decide: impl Fn(&mut Value) -> Decision,
) -> Result<(), kube::Error> {
    tracing_subscriber::fmt::init();
    let client = Client::try_default().await?;
    loop {
        if let Err(error) = run(&client, &initializer, &decide).await {
            tracing::warn!(%error, "watch failed; restarting");
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_initializer_acts_when_its_name_stands_first() {
        let mut object = json!({"metadata": {"initializers": {"pending": [{"name": "a"}, {"name": "b"}]}}});
        assert!(is_turn_of("a", &object) && !is_turn_of("b", &object));
        take_off(&mut object);
        assert!(is_turn_of("b", &object));
        take_off(&mut object);
        assert_eq!(object, json!({"metadata": {}}));
        assert!(!is_turn_of("b", &object));
    }

    #[test]
    fn an_object_is_written_where_it_is() {
        let object = json!({"metadata": {"name": "p", "namespace": "n"}});
        assert_eq!(path_of("/api/v1/pods", &object), "/api/v1/namespaces/n/pods/p");
        assert_eq!(path_of("/api/v1/namespaces/n/pods", &object), "/api/v1/namespaces/n/pods/p");
        assert_eq!(path_of("/api/v1/nodes", &json!({"metadata": {"name": "m"}})), "/api/v1/nodes/m");
    }
}
