//! `/healthz`, `/livez` and `/readyz` tell the truth about the store.

use ferry_testkit::TestServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_store_takes_no_writes_is_neither_ready_nor_alive() {
    let server = TestServer::start().await;
    for path in ["/healthz", "/livez", "/readyz", "/readyz/etcd", "/livez/etcd", "/readyz/etcd-readiness"] {
        assert_eq!(server.get(path).await.code, 200, "{path}");
    }
    let verbose = server.get("/healthz?verbose").await;
    let verbose = String::from_utf8_lossy(&verbose.bytes).into_owned();
    assert!(verbose.contains("[+]etcd ok\n"), "{verbose}");

    server.running().api.registry.store.close().await.unwrap();
    for path in ["/healthz", "/livez", "/readyz", "/readyz/etcd", "/livez/etcd", "/readyz/etcd-readiness"] {
        assert_eq!(server.get(path).await.code, 500, "{path}");
    }
    let failed = server.get("/livez").await;
    let failed = String::from_utf8_lossy(&failed.bytes).into_owned();
    assert!(failed.contains("[-]etcd failed: reason withheld\n"), "{failed}");
    for path in ["/livez/ping", "/livez?exclude=etcd", "/readyz?exclude=etcd&exclude=etcd-readiness"] {
        assert_eq!(server.get(path).await.code, 200, "{path}");
    }
}
