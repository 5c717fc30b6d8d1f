//! `proxy`: the API on a local port, with the kubeconfig's identity added to each request. Answers are
//! streamed, watches and upgraded connections too.

mod filter;
mod static_files;

use std::cell::RefCell;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result, system_words};
use crate::flags::Flag;
use crate::transport::SharedClient;
use filter::Filter;

const DEFAULT_PORT: &str = "8001";

pub const COMMAND: Command = Command {
    name: "proxy",
    group: super::TROUBLESHOOT,
    short: "Run a proxy to the Kubernetes API server",
    usage: "[--port=PORT] [--www=static-dir] [--www-prefix=prefix] [--api-prefix=prefix]",
    flags: &[&[
        Flag::text("accept-hosts", "Patterns of hosts to accept")
            .default("^localhost$,^127\\.0\\.0\\.1$,^\\[::1\\]$"),
        Flag::text("accept-paths", "Patterns of paths to accept").default("^.*"),
        Flag::text("address", "Address to serve on").default("127.0.0.1"),
        Flag::text("api-prefix", "Prefix to serve the API under").default("/"),
        Flag::bool("append-server-path", "Put the path of the kubeconfig's server before each request's"),
        Flag::bool(
            "disable-filter",
            "Let every request through; pages in a browser can then use the cluster",
        ),
        Flag::duration(
            "keepalive",
            "How often a silent connection to the server is probed; 0 leaves it to the system",
        ),
        Flag::int("port", "Port to serve on; 0 picks one").short('p').default(DEFAULT_PORT),
        Flag::text("reject-methods", "Patterns of methods to refuse").default("^$"),
        Flag::text("reject-paths", "Patterns of paths to refuse, even accepted ones")
            .default("^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach"),
        Flag::text("unix-socket", "Socket file to serve on").short('u'),
        Flag::text("www", "Directory whose files are served too").short('w'),
        Flag::text("www-prefix", "Prefix to serve those files under").short('P').default("/static/"),
    ]],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    let socket = args.text("unix-socket");
    let proxy = Rc::new(Proxy::new(cli)?);
    if args.text("port") != DEFAULT_PORT && !socket.is_empty() {
        return Err(Error::message("cannot set --unix-socket and --port at the same time"));
    }
    if socket.is_empty() {
        let port = args.int("port");
        if u16::try_from(port).is_err() {
            return Err(Error::message(format!("listen tcp: address {port}: invalid port")));
        }
        let address = format!("{}:{port}", args.text("address"));
        let listener = tokio::net::TcpListener::bind(&address).await.map_err(|error| {
            Error::message(format!("listen tcp {address}: bind: {}", system_words(&error)))
        })?;
        cli.line(format!("Starting to serve on {}", listener.local_addr()?))?;
        cli.flush()?;
        loop {
            let (stream, peer) = listener.accept().await?;
            tokio::task::spawn_local(serve(proxy.clone(), stream, Some(peer.ip())));
        }
    }
    let listener = listen_unix(socket)?;
    cli.line(format!("Starting to serve on {socket}"))?;
    cli.flush()?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::task::spawn_local(serve(proxy.clone(), stream, None));
    }
}

/// A socket for its owner alone; one that was left behind makes room.
fn listen_unix(path: &str) -> Result<tokio::net::UnixListener> {
    use std::os::unix::fs::FileTypeExt;
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    let before = rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let listener = tokio::net::UnixListener::bind(path);
    rustix::process::umask(before);
    listener.map_err(|error| Error::message(format!("listen unix {path}: {error}")))
}

struct Proxy {
    client: SharedClient,
    filter: Option<Filter>,
    api_prefix: String,
    /// The path of the kubeconfig's server, if it is put before others.
    server_path: String,
    files: Option<(String, PathBuf)>,
    keepalive: Duration,
}

type Body = BoxBody<Bytes, hyper::Error>;

/// The connection to the API server that belongs to one of ours.
type Upstream = RefCell<Option<SendRequest<Incoming>>>;

impl Proxy {
    fn new(cli: &Cli) -> Result<Proxy> {
        let args = &cli.args;
        let client = cli.client()?.clone();
        let with_slash = |text: &str| if text.ends_with('/') { text.to_owned() } else { format!("{text}/") };
        let path = client.server().splitn(4, '/').nth(3).unwrap_or("").trim_end_matches('/').to_owned();
        let mut server_path = String::new();
        if args.bool("append-server-path") && !path.is_empty() {
            server_path = format!("/{path}");
        } else if !path.is_empty() {
            eprintln!(
                "Your kube context contains a server path /{path}, use --append-server-path to automatically append the path to each request"
            );
        }
        let filter = if args.bool("disable-filter") {
            if args.text("unix-socket").is_empty() {
                eprintln!(
                    "Request filter disabled, your proxy is vulnerable to XSRF attacks, please be cautious"
                );
            }
            None
        } else {
            Some(Filter::from_args(args)?)
        };
        let directory = args.text("www");
        if !directory.is_empty() && !std::path::Path::new(directory).is_dir() {
            eprintln!("Static file directory {directory} is not a directory");
        }
        Ok(Proxy {
            client,
            filter,
            api_prefix: with_slash(args.text("api-prefix")),
            server_path,
            files: (!directory.is_empty())
                .then(|| (with_slash(args.text("www-prefix")), PathBuf::from(directory))),
            keepalive: args.duration("keepalive"),
        })
    }

    async fn answer(&self, request: Request<Incoming>, upstream: &Upstream) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let plain = clean(&path);
        if plain != path {
            return redirect(&plain, &request);
        }
        // the longer prefix is the one that was meant
        let files = self.files.as_ref().filter(|(prefix, _)| {
            path.starts_with(prefix)
                && (prefix.len() >= self.api_prefix.len() || !path.starts_with(&self.api_prefix))
        });
        if let Some((prefix, directory)) = files {
            return static_files::serve(directory, &path[prefix.len()..]).map(whole);
        }
        if self.api_prefix.len() > 1 && path == self.api_prefix.trim_end_matches('/') {
            return redirect(&self.api_prefix, &request);
        }
        if !path.starts_with(&self.api_prefix) {
            return static_files::text(StatusCode::NOT_FOUND, "404 page not found\n").map(whole);
        }
        let inner = if self.api_prefix.starts_with("/api") {
            path
        } else {
            format!("/{}", path[self.api_prefix.len()..].trim_start_matches('/'))
        };
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        let accepted =
            self.filter.as_ref().is_none_or(|filter| filter.accepts(request.method().as_str(), &inner, host));
        if !accepted {
            return static_files::text(StatusCode::FORBIDDEN, "Forbidden\n").map(whole);
        }
        match self.forward(request, &inner, upstream).await {
            Ok(response) => response,
            Err(error) => {
                eprintln!("Error while proxying request: {error}");
                static_files::text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")).map(whole)
            }
        }
    }

    async fn forward(
        &self,
        mut request: Request<Incoming>,
        path: &str,
        upstream: &Upstream,
    ) -> Result<Response<Body>> {
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        let target = format!("{}{path}{query}", self.server_path);
        let uri: Uri =
            target.parse().map_err(|error| Error::message(format!("invalid path {target:?}: {error}")))?;
        let upgrade = upgrade_of(request.headers());
        let ours = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        let given = request.headers().get(header::AUTHORIZATION).cloned();
        let headers = request.headers_mut();
        remove_hop_headers(headers);
        let authority = HeaderValue::from_str(self.client.authority())
            .map_err(|_| Error::message("the server's address is no header"))?;
        headers.insert(header::HOST, authority);
        self.client.identity_headers(headers).await?;
        if let Some(given) = given {
            headers.insert(header::AUTHORIZATION, given);
        }
        if let Some(protocol) = &upgrade {
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(header::UPGRADE, protocol.clone());
        }
        *request.uri_mut() = uri;
        let idle = upstream.borrow_mut().take().filter(|sender| !sender.is_closed());
        let mut sender = match idle {
            Some(sender) if upgrade.is_none() => sender,
            _ => self.connect().await?,
        };
        if sender.ready().await.is_err() {
            sender = self.connect().await?;
        }
        let mut response =
            sender.send_request(request).await.map_err(|error| Error::message(error.to_string()))?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            if let Some(ours) = ours {
                let theirs = hyper::upgrade::on(&mut response);
                tokio::task::spawn_local(async move {
                    if let (Ok(ours), Ok(theirs)) = (ours.await, theirs.await) {
                        let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
                        // either side may end it at any time
                        let _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
                    }
                });
            }
        } else {
            remove_hop_headers(response.headers_mut());
            *upstream.borrow_mut() = Some(sender);
        }
        for name in ["credentials", "headers", "methods", "origin"] {
            response.headers_mut().remove(format!("access-control-allow-{name}"));
        }
        Ok(response.map(BodyExt::boxed))
    }

    async fn connect(&self) -> Result<SendRequest<Incoming>> {
        let stream = self.client.connect().await?;
        keep_alive(stream.socket(), self.keepalive)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Error::message(error.to_string()))?;
        // it ends with its sender, or when the server closes it
        tokio::task::spawn_local(async move {
            let _ = connection.with_upgrades().await;
        });
        Ok(sender)
    }
}

/// A connection that says nothing for so long is asked whether it is still there.
fn keep_alive(socket: &tokio::net::TcpStream, period: Duration) -> Result<()> {
    if period.is_zero() {
        return Ok(());
    }
    let probes = socket2::TcpKeepalive::new().with_time(period).with_interval(period);
    Ok(socket2::SockRef::from(socket).set_tcp_keepalive(&probes)?)
}

/// One connection of a local client.
async fn serve(
    proxy: Rc<Proxy>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Option<IpAddr>,
) {
    let upstream: Rc<Upstream> = Rc::default();
    // Says that a proxy asks, as upstream's does: a page that is shown has this proxy's origin, not the server's.
    let forwarded = peer.and_then(|peer| HeaderValue::from_str(&peer.to_string()).ok());
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(peer) = &forwarded {
            request.headers_mut().append("x-forwarded-for", peer.clone());
        }
        let (proxy, upstream) = (proxy.clone(), upstream.clone());
        async move { Ok::<_, std::convert::Infallible>(proxy.answer(request, &upstream).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    // a client that went away is nobody's error
    let _ = connection.await;
}

/// The path without empty parts and dots.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let end = if path.ends_with('/') && !parts.is_empty() { "/" } else { "" };
    format!("/{}{end}", parts.join("/"))
}

fn redirect(path: &str, request: &Request<Incoming>) -> Response<Body> {
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let location = HeaderValue::from_str(&format!("{path}{query}")).ok();
    let mut response = static_files::text(StatusCode::TEMPORARY_REDIRECT, "").map(whole);
    response.headers_mut().extend(location.map(|location| (header::LOCATION, location)));
    response
}

fn whole(body: Full<Bytes>) -> Body {
    body.map_err(|never| match never {}).boxed()
}

/// The protocol a request asks to change to.
fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let connection = headers.get(header::CONNECTION)?.to_str().ok()?;
    let asks = connection.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| asks).cloned()
}

/// Headers that are about one connection only.
fn remove_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let hops = [
        "connection",
        "proxy-connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    for name in hops.into_iter().map(str::to_owned).chain(named) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned() {
        let check = |path: &str, expected: &str| assert_eq!(clean(path), expected, "{path}");
        check("/", "/");
        check("//custom/healthz", "/custom/healthz");
        check("/a/./b/../c/", "/a/c/");
        check("/../..", "/");
    }
}
