//! Names outside the cluster: from the cache, or from the host's name servers.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    sync::Semaphore,
    time::timeout,
};

use crate::{
    answer::{UDP_PAYLOAD, is_answer_to},
    cache::{Cache, Key},
    metrics,
};

/// How long one server has for one answer, and how often all are asked.
const PATIENCE: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;
/// Questions under way. Beyond that clients are told to come again, which they do.
const UNDER_WAY: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no name server is configured")]
    NoServers,
    #[error("too many queries are in progress")]
    Busy,
    #[error("no name server answered; the last: {0}")]
    Exchange(#[from] io::Error),
}

pub struct Forwarder {
    servers: Vec<SocketAddr>,
    cache: Mutex<Cache>,
    permits: Semaphore,
}

impl Forwarder {
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self { servers, cache: Mutex::default(), permits: Semaphore::new(UNDER_WAY) }
    }

    /// The answer of the first server that gives one.
    pub async fn resolve(&self, question: &Query, dnssec_ok: bool) -> Result<Message, Error> {
        let key = Key { name: question.name().to_lowercase(), kind: question.query_type(), dnssec_ok };
        let known = self.cache.lock().get(&key, Instant::now());
        metrics::looked_up(known.is_some());
        if let Some(known) = known {
            return Ok(known);
        }
        let _permit = self.permits.try_acquire().map_err(|_| Error::Busy)?;
        let mut last = Error::NoServers;
        for server in std::iter::repeat_n(&self.servers, ROUNDS).flatten() {
            let began = Instant::now();
            let answered = timeout(PATIENCE, exchange(*server, question, dnssec_ok)).await;
            metrics::forwarded(
                *server,
                answered.as_ref().ok().and_then(|answer| answer.as_ref().ok()),
                began.elapsed(),
            );
            match answered {
                Ok(Ok(answer)) => {
                    self.cache.lock().put(key, &answer, Instant::now());
                    return Ok(answer);
                }
                Ok(Err(error)) => last = error.into(),
                Err(_) => last = io::Error::from(io::ErrorKind::TimedOut).into(),
            }
        }
        Err(last)
    }
}

/// One question to one server: by UDP, and by TCP when the answer does not fit.
async fn exchange(server: SocketAddr, question: &Query, dnssec_ok: bool) -> io::Result<Message> {
    // A random number, and a socket and so a port of its own: both must be guessed to forge an answer.
    let id = rand::random::<u16>();
    let mut request = Message::new(id, MessageType::Query, OpCode::Query);
    request.metadata.recursion_desired = true;
    request.add_query(question.clone());
    let mut edns = Edns::new();
    edns.set_max_payload(UDP_PAYLOAD);
    edns.set_dnssec_ok(dnssec_ok);
    request.set_edns(edns);
    let request = request.to_vec().map_err(io::Error::other)?;

    let any: SocketAddr =
        if server.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(&request).await?;
    let mut buffer = [0; 4096];
    let answer = loop {
        let length = socket.recv(&mut buffer).await?;
        // What is not the answer may be forged: the right one can still come.
        if let Ok(message) = Message::from_vec(&buffer[..length])
            && is_answer_to(&message, id, question.name(), question)
        {
            break message;
        }
    };
    if !answer.metadata.truncation {
        return Ok(answer);
    }
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(request.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &request].concat()).await?;
    let length = stream.read_u16().await?;
    let mut bytes = vec![0; length.into()];
    stream.read_exact(&mut bytes).await?;
    let message = Message::from_vec(&bytes).map_err(io::Error::other)?;
    if is_answer_to(&message, id, question.name(), question) {
        Ok(message)
    } else {
        Err(io::Error::other("the answer is to another question"))
    }
}
