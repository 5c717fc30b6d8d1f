//! Ranges, puts, deletions, transactions, compactions and what is asked about the server itself.

use ferry_etcd_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use ferry_etcd_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use ferry_etcd_api::etcdserverpb::request_op::Request;
use ferry_etcd_api::etcdserverpb::response_op::Response;
use ferry_etcd_api::etcdserverpb::{
    AuthEnableRequest, Compare, DefragmentRequest, DeleteRangeRequest, HashKvRequest, MemberAddRequest,
    MemberListRequest, PutRequest, RangeRequest, StatusRequest, TxnRequest,
};
use tonic::Status;

use crate::client::{Client, always, delete, get, get_prefix, operations, prefix_end, put};
use crate::server::Server;

async fn keys(client: &mut Client, request: RangeRequest) -> Vec<String> {
    let response = client.range(request).await.expect("a range");
    response.kvs.iter().map(|kv| String::from_utf8(kv.key.to_vec()).expect("text")).collect()
}

fn words<T>(result: Result<T, Status>) -> String {
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
        client.put_value(key, value).await;
    }
    client.put_value("/a", "0").await;
    let all = || get_prefix("/");
    assert_eq!(keys(client, all()).await, ["/a", "/b", "/c"]);
    let sorted = |target: SortTarget, order: SortOrder| RangeRequest {
        sort_target: target as i32,
        sort_order: order as i32,
        ..all()
    };
    assert_eq!(keys(client, sorted(SortTarget::Key, SortOrder::Descend)).await, ["/c", "/b", "/a"]);
    assert_eq!(keys(client, sorted(SortTarget::Create, SortOrder::Ascend)).await, ["/b", "/a", "/c"]);
    assert_eq!(keys(client, sorted(SortTarget::Mod, SortOrder::Ascend)).await, ["/b", "/c", "/a"]);
    assert_eq!(keys(client, sorted(SortTarget::Value, SortOrder::Ascend)).await, ["/a", "/b", "/c"]);
    let newest = RangeRequest { limit: 1, ..sorted(SortTarget::Version, SortOrder::Descend) };
    assert_eq!(keys(client, newest).await, ["/a"]);
    assert_eq!(keys(client, RangeRequest { min_mod_revision: 4, ..all() }).await, ["/a", "/c"]);
    assert_eq!(keys(client, RangeRequest { max_create_revision: 3, ..all() }).await, ["/a", "/b"]);
    assert_eq!(keys(client, RangeRequest { range_end: "/c".into(), ..get("/b") }).await, ["/b"]);
    assert_eq!(keys(client, RangeRequest { range_end: "\0".into(), ..get("/b") }).await, ["/b", "/c"]);
    assert_eq!(keys(client, RangeRequest { revision: 3, ..all() }).await, ["/a", "/b"]);

    let page = client.range(RangeRequest { limit: 2, ..all() }).await.unwrap();
    assert_eq!((page.kvs.len(), page.more, page.count), (2, true, 3));
    let count = client.range(RangeRequest { count_only: true, ..all() }).await.unwrap();
    assert_eq!((count.kvs.len(), count.more, count.count), (0, false, 3));
    let bare = client.range(RangeRequest { keys_only: true, ..get("/a") }).await.unwrap();
    assert_eq!((&bare.kvs[0].value[..], bare.kvs[0].version), (&b""[..], 2));
    assert!(words(client.range(get("")).await).contains("etcdserver: key is not provided"));
    let future = client.range(RangeRequest { revision: 99, ..get("/a") }).await;
    assert!(words(future).contains("etcdserver: mvcc: required revision is a future revision"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_tells_and_keeps_what_was_there() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    client.put_value("/a", "1").await;
    let previous = client.put(PutRequest { prev_kv: true, ..put("/a", "2") }).await.unwrap();
    assert_eq!(&previous.prev_kv.unwrap().value[..], b"1");
    let lease = client.lease_grant(600).await;
    client.put(PutRequest { ignore_value: true, lease, ..put("/a", "") }).await.unwrap();
    client.put(PutRequest { ignore_lease: true, ..put("/a", "3") }).await.unwrap();
    let found = client.range(get("/a")).await.unwrap();
    assert_eq!((&found.kvs[0].value[..], found.kvs[0].lease, found.kvs[0].version), (&b"3"[..], lease, 4));
    let absent = client.put(PutRequest { ignore_value: true, ..put("/b", "") }).await;
    assert!(words(absent).contains("etcdserver: key not found"));
    let both = client.put(PutRequest { ignore_value: true, ..put("/a", "x") }).await;
    assert!(words(both).contains("etcdserver: value is provided"));
    let unknown = client.put(PutRequest { lease: 7, ..put("/a", "x") }).await;
    assert!(words(unknown).contains("etcdserver: requested lease not found"));
    let large = client.put(PutRequest { value: vec![0; 2_000_000].into(), ..put("/a", "") }).await;
    assert!(words(large).contains("request is too large"));
    let binary = client.put(PutRequest { key: vec![0xff].into(), ..put("", "") }).await;
    assert!(words(binary).contains("a key must be valid UTF-8"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_is_deleted_at_one_revision() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    for at in 0..200 {
        client.put_value(&format!("/a/{at:03}"), "").await;
    }
    client.put_value("/b", "").await;
    let request = DeleteRangeRequest { range_end: prefix_end("/a/").into(), prev_kv: true, ..delete("/a/") };
    let deleted = client.delete(request.clone()).await.unwrap();
    assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (200, 200));
    assert_eq!(deleted.header.unwrap().revision, 203);
    let again = client.delete(request).await.unwrap();
    assert_eq!((again.deleted, again.header.unwrap().revision), (0, 203));
    assert_eq!(keys(client, RangeRequest { range_end: "\0".into(), ..get("\0") }).await, ["/b"]);
}

fn compare(key: &str, result: CompareResult, expected: TargetUnion) -> Compare {
    let target = match expected {
        TargetUnion::Version(_) => CompareTarget::Version,
        TargetUnion::CreateRevision(_) => CompareTarget::Create,
        TargetUnion::ModRevision(_) => CompareTarget::Mod,
        TargetUnion::Value(_) => CompareTarget::Value,
        TargetUnion::Lease(_) => CompareTarget::Lease,
    };
    Compare {
        key: key.to_owned().into(),
        result: result as i32,
        target: target as i32,
        target_union: Some(expected),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_compares_branches_and_nests() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    client.put_value("/a", "1").await;
    client.put_value("/a", "2").await;
    let lease = client.lease_grant(600).await;
    client.put(PutRequest { lease, ..put("/l", "") }).await.unwrap();
    use CompareResult::{Equal, Greater, Less, NotEqual};
    use TargetUnion::{CreateRevision, Lease, ModRevision, Value, Version};
    let every = |compare: Compare| Compare { range_end: prefix_end("/").into(), ..compare };
    let cases = [
        (compare("/a", Equal, Value("2".into())), true),
        (compare("/a", Greater, Value("1".into())), true),
        (compare("/a", Less, Value("2".into())), false),
        (compare("/absent", Equal, Value("".into())), false),
        (compare("/a", Equal, Version(2)), true),
        (compare("/absent", Equal, Version(0)), true),
        (compare("/a", Equal, CreateRevision(2)), true),
        (compare("/a", NotEqual, ModRevision(3)), false),
        (compare("/absent", Equal, ModRevision(0)), true),
        (compare("/l", Equal, Lease(lease)), true),
        (compare("/a", Equal, Lease(0)), true),
        (every(compare("/", Greater, Version(0))), true),
        (every(compare("/", Greater, Version(1))), false),
    ];
    for (compare, expected) in cases {
        let txn = TxnRequest { compare: vec![compare.clone()], ..Default::default() };
        assert_eq!(client.txn(txn).await.unwrap().succeeded, expected, "{compare:?}");
    }

    let inner = TxnRequest {
        compare: vec![compare("/new", Equal, Version(0))],
        success: operations([Request::RequestPut(put("/inner", "then"))]),
        failure: operations([Request::RequestPut(put("/inner", "else"))]),
    };
    let outer = TxnRequest {
        compare: vec![compare("/new", Equal, Version(0))],
        ..always([
            Request::RequestPut(put("/new", "x")),
            Request::RequestRange(get("/new")),
            Request::RequestTxn(inner),
            Request::RequestDeleteRange(delete("/a")),
        ])
    };
    let answer = client.txn(outer).await.unwrap();
    let revision = answer.header.unwrap().revision;
    assert!(answer.succeeded);
    let responses: Vec<_> = answer.responses.into_iter().filter_map(|operation| operation.response).collect();
    match &responses[..] {
        [
            Response::ResponsePut(put),
            Response::ResponseRange(get),
            Response::ResponseTxn(txn),
            Response::ResponseDeleteRange(delete),
        ] => {
            assert_eq!(put.header.unwrap().revision, revision);
            assert_eq!((&get.kvs[0].value[..], get.kvs[0].mod_revision), (&b"x"[..], revision));
            assert!(txn.succeeded, "comparisons are made before anything is written");
            assert_eq!(delete.deleted, 1);
        }
        other => panic!("not the answers expected: {other:?}"),
    }
    assert_eq!(keys(client, get_prefix("/")).await, ["/inner", "/l", "/new"]);

    let twice = always(["1", "2"].map(|value| Request::RequestPut(put("/t", value))));
    assert!(words(client.txn(twice).await).contains("duplicate key given in txn request"));
    let many = always((0..129).map(|at| Request::RequestPut(put(&format!("/m/{at}"), ""))));
    assert!(words(client.txn(many).await).contains("too many operations in txn request"));
    let half = always([
        Request::RequestPut(put("/half", "")),
        Request::RequestPut(PutRequest { lease: 7, ..put("/other", "") }),
    ]);
    assert!(words(client.txn(half).await).contains("requested lease not found"));
    assert_eq!(client.range(get("/half")).await.unwrap().count, 0, "all of it or nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_removes_only_older_revisions() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    let first = client.put_value("/a", "1").await;
    let second = client.put_value("/a", "2").await;
    client.compact(second).await.unwrap();
    let gone = client.range(RangeRequest { revision: first, ..get("/a") }).await;
    assert!(words(gone).contains("etcdserver: mvcc: required revision has been compacted"));
    let there = client.range(RangeRequest { revision: second, ..get("/a") }).await.unwrap();
    assert_eq!(&there.kvs[0].value[..], b"2");
    assert!(words(client.compact(second).await).contains("has been compacted"));
    assert!(words(client.compact(second + 9).await).contains("future revision"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_tells_about_itself() {
    let server = Server::in_memory().await;
    let client = &mut server.client().await;
    client.put_value("/a", "1").await;
    let status = client.maintenance.status(StatusRequest {}).await.unwrap().into_inner();
    let members = client.cluster.member_list(MemberListRequest::default()).await.unwrap().into_inner();
    assert_eq!((&*status.version, members.members.len()), (ferry_etcd::VERSION, 1));
    assert_eq!(status.leader, members.members[0].id);
    assert_ne!(members.header.unwrap().cluster_id, 0);
    let hash = async |client: &mut Client| {
        client.maintenance.hash_kv(HashKvRequest { revision: 0 }).await.unwrap().into_inner().hash
    };
    let before = hash(client).await;
    client.put_value("/a", "2").await;
    assert_ne!(hash(client).await, before);
    assert!(client.maintenance.defragment(DefragmentRequest {}).await.is_ok());
    let enabled = client.auth.auth_enable(AuthEnableRequest {}).await;
    assert!(words(enabled).contains("authentication is not enabled"));
    let added = MemberAddRequest { peer_ur_ls: vec!["http://127.0.0.1:1".into()], is_learner: false };
    assert!(words(client.cluster.member_add(added).await).contains("one member"));
}
