//! Every law of `contract` over every engine.

use std::sync::Arc;

use ferry_store::{Embedded, Encrypted, Etcd, embedded, etcd};

use crate::contract::Subject;
use crate::encryption::Everything;
use crate::etcd_server::EtcdServer;

/// A store in a directory of its own, which goes with it.
struct EmbeddedSubject {
    store: Subject,
    _directory: tempfile::TempDir,
}

impl EmbeddedSubject {
    async fn start() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory for the store");
        let store = Embedded::open(embedded::Config::new(directory.path().join("store")));
        Some(EmbeddedSubject { store: Arc::new(store.expect("a new store")), _directory: directory })
    }
}

/// A store in this process' memory.
struct MemorySubject {
    store: Subject,
}

impl MemorySubject {
    async fn start() -> Option<Self> {
        let store = Embedded::in_memory(embedded::Config::new(""));
        Some(MemorySubject { store: Arc::new(store.expect("a new store")) })
    }
}

/// A store in an etcd of its own, which ends with it.
struct EtcdSubject {
    store: Subject,
    _server: EtcdServer,
}

impl EtcdSubject {
    async fn start() -> Option<Self> {
        let server = EtcdServer::start(None, &[]).await?;
        let store = Etcd::connect(etcd::Config::new([&server.endpoint])).await;
        Some(EtcdSubject { store: Arc::new(store.expect("a connection")), _server: server })
    }
}

/// A store whose every value is encrypted.
struct EncryptedSubject {
    store: Subject,
    _below: EmbeddedSubject,
}

impl EncryptedSubject {
    async fn start() -> Option<Self> {
        let below = EmbeddedSubject::start().await?;
        let store = Arc::new(Encrypted::new(below.store.clone(), Arc::new(Everything::with(&["one"]))));
        Some(EncryptedSubject { store, _below: below })
    }
}

macro_rules! laws {
    ($engine:ident: $subject:ident; $($law:ident)*) => {
        mod $engine {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $law() {
                    if let Some(subject) = super::$subject::start().await {
                        crate::contract::$law(subject.store.clone()).await;
                    }
                }
            )*
        }
    };
}

macro_rules! store_contract {
    ($($engine:ident: $subject:ident)*) => { $(
        laws! { $engine: $subject;
            a_new_key_begins_at_version_one
            each_put_counts_and_keeps_the_create_revision
            a_key_deleted_and_created_again_begins_anew
            deleting_an_absent_key_changes_nothing
            a_conflict_tells_what_is_there
            of_many_writers_with_one_expectation_exactly_one_wins
            a_transaction_is_one_revision_and_all_or_nothing
            a_key_written_twice_in_a_transaction_is_refused
            a_range_is_ordered_and_ends_with_its_prefix
            the_past_can_be_read_as_it_was
            the_future_cannot_be_read
            pages_of_one_list_are_of_one_revision
            what_was_compacted_is_gone_and_the_rest_stays
            a_watch_tells_creation_change_and_deletion
            a_transaction_arrives_in_one_batch
            a_watch_misses_nothing_and_repeats_nothing
            a_watch_may_begin_in_the_future
            a_quiet_watch_learns_how_far_the_store_is
            a_key_with_a_time_to_live_deletes_itself
            large_values_come_back_whole
            what_is_acknowledged_is_read_by_everyone
            many_watches_share_one_store
        }
    )* };
}

store_contract! {
    on_embedded: EmbeddedSubject
    in_memory: MemorySubject
    on_etcd: EtcdSubject
    encrypted: EncryptedSubject
}
