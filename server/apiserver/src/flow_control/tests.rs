use futures::FutureExt;
use http::Method;

use super::classify::{CATCH_ALL, EXEMPT};
use super::*;

fn fairness(seats: usize) -> Arc<Fairness> {
    let config =
        FlowControlConfig { max_requests: seats, max_mutating_requests: 0, ..FlowControlConfig::default() };
    let fairness = Arc::new(Fairness::new(config));
    let name = |metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        metadata.name.clone().unwrap_or_default()
    };
    let levels = bootstrap::priority_levels().into_iter().map(|boot| boot.object);
    fairness.set_levels(levels.map(|level| (name(&level.metadata), Some(level))));
    let schemas = bootstrap::flow_schemas().into_iter().map(|boot| boot.object);
    fairness.set_schemas(schemas.map(|schema| (name(&schema.metadata), Some(schema))));
    fairness
}

fn user(name: &str) -> User {
    User::new(name).with_groups(["system:authenticated"])
}

fn info(path: &str) -> RequestInfo {
    RequestInfo::parse(&Method::GET, path, &Query::default()).expect("a path")
}

async fn acquire(fairness: &Arc<Fairness>, user: &User) -> Result<Occupied, Status> {
    let (info, query) = (info("/api/v1/namespaces/a/pods/b"), Query::default());
    let class = fairness.classify(&info, user).expect("a class");
    fairness.acquire(class, &info, &query, user, || None).await
}

#[tokio::test]
async fn seats_are_free_again_when_a_request_is_dropped() {
    let fairness = fairness(245);
    let (jane, seats) =
        (user("jane"), fairness.state.lock().levels.get("global-default").expect("a level").current);
    let mut held = Vec::new();
    for _ in 0..seats {
        held.push(acquire(&fairness, &jane).await.expect("a seat"));
    }
    let mut waiting = Box::pin(acquire(&fairness, &jane));
    assert!(futures::poll!(&mut waiting).is_pending());
    held.pop();
    let seat = waiting.await.expect("the seat");
    drop((seat, held));
    let state = fairness.state.lock();
    assert!(state.levels.iter().all(|(_, level)| level.queues.is_idle()));
    assert!(state.waiters.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_too_long_is_refused_and_leaves_its_queue() {
    let fairness = fairness(245);
    let jane = user("jane");
    let seats = fairness.state.lock().levels.get("global-default").expect("a level").current;
    let mut held = Vec::new();
    for _ in 0..seats {
        held.push(acquire(&fairness, &jane).await.expect("a seat"));
    }
    let refused = acquire(&fairness, &jane).await.map(drop).expect_err("nothing is freed");
    assert_eq!((refused.code, refused.message.as_str()), (429, REFUSAL));
    assert_eq!(fairness.state.lock().levels.get("global-default").expect("a level").queues.waiting(), 0);
    let mut page = ferry_metrics::Page::default();
    fairness.collect(&mut page);
    let metrics = page.finish();
    let line = "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"global-default\",priority_level=\"global-default\",reason=\"time-out\"} 1";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}

#[tokio::test]
async fn a_dropped_waiter_leaves_its_queue() {
    let fairness = fairness(245);
    let jane = user("jane");
    let seats = fairness.state.lock().levels.get("global-default").expect("a level").current;
    let mut held = Vec::new();
    for _ in 0..seats {
        held.push(acquire(&fairness, &jane).await.expect("a seat"));
    }
    let mut waiting = Box::pin(acquire(&fairness, &jane));
    assert!(futures::poll!(&mut waiting).is_pending());
    let requests = fairness.dump("dump_requests", true).expect("a table");
    assert!(requests.lines().any(|line| line.contains("/api/v1/namespaces/a/pods/b")), "{requests}");
    drop(waiting);
    assert!(fairness.state.lock().waiters.is_empty());
    assert_eq!(fairness.state.lock().levels.get("global-default").expect("a level").queues.waiting(), 0);
}

#[tokio::test]
async fn a_flooding_flow_is_refused_and_others_are_not() {
    let fairness = fairness(245);
    let (greedy, jane) = (user("greedy"), user("jane"));
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    let refused = loop {
        let mut request = Box::pin(acquire(&fairness, &greedy));
        match (&mut request).now_or_never() {
            Some(Ok(seats)) => held.push(seats),
            Some(Err(status)) => break status,
            None => waiting.push(request),
        }
        assert!(waiting.len() <= 6 * 50, "its hand of queues is full");
    };
    assert_eq!(refused.code, 429);
    // Some queue of jane's hand is not one of the greedy's, or she waits in a queue that is not full.
    let mut request = Box::pin(acquire(&fairness, &jane));
    assert!((&mut request).now_or_never().is_none(), "she waits");
    // She gets a seat long before the flood is over.
    let mut finished = 0;
    let seats = loop {
        if let Some(seats) = (&mut request).now_or_never() {
            break seats;
        }
        held.remove(0);
        finished += 1;
        assert!(finished <= 100, "{} still wait", waiting.len());
        waiting.retain_mut(|request| match request.now_or_never() {
            Some(seats) => {
                held.push(seats.expect("it was not refused"));
                false
            }
            None => true,
        });
    };
    assert!(seats.is_ok());
    let admin = User::new("admin").with_groups(["system:masters"]);
    assert!(acquire(&fairness, &admin).now_or_never().is_some_and(|seats| seats.is_ok()));
    let node = User::new("system:node:n").with_groups(["system:nodes"]);
    assert!(acquire(&fairness, &node).now_or_never().is_some_and(|seats| seats.is_ok()));
}

#[tokio::test]
async fn mandatory_objects_hold_where_nothing_is_stored() {
    let config = FlowControlConfig { max_requests: 10, ..FlowControlConfig::default() };
    let fairness = Arc::new(Fairness::new(config));
    let class = fairness.classify(&info("/version"), &user("jane")).expect("a class");
    assert_eq!((&*class.schema.name, class.schema_uid(), &*class.level_uid), (CATCH_ALL, "", ""));
    let admin = User::new("admin").with_groups(["system:masters"]);
    let class = fairness.classify(&info("/version"), &admin).expect("a class");
    assert_eq!(&*class.schema.name, EXEMPT);
    // A schema whose level does not exist classifies nothing.
    let schema = bootstrap::flow_schemas()
        .into_iter()
        .find(|boot| boot.object.metadata.name.as_deref() == Some("global-default"));
    let schema = schema.expect("a schema").object;
    fairness.set_schemas([("global-default".to_string(), Some(schema))].into_iter());
    let class = fairness.classify(&info("/version"), &user("jane")).expect("a class");
    assert_eq!(&*class.schema.name, CATCH_ALL);
}

#[tokio::test]
async fn streams_hold_no_seats() {
    let control = FlowControl::new(FlowControlConfig::default());
    let jane = user("jane");
    let logs = info("/api/v1/namespaces/a/pods/b/log");
    assert!(control.classify(&logs, &jane).is_none());
    let seats = control.acquire(None, &logs, &Query::default(), &jane, || None).await;
    assert!(seats.is_ok_and(|seats| seats.is_none()));
}
