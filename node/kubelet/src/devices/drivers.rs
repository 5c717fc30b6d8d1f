//! The drivers that are registered at this kubelet: how they are called, whether they can be reached, and since when
//! they cannot.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use ferry_client::CancellationToken;
use ferry_plugins_api::dra;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;

use crate::metrics;

/// A driver has this long to answer, as upstream gives it.
const CALL_TIMEOUT: Duration = Duration::from_secs(45);
/// A driver that is gone has this long to come back before its slices are removed, as upstream gives it: enough for a
/// pod to be replaced.
pub const WIPING_DELAY: Duration = Duration::from_secs(30);

/// The services that this kubelet calls, the newest first; the messages of both are the same on the wire.
const SERVICES: [(&str, &str); 2] = [
    ("v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"),
    ("v1beta1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"),
];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("DRA driver {0} is not registered")]
    NotRegistered(String),
    #[error("{call}: rpc error: code = {code:?} desc = {message}")]
    Call { call: &'static str, code: tonic::Code, message: String },
}

/// One plugin of a driver. A driver that is being replaced has two for a while.
pub struct Plugin {
    pub driver: String,
    endpoint: String,
    service: &'static str,
    pub channel: Channel,
    connections: Arc<AtomicUsize>,
    /// Ends what goes on for it.
    pub gone: CancellationToken,
}

#[derive(Default)]
struct Registered {
    /// By driver, the latest last.
    plugins: BTreeMap<String, Vec<Arc<Plugin>>>,
    /// When the slices of a driver that cannot be reached are due to be removed.
    due: BTreeMap<String, Instant>,
}

impl Registered {
    fn reaches(&self, driver: &str) -> bool {
        let plugins = self.plugins.get(driver);
        plugins.is_some_and(|plugins| plugins.iter().any(|plugin| plugin.is_connected()))
    }
}

/// Cloning shares.
#[derive(Clone)]
pub struct Drivers {
    registered: Arc<Mutex<Registered>>,
    /// Counts registrations, and connections that come and go.
    changes: watch::Sender<u64>,
}

impl Drivers {
    pub fn new() -> Self {
        Self { registered: Arc::default(), changes: watch::Sender::new(0) }
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Takes up a plugin. The error is for the plugin to read.
    pub fn register(
        &self,
        driver: &str,
        endpoint: &str,
        versions: &[String],
        gone: CancellationToken,
    ) -> Result<Arc<Plugin>, String> {
        let service = service(versions).map_err(|problem| {
            format!("invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: {problem}")
        })?;
        let mut registered = self.registered.lock();
        let plugins = registered.plugins.entry(driver.into()).or_default();
        if plugins.iter().any(|plugin| plugin.endpoint == endpoint) {
            return Err(format!("endpoint {endpoint} already registered for DRA driver plugin {driver}"));
        }
        let connections = Arc::new(AtomicUsize::new(0));
        let channel = self.channel(driver, endpoint, connections.clone());
        let (driver, endpoint) = (driver.to_owned(), endpoint.to_owned());
        let plugin = Arc::new(Plugin { driver, endpoint, service, channel, connections, gone });
        plugins.push(plugin.clone());
        drop(registered);
        self.changed(&plugin.driver);
        Ok(plugin)
    }

    pub fn deregister(&self, driver: &str, endpoint: &str) {
        let mut registered = self.registered.lock();
        let Some(plugins) = registered.plugins.get_mut(driver) else { return };
        for plugin in plugins.extract_if(.., |plugin| plugin.endpoint == endpoint) {
            plugin.gone.cancel();
        }
        if plugins.is_empty() {
            registered.plugins.remove(driver);
        }
        drop(registered);
        self.changed(driver);
    }

    /// The latest plugin of a driver that is connected, or else the latest.
    pub fn get(&self, driver: &str) -> Result<Arc<Plugin>, Error> {
        let registered = self.registered.lock();
        let plugins = registered.plugins.get(driver);
        let plugins = plugins.ok_or_else(|| Error::NotRegistered(driver.into()))?;
        let connected = plugins.iter().rev().find(|plugin| plugin.is_connected());
        connected.or(plugins.last()).cloned().ok_or_else(|| Error::NotRegistered(driver.into()))
    }

    pub fn is_registered(&self, driver: &str) -> bool {
        self.registered.lock().plugins.contains_key(driver)
    }

    /// Whether no plugin of a driver is connected.
    pub fn is_out_of_reach(&self, driver: &str) -> bool {
        !self.registered.lock().reaches(driver)
    }

    /// The drivers whose time is over, and when the next one's will be.
    pub fn take_due(&self, now: Instant) -> (Vec<String>, Option<Instant>) {
        let due = &mut self.registered.lock().due;
        let over: Vec<String> = due.extract_if(.., |_, at| *at <= now).map(|(driver, _)| driver).collect();
        (over, due.values().min().copied())
    }

    /// Notes whether a driver can be reached. One that could not already keeps its time.
    fn changed(&self, driver: &str) {
        let mut registered = self.registered.lock();
        if registered.reaches(driver) {
            registered.due.remove(driver);
        } else {
            registered.due.entry(driver.into()).or_insert_with(|| Instant::now() + WIPING_DELAY);
        }
        drop(registered);
        self.changes.send_modify(|count| *count += 1);
    }

    /// A channel that opens its socket when it is used, and tells of each connection.
    fn channel(&self, driver: &str, endpoint: &str, connections: Arc<AtomicUsize>) -> Channel {
        let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint).to_owned();
        let (drivers, driver) = (self.clone(), driver.to_owned());
        // the address is never resolved: the connector below opens the socket
        Endpoint::from_static("http://driver.invalid").connect_with_connector_lazy(tower::service_fn(
            move |_: Uri| {
                let (path, drivers) = (path.clone(), drivers.clone());
                let (driver, connections) = (driver.clone(), connections.clone());
                async move {
                    let stream = UnixStream::connect(path).await?;
                    let connection = Connection::open(drivers, driver, connections);
                    Ok::<_, io::Error>(hyper_util::rt::TokioIo::new(TrackedStream {
                        stream,
                        _connection: connection,
                    }))
                }
            },
        ))
    }
}

impl Default for Drivers {
    fn default() -> Self {
        Self::new()
    }
}

/// The service of a plugin that is called: the first it names that this kubelet knows.
fn service(versions: &[String]) -> Result<&'static str, String> {
    if versions.is_empty() {
        return Err("empty list of supported gRPC services (aka supported versions)".into());
    }
    let known = |version: &String| SERVICES.iter().find(|(name, _)| name == version);
    versions.iter().find_map(known).map(|(_, service)| *service).ok_or_else(|| {
        let quoted =
            |words: &[&str]| words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" ");
        let theirs = quoted(&versions.iter().map(String::as_str).collect::<Vec<_>>());
        let ours = quoted(&SERVICES.map(|(name, _)| name));
        format!(
            "none of services supported by the plugin ([{theirs}]) are supported by the kubelet ([{ours}])"
        )
    })
}

impl Plugin {
    fn is_connected(&self) -> bool {
        self.connections.load(Ordering::Acquire) > 0
    }

    pub async fn prepare(&self, claims: Vec<dra::Claim>) -> Result<dra::NodePrepareResourcesResponse, Error> {
        self.call("NodePrepareResources", dra::NodePrepareResourcesRequest { claims }).await
    }

    pub async fn unprepare(
        &self,
        claims: Vec<dra::Claim>,
    ) -> Result<dra::NodeUnprepareResourcesResponse, Error> {
        self.call("NodeUnprepareResources", dra::NodeUnprepareResourcesRequest { claims }).await
    }

    async fn call<Q, A>(&self, call: &'static str, request: Q) -> Result<A, Error>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let method = format!("/{}/{call}", self.service);
        let path = PathAndQuery::try_from(method.as_str()).expect("the names above make a path");
        let unary = async {
            let mut grpc = Grpc::new(self.channel.clone());
            grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
            let codec = ProstCodec::<Q, A>::default();
            Ok(grpc.unary(tonic::Request::new(request), path, codec).await?.into_inner())
        };
        let began = Instant::now();
        let late = || Err(tonic::Status::deadline_exceeded("context deadline exceeded"));
        let answer = tokio::time::timeout(CALL_TIMEOUT, unary).await.unwrap_or_else(|_| late());
        let code = answer.as_ref().map_or_else(tonic::Status::code, |_| tonic::Code::Ok);
        metrics::driver_called(&self.driver, &method, &format!("{code:?}"), began.elapsed());
        answer.map_err(|status| Error::Call { call, code, message: status.message().into() })
    }
}

/// A connection while it lasts.
struct Connection {
    drivers: Drivers,
    driver: String,
    connections: Arc<AtomicUsize>,
}

impl Connection {
    fn open(drivers: Drivers, driver: String, connections: Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Ordering::AcqRel);
        drivers.changed(&driver);
        Self { drivers, driver, connections }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Ordering::AcqRel);
        self.drivers.changed(&self.driver);
    }
}

/// A connection to a driver; dropping it reports the end of the connection.
struct TrackedStream {
    stream: UnixStream,
    _connection: Connection,
}

impl AsyncRead for TrackedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TrackedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_first_version_that_both_know_is_called() {
        let check = |names: &[&str], expected: Result<&str, &str>| match (service(&versions(names)), expected)
        {
            (Ok(found), Ok(expected)) => assert!(found.contains(expected), "{names:?} {found}"),
            (Err(said), Err(expected)) => assert!(said.contains(expected), "{names:?} {said}"),
            (found, _) => panic!("{names:?} {found:?}"),
        };
        check(&["v1.DRAPlugin", "v1beta1.DRAPlugin"], Ok(".v1.DRAPlugin"));
        check(&["v1alpha1.DRAResourceHealth", "v1beta1.DRAPlugin"], Ok(".v1beta1.DRAPlugin"));
        check(&[], Err("empty list"));
        check(&["1.0.0"], Err(r#"none of services supported by the plugin (["1.0.0"])"#));
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_cannot_be_reached_has_its_time() {
        let drivers = Drivers::new();
        let gone = CancellationToken::new();
        let register =
            |endpoint| drivers.register("d", endpoint, &versions(&["v1.DRAPlugin"]), gone.child_token());
        let plugin = register("/nowhere/a").expect("a plugin");
        let said = register("/nowhere/a").err().expect("it has it already");
        assert!(said.contains("endpoint /nowhere/a already registered"), "{said}");
        let start = Instant::now();
        assert_eq!(drivers.take_due(start), (vec![], Some(start + WIPING_DELAY)));

        // the time of one that was not reached goes on, whatever else happens
        tokio::time::advance(WIPING_DELAY / 2).await;
        register("/nowhere/b").expect("another of the same driver");
        assert_eq!(drivers.take_due(Instant::now()), (vec![], Some(start + WIPING_DELAY)));
        let connection = Connection::open(drivers.clone(), "d".into(), plugin.connections.clone());
        assert_eq!(drivers.take_due(Instant::now()), (vec![], None));
        assert!(
            drivers.get("d").expect("registered").is_connected(),
            "the one that is connected is preferred"
        );
        drop(connection);
        assert!(!drivers.get("d").expect("registered").is_connected());

        drivers.deregister("d", "/nowhere/a");
        assert!(plugin.gone.is_cancelled());
        drivers.deregister("d", "/nowhere/b");
        let said = drivers.get("d").err().expect("nobody is left").to_string();
        assert_eq!(said, "DRA driver d is not registered");
        tokio::time::advance(WIPING_DELAY).await;
        assert_eq!(drivers.take_due(Instant::now()), (vec!["d".into()], None));
        assert_eq!(drivers.take_due(Instant::now()), (vec![], None), "once is enough");
    }
}
