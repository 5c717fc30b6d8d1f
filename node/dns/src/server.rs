//! Sockets: UDP and TCP on every address.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ferry_client::CancellationToken;
use hickory_proto::op::{Message, ResponseCode};
use parking_lot::RwLock;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

use crate::{
    Error,
    answer::{self, Action, answer, complete, encode},
    forward::Forwarder,
    metrics::Counted,
    zone::Zone,
};

/// A client that asks nothing for so long is let go.
const IDLE: Duration = Duration::from_secs(10);
/// Open TCP connections; further ones wait for one to end.
const CONNECTIONS: usize = 256;
/// Questions taken from a socket before other tasks of the thread get their turn.
const TURN: usize = 64;
/// Before the next connection is tried after one could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub struct Server {
    udp: Vec<UdpSocket>,
    tcp: Vec<TcpListener>,
}

/// What every socket's task shares.
struct Shared {
    zone: Arc<RwLock<Zone>>,
    forwarder: Arc<Forwarder>,
    counted: Counted,
}

impl Server {
    pub async fn bind(addresses: &[SocketAddr]) -> Result<Self, Error> {
        let mut server = Self { udp: Vec::new(), tcp: Vec::new() };
        for address in addresses {
            let listen = |source| Error::Listen { address: *address, source };
            let tcp = TcpListener::bind(address).await.map_err(listen)?;
            // With port 0 both get the one TCP was given.
            let address = tcp.local_addr().map_err(listen)?;
            server.udp.push(udp_socket(address).map_err(listen)?);
            server.tcp.push(tcp);
        }
        Ok(server)
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.tcp.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Answers until told to stop.
    pub async fn serve(
        self,
        zone: Arc<RwLock<Zone>>,
        forwarder: Arc<Forwarder>,
        shutdown: CancellationToken,
    ) {
        let addresses = self.addresses();
        let counted = Counted::new(addresses.first().map_or_else(String::new, ToString::to_string));
        let shared = Arc::new(Shared { zone, forwarder, counted });
        let mut tasks = JoinSet::new();
        for socket in self.udp {
            tasks.spawn(serve_udp(Arc::new(socket), shared.clone()));
        }
        for listener in self.tcp {
            tasks.spawn(serve_tcp(listener, shared.clone()));
        }
        shutdown.cancelled().await;
        tasks.shutdown().await;
    }
}

fn udp_socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    // Room for a burst: what does not fit is lost and asked again only after seconds.
    socket.set_recv_buffer_size(4 << 20)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

async fn serve_udp(socket: Arc<UdpSocket>, shared: Arc<Shared>) {
    let mut forwards = JoinSet::new();
    let mut buffer = [0; 4096];
    loop {
        tokio::select! {
            ready = socket.readable() => if ready.is_err() { continue },
            Some(_) = forwards.join_next() => continue,
        }
        for _ in 0..TURN {
            let Ok((length, client)) = socket.try_recv_from(&mut buffer) else { break };
            let (packet, began) = (&buffer[..length], Instant::now());
            let action = answer(packet, &shared.zone.read());
            let limit = || answer::udp_limit(packet);
            match action {
                Action::Ignore => {}
                Action::Reply(response) => {
                    // Most answers fit the least anyone takes; only others need the client's word.
                    let Some(bytes) = encode(&response, usize::MAX) else { continue };
                    let bytes = if bytes.len() <= 512 { Some(bytes) } else { encode(&response, limit()) };
                    let size = bytes.as_ref().map_or(0, Vec::len);
                    shared.counted.answered(
                        "udp",
                        client.is_ipv6(),
                        &response,
                        (length, size),
                        began.elapsed(),
                    );
                    // A full send buffer loses the answer, as the network may: the client asks again.
                    drop(bytes.map(|bytes| socket.try_send_to(&bytes, client)));
                }
                Action::Forward { response, question, dnssec_ok } => {
                    let (socket, shared, limit) = (socket.clone(), shared.clone(), limit());
                    forwards.spawn(async move {
                        let answer = shared.forwarder.resolve(&question, dnssec_ok).await;
                        let response = finish(*response, answer);
                        let size = response.to_vec().map_or(0, |bytes| bytes.len());
                        let sizes = (length, size);
                        shared.counted.answered("udp", client.is_ipv6(), &response, sizes, began.elapsed());
                        if let Some(bytes) = encode(&response, limit) {
                            drop(socket.send_to(&bytes, client).await);
                        }
                    });
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

async fn serve_tcp(listener: TcpListener, shared: Arc<Shared>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
        let accepted = loop {
            tokio::select! {
                accepted = listener.accept() => break accepted,
                Some(_) = connections.join_next() => {}
            }
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            // Out of descriptors, most likely: the same error would come at once again.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let shared = shared.clone();
        connections.spawn(async move {
            // A client that breaks off, or sends nonsense, ends its own connection.
            let _ = serve_connection(stream, &shared).await;
            drop(permit);
        });
    }
}

async fn serve_connection(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    loop {
        let Ok(length) = timeout(IDLE, stream.read_u16()).await else { return Ok(()) };
        let mut packet = vec![0; length?.into()];
        let Ok(read) = timeout(IDLE, stream.read_exact(&mut packet)).await else { return Ok(()) };
        read?;
        let began = Instant::now();
        let action = answer(&packet, &shared.zone.read());
        let response = match action {
            Action::Ignore => return Ok(()),
            Action::Reply(response) => *response,
            Action::Forward { response, question, dnssec_ok } => {
                finish(*response, shared.forwarder.resolve(&question, dnssec_ok).await)
            }
        };
        let Some(bytes) = encode(&response, u16::MAX.into()) else { return Ok(()) };
        let is_ipv6 = stream.peer_addr().is_ok_and(|peer| peer.is_ipv6());
        shared.counted.answered("tcp", is_ipv6, &response, (packet.len(), bytes.len()), began.elapsed());
        let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes()[..], &bytes].concat()).await?;
    }
}

fn finish(response: Message, upstream: Result<Message, crate::forward::Error>) -> Message {
    match upstream {
        Ok(upstream) => complete(response, upstream),
        Err(error) => {
            tracing::debug!(%error, "a name could not be resolved");
            let mut response = response;
            response.metadata.response_code = ResponseCode::ServFail;
            response
        }
    }
}
