//! Each request says which span sends it and which revision made that span run, and is counted.
//!
//! What no second request will say is marked as sensitive, which to HTTP/2 means: not worth a place in the table
//! of headers that both ends keep. There it would push out what every request has.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response};
use tower::{Layer, Service, ServiceExt};

use crate::metrics;

/// Baggage key under which the causing revision travels (W3C Baggage).
pub const CAUSE: &str = "ferry-cause";

/// Sets `traceparent`, and `baggage: ferry-cause=REVISION` where the span has a cause.
#[derive(Clone, Debug)]
pub struct PropagateLayer {
    /// The server, as metrics name it.
    pub host: Arc<str>,
}

#[derive(Clone, Debug)]
pub struct Propagate<S> {
    inner: S,
    host: Arc<str>,
}

impl<S> Layer<S> for PropagateLayer {
    type Service = Propagate<S>;

    fn layer(&self, inner: S) -> Propagate<S> {
        Propagate { inner, host: self.host.clone() }
    }
}

impl<S, B, R> Service<Request<B>> for Propagate<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    /// `kube::Client` calls its service from a task of its own and lets the caller poll the
    /// future that comes back. So the headers are set inside the future: only there is the
    /// caller's span the current one.
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let fresh = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, fresh);
        let host = self.host.clone();
        Box::pin(async move {
            let headers = request.headers_mut();
            if let Some(context) = ferry_trace::current() {
                let mut value =
                    HeaderValue::try_from(context.to_string()).expect("hexadecimal is a valid header");
                // only what is not recorded has one context for many requests
                value.set_sensitive(context.sampled);
                headers.insert(ferry_trace::Context::HEADER, value);
            }
            if let Some(revision) = ferry_trace::current_cause() {
                let mut value =
                    HeaderValue::try_from(format!("{CAUSE}={revision}")).expect("a number is a valid header");
                value.set_sensitive(true);
                headers.append("baggage", value);
            }
            let (method, began) = (request.method().clone(), Instant::now());
            let answered = ready.oneshot(request).await;
            let code = answered.as_ref().ok().map(|response| response.status());
            metrics::answered(&host, &method, code, began.elapsed());
            answered
        })
    }
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use parking_lot::Mutex;
    use std::convert::Infallible;

    use super::*;

    #[tokio::test]
    async fn a_request_carries_the_callers_span_and_cause() {
        let seen: Arc<Mutex<Vec<http::HeaderMap>>> = Arc::default();
        let record = seen.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            record.lock().push(request.headers().clone());
            async {
                Ok::<_, Infallible>(Response::new(Body::from(br#"{"major":"1","minor":"36"}"#.to_vec())))
            }
        });
        let client = crate::over(service);
        let mut span = ferry_trace::span("reconcile");
        span.caused_by(42);
        // The answer is not a full version; only what was sent matters here.
        let _ = span.in_scope(client.apiserver_version()).await;
        let _ = client.apiserver_version().await;
        let silent = ferry_trace::span("events").unsampled();
        let _ = silent.in_scope(client.apiserver_version()).await;
        let seen = seen.lock();
        assert_eq!(seen[0]["traceparent"], span.context().to_string());
        assert_eq!(seen[0]["baggage"], "ferry-cause=42");
        assert!(!seen[1].contains_key("traceparent") && !seen[1].contains_key("baggage"));
        let only_once = |at: usize, name: &str| seen[at][name].is_sensitive();
        assert!(only_once(0, "traceparent") && only_once(0, "baggage") && !only_once(2, "traceparent"));
    }
}
