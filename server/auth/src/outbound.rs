//! Outbound requests: to webhooks and OpenID providers.

use std::{path::Path, time::Duration};

use ferry_client::Kubeconfig;
use http_body_util::{BodyExt, Limited};
use kube::{Client, Config, client::Body};
use rustls_pki_types::CertificateDer;
use serde::{Serialize, de::DeserializeOwned};

/// An answer larger than this is not one we asked for.
const MAX_ANSWER: usize = 3 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, thiserror::Error)]
pub enum OutboundError {
    #[error("{0}")]
    Configuration(String),
    #[error("calling {url}: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("calling {url}: the answer is {code}: {body}")]
    Status { url: String, code: u16, body: String },
    #[error("calling {url}: {reason}")]
    Response { url: String, reason: String },
}

impl OutboundError {
    /// Whether the same request may succeed a little later.
    fn is_passing(&self) -> bool {
        match self {
            OutboundError::Unreachable { .. } => true,
            OutboundError::Status { code, .. } => *code == 429 || *code >= 500,
            OutboundError::Configuration(_) | OutboundError::Response { .. } => false,
        }
    }
}

/// How often and how patiently to try.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    pub attempts: u32,
    pub first_delay: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { attempts: 5, first_delay: Duration::from_millis(500) }
    }
}

/// One URL, with all that is needed to reach it.
#[derive(Clone)]
pub(crate) struct Endpoint {
    client: Client,
    url: String,
    path: String,
}

impl Endpoint {
    /// The cluster and user of a kubeconfig file: the way webhooks are described to a server.
    pub(crate) async fn from_kubeconfig(path: &Path) -> Result<Self, OutboundError> {
        let failed = |error: &dyn std::fmt::Display| {
            OutboundError::Configuration(format!("{}: {error}", path.display()))
        };
        let kubeconfig = Kubeconfig { path: Some(path.to_owned()), ..Kubeconfig::default() };
        let config = ferry_client::read_kubeconfig(&kubeconfig).await.map_err(|error| failed(&error))?;
        Endpoint::from_config(config)
    }

    /// `authorities` are trusted instead of the system's, if given.
    pub(crate) fn from_url(
        url: &str,
        authorities: Option<&[CertificateDer<'_>]>,
    ) -> Result<Self, OutboundError> {
        let uri = url.parse().map_err(|error| OutboundError::Configuration(format!("{url}: {error}")))?;
        let mut config = Config::new(uri);
        config.root_cert = authorities.map(|all| all.iter().map(|authority| authority.to_vec()).collect());
        Endpoint::from_config(config)
    }

    fn from_config(mut config: Config) -> Result<Self, OutboundError> {
        let url = config.cluster_url.to_string();
        let failed = |error: &dyn std::fmt::Display| OutboundError::Configuration(format!("{url}: {error}"));
        // The client would put a slash behind the path; a webhook is called at just the URL given.
        let mut parts = config.cluster_url.clone().into_parts();
        let path = parts.path_and_query.take().map_or("/".to_owned(), |path| path.to_string());
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        config.cluster_url = http::Uri::from_parts(parts).map_err(|error| failed(&error))?;
        config.default_retry = false;
        config.connect_timeout = Some(TIMEOUT);
        config.read_timeout = Some(TIMEOUT);
        let client = Client::try_from(config).map_err(|error| failed(&error))?;
        Ok(Endpoint { client, url, path })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self) -> Result<T, OutboundError> {
        let request = http::Request::get(&self.path).header(http::header::ACCEPT, "application/json");
        let body = self.send(request.body(Body::empty())).await?;
        serde_json::from_slice(&body).map_err(|error| self.bad_answer(&error))
    }

    /// Posts, again after a while if the failure may pass. Waits in total a few seconds at most.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        body: &impl Serialize,
        retry: Retry,
    ) -> Result<T, OutboundError> {
        let answer = self.post_raw(body, retry).await?;
        serde_json::from_slice(&answer).map_err(|error| self.bad_answer(&error))
    }

    pub(crate) async fn post_raw(
        &self,
        body: &impl Serialize,
        retry: Retry,
    ) -> Result<Vec<u8>, OutboundError> {
        let body = serde_json::to_vec(body).map_err(|error| self.bad_answer(&error))?;
        let mut delay = retry.first_delay;
        let mut attempt = 1;
        loop {
            let request =
                http::Request::post(&self.path).header(http::header::CONTENT_TYPE, "application/json");
            match self.send(request.body(Body::from(body.clone()))).await {
                Err(error) if error.is_passing() && attempt < retry.attempts => {
                    tokio::time::sleep(delay).await;
                    delay = delay * 3 / 2;
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    fn bad_answer(&self, reason: &dyn std::fmt::Display) -> OutboundError {
        OutboundError::Response { url: self.url.clone(), reason: reason.to_string() }
    }

    async fn send(&self, request: http::Result<http::Request<Body>>) -> Result<Vec<u8>, OutboundError> {
        let request =
            request.map_err(|error| OutboundError::Configuration(format!("{}: {error}", self.url)))?;
        let unreachable = |reason: &dyn std::fmt::Display| OutboundError::Unreachable {
            url: self.url.clone(),
            reason: reason.to_string(),
        };
        let exchange = async {
            let response =
                self.client.send(request).await.map_err(|error| unreachable(&with_source(&error)))?;
            let code = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            let body = body.map_err(|error| self.bad_answer(&error))?.to_bytes();
            if !code.is_success() {
                let body = String::from_utf8_lossy(&body).chars().take(200).collect();
                return Err(OutboundError::Status { url: self.url.clone(), code: code.as_u16(), body });
            }
            Ok(body.to_vec())
        };
        match tokio::time::timeout(TIMEOUT, exchange).await {
            Ok(result) => result,
            Err(_) => Err(unreachable(&"it did not respond in time")),
        }
    }
}

/// The whole chain: the first error of a client says little more than that it failed.
fn with_source(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
