//! One route-netlink socket: send a request, read until it is acknowledged.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::Namespace;

/// What the kernel refused, and what was being attempted.
#[derive(Debug, thiserror::Error)]
#[error("{attempt}: {source}")]
pub struct Error {
    pub attempt: String,
    #[source]
    pub source: io::Error,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(super) fn new(attempt: impl Into<String>, source: io::Error) -> Self {
        Self { attempt: attempt.into(), source }
    }

    pub fn is_exists(&self) -> bool {
        self.source.raw_os_error() == Some(libc::EEXIST)
    }

    /// The link, address, route or namespace is not (or no longer) there.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self.source.raw_os_error(),
            Some(libc::ENODEV | libc::ENOENT | libc::ESRCH | libc::EADDRNOTAVAIL)
        )
    }
}

/// What to do when the thing asked for is already there.
#[derive(Clone, Copy)]
pub(super) enum IfPresent {
    Fail,
    Replace,
}

impl IfPresent {
    fn flags(self) -> u16 {
        match self {
            IfPresent::Fail => NLM_F_CREATE | NLM_F_EXCL,
            IfPresent::Replace => NLM_F_CREATE | NLM_F_REPLACE,
        }
    }
}

/// A route socket; it stays in the namespace it was opened in, whatever its thread does later.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// A socket in the calling thread's namespace.
    pub fn open() -> Result<Self> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // The extended acknowledgement is not read: the error number says enough.
            socket.set_cap_ack(true)?;
            Ok(socket)
        };
        Ok(Self { socket: open().map_err(|e| Error::new("opening a netlink socket", e))?, sequence: 0 })
    }

    /// A socket in another namespace; the caller's thread stays where it is.
    pub fn open_in(namespace: &Namespace) -> Result<Self> {
        namespace.run(Self::open)?
    }

    pub(super) fn create(
        &mut self,
        attempt: impl FnOnce() -> String,
        message: RouteNetlinkMessage,
        if_present: IfPresent,
    ) -> Result<()> {
        self.exchange(attempt, message, NLM_F_ACK | if_present.flags()).map(drop)
    }

    pub(super) fn change(
        &mut self,
        attempt: impl FnOnce() -> String,
        message: RouteNetlinkMessage,
    ) -> Result<()> {
        self.exchange(attempt, message, NLM_F_ACK).map(drop)
    }

    pub(super) fn dump(
        &mut self,
        attempt: impl FnOnce() -> String,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>> {
        self.exchange(attempt, message, NLM_F_DUMP)
    }

    /// One object by name or index, not a dump.
    pub(super) fn get(
        &mut self,
        attempt: impl FnOnce() -> String,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>> {
        self.exchange(attempt, message, NLM_F_ACK)
    }

    fn exchange(
        &mut self,
        attempt: impl FnOnce() -> String,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>> {
        self.converse(message, flags).map_err(|source| Error::new(attempt(), source))
    }

    fn converse(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        let mut answers = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = &datagram[..];
            while !rest.is_empty() {
                let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
                // Messages are padded to four bytes; the last one of a datagram may not be.
                let length = (answer.header.length as usize).next_multiple_of(4).min(rest.len());
                if length == 0 {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a netlink message of no length"));
                }
                rest = &rest[length..];
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(error) => {
                        return match error.code {
                            None => Ok(answers),
                            Some(code) => Err(io::Error::from_raw_os_error(code.get().abs())),
                        };
                    }
                    NetlinkPayload::InnerMessage(message) => answers.push(message),
                    NetlinkPayload::Overrun(_) => {
                        return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
                    }
                    _ => {}
                }
            }
        }
    }
}
