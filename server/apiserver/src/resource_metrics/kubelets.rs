//! Reads the kubelets' counters on demand, and caches the result for a few seconds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_api::{GroupResource, Object, Status};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::counters::{Page, Window};
use crate::api::Api;

/// An answer this young is given again.
const FRESH: Duration = Duration::from_secs(10);
/// A look this old is still one end of a window; an older one would hide what happens now.
const LONGEST_WINDOW: Duration = Duration::from_secs(120);
/// Without such a look the second one follows the first after this time.
const SHORTEST_WINDOW: Duration = Duration::from_secs(1);
/// A kubelet that does not answer must not keep the others' figures from being shown.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the kubelets told last.
#[derive(Default)]
pub struct Kubelets {
    by_node: Mutex<HashMap<String, Arc<tokio::sync::Mutex<CachedWindow>>>>,
}

/// Locked while its kubelet is queried, so that concurrent readers share one query.
#[derive(Default)]
struct CachedWindow {
    asked: Option<Instant>,
    /// `None` if the query failed.
    window: Option<Arc<Window>>,
}

impl Kubelets {
    /// The recent usage of a node; `None` if its kubelet does not report it.
    pub async fn window(&self, api: &Api, node: &str) -> Option<Arc<Window>> {
        let told = self.of_node(api, node);
        let mut told = told.lock().await;
        let age = told.asked.map(|asked| asked.elapsed());
        if age.is_some_and(|age| age < FRESH) {
            return told.window.clone();
        }
        let before = told.window.take().filter(|_| age.is_some_and(|age| age < LONGEST_WINDOW));
        let looked = tokio::time::timeout(PATIENCE, read_window(api, node, before.as_deref())).await;
        let looked = looked.unwrap_or_else(|_| Err(Status::timeout("the kubelet does not answer in time")));
        told.window = match looked {
            Ok(window) => Some(Arc::new(window)),
            Err(error) => {
                tracing::debug!(%node, %error, "a kubelet did not report its usage");
                None
            }
        };
        told.asked = Some(Instant::now());
        told.window.clone()
    }

    fn of_node(&self, api: &Api, node: &str) -> Arc<tokio::sync::Mutex<CachedWindow>> {
        let mut by_node = self.by_node.lock();
        if !by_node.contains_key(node)
            && let Some(nodes) = api.registry.resource(&GroupResource::new("", "nodes"))
        {
            // A node came: a good moment to forget those that went.
            by_node.retain(|name, _| nodes.cache.get(name).is_some());
        }
        by_node.entry(node.to_string()).or_default().clone()
    }
}

async fn read_window(api: &Api, node: &str, before: Option<&Window>) -> Result<Window, Status> {
    let nodes = GroupResource::new("", "nodes");
    let resource = api.registry.resource(&nodes).ok_or_else(Status::no_such_path)?;
    let entry = resource.cache.get(node).ok_or_else(|| Status::not_found(&nodes, node))?;
    let object = entry.read_object()?;
    let before = match before {
        Some(window) => window.after().clone(),
        None => {
            let first = page(api, &object).await?;
            let since = Timestamp::now().duration_since(first.at()).unsigned_abs();
            tokio::time::sleep(SHORTEST_WINDOW.saturating_sub(since)).await;
            first
        }
    };
    Ok(Window::new(before, page(api, &object).await?))
}

async fn page(api: &Api, node: &Object) -> Result<Page, Status> {
    let text = api.node_connection.ask_kubelet(node, "/metrics/resource").await?;
    Ok(Page::parse(&String::from_utf8_lossy(&text), Timestamp::now()))
}
