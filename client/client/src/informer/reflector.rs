//! Keeps a store equal to the server's state: list, watch, resume, and list again when the server no longer has the missed
//! events.
//!
//! ```text
//!   List ──ok──▶ Watch ──ends, connection lost──▶ Watch (from the last revision)
//!    ▲ ▲ │          │
//!    │ └─┘ failed   └── 410: the revision is gone; or an event that cannot be decoded
//!    └──────────────────────┘
//! ```
//!
//! The loop is independent of the kind and compiled once; [`ReflectorStore`] hides the differences.

use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncBufReadExt, pin_mut};
use kube::Client;
use kube::api::{ListParams, VersionMatch, WatchEvent, WatchParams};
use kube::core::Request;
use rand::RngExt;
use tokio_util::sync::CancellationToken;

use super::{Informer, Object, Selection, decode};
use crate::error;
use crate::queue::Backoff;

/// What is followed: objects of a kind, at a URL.
pub(super) struct Source {
    pub client: Client,
    pub url: String,
    pub selection: Selection,
}

/// The store of an informer, independent of its kind.
pub(super) trait ReflectorStore: Send + Sync {
    /// Takes a list for everything there is.
    fn replace(&self, list: String) -> Result<(), kube::Error>;

    /// Takes one line of a watch.
    fn hear(&self, line: &mut Vec<u8>) -> Result<(), kube::Error>;

    /// Up to which revision everything was taken.
    fn resource_version(&self) -> String;

    fn mark_synced(&self);
}

impl<K: Object> ReflectorStore for Informer<K> {
    fn replace(&self, list: String) -> Result<(), kube::Error> {
        let (metadata, mut items) = decode::list(list, self.projection()).map_err(kube::Error::SerdeError)?;
        items.iter_mut().for_each(|object| self.transform(object));
        let resource_version = revision_of(&metadata)?;
        self.change(|store| store.replace(items, &resource_version));
        Ok(())
    }

    fn hear(&self, line: &mut Vec<u8>) -> Result<(), kube::Error> {
        apply(self, decode::event(line, self.projection()).map_err(kube::Error::SerdeError)?)
    }

    fn resource_version(&self) -> String {
        self.shared.store.read().resource_version().to_owned()
    }

    fn mark_synced(&self) {
        self.shared.synced.send_replace(true);
    }
}

/// Runs until stopped. Errors are logged and retried: the server may be restarting.
pub(super) async fn run(source: Source, informer: Arc<dyn ReflectorStore>, stop: CancellationToken) {
    // Reads are not part of anyone's story; what they deliver is.
    let span = ferry_trace::span("informer").unsampled();
    let follow = span.instrument(follow(&source, &*informer));
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow => {}
    }
}

/// How the next list is asked for.
#[derive(Clone, Copy)]
enum Freshness {
    /// Whatever the server has at hand: cheap, and the watch brings the rest.
    Any,
    /// The latest. After an expired revision an older list could expire again at once.
    Latest,
}

async fn follow(source: &Source, informer: &dyn ReflectorStore) {
    let mut failures = Failures::default();
    let mut freshness = Freshness::Any;
    loop {
        match list(source, informer, freshness).await {
            Ok(()) => failures.reset(),
            Err(error) => {
                failures.wait("list", &source.url, &error).await;
                continue;
            }
        }
        informer.mark_synced();
        loop {
            match watch(source, informer, &mut failures).await {
                Ok(WatchEnd::AfterEvents) => {}
                // A server that closes at once and says nothing must not be asked in a tight loop.
                Ok(WatchEnd::WithoutEvents) => failures.pause().await,
                Err(error) if error::is_gone(&error) => {
                    tracing::debug!(url = source.url, "revision expired; listing again");
                    break;
                }
                // From the same revision it would come again and again: an object that one client wrote
                // must not keep all others from being seen.
                Err(error) if error::is_unreadable(&error) => {
                    tracing::debug!(url = source.url, "event cannot be read; listing again");
                    break;
                }
                Err(error) => failures.wait("watch", &source.url, &error).await,
            }
        }
        freshness = Freshness::Latest;
    }
}

async fn list(
    source: &Source,
    informer: &dyn ReflectorStore,
    freshness: Freshness,
) -> Result<(), kube::Error> {
    let mut params = ListParams {
        label_selector: source.selection.labels.clone(),
        field_selector: source.selection.fields.clone(),
        ..Default::default()
    };
    if let Freshness::Any = freshness {
        params = params.at("0").matching(VersionMatch::NotOlderThan);
    }
    let request = Request::new(&source.url).list(&params).map_err(kube::Error::BuildRequest)?;
    informer.replace(source.client.request_text(request).await?)
}

/// A watch that began nowhere would miss what happened since the list: such a list is none.
fn revision_of(list: &kube::core::ListMeta) -> Result<String, kube::Error> {
    let revision = list.resource_version.clone().filter(|revision| !revision.is_empty());
    revision.ok_or_else(|| kube::Error::Service("the server's list names no revision".into()))
}

enum WatchEnd {
    AfterEvents,
    WithoutEvents,
}

/// One watch, until its regular end.
async fn watch(
    source: &Source,
    informer: &dyn ReflectorStore,
    failures: &mut Failures,
) -> Result<WatchEnd, kube::Error> {
    // The server ends a watch after a while, so that load spreads over servers; a random part
    // keeps all watches of a process from ending together.
    let params = WatchParams {
        label_selector: source.selection.labels.clone(),
        field_selector: source.selection.fields.clone(),
        timeout: Some(rand::rng().random_range(210..290)),
        bookmarks: true,
        ..Default::default()
    };
    let from = informer.resource_version();
    let request = Request::new(&source.url).watch(&params, &from).map_err(kube::Error::BuildRequest)?;
    let lines = source.client.request_stream(request).await?;
    pin_mut!(lines);
    let mut heard = WatchEnd::WithoutEvents;
    let mut line = Vec::new();
    loop {
        line.clear();
        lines.read_until(b'\n', &mut line).await.map_err(kube::Error::ReadEvents)?;
        // a line without its end is what was under way when the connection was lost
        if line.last() != Some(&b'\n') {
            return Ok(heard);
        }
        informer.hear(&mut line)?;
        heard = WatchEnd::AfterEvents;
        failures.reset();
    }
}

fn apply<K: Object>(informer: &Informer<K>, event: WatchEvent<K>) -> Result<(), kube::Error> {
    let version = |object: &K| object.meta().resource_version.clone().unwrap_or_default();
    match event {
        WatchEvent::Added(mut object) | WatchEvent::Modified(mut object) => {
            informer.transform(&mut object);
            informer.change(|store| {
                store.advance(&version(&object));
                store.put(object)
            });
        }
        WatchEvent::Deleted(mut object) => {
            informer.transform(&mut object);
            informer.change(|store| {
                store.advance(&version(&object));
                store.delete(object)
            });
        }
        WatchEvent::Bookmark(bookmark) => informer.change(|store| {
            store.advance(&bookmark.metadata.resource_version);
            Vec::new()
        }),
        WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
    }
    Ok(())
}

/// How often in a row the server could not be asked.
#[derive(Default)]
struct Failures(u32);

impl Failures {
    const BACKOFF: Backoff = Backoff { base: Duration::from_millis(200), max: Duration::from_secs(30) };

    fn reset(&mut self) {
        self.0 = 0;
    }

    async fn wait(&mut self, attempt: &'static str, url: &str, error: &kube::Error) {
        // The first failure is what an operator needs; the rest says the same.
        if self.0 == 0 {
            tracing::warn!(url, error = error::message(error), "{attempt} failed; trying again");
        }
        self.pause().await;
    }

    async fn pause(&mut self) {
        let jitter = rand::rng().random_range(0.5..1.0);
        let delay = Self::BACKOFF.delay(self.0).mul_f64(jitter);
        self.0 = self.0.saturating_add(1);
        tokio::time::sleep(delay).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::ConfigMap;
    use parking_lot::Mutex;
    use tokio_util::sync::CancellationToken;

    use crate::test_server::{TestServer, until};
    use crate::{Informer, Informers};

    /// An informer that logs what it tells, on a server that keeps history.
    struct Follower {
        informer: Informer<ConfigMap>,
        told: Arc<Mutex<Vec<String>>>,
        shutdown: CancellationToken,
        informers: Informers,
    }

    impl Follower {
        fn of(server: &TestServer) -> Self {
            let shutdown = CancellationToken::new();
            let informers = Informers::new(server.client(), shutdown.clone());
            let informer = informers.of::<ConfigMap>();
            let told: Arc<Mutex<Vec<String>>> = Arc::default();
            let log = told.clone();
            informer.handle(move |event| log.lock().push(event.to_string()));
            Follower { informer, told, shutdown, informers }
        }

        /// Waits, on a paused clock, until the store is as new as the server.
        async fn caught_up(&self, server: &TestServer) {
            let target = server.revision();
            let wait = async {
                while self.informer.revision() < Some(target) || !self.informer.has_synced() {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(std::time::Duration::from_secs(600), wait)
                .await
                .expect("informer catches up");
        }

        fn told(&self) -> Vec<String> {
            std::mem::take(&mut self.told.lock())
        }

        async fn stop(self) {
            self.shutdown.cancel();
            self.informers.stopped().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lists_then_follows_in_order() {
        let server = TestServer::new();
        server.put("a");
        server.put("b");
        let follower = Follower::of(&server);
        follower.informer.synced().await;
        assert_eq!(follower.told(), ["added default/a at 1", "added default/b at 2"]);
        server.put("a");
        server.delete("b");
        server.put("c");
        follower.caught_up(&server).await;
        assert_eq!(
            follower.told(),
            ["modified default/a at 3", "deleted default/b at 4", "added default/c at 5"]
        );
        assert_eq!(server.lists(), 1);
        follower.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_connection_is_resumed_without_a_new_list() {
        let server = TestServer::new();
        server.put("a");
        let follower = Follower::of(&server);
        follower.informer.synced().await;
        server.disconnect();
        server.put("a");
        server.delete("a");
        server.put("b");
        follower.caught_up(&server).await;
        assert_eq!(
            follower.told(),
            [
                "added default/a at 1",
                "modified default/a at 2",
                "deleted default/a at 3",
                "added default/b at 4"
            ]
        );
        assert_eq!(server.lists(), 1);
        follower.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_revision_leads_to_a_list_that_tells_the_difference() {
        let server = TestServer::new();
        server.put("a");
        server.put("b");
        let follower = Follower::of(&server);
        follower.informer.synced().await;
        follower.told();
        server.disconnect();
        server.delete("a");
        server.put("b");
        server.put("c");
        server.compact();
        follower.caught_up(&server).await;
        assert_eq!(
            follower.told(),
            ["deleted default/a at 0", "modified default/b at 4", "added default/c at 5"]
        );
        assert_eq!(server.lists(), 2);
        follower.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_fails_is_no_empty_cluster() {
        let server = TestServer::new();
        server.put("a");
        let follower = Follower::of(&server);
        follower.informer.synced().await;
        follower.told();
        server.fail(true);
        server.disconnect();
        server.compact();
        tokio::time::sleep(std::time::Duration::from_secs(120)).await;
        assert!(follower.told().is_empty());
        assert_eq!(follower.informer.len(), 1);
        server.fail(false);
        server.put("b");
        follower.caught_up(&server).await;
        assert_eq!(follower.told(), ["added default/b at 2"]);
        follower.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_not_there_yet_is_waited_for() {
        let server = TestServer::new();
        server.put("a");
        server.fail(true);
        let follower = Follower::of(&server);
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        assert!(!follower.informer.has_synced());
        server.fail(false);
        follower.informer.synced().await;
        assert_eq!(follower.told(), ["added default/a at 1"]);
        follower.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn bookmarks_move_the_place_to_resume_from() {
        let server = TestServer::new();
        server.put("a");
        let follower = Follower::of(&server);
        follower.informer.synced().await;
        server.pass_revisions(100);
        server.bookmark();
        follower.caught_up(&server).await;
        server.disconnect();
        server.compact();
        server.put("b");
        follower.caught_up(&server).await;
        assert_eq!(server.lists(), 1, "the bookmark was newer than what was compacted");
        follower.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_cannot_be_read_hides_no_other() {
        let server = TestServer::new();
        server.put("a");
        let follower = Follower::of(&server);
        follower.informer.synced().await;
        server.put_unreadable("b");
        server.put("c");
        follower.caught_up(&server).await;
        server.put("d");
        follower.caught_up(&server).await;
        assert_eq!(follower.told(), ["added default/a at 1", "added default/c at 3", "added default/d at 4"]);
        assert_eq!(server.lists(), 2, "one more, because of the event");
        follower.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_server_is_asked_ever_less_often() {
        let server = TestServer::new();
        server.fail(true);
        let follower = Follower::of(&server);
        tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
        let asked = server.requests();
        assert!((100..300).contains(&asked), "asked {asked} times in an hour");
        follower.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn informers_without_readers_keep_no_objects() {
        let server = TestServer::new();
        server.put("a");
        let shutdown = CancellationToken::new();
        let informers = Informers::new(server.client(), shutdown.clone());
        informers.transform::<ConfigMap>(|map| map.metadata.uid = None);
        let informer = informers.of::<ConfigMap>();
        informer.synced().await;
        server.put("b");
        until(|| informer.len() == 2).await;
        assert!(informer.list().iter().all(|map| map.metadata.uid.is_none()), "listed and watched");
        shutdown.cancel();
        informers.stopped().await;
    }

    #[tokio::test(start_paused = true)]
    async fn one_kind_is_listed_once_however_many_ask() {
        let server = TestServer::new();
        let shutdown = CancellationToken::new();
        let informers = Informers::new(server.client(), shutdown.clone());
        let first = informers.of::<ConfigMap>();
        let second = informers.clone().of::<ConfigMap>();
        first.synced().await;
        second.synced().await;
        assert_eq!(server.lists(), 1);
        shutdown.cancel();
        informers.stopped().await;
    }
}
