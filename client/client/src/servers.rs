//! Several servers of one cluster: each connection goes to a server that accepts it, so that a component survives the
//! failure of any of them. TLS verifies the same name for all of them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::Uri;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower::Service;

/// A name that every API server's certificate has.
const ANY: &str = "kubernetes.default.svc";

#[derive(Debug, thiserror::Error)]
pub enum BadServers {
    #[error("{0:?} is not a server URL like https://HOST:6443")]
    Address(String),
    #[error("servers of one cluster have the same port: {0} and {1} differ")]
    Ports(u16, u16),
}

/// Finds addresses: the servers' where there are several, else the system's answer.
#[derive(Clone)]
pub struct Resolver {
    servers: Arc<[String]>,
    system: GaiResolver,
}

impl Resolver {
    pub fn system() -> Resolver {
        Resolver { servers: Arc::new([]), system: GaiResolver::new() }
    }
}

/// Where to connect to, and how to find it.
pub fn reach(servers: &[String]) -> Result<(Uri, Resolver), BadServers> {
    let mut parsed = Vec::new();
    for server in servers {
        let bad = || BadServers::Address(server.clone());
        let uri: Uri = server.parse().map_err(|_| bad())?;
        if uri.scheme_str() != Some("https") {
            return Err(bad());
        }
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
        parsed.push((host, uri.port_u16().unwrap_or(443), uri));
    }
    match parsed.as_slice() {
        [] => Err(BadServers::Address(String::new())),
        [(_, _, uri)] => Ok((uri.clone(), Resolver::system())),
        [(_, port, _), others @ ..] => {
            if let Some((_, other, _)) = others.iter().find(|(_, other, _)| other != port) {
                return Err(BadServers::Ports(*port, *other));
            }
            let uri = format!("https://{ANY}:{port}").parse();
            let uri = uri.map_err(|_| BadServers::Address(format!("port {port}")))?;
            let servers = parsed.into_iter().map(|(host, _, _)| host).collect();
            Ok((uri, Resolver { servers, system: GaiResolver::new() }))
        }
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.system.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        if self.servers.is_empty() {
            let answer = self.system.call(name);
            return Box::pin(async move { Ok(answer.await?.collect::<Vec<_>>().into_iter()) });
        }
        let servers = self.servers.clone();
        Box::pin(async move {
            let mut addresses = Vec::new();
            let mut failure = None;
            for server in servers.iter() {
                match tokio::net::lookup_host((server.as_str(), 0)).await {
                    Ok(found) => addresses.extend(found),
                    Err(error) => failure = Some(error),
                }
            }
            if let Some(failure) = failure.filter(|_| addresses.is_empty()) {
                return Err(failure);
            }
            // The connector tries them in this order; connections are spread by where it begins.
            let first = rand::random_range(0..addresses.len().max(1));
            addresses.rotate_left(first);
            Ok(addresses.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(servers: &[&str]) -> Vec<String> {
        servers.iter().map(|server| (*server).to_owned()).collect()
    }

    #[tokio::test]
    async fn every_server_is_tried() {
        let (uri, mut resolver) =
            reach(&words(&["https://127.0.0.1:6443", "https://[::1]:6443"])).expect("two");
        assert_eq!(uri, "https://kubernetes.default.svc:6443");
        let name: Name = ANY.parse().expect("a name");
        let mut found: Vec<String> =
            resolver.call(name).await.expect("addresses").map(|address| address.ip().to_string()).collect();
        found.sort();
        assert_eq!(found, ["127.0.0.1", "::1"]);
    }

    #[test]
    fn one_server_is_itself() {
        let (uri, resolver) = reach(&words(&["https://example.org:6443"])).expect("one");
        assert_eq!(uri, "https://example.org:6443");
        assert!(resolver.servers.is_empty());
    }

    #[test]
    fn invalid_server_lists_are_errors() {
        for (servers, why) in [
            (words(&[]), "is not a server URL"),
            (words(&["http://a:1"]), "is not a server URL"),
            (words(&["https://a:1", "b"]), "is not a server URL"),
            (words(&["https://a:1", "https://b:2"]), "same port"),
        ] {
            let error = reach(&servers).err().expect("refused").to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
