//! How a component reaches the API: by configuration only, so that it can be moved between
//! processes without knowing.

use std::path::PathBuf;

use bytes::Bytes;
use http::{Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig as KubeconfigFile};
use kube::{Client, Config};
use tower::buffer::Buffer;
use tower::{BoxError, Layer, Service};

use crate::propagate::PropagateLayer;

/// Where a component's kubeconfig is and which part of it holds.
#[derive(Clone, Debug, Default)]
pub struct Kubeconfig {
    /// Without it: `$KUBECONFIG`, then `~/.kube/config`, then the pod's service account.
    pub path: Option<PathBuf>,
    /// Without it: the file's current context.
    pub context: Option<String>,
    /// Sent as User-Agent, which audit logs and field managers show.
    pub user_agent: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("read kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    #[error("find a configuration: {0}")]
    Infer(#[from] kube::config::InferConfigError),
    #[error("set up the client: {0}")]
    Client(#[from] kube::Error),
}

/// A client over HTTPS.
pub async fn connect(kubeconfig: &Kubeconfig) -> Result<Client, ConnectError> {
    let options = KubeConfigOptions { context: kubeconfig.context.clone(), ..Default::default() };
    let mut config = match (&kubeconfig.path, &kubeconfig.context) {
        (Some(path), _) => Config::from_custom_kubeconfig(KubeconfigFile::read_from(path)?, &options).await?,
        (None, Some(_)) => Config::from_kubeconfig(&options).await?,
        (None, None) => Config::infer().await?,
    };
    if let Some(agent) = &kubeconfig.user_agent
        && let Ok(value) = agent.parse()
    {
        config.headers.push((http::header::USER_AGENT, value));
    }
    connect_with(config)
}

/// A client over HTTPS, for those who have the parts of a configuration at hand.
pub fn connect_with(config: Config) -> Result<Client, ConnectError> {
    // kube hands its stack out boxed, which cannot be cloned; a buffer makes it so.
    let traced = tower::layer::layer_fn(|service| PropagateLayer.layer(Buffer::new(service, 1024)));
    Ok(ClientBuilder::try_from(config)?.with_layer(&traced).build())
}

/// A client of any service that answers as an API server does: in one process, the server's
/// own filter chain, to which the caller has added the component's identity.
pub fn over<S, B>(service: S) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Client::new(PropagateLayer.layer(service), "default")
}
