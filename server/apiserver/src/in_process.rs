//! A `kube::Client` that calls this server without a socket: requests pass the same filters and verbs as external ones,
//! with the component's own identity.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use ferry_auth::User;
use futures::future::BoxFuture;
use tower::Service;

use crate::api::Api;
use crate::body::Body;
use crate::filters::{self, Connection};

#[derive(Clone)]
pub struct InProcess {
    api: Arc<Api>,
    connection: Connection,
}

impl InProcess {
    /// Requests through this service come from `user`.
    pub fn new(api: Arc<Api>, user: User) -> InProcess {
        InProcess { api, connection: Connection { identity: Some(Arc::new(user)), ..Connection::default() } }
    }
}

impl Service<http::Request<kube::client::Body>> for InProcess {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<kube::client::Body>) -> Self::Future {
        let (api, connection) = (self.api.clone(), self.connection.clone());
        Box::pin(async move { Ok(filters::handle(api, connection, request).await) })
    }
}
