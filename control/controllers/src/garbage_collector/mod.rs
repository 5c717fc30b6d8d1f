//! The garbage collector: what nobody owns any more goes, in the order its owner asked for.
//!
//! `graph` knows who owns whom and decides, `monitors` feeds it every kind from discovery,
//! this file acts. Absence is never concluded from the graph alone: before anything is
//! deleted for a missing owner, the server is asked.

mod graph;
mod monitors;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ferry_client::informer::MetadataEvent;
use ferry_client::{Attempt, CancellationToken, Client, Error, Metadata, Outcome, Queue, error, undecoded};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use parking_lot::Mutex;
use serde_json::json;

use crate::context::{Context, Running};
use crate::discovery::Resource;
use crate::slow_start::together;
use graph::{CollectAction, FOREGROUND, Graph, Node, ORPHAN, Propagation, Standing, fate};
use monitors::Kinds;

const CONTROLLER: &str = "garbage-collector-controller";
/// How soon to ask again about an owner that exists but no informer shows.
const UNSEEN_OWNER: Duration = Duration::from_secs(30);

pub struct Collector {
    client: Client,
    graph: Mutex<Graph>,
    kinds: Kinds,
    queue: Queue<String>,
    absent: Mutex<Absent>,
}

/// Owners the server said are gone. A uid never comes back, so that is final; the thousand pods
/// of one deleted ReplicaSet ask once.
#[derive(Default)]
struct Absent {
    known: HashSet<String>,
    order: VecDeque<String>,
}

impl Absent {
    const MOST: usize = 1000;

    fn has(&self, uid: &str) -> bool {
        self.known.contains(uid)
    }

    fn note(&mut self, uid: &str) {
        if self.known.insert(uid.into()) {
            self.order.push_back(uid.into());
        }
        if self.order.len() > Self::MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let queue = builder.queue();
    let kinds = Kinds::default();
    let collector = Arc::new(Collector {
        client: context.client.clone(),
        graph: Mutex::default(),
        kinds: kinds.clone(),
        queue: queue.clone(),
        absent: Mutex::default(),
    });
    let ready = CancellationToken::new();
    let monitoring = monitors::follow(context.clone(), collector.clone(), kinds, ready.clone());
    let controller = builder.over("objects", queue, collector).after(ready.cancelled_owned());
    let working = controller.run(Collector::reconcile);
    Box::pin(async move {
        futures::join!(monitoring, working);
    })
}

impl Collector {
    fn object_changed(&self, resource: &Arc<Resource>, changed: MetadataEvent) {
        let look = {
            let mut graph = self.graph.lock();
            match changed.deleted {
                true => graph.remove(changed.object.metadata().uid.as_deref().unwrap_or("")),
                false => graph.put(resource, changed.object),
            }
        };
        for uid in look {
            self.queue.add_caused(uid, changed.revision);
        }
    }

    fn forget(&self, resource: &Resource) {
        let look = self.graph.lock().remove_resource(resource);
        look.into_iter().for_each(|uid| self.queue.add(uid));
    }

    async fn reconcile(self: Arc<Self>, uid: String) -> Result<Outcome, Error> {
        let uid = uid.as_str();
        let Some(node) = self.graph.lock().get(uid).cloned() else { return Ok(Outcome::Done) };
        if node.awaits_orphaning() {
            self.orphan_dependents(uid, &node).await?;
        } else if node.awaits_dependents() {
            self.continue_foreground(uid, &node).await?;
        } else if !node.is_deleting() {
            return self.decide(uid, &node).await;
        }
        Ok(Outcome::Done)
    }

    /// Keeps an object, or frees it from owners that are gone, or deletes it.
    async fn decide(&self, uid: &str, node: &Node) -> Result<Outcome, Error> {
        let mut standings = Vec::with_capacity(node.owners().len());
        let mut unseen = false;
        for owner in node.owners() {
            let (standing, seen) = self.standing(node, owner).await?;
            unseen |= !seen && standing == Standing::Solid;
            standings.push((owner.uid.clone(), standing));
        }
        let has_dependents = self.graph.lock().has_dependents(uid);
        match fate(node, &standings, has_dependents) {
            CollectAction::Keep if unseen => return Ok(Outcome::After(UNSEEN_OWNER)),
            CollectAction::Keep => {}
            CollectAction::Unlink(owners) => self.unlink(node, &owners).await?,
            CollectAction::Delete(propagation) => self.delete(node, propagation).await?,
        }
        Ok(Outcome::Done)
    }

    /// How an owner stands, and whether the graph knew it.
    async fn standing(&self, node: &Node, owner: &OwnerReference) -> Result<(Standing, bool), Error> {
        let namespace = node.namespace();
        if let Some(known) = self.graph.lock().get(&owner.uid)
            && known.is_meant_by(owner, namespace)
        {
            return Ok((if known.awaits_dependents() { Standing::Waiting } else { Standing::Solid }, true));
        }
        if self.absent.lock().has(&owner.uid) {
            return Ok((Standing::Dangling, false));
        }
        let kind = (graph::group(&owner.api_version).to_string(), owner.kind.clone());
        let Some(resource) = self.kinds.read().get(&kind).cloned() else {
            // A kind that discovery does not show says nothing about its objects.
            return Ok((Standing::Solid, false));
        };
        let Some(api) = self.api(&resource, namespace) else {
            // A cluster-scoped object cannot have a namespaced owner.
            return Ok((Standing::Dangling, false));
        };
        let live =
            api.get_opt(&owner.name).await.attempting(format!("read owner {} {}", owner.kind, owner.name))?;
        Ok(match live {
            Some(live) if live.metadata.uid.as_ref() == Some(&owner.uid) => {
                let waits = live.metadata.deletion_timestamp.is_some()
                    && live.finalizers().iter().any(|f| f == FOREGROUND);
                (if waits { Standing::Waiting } else { Standing::Solid }, false)
            }
            _ => {
                self.absent.lock().note(&owner.uid);
                (Standing::Dangling, false)
            }
        })
    }

    fn api(&self, resource: &Resource, namespace: Option<&str>) -> Option<Api<Metadata>> {
        match (resource.namespaced, namespace) {
            (false, _) => Some(Api::all_with(self.client.clone(), &resource.api)),
            (true, Some(namespace)) => {
                Some(Api::namespaced_with(self.client.clone(), namespace, &resource.api))
            }
            (true, None) => None,
        }
    }

    fn api_of(&self, node: &Node) -> Api<Metadata> {
        self.api(&node.resource, node.namespace())
            .unwrap_or_else(|| Api::all_with(self.client.clone(), &node.resource.api))
    }

    /// Deletes exactly what was looked at: this object, at this version, with these owners.
    async fn delete(&self, node: &Node, propagation: Propagation) -> Result<(), Error> {
        let mut span = ferry_trace::span("garbage-collector.delete");
        span.object(&node.resource.group_resource(), node.namespace().unwrap_or(""), node.name());
        let params = match propagation {
            Propagation::Background => DeleteParams::background(),
            Propagation::Foreground => DeleteParams::foreground(),
            Propagation::Orphan => DeleteParams::orphan(),
        };
        let exactly = Preconditions {
            uid: node.metadata().uid.clone(),
            resource_version: node.metadata().resource_version.clone(),
        };
        let deleted = span
            .in_scope(undecoded::delete(&self.api_of(node), node.name(), &params.preconditions(exactly)))
            .await;
        // A conflict is a failure too: the next attempt sees the new version, and still names the cause of this one.
        error::ignore_not_found(deleted).attempting(format!("delete {}", node.name())).map(|_| ())
    }

    async fn unlink(&self, node: &Node, owners: &[String]) -> Result<(), Error> {
        let left: Vec<&OwnerReference> =
            node.owners().iter().filter(|owner| !owners.contains(&owner.uid)).collect();
        let patch = json!({"metadata": {
            "uid": node.metadata().uid,
            "resourceVersion": node.metadata().resource_version,
            "ownerReferences": left,
        }});
        self.patch(node, patch, "remove owner references").await
    }

    async fn patch(&self, node: &Node, patch: serde_json::Value, what: &str) -> Result<(), Error> {
        let patched =
            self.api_of(node).patch(node.name(), &PatchParams::default(), &Patch::Merge(patch)).await;
        error::ignore_not_found(patched).attempting(format!("{what} of {}", node.name()))?;
        Ok(())
    }

    /// Foreground: the owner goes once nothing that blocks it is left.
    async fn continue_foreground(&self, uid: &str, node: &Node) -> Result<(), Error> {
        let dependents = self.graph.lock().dependents(uid);
        let blocking: Vec<&Node> = dependents.iter().filter(|dependent| dependent.blocks(uid)).collect();
        if blocking.is_empty() {
            return self.remove_finalizer(node, FOREGROUND).await;
        }
        for dependent in blocking.iter().filter(|dependent| !dependent.is_deleting()) {
            self.queue.add(dependent.metadata().uid.clone().unwrap_or_default());
        }
        // Two that wait for each other would wait for ever.
        if blocking.iter().any(|dependent| dependent.awaits_dependents())
            && node.owners().iter().any(|owner| owner.block_owner_deletion == Some(true))
        {
            let mut owners = node.owners().to_vec();
            owners.iter_mut().for_each(|owner| owner.block_owner_deletion = Some(false));
            let patch = json!({"metadata": {
                "uid": node.metadata().uid,
                "resourceVersion": node.metadata().resource_version,
                "ownerReferences": owners,
            }});
            self.patch(node, patch, "unblock owners").await?;
        }
        Ok(())
    }

    async fn orphan_dependents(&self, uid: &str, node: &Node) -> Result<(), Error> {
        let dependents = self.graph.lock().dependents(uid);
        let owners = [uid.to_owned()];
        let freed = together(dependents.len(), |position| self.unlink(&dependents[position], &owners));
        freed.await.into_iter().collect::<Result<(), Error>>()?;
        self.remove_finalizer(node, ORPHAN).await
    }

    async fn remove_finalizer(&self, node: &Node, finalizer: &str) -> Result<(), Error> {
        let left: Vec<&String> = node.finalizers().iter().filter(|own| *own != finalizer).collect();
        let patch = json!({"metadata": {
            "uid": node.metadata().uid,
            "resourceVersion": node.metadata().resource_version,
            "finalizers": left,
        }});
        self.patch(node, patch, "remove finalizer").await
    }
}

#[cfg(test)]
mod tests {
    use super::Absent;

    #[test]
    fn absent_owners_are_remembered_within_bounds() {
        let mut absent = Absent::default();
        for number in 0..Absent::MOST + 10 {
            absent.note(&number.to_string());
            absent.note(&number.to_string());
        }
        assert!(absent.has("1000") && !absent.has("5"));
        assert_eq!((absent.known.len(), absent.order.len()), (Absent::MOST, Absent::MOST));
    }
}
