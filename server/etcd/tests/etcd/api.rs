//! Ranges, puts, deletions, transactions, compactions and what is asked about the server itself.

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse,
};

use crate::server::Server;

async fn put(client: &mut Client, key: &str, value: &str) -> i64 {
    let response = client.put(key, value, None).await.expect("a put");
    response.header().expect("a header").revision()
}

async fn keys(client: &mut Client, key: &str, options: GetOptions) -> Vec<String> {
    let response = client.get(key, Some(options)).await.expect("a range");
    response.kvs().iter().map(|kv| kv.key_str().expect("text").to_owned()).collect()
}

fn words<T>(result: Result<T, etcd_client::Error>) -> String {
    match result {
        Ok(_) => "no error".into(),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_is_sorted_filtered_limited_and_counted() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    for (key, value) in [("/b", "1"), ("/a", "3"), ("/c", "2")] {
        put(client, key, value).await;
    }
    put(client, "/a", "0").await;
    let all = || GetOptions::new().with_prefix();
    assert_eq!(keys(client, "/", all()).await, ["/a", "/b", "/c"]);
    let sorted = |target, order| all().with_sort(target, order);
    assert_eq!(keys(client, "/", sorted(SortTarget::Key, SortOrder::Descend)).await, ["/c", "/b", "/a"]);
    assert_eq!(keys(client, "/", sorted(SortTarget::Create, SortOrder::Ascend)).await, ["/b", "/a", "/c"]);
    assert_eq!(keys(client, "/", sorted(SortTarget::Mod, SortOrder::Ascend)).await, ["/b", "/c", "/a"]);
    assert_eq!(keys(client, "/", sorted(SortTarget::Value, SortOrder::Ascend)).await, ["/a", "/b", "/c"]);
    assert_eq!(
        keys(client, "/", sorted(SortTarget::Version, SortOrder::Descend).with_limit(1)).await,
        ["/a"]
    );
    assert_eq!(keys(client, "/", all().with_min_mod_revision(4)).await, ["/a", "/c"]);
    assert_eq!(keys(client, "/", all().with_max_create_revision(3)).await, ["/a", "/b"]);
    assert_eq!(keys(client, "/b", GetOptions::new().with_range("/c")).await, ["/b"]);
    assert_eq!(keys(client, "/b", GetOptions::new().with_from_key()).await, ["/b", "/c"]);
    assert_eq!(keys(client, "/", all().with_revision(3)).await, ["/a", "/b"]);

    let page = client.get("/", Some(all().with_limit(2))).await.unwrap();
    assert_eq!((page.kvs().len(), page.more(), page.count()), (2, true, 3));
    let count = client.get("/", Some(all().with_count_only())).await.unwrap();
    assert_eq!((count.kvs().len(), count.more(), count.count()), (0, false, 3));
    let bare = client.get("/a", Some(GetOptions::new().with_keys_only())).await.unwrap();
    assert_eq!((bare.kvs()[0].value(), bare.kvs()[0].version()), (&b""[..], 2));
    assert!(words(client.get("", None).await).contains("etcdserver: key is not provided"));
    let future = client.get("/a", Some(GetOptions::new().with_revision(99))).await;
    assert!(words(future).contains("etcdserver: mvcc: required revision is a future revision"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_tells_and_keeps_what_was_there() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    put(client, "/a", "1").await;
    let previous = client.put("/a", "2", Some(PutOptions::new().with_prev_key())).await.unwrap();
    assert_eq!(previous.prev_key().unwrap().value(), b"1");
    let lease = client.lease_grant(600, None).await.unwrap().id();
    client.put("/a", "", Some(PutOptions::new().with_ignore_value().with_lease(lease))).await.unwrap();
    client.put("/a", "3", Some(PutOptions::new().with_ignore_lease())).await.unwrap();
    let found = client.get("/a", None).await.unwrap();
    assert_eq!(
        (found.kvs()[0].value(), found.kvs()[0].lease(), found.kvs()[0].version()),
        (&b"3"[..], lease, 4)
    );
    let absent = client.put("/b", "", Some(PutOptions::new().with_ignore_value())).await;
    assert!(words(absent).contains("etcdserver: key not found"));
    let both = client.put("/a", "x", Some(PutOptions::new().with_ignore_value())).await;
    assert!(words(both).contains("etcdserver: value is provided"));
    let unknown = client.put("/a", "x", Some(PutOptions::new().with_lease(7))).await;
    assert!(words(unknown).contains("etcdserver: requested lease not found"));
    let large = client.put("/a", vec![0; 2_000_000], None).await;
    assert!(words(large).contains("request is too large"));
    assert!(words(client.put(vec![0xff], "", None).await).contains("a key must be valid UTF-8"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_is_deleted_at_one_revision() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    for at in 0..200 {
        put(client, &format!("/a/{at:03}"), "").await;
    }
    put(client, "/b", "").await;
    let options = DeleteOptions::new().with_prefix().with_prev_key();
    let deleted = client.delete("/a/", Some(options.clone())).await.unwrap();
    assert_eq!((deleted.deleted(), deleted.prev_kvs().len()), (200, 200));
    assert_eq!(deleted.header().unwrap().revision(), 203);
    let again = client.delete("/a/", Some(options)).await.unwrap();
    assert_eq!((again.deleted(), again.header().unwrap().revision()), (0, 203));
    assert_eq!(keys(client, "\0", GetOptions::new().with_from_key()).await, ["/b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_compares_branches_and_nests() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    put(client, "/a", "1").await;
    put(client, "/a", "2").await;
    let lease = client.lease_grant(600, None).await.unwrap().id();
    client.put("/l", "", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    use CompareOp::{Equal, Greater, Less, NotEqual};
    let cases = [
        (Compare::value("/a", Equal, "2"), true),
        (Compare::value("/a", Greater, "1"), true),
        (Compare::value("/a", Less, "2"), false),
        (Compare::value("/absent", Equal, ""), false),
        (Compare::version("/a", Equal, 2), true),
        (Compare::version("/absent", Equal, 0), true),
        (Compare::create_revision("/a", Equal, 2), true),
        (Compare::mod_revision("/a", NotEqual, 3), false),
        (Compare::mod_revision("/absent", Equal, 0), true),
        (Compare::lease("/l", Equal, lease), true),
        (Compare::lease("/a", Equal, 0), true),
        (Compare::version("/", Greater, 0).with_prefix(), true),
        (Compare::version("/", Greater, 1).with_prefix(), false),
    ];
    for (compare, expected) in cases {
        let answer = client.txn(Txn::new().when([compare.clone()])).await.unwrap();
        assert_eq!(answer.succeeded(), expected, "{compare:?}");
    }

    let inner = Txn::new()
        .when([Compare::value("/new", Equal, "x")])
        .and_then([TxnOp::put("/inner", "then", None)])
        .or_else([TxnOp::put("/inner", "else", None)]);
    let outer = Txn::new().when([Compare::version("/new", Equal, 0)]).and_then([
        TxnOp::put("/new", "x", None),
        TxnOp::get("/new", None),
        TxnOp::txn(inner),
        TxnOp::delete("/a", None),
    ]);
    let answer = client.txn(outer).await.unwrap();
    let revision = answer.header().unwrap().revision();
    assert!(answer.succeeded());
    let responses = answer.op_responses();
    match &responses[..] {
        [
            TxnOpResponse::Put(put),
            TxnOpResponse::Get(get),
            TxnOpResponse::Txn(txn),
            TxnOpResponse::Delete(delete),
        ] => {
            assert_eq!(put.header().unwrap().revision(), revision);
            assert_eq!((get.kvs()[0].value(), get.kvs()[0].mod_revision()), (&b"x"[..], revision));
            assert!(txn.succeeded(), "a transaction sees what it has written");
            assert_eq!(delete.deleted(), 1);
        }
        other => panic!("not the answers expected: {other:?}"),
    }
    assert_eq!(keys(client, "/", GetOptions::new().with_prefix()).await, ["/inner", "/l", "/new"]);

    let twice = Txn::new().and_then([TxnOp::put("/t", "1", None), TxnOp::put("/t", "2", None)]);
    assert!(words(client.txn(twice).await).contains("duplicate key given in txn request"));
    let many: Vec<_> = (0..129).map(|at| TxnOp::put(format!("/m/{at}"), "", None)).collect();
    assert!(
        words(client.txn(Txn::new().and_then(many)).await).contains("too many operations in txn request")
    );
    let half = Txn::new().and_then([
        TxnOp::put("/half", "", None),
        TxnOp::put("/other", "", Some(PutOptions::new().with_lease(7))),
    ]);
    assert!(words(client.txn(half).await).contains("requested lease not found"));
    assert_eq!(client.get("/half", None).await.unwrap().count(), 0, "all of it or nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_compacted_is_gone_and_the_rest_stays() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let first = put(client, "/a", "1").await;
    let second = put(client, "/a", "2").await;
    client.compact(second, None).await.unwrap();
    let gone = client.get("/a", Some(GetOptions::new().with_revision(first))).await;
    assert!(words(gone).contains("etcdserver: mvcc: required revision has been compacted"));
    let there = client.get("/a", Some(GetOptions::new().with_revision(second))).await.unwrap();
    assert_eq!(there.kvs()[0].value(), b"2");
    assert!(words(client.compact(second, None).await).contains("has been compacted"));
    assert!(words(client.compact(second + 9, None).await).contains("future revision"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_tells_about_itself() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    put(client, "/a", "1").await;
    let status = client.status().await.unwrap();
    let members = client.member_list().await.unwrap();
    assert_eq!((status.version(), members.members().len()), (ferry_etcd::VERSION, 1));
    assert_eq!(status.leader(), members.members()[0].id());
    assert_ne!(members.header().unwrap().cluster_id(), 0);
    let hash = client.hash_kv(0).await.unwrap().hash();
    put(client, "/a", "2").await;
    assert_ne!(client.hash_kv(0).await.unwrap().hash(), hash);
    assert!(client.defragment().await.is_ok());
    assert!(words(client.auth_enable().await).contains("authentication is not enabled"));
    let added = client.member_add(["http://127.0.0.1:1"], None).await;
    assert!(words(added).contains("one member"));
}
