//! `containerLogs`: a container's log as a response.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferry_client::CancellationToken;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use jiff::{SignedDuration, Timestamp};
use tokio::io::DuplexStream;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_util::io::ReaderStream;

use super::{Body, Server, query, text};
use crate::cri;
use crate::logs::Stream;
use crate::logs::read::{Options, read};
use crate::pod;
use crate::runtime;
use crate::runtime::view::{Container, State};

/// How often a followed container is asked whether it still runs.
const RUNNING_CHECK: Duration = Duration::from_millis(500);

#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    options: Options,
    previous: bool,
}

fn parse(pairs: &[(String, String)], now: Timestamp) -> Result<Asked, String> {
    let mut asked = Asked::default();
    for (key, value) in pairs {
        let bad = |_| format!("invalid value for {key}: {value:?}");
        let flag = matches!(value.as_str(), "" | "true" | "1");
        match key.as_str() {
            "follow" => asked.options.follow = flag,
            "previous" => asked.previous = flag,
            "timestamps" => asked.options.timestamps = flag,
            "tailLines" => asked.options.tail_lines = Some(value.parse().map_err(bad)?),
            "limitBytes" => asked.options.limit_bytes = Some(value.parse().map_err(bad)?),
            "sinceSeconds" => {
                let seconds: i64 = value.parse().map_err(bad)?;
                asked.options.since = now.checked_sub(SignedDuration::from_secs(seconds)).ok();
            }
            "sinceTime" => {
                let time: Timestamp =
                    value.parse().map_err(|_| format!("invalid value for {key}: {value:?}"))?;
                asked.options.since = Some(time);
            }
            "stream" => {
                asked.options.stream = match value.as_str() {
                    "Stdout" => Some(Stream::Stdout),
                    "Stderr" => Some(Stream::Stderr),
                    _ => None,
                };
            }
            _ => {}
        }
    }
    Ok(asked)
}

impl Server {
    pub(super) async fn logs(
        &self,
        request: &Request<Incoming>,
        namespace: &str,
        name: &str,
        container: &str,
    ) -> Response<Body> {
        let asked = match parse(&query(request.uri()), Timestamp::now()) {
            Ok(asked) => asked,
            Err(problem) => return text(StatusCode::BAD_REQUEST, problem),
        };
        let Some(pod) = self.pods.find(namespace, name) else {
            return text(StatusCode::NOT_FOUND, format!("pod \"{name}\" does not exist"));
        };
        if pod::find_container(&pod, container).is_none() {
            return text(
                StatusCode::NOT_FOUND,
                format!("container \"{container}\" not found in pod \"{name}\""),
            );
        }
        let known = match runtime::pod(&self.context.runtime, pod::uid(&pod)).await {
            Ok(known) => known,
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        };
        let mut records = known.containers.iter().filter(|record| record.name == container);
        let latest = records.next();
        let chosen =
            if asked.previous { records.find(|record| record.state == State::Exited) } else { latest };
        let Some(chosen) = chosen else {
            let message = if asked.previous {
                format!("previous terminated container \"{container}\" in pod \"{name}\" not found")
            } else {
                let status = pod::container_status(pod::status(&pod), container);
                let waiting =
                    status.and_then(|status| status.state.as_ref()?.waiting.as_ref()?.reason.clone());
                let reason = waiting.unwrap_or_else(|| "ContainerCreating".into());
                format!("container \"{container}\" in pod \"{name}\" is waiting to start: {reason}")
            };
            return text(StatusCode::BAD_REQUEST, message);
        };
        self.stream_log(chosen.clone(), asked.options)
    }

    fn stream_log(&self, record: Container, options: Options) -> Response<Body> {
        let runtime = self.context.runtime.clone();
        let body = written(|mut out| async move {
            // a container that has ended stays ended
            let running = AtomicBool::new(record.state == State::Running);
            let mut checked = Instant::now();
            let is_running = || {
                let due = checked.elapsed() >= RUNNING_CHECK;
                if due {
                    checked = Instant::now();
                }
                let (runtime, running, id) = (&runtime, &running, &record.id);
                async move {
                    if due && running.load(Ordering::Relaxed) {
                        running.store(still_runs(runtime, id).await, Ordering::Relaxed);
                    }
                    running.load(Ordering::Relaxed)
                }
            };
            if let Err(error) = read(&record.log_path, &options, &mut out, is_running).await {
                tracing::debug!(log = %record.log_path.display(), %error, "log not read to its end");
            }
        });
        let mut response = Response::new(body);
        response.headers_mut().insert("content-type", http::HeaderValue::from_static("text/plain"));
        response
    }
}

/// A body of what `write` writes. It ends with the body: a log that is followed is written to when its container says
/// something, which may be never, and until then a reader that is gone is not missed.
fn written<W>(write: impl FnOnce(DuplexStream) -> W) -> Body
where
    W: Future<Output = ()> + Send + 'static,
{
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let gone = CancellationToken::new();
    tokio::spawn(gone.clone().run_until_cancelled_owned(write(theirs)));
    let wanted = gone.drop_guard();
    let frames = ReaderStream::new(ours).map(move |chunk| {
        let _ = &wanted;
        chunk.map(Frame::data)
    });
    BodyExt::boxed(StreamBody::new(frames))
}

async fn still_runs(runtime: &cri::Client, id: &str) -> bool {
    match runtime.container_status(id).await {
        Ok(Some(status)) => runtime::view::state(status.state) == State::Running,
        Ok(None) => false,
        // a runtime that restarts does not end its containers
        Err(error) => !error.is_not_found(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn following_a_silent_log_ends_with_its_reader() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let log = directory.path().join("0.log");
        std::fs::write(&log, "2026-11-15T10:00:00Z stdout F one\n").expect("a file can be written");
        let followed = Arc::new(());
        let held = followed.clone();
        let mut body = written(|mut out| async move {
            let options = Options { follow: true, ..Options::default() };
            read(&log, &options, &mut out, || std::future::ready(Arc::strong_count(&held) > 0))
                .await
                .expect("read");
        });
        let first = body.frame().await.expect("a frame").expect("no error").into_data().expect("data");
        assert_eq!(&first[..], b"one\n");
        assert_eq!(Arc::strong_count(&followed), 2);
        drop(body);
        let ended = async {
            while Arc::strong_count(&followed) > 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), ended).await.expect("the log is followed no more");
    }

    #[test]
    fn questions_are_understood() {
        let pairs = |text: &str| query(&format!("/x?{text}").parse().expect("a uri"));
        let now = Timestamp::from_second(1000).expect("a time");
        let asked =
            parse(&pairs("follow=true&tailLines=5&timestamps=true&sinceSeconds=10&stream=Stderr"), now);
        let options = Options {
            follow: true,
            timestamps: true,
            tail_lines: Some(5),
            since: Timestamp::from_second(990).ok(),
            stream: Some(Stream::Stderr),
            limit_bytes: None,
        };
        assert_eq!(asked, Ok(Asked { options, previous: false }));
        assert!(parse(&pairs("tailLines=x"), now).is_err());
        assert!(parse(&pairs("sinceTime=yesterday"), now).is_err());
    }
}
