//! Against h2's own client, over a pipe in memory.

use std::sync::atomic::AtomicUsize;

use futures::channel::mpsc as stream;
use h2::client::SendRequest;
use tokio::io::{DuplexStream, ReadBuf};
use tokio::task::JoinHandle;

use super::*;
use crate::body::{Body, BrokenOff};

/// Where the tests' bodies come from: each request takes the next one.
type Bodies = Arc<parking_lot::Mutex<std::collections::VecDeque<Body>>>;

struct Pair {
    client: SendRequest<Bytes>,
    served: JoinHandle<Result<(), String>>,
    stop: CancellationToken,
    /// How often the server wrote to its transport.
    writes: Arc<AtomicUsize>,
}

/// A server that answers each request with the next of `bodies`.
async fn serving(bodies: impl IntoIterator<Item = Body>) -> Pair {
    let bodies: Bodies = Arc::new(parking_lot::Mutex::new(bodies.into_iter().collect()));
    let handle = move |_| {
        let body = bodies.lock().pop_front();
        async move {
            match body {
                Some(body) => http::Response::new(body),
                None => std::future::pending().await,
            }
        }
    };
    serving_with(handle, h2::client::Builder::new()).await
}

async fn serving_with<H, F>(handle: H, builder: h2::client::Builder) -> Pair
where
    H: Fn(http::Request<Received>) -> F + Send + Unpin + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let (near, far) = tokio::io::duplex(1 << 20);
    let (writes, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let io = Counted(near, writes.clone());
    let serving = serve(io, handle, stop.clone());
    let served = tokio::spawn(async move { serving.await.map_err(|error| error.to_string()) });
    let (client, connection) = builder.handshake(far).await.expect("a connection");
    tokio::spawn(connection);
    Pair { client: client.ready().await.expect("open"), served, stop, writes }
}

impl Pair {
    async fn get(&mut self) -> http::Response<h2::RecvStream> {
        let request = http::Request::get("https://here/").body(()).expect("a request");
        let (answer, _) = self.client.send_request(request, true).expect("sent");
        answer.await.expect("answered")
    }
}

async fn read(body: &mut h2::RecvStream, length: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < length {
        let bytes = body.data().await.expect("more").expect("data");
        body.flow_control().release_capacity(bytes.len()).expect("as much as was read");
        all.extend_from_slice(&bytes);
    }
    all
}

fn going_on() -> (stream::UnboundedSender<Bytes>, Body) {
    let (say, said) = stream::unbounded();
    (say, Body::stream(said))
}

#[tokio::test]
async fn whole_and_empty_bodies_say_how_long_they_are() {
    let mut pair = serving([Body::from("four"), Body::from(Bytes::new()), Body::Empty]).await;
    let mut first = pair.get().await;
    assert_eq!(first.headers()["content-length"], "4");
    assert!(first.headers().contains_key("date"));
    assert_eq!(read(first.body_mut(), 4).await, b"four");
    assert!(first.body_mut().data().await.is_none());
    let mut second = pair.get().await;
    assert_eq!(second.headers()["content-length"], "0");
    assert!(second.body_mut().data().await.is_none_or(|end| end.is_ok_and(|bytes| bytes.is_empty())));
    let third = pair.get().await;
    assert!(third.body().is_end_stream());
}

#[tokio::test]
async fn the_answer_to_head_has_no_body() {
    let mut pair = serving([Body::from("four")]).await;
    let request = http::Request::head("https://here/").body(()).expect("a request");
    let (answer, _) = pair.client.send_request(request, true).expect("sent");
    let answer = answer.await.expect("answered");
    assert_eq!(answer.headers()["content-length"], "4");
    assert!(answer.body().is_end_stream());
}

#[tokio::test]
async fn simultaneous_stream_data_is_one_write() {
    let (say, bodies): (Vec<_>, Vec<_>) = (0..50).map(|_| going_on()).unzip();
    let mut pair = serving(bodies).await;
    let mut answers = Vec::new();
    for _ in 0..50 {
        answers.push(pair.get().await.into_body());
    }
    // The streams are with their connection now, which is at rest.
    for round in 0..3_usize {
        let before = pair.writes.load(Ordering::SeqCst);
        say.iter().for_each(|say| say.unbounded_send(format!("event {round}").into()).expect("open"));
        for answer in &mut answers {
            assert_eq!(read(answer, 7).await, format!("event {round}").as_bytes());
        }
        let writes = pair.writes.load(Ordering::SeqCst) - before;
        assert!(writes <= 3, "{writes} writes for one event");
    }
}

#[tokio::test]
async fn a_body_arrives_in_order_and_ends() {
    let (say, body) = going_on();
    let mut pair = serving([body]).await;
    let mut answer = pair.get().await.into_body();
    for number in 0..100 {
        say.unbounded_send(Bytes::from(format!("{number:04}"))).expect("open");
    }
    let expected: String = (0..100).map(|number| format!("{number:04}")).collect();
    assert_eq!(read(&mut answer, 400).await, expected.as_bytes());
    drop(say);
    let end = answer.data().await;
    assert!(end.is_none_or(|end| end.is_ok_and(|bytes| bytes.is_empty())));
}

#[tokio::test]
async fn a_body_waits_for_a_slow_reader() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let body = Body::stream(futures::stream::repeat_with(move || {
        count.fetch_add(1, Ordering::SeqCst);
        Bytes::from(vec![b'x'; 10_000])
    }));
    let mut pair = serving([body]).await;
    let mut answer = pair.get().await.into_body();
    // The client has a window of 65,535 bytes and gives nothing back: six pieces, the begun one, the one in hand.
    let first = answer.data().await.expect("more").expect("data");
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!((7..=8).contains(&asked.load(Ordering::SeqCst)), "{asked:?}");
    answer.flow_control().release_capacity(first.len()).expect("as much as was read");
    read(&mut answer, 200_000).await;
    assert!(asked.load(Ordering::SeqCst) >= 20);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_in_nothing_is_not_waited_for() {
    use crate::body::{ProxiedBody, STALLED};
    let long = || futures::stream::iter(vec![Bytes::from(vec![b'x'; 10_000]); 20]);
    let passed_on = std::sync::atomic::AtomicBool::new(false);
    let handle = move |_| {
        let mut response = http::Response::new(Body::stream(long()));
        if passed_on.swap(true, Ordering::SeqCst) {
            response.extensions_mut().insert(ProxiedBody);
        }
        std::future::ready(response)
    };
    let mut pair = serving_with(handle, h2::client::Builder::new()).await;
    let begun = tokio::time::Instant::now();
    let mut first = pair.get().await.into_body();
    let mut received = 0;
    let ended = loop {
        match first.data().await.expect("it is cut short") {
            Ok(bytes) => received += bytes.len(),
            Err(error) => break error,
        }
    };
    assert_eq!(ended.reason(), Some(h2::Reason::CANCEL));
    assert!(received <= 65_535 && begun.elapsed() >= STALLED, "{received} {:?}", begun.elapsed());
    // The second comes from elsewhere, and waits there.
    let mut second = pair.get().await.into_body();
    sleep(10 * STALLED).await;
    first.flow_control().release_capacity(received).expect("as much as was read");
    assert_eq!(read(&mut second, 200_000).await.len(), 200_000);
}

#[tokio::test]
async fn a_long_body_stays_with_its_request_and_a_quiet_one_goes_to_the_connection() {
    /// The tasks that asked it for more.
    fn asked(body: impl futures::Stream<Item = Bytes> + Send + 'static) -> (Body, Arc<AskedBy>) {
        let tasks = Arc::new(AskedBy::default());
        let (noted, mut body) = (tasks.clone(), Box::pin(body));
        let body = futures::stream::poll_fn(move |context| {
            noted.lock().insert(tokio::task::id());
            body.poll_next_unpin(context)
        });
        (Body::stream(body), tasks)
    }
    type AskedBy = parking_lot::Mutex<std::collections::HashSet<tokio::task::Id>>;

    let (long, by_long) = asked(futures::stream::iter(vec![Bytes::from(vec![b'x'; 10_000]); 20]));
    let (say, said) = stream::unbounded();
    let (quiet, by_quiet) = asked(said);
    let mut pair = serving([long, quiet]).await;
    let mut first = pair.get().await.into_body();
    // The window holds a third of it.
    read(&mut first, 200_000).await;
    assert_eq!(by_long.lock().len(), 1);
    let mut second = pair.get().await.into_body();
    for _ in 0..3 {
        say.unbounded_send("event".into()).expect("open");
        read(&mut second, 5).await;
    }
    assert_eq!(by_quiet.lock().len(), 2);
    assert!(by_quiet.lock().is_disjoint(&by_long.lock()));
}

#[tokio::test]
async fn a_client_that_turns_away_ends_handling_and_body() {
    struct Dropped(Arc<tokio::sync::Notify>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    // While it is answered.
    let dropped = Arc::new(tokio::sync::Notify::new());
    let guard = dropped.clone();
    let handle = move |_| {
        let guard = Dropped(guard.clone());
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    };
    let mut pair = serving_with(handle, h2::client::Builder::new()).await;
    let request = http::Request::get("https://here/").body(()).expect("a request");
    let (_answer, mut sending) = pair.client.send_request(request, false).expect("sent");
    sending.send_reset(h2::Reason::CANCEL);
    dropped.notified().await;
    // While its body goes on.
    let guard = Dropped(dropped.clone());
    let body = Body::stream(futures::stream::poll_fn(move |_| {
        let _guard = &guard;
        Poll::Pending
    }));
    let mut pair = serving([body]).await;
    drop(pair.get().await);
    dropped.notified().await;
}

#[tokio::test]
async fn a_body_that_panics_ends_alone() {
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    let mut told = Some(told);
    let broken = Body::stream(futures::stream::poll_fn(move |context| {
        ready!(told.as_mut().expect("not over").poll_unpin(context)).expect("told");
        panic!("a defect")
    }));
    let (say, sound) = going_on();
    let mut pair = serving([broken, sound]).await;
    let (mut first, mut second) = (pair.get().await.into_body(), pair.get().await.into_body());
    tell.send(()).expect("it waits");
    let error = first.data().await.expect("an end").expect_err("a reset");
    assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR));
    say.unbounded_send("still here".into()).expect("open");
    assert_eq!(read(&mut second, 10).await, b"still here");
}

#[tokio::test]
async fn a_response_truncated_by_its_source_does_not_end_normally() {
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    let first = futures::stream::once(async { Ok(Bytes::from("half of")) });
    let last = futures::stream::once(async move {
        told.await.expect("told");
        Err(BrokenOff)
    });
    let mut pair = serving([Body::passed_on(first.chain(last))]).await;
    let mut answer = pair.get().await.into_body();
    assert_eq!(read(&mut answer, 7).await, b"half of");
    tell.send(()).expect("it waits");
    let error = answer.data().await.expect("an end").expect_err("a reset");
    assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR));
}

#[tokio::test]
async fn a_stop_lets_what_was_begun_come_to_its_end() {
    let (say, body) = going_on();
    let mut pair = serving([body]).await;
    let mut answer = pair.get().await.into_body();
    pair.stop.cancel();
    say.unbounded_send("the last".into()).expect("open");
    assert_eq!(read(&mut answer, 8).await, b"the last");
    assert!(!pair.served.is_finished());
    drop(say);
    assert!(answer.data().await.is_none_or(|end| end.is_ok_and(|bytes| bytes.is_empty())));
    pair.served.await.expect("no panic").expect("a good end");
}

#[tokio::test]
async fn the_body_of_a_request_is_read_whole() {
    use http_body_util::BodyExt;
    let handle = |request: http::Request<Received>| async move {
        let length = request.into_body().collect().await.expect("read").to_bytes().len();
        http::Response::new(Body::from(length.to_string().into_bytes()))
    };
    let mut pair = serving_with(handle, h2::client::Builder::new()).await;
    let request = http::Request::post("https://here/").body(()).expect("a request");
    let (answer, mut sending) = pair.client.send_request(request, false).expect("sent");
    // More than the windows hold, so it arrives only if they are given back.
    sending.send_data(vec![0; 5_000_000].into(), true).expect("sent");
    let mut answer = answer.await.expect("answered").into_body();
    assert_eq!(read(&mut answer, 7).await, b"5000000");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_any_more_is_given_up() {
    // It begins as a client does, answers nothing, and goes on to hold the connection.
    let (near, mut far) = tokio::io::duplex(1 << 20);
    let served = serve(near, |_| std::future::pending::<Response>(), CancellationToken::new());
    let served = tokio::spawn(async move { served.await.map_err(|error| error.to_string()) });
    let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    hello.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    tokio::io::AsyncWriteExt::write_all(&mut far, &hello).await.expect("open");
    let begun = tokio::time::Instant::now();
    let ended = served.await.expect("no panic");
    assert_eq!(ended, Err("the client does not answer".to_string()));
    assert!(begun.elapsed() <= 2 * QUIET + ANSWER);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_is_kept() {
    let mut pair = serving([Body::from("here")]).await;
    sleep(20 * QUIET).await;
    let mut answer = pair.get().await.into_body();
    assert_eq!(read(&mut answer, 4).await, b"here");
}

/// Counts the writes that reach it.
struct Counted(DuplexStream, Arc<AtomicUsize>);

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
