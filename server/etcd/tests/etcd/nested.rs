//! Transactions inside transactions, as etcd takes and refuses them. `FERRY_ETCD=http://127.0.0.1:2379` has an etcd answer
//! instead, whose keys below `/nested/` are lost: that checks the test.

use ferry_etcd_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use ferry_etcd_api::etcdserverpb::request_op::Request;
use ferry_etcd_api::etcdserverpb::response_op::Response;
use ferry_etcd_api::etcdserverpb::{Compare, TxnRequest, TxnResponse};

use crate::client::{Client, always, delete, get, get_prefix, operations, put};
use crate::server::Server;

fn key(name: &str) -> String {
    format!("/nested/{name}")
}

fn puts(name: &str) -> Request {
    Request::RequestPut(put(&key(name), name))
}

fn deletes(name: &str) -> Request {
    Request::RequestDeleteRange(delete(&key(name)))
}

fn deletes_from(name: &str) -> Request {
    let mut from = delete(&key(name));
    from.range_end = key("~").into();
    Request::RequestDeleteRange(from)
}

fn inside(requests: impl IntoIterator<Item = Request>) -> Request {
    Request::RequestTxn(always(requests))
}

fn either(then: Request, otherwise: Request) -> Request {
    Request::RequestTxn(TxnRequest {
        compare: Vec::new(),
        success: operations([then]),
        failure: operations([otherwise]),
    })
}

/// Whether a key is there.
fn exists(name: &str) -> Compare {
    Compare {
        key: key(name).into(),
        result: CompareResult::Greater as i32,
        target: CompareTarget::Version as i32,
        target_union: Some(TargetUnion::Version(0)),
        ..Compare::default()
    }
}

/// A transaction around another, so many times, with a put in the innermost.
fn deep(levels: usize) -> TxnRequest {
    (0..levels).fold(always([puts("deep")]), |inner, _| always([Request::RequestTxn(inner)]))
}

async fn somewhere() -> (Option<Server>, Client) {
    if let Ok(endpoint) = std::env::var("FERRY_ETCD") {
        let mut client = Client::connect(endpoint).await;
        let mut everything = delete("/nested/");
        everything.range_end = "/nested0".into();
        client.delete(everything).await.expect("deleted");
        return (None, client);
    }
    let server = Server::in_memory().await;
    let client = server.client().await;
    (Some(server), client)
}

#[tokio::test]
async fn a_key_that_is_put_is_changed_once() {
    const TWICE: &str = "duplicate key given in txn request";
    let (_server, mut client) = somewhere().await;
    let cases = [
        (always([puts("a"), puts("b"), deletes("c")]), None),
        (always([puts("a"), puts("a")]), Some(TWICE)),
        // Whether the key exists or not.
        (always([deletes("a"), puts("a")]), Some(TWICE)),
        (always([puts("a"), deletes("a")]), Some(TWICE)),
        (always([puts("x"), deletes_from("n")]), Some(TWICE)),
        (always([puts("m"), deletes_from("n")]), None),
        (always([deletes("a"), deletes("a"), deletes_from("a")]), None),
        (always([puts("a"), inside([puts("a")])]), Some(TWICE)),
        (always([inside([puts("a")]), inside([puts("a")])]), Some(TWICE)),
        (always([inside([inside([puts("a")])]), puts("a")]), Some(TWICE)),
        (always([deletes_from("a"), inside([inside([puts("b")])])]), Some(TWICE)),
        (always([inside([inside([deletes_from("a")])]), puts("b")]), Some(TWICE)),
        (always([inside([deletes_from("a")]), inside([puts("b")])]), Some(TWICE)),
        // Of two branches one is taken.
        (always([either(puts("a"), puts("a"))]), None),
        (always([either(puts("a"), deletes("a"))]), None),
        (always([either(puts("a"), puts("b")), puts("b")]), Some(TWICE)),
        // The branch that is not taken is refused as well.
        (TxnRequest { failure: operations([puts("a"), puts("a")]), ..TxnRequest::default() }, Some(TWICE)),
    ];
    for (number, (txn, expected)) in cases.into_iter().enumerate() {
        let said = client.txn(txn).await.err().map(|status| status.message().to_owned());
        match (&said, expected) {
            (None, None) => {}
            (Some(said), Some(expected)) if said.contains(expected) => {}
            _ => panic!("case {number}: {said:?} instead of {expected:?}"),
        }
    }
}

#[tokio::test]
async fn inner_transactions_have_what_the_outer_ones_leave_of_the_limit() {
    let (_server, mut client) = somewhere().await;
    let many = |prefix: &str, count: usize| {
        let names: Vec<String> = (0..count).map(|number| format!("{prefix}{number}")).collect();
        names.into_iter().map(|name| puts(&name)).collect::<Vec<_>>()
    };
    let within = |outer: usize, inner: usize| {
        always(many("o", outer - 1).into_iter().chain([inside(many("i", inner))]))
    };
    let refused = |answer: Result<TxnResponse, tonic::Status>| {
        let status = answer.expect_err("too many");
        assert!(status.message().contains("too many operations in txn request"), "{status}");
    };
    client.txn(within(64, 64)).await.expect("128 along one path");
    refused(client.txn(within(64, 65)).await);
    refused(client.txn(within(128, 1)).await);
    client.txn(always([inside(many("a", 126)), inside(many("b", 126))])).await.expect("two paths of 128");
    // A comparison counts like an operation.
    let compared = TxnRequest { compare: vec![exists("a"); 100], ..within(1, 29) };
    refused(client.txn(compared).await);

    let answer = client.txn(deep(40)).await.expect("40 levels");
    let mut levels = 0;
    let mut inner = answer.responses.into_iter().next().and_then(|operation| operation.response);
    while let Some(Response::ResponseTxn(txn)) = inner {
        levels += 1;
        inner = txn.responses.into_iter().next().and_then(|operation| operation.response);
    }
    assert!(levels == 40 && matches!(inner, Some(Response::ResponsePut(_))), "{levels} levels");
    client.txn(deep(128)).await.expect_err("more levels than operations");
    client.txn(deep(1_000)).await.expect_err("far more");
    assert_eq!(client.range(get(&key("deep"))).await.expect("it goes on").count, 1);
}

#[tokio::test]
async fn comparisons_are_made_before_anything_is_written() {
    let (_server, mut client) = somewhere().await;
    let asks = |name: &str, then: Request, otherwise: Request| {
        Request::RequestTxn(TxnRequest {
            compare: vec![exists(name)],
            success: operations([then]),
            failure: operations([otherwise]),
        })
    };
    client.txn(always([puts("old")])).await.expect("written");
    // The new key is not there yet and the old one still is, at every depth; reads see what was written before them.
    let txn = always([
        puts("new"),
        deletes("old"),
        asks("new", puts("wrong"), inside([asks("old", puts("right"), puts("wrong"))])),
        inside([asks("new", puts("also wrong"), Request::RequestRange(get(&key("new"))))]),
    ]);
    let answer = client.txn(txn).await.expect("carried out");
    let last = answer.responses.last().and_then(|operation| operation.response.clone());
    let Some(Response::ResponseTxn(last)) = last else { panic!("{last:?}") };
    let Some(Response::ResponseTxn(last)) = &last.responses[0].response else { panic!("{last:?}") };
    assert!(!last.succeeded);
    let Some(Response::ResponseRange(read)) = &last.responses[0].response else { panic!("{last:?}") };
    assert_eq!(read.count, 1, "the key that the outer transaction put");
    let left = client.range(get_prefix("/nested/")).await.expect("an answer");
    let left: Vec<_> = left.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect();
    assert_eq!(left, ["/nested/new", "/nested/right"]);
}
