//! One call of a webhook: resolves its address, connects with TLS, and applies its timeout.

use std::error::Error;
use std::time::Duration;

use base64::Engine;
use ferry_client::connect::{connect_trusting, connect_with};
use ferry_client::trusted_certificates::TrustedCertificates;
use ferry_registry::Registry;
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use parking_lot::Mutex;

use super::hooks::{ClientConfig, Hook};
use crate::service_address;

/// How large an answer to a request of `sent` bytes may be. A conversion of a list answers with all its objects, which defaults may make
/// larger than those that were sent.
fn largest_answer(sent: usize) -> usize {
    sent.saturating_mul(4).saturating_add(3 << 20)
}

/// This much of an unexpected answer is repeated to the client.
const REPEATED: usize = 256;
/// As many as Go's clients follow.
const MOST_REDIRECTS: usize = 10;

/// The connections to one webhook, kept between calls. A Service may move; then they are made anew.
#[derive(Default)]
pub struct Endpoint {
    client: Mutex<Option<(Target, kube::Client)>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    /// What errors call it: the URL as it would be written.
    url: String,
    /// Where connections go, when that is not what the URL says.
    address: Option<String>,
}

/// Posts a review and gives back the body of the answer; errors are in the words that clients know.
pub async fn post(registry: &Registry, hook: &Hook, body: Vec<u8>) -> Result<Vec<u8>, String> {
    let answer = hook.endpoint.post(registry, &hook.spec.client_config, hook.timeout(), body).await;
    answer.map_err(|why| match why.strip_prefix(NO_CLIENT) {
        Some(_) => why,
        None => format!("failed to call webhook: {why}"),
    })
}

const NO_CLIENT: &str = "could not get REST client: ";

/// Where a webhook's answer sends the same request, on the same server: Go's servers redirect `//path` to `/path`, which is
/// how envtest writes URLs. Another server was named by nobody.
fn redirected(code: http::StatusCode, headers: &http::HeaderMap, base: &str) -> Option<String> {
    if ![http::StatusCode::TEMPORARY_REDIRECT, http::StatusCode::PERMANENT_REDIRECT].contains(&code) {
        return None;
    }
    let location = headers.get(http::header::LOCATION)?.to_str().ok()?;
    let path = location.strip_prefix(base).unwrap_or(location);
    (path.starts_with('/') && !path.starts_with("//")).then(|| path.to_string())
}

/// What a client would say of an answer that is an error.
fn unexpected(code: http::StatusCode, body: &[u8]) -> String {
    // A Status says more than its code.
    if let Ok(status) = serde_json::from_slice::<ferry_api::Status>(body)
        && status.kind == "Status"
        && status.status != "Success"
        && !status.message.is_empty()
    {
        return status.message;
    }
    let text = String::from_utf8_lossy(&body[..body.len().min(REPEATED)]);
    match code.as_u16() {
        404 => "the server could not find the requested resource".to_string(),
        401 => "the server has asked for the client to provide credentials".to_string(),
        403 => "forbidden".to_string(),
        500 if !text.trim().is_empty() => {
            format!("an error on the server ({:?}) has prevented the request from succeeding", text.trim())
        }
        500 => "an error on the server (\"unknown\") has prevented the request from succeeding".to_string(),
        503 => "the server is currently unable to handle the request".to_string(),
        code => {
            format!("the server responded with the status code {code} but did not return more information")
        }
    }
}

impl Endpoint {
    pub async fn post(
        &self,
        registry: &Registry,
        config: &ClientConfig,
        timeout: Duration,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, String> {
        let (target, client) = self.client(registry, config).map_err(|fault| match fault {
            Fault::Configuration(why) => format!("{NO_CLIENT}{why}"),
            Fault::Address { url, why } => format!("Post \"{url}?timeout={}s\": {why}", timeout.as_secs()),
        })?;
        let (base, path) = split_path(&target.url);
        let mut called = format!("{path}?timeout={}s", timeout.as_secs());
        let shown = format!("{base}{called}");
        let failed = |why: String| format!("Post {shown:?}: {why}");
        let answer = tokio::time::timeout(timeout, async {
            for _ in 0..=MOST_REDIRECTS {
                let request = http::Request::post(&called)
                    .header(http::header::CONTENT_TYPE, "application/json")
                    .header(http::header::ACCEPT, "application/json")
                    .body(Body::from(body.clone()))
                    .map_err(|error| failed(error.to_string()))?;
                let response = client.send(request).await.map_err(|error| failed(cause(&error, &target)))?;
                let code = response.status();
                if let Some(elsewhere) = redirected(code, response.headers(), base) {
                    called = elsewhere;
                    continue;
                }
                let body = Limited::new(response.into_body(), largest_answer(body.len())).collect().await;
                let body = body.map_err(|error| failed(error.to_string()))?.to_bytes();
                return Ok::<_, String>((code, body));
            }
            Err(failed(format!("stopped after {MOST_REDIRECTS} redirects")))
        });
        let (code, body) = answer.await.map_err(|_| failed("context deadline exceeded".into()))??;
        match code.is_success() {
            true => Ok(body.to_vec()),
            false => Err(unexpected(code, &body)),
        }
    }

    fn client(&self, registry: &Registry, config: &ClientConfig) -> Result<(Target, kube::Client), Fault> {
        let target = target(registry, config)?;
        let mut kept = self.client.lock();
        if let Some((have, client)) = &*kept
            && *have == target
        {
            return Ok((target, client.clone()));
        }
        let client = connect(&target, config).map_err(Fault::Configuration)?;
        *kept = Some((target.clone(), client.clone()));
        Ok((target, client))
    }
}

/// Why a webhook cannot be called.
enum Fault {
    Configuration(String),
    /// Nobody knows where it is.
    Address {
        url: String,
        why: String,
    },
}

fn target(registry: &Registry, config: &ClientConfig) -> Result<Target, Fault> {
    if let Some(reference) = &config.service {
        let port = reference.port.unwrap_or(service_address::DEFAULT_PORT);
        let path = reference.path.as_deref().unwrap_or("").trim_start_matches('/');
        let url = format!("https://{}.{}.svc:{port}/{path}", reference.name, reference.namespace);
        return match service_address::resolve(registry, &reference.namespace, &reference.name, port) {
            Ok(address) => Ok(Target { url, address: Some(address) }),
            Err(why) => Err(Fault::Address { url, why }),
        };
    }
    match &config.url {
        Some(url) => Ok(Target { url: url.clone(), address: None }),
        None => Err(Fault::Configuration("webhook configuration must have either service or URL".into())),
    }
}

fn connect(target: &Target, config: &ClientConfig) -> Result<kube::Client, String> {
    let uri: http::Uri = target.url.parse().map_err(|error| format!("Unparsable URL: {error}"))?;
    let authority = uri.authority().ok_or("Unparsable URL: no host")?.clone();
    let host = target.address.clone().unwrap_or_else(|| authority.to_string());
    let base = format!("{}://{host}/", uri.scheme_str().unwrap_or("https"));
    let mut kube = kube::Config::new(base.parse().map_err(|error| format!("Unparsable URL: {error}"))?);
    if target.address.is_some() {
        kube.tls_server_name = Some(authority.host().to_string());
    }
    kube.default_retry = false;
    kube.connect_timeout = Some(Duration::from_secs(30));
    kube.read_timeout = None;
    let client = match config.ca_bundle.as_deref().filter(|bundle| !bundle.is_empty()) {
        Some(bundle) => connect_trusting(kube, trusted(bundle)?),
        None => connect_with(kube),
    };
    client.map_err(|error| error.to_string())
}

/// The certificates of a caBundle: PEM, in base64.
fn trusted(bundle: &str) -> Result<TrustedCertificates, String> {
    let pem = base64::engine::general_purpose::STANDARD
        .decode(bundle)
        .map_err(|error| format!("caBundle is not base64: {error}"))?;
    TrustedCertificates::bundle(&pem).map_err(|error| error.to_string())
}

/// The reason at the end of a chain of errors.
fn cause(error: &(dyn Error + 'static), target: &Target) -> String {
    let mut last: &(dyn Error + 'static) = error;
    let mut chain = vec![last.to_string()];
    while let Some(source) = last.source() {
        last = source;
        chain.push(last.to_string());
        if let Some(error) = last.downcast_ref::<std::io::Error>()
            && error.kind() == std::io::ErrorKind::ConnectionRefused
        {
            let address = target.address.clone().unwrap_or_else(|| host_and_port(&target.url));
            return format!("dial tcp {address}: connect: connection refused");
        }
    }
    let whole = chain.join(": ");
    // An authority of the right name that did not sign it is as unknown as one of another name, and so is a certificate that
    // signed itself.
    if ["UnknownIssuer", "BadSignature", "CaUsedAsEndEntity"].iter().any(|fault| whole.contains(fault)) {
        return "tls: failed to verify certificate: x509: certificate signed by unknown authority".into();
    }
    if whole.contains("NotValidForName") || whole.contains("certificate not valid for name") {
        return "tls: failed to verify certificate: x509: certificate is not valid for the requested name"
            .into();
    }
    chain.pop().unwrap_or(whole)
}

/// `https://host:port` and `/path`.
fn split_path(url: &str) -> (&str, &str) {
    let host = url.find("://").map_or(0, |at| at + 3);
    match url[host..].find('/') {
        Some(at) => url.split_at(host + at),
        None => (url, "/"),
    }
}

fn host_and_port(url: &str) -> String {
    let authority = url.split('/').nth(2).unwrap_or(url);
    if authority.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok()) {
        authority.to_string()
    } else {
        format!("{authority}:443")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_followed_on_the_same_server_only() {
        let check = |code: u16, location: &str, expected: Option<&str>| {
            let mut headers = http::HeaderMap::new();
            headers.insert(http::header::LOCATION, location.parse().expect("a header"));
            let code = http::StatusCode::from_u16(code).expect("a code");
            assert_eq!(
                redirected(code, &headers, "https://127.0.0.1:9443").as_deref(),
                expected,
                "{location}"
            );
        };
        check(307, "/failing?timeout=10s", Some("/failing?timeout=10s"));
        check(308, "https://127.0.0.1:9443/failing", Some("/failing"));
        check(307, "https://127.0.0.1:94430/failing", None);
        check(307, "https://elsewhere.example/failing", None);
        check(307, "//elsewhere.example/failing", None);
        check(302, "/failing", None);
        check(200, "/failing", None);
    }
}
