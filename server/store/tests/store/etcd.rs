//! What the engine over etcd promises beyond the contract: it lives through the loss of its
//! server, speaks TLS, and shares the cluster with others.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferry_store::etcd::{Config, Tls};
use ferry_store::{Error, Etcd, Txn};
use futures::StreamExt;

use crate::contract::{Subject, create, delete, events, put};
use crate::etcd_server::{EtcdServer, ServerTls};

async fn connect(server: &EtcdServer) -> Subject {
    Arc::new(Etcd::connect(Config::new([&server.endpoint])).await.expect("a connection"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_after_its_server_was_killed() {
    let Some(mut server) = EtcdServer::start(None, &[]).await else { return };
    let store = connect(&server).await;
    let from = store.current_revision().await.unwrap().next();
    let mut watch = store.watch("/w/", from).await.unwrap();
    let first = create(&store, "/w/before", "").await.revision;
    assert_eq!(events(&mut watch, 1).await[0].kv.mod_revision, first);

    server.kill();
    let lost = store.commit(Txn::create("/w/lost", Bytes::new())).await;
    assert!(matches!(lost, Err(Error::Unavailable { .. })), "{lost:?}");
    server.restart().await;

    // The connection heals on its own; until then requests fail and say so.
    let second = loop {
        match store.commit(Txn::create("/w/after", Bytes::new())).await {
            Ok(committed) => break committed.revision,
            Err(Error::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(other) => panic!("{other}"),
        }
    };
    let third = delete(&store, "/w/before").await.revision;
    let seen: Vec<_> = events(&mut watch, 2).await.iter().map(|event| event.kv.mod_revision).collect();
    assert_eq!(seen, [second, third]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_dead_endpoint_of_two_does_no_harm() {
    let Some(server) = EtcdServer::start(None, &[]).await else { return };
    let Some(mut dead) = EtcdServer::start(None, &[]).await else { return };
    dead.kill();
    let config = Config::new([&dead.endpoint, &server.endpoint]);
    let store: Subject = Arc::new(Etcd::connect(config).await.expect("a connection"));
    for at in 0..20 {
        create(&store, &format!("/k/{at}"), "").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_etcd_refuses_puts_with_no_space() {
    let Some(server) = EtcdServer::start(None, &["--quota-backend-bytes=2000000"]).await else { return };
    let store = connect(&server).await;
    let value = Bytes::from(vec![7; 200 << 10]);
    let mut refused = None;
    for at in 0..100 {
        if let Err(error) = store.commit(Txn::create(format!("/k/{at}"), value.clone())).await {
            refused = Some(error);
            break;
        }
    }
    assert!(matches!(refused, Some(Error::NoSpace { .. })), "{refused:?}");
    assert_eq!(store.get("/k/0", None).await.unwrap().kv.unwrap().value, value);
    assert_eq!(delete(&store, "/k/0").await.deleted, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_mutual() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let write = |name: &str, text: String| std::fs::write(path(name), text).unwrap();
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new(vec![]).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    write("ca.crt", ca.self_signed(&ca_key).unwrap().pem());
    let issuer = rcgen::Issuer::new(ca, ca_key);
    for name in ["server", "client"] {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        write(&format!("{name}.crt"), params.signed_by(&key, &issuer).unwrap().pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
    let tls = ServerTls { ca: path("ca.crt"), certificate: path("server.crt"), key: path("server.key") };
    let Some(server) = EtcdServer::start(Some(&tls), &[]).await else { return };

    let mut config = Config::new([&server.endpoint]);
    config.timeout = Duration::from_secs(3);
    config.tls.ca = Some(path("ca.crt"));
    let stranger = Etcd::connect(config.clone()).await;
    assert!(matches!(stranger, Err(Error::Unavailable { .. })));
    config.tls = Tls { identity: Some((path("client.crt"), path("client.key"))), ..config.tls };
    let store: Subject = Arc::new(Etcd::connect(config).await.expect("a connection"));
    let revision = create(&store, "/a", "1").await.revision;
    let mut watch = store.watch("/", revision).await.unwrap();
    assert_eq!(events(&mut watch, 1).await[0].kv.mod_revision, revision);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_compacted_in_turn_with_other_servers() {
    let Some(server) = EtcdServer::start(None, &[]).await else { return };
    let mut config = Config::new([&server.endpoint]);
    config.compaction = Some(Duration::from_millis(100));
    let stores: Vec<Subject> = vec![
        Arc::new(Etcd::connect(config.clone()).await.unwrap()),
        Arc::new(Etcd::connect(config).await.unwrap()),
    ];
    let old = create(&stores[0], "/a", "1").await.revision;
    put(&stores[0], "/a", "2").await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while stores[0].get("/a", Some(old)).await.is_ok() {
        assert!(tokio::time::Instant::now() < deadline, "nothing was compacted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let gone = stores[1].get("/a", Some(old)).await;
    assert!(matches!(gone, Err(Error::Compacted { .. })), "{gone:?}");
    assert!(stores[1].get("/a", None).await.unwrap().kv.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_watches_and_refuses_further_use() {
    let Some(server) = EtcdServer::start(None, &[]).await else { return };
    let store = connect(&server).await;
    let mut watch = store.watch("/", store.current_revision().await.unwrap().next()).await.unwrap();
    store.close().await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(10), watch.next()).await.unwrap();
    assert!(matches!(end, Some(Err(Error::Unavailable { .. }))), "{end:?}");
    assert!(store.get("/a", None).await.is_err());
}

/// A snapshot of etcd is etcd's own file, with etcd's own hash at its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_what_etcd_restores_from() {
    use sha2::{Digest, Sha256};
    let Some(server) = EtcdServer::start(None, &[]).await else { return };
    let store = connect(&server).await;
    create(&store, "/a", "in the snapshot").await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("etcd.db");
    let size = ferry_store::snapshot::save(&*store, &file).await.unwrap();
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes.len() as u64, size);
    let (database, hash) = bytes.split_at(bytes.len() - 32);
    assert_eq!(Sha256::digest(database)[..], *hash);
}
