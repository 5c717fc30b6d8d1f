//! Hearing of it when addresses or routes change.

use std::io;

use netlink_sys::{AsyncSocket, SocketAddr, TokioSocket, protocols::NETLINK_ROUTE};

use super::{Error, Result};

/// A socket on which the kernel tells each change of an address or a route of one namespace. Unlike the rest of
/// this module it does not block: who waits for a change waits long.
pub struct Changes {
    socket: TokioSocket,
}

impl Changes {
    /// For the calling thread's namespace, within a runtime.
    pub fn open() -> Result<Self> {
        let open = || -> io::Result<TokioSocket> {
            let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
            socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
            for group in [libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR, libc::RTNLGRP_IPV4_ROUTE] {
                socket.socket_mut().add_membership(group)?;
            }
            Ok(socket)
        };
        Ok(Self { socket: open().map_err(|e| Error::new("listening for changes of addresses", e))? })
    }

    /// Returns at the next change; what it was is for the caller to look up.
    pub async fn next(&mut self) -> Result<()> {
        match std::future::poll_fn(|context| self.socket.poll_recv_from_full(context)).await {
            Ok(_) => Ok(()),
            // Some were lost for want of room: that there were any is all that is asked.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
            Err(error) => Err(Error::new("hearing of changes of addresses", error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Namespace, Netlink};

    #[tokio::test]
    async fn a_new_address_is_heard_of() {
        let Ok(namespace) = Namespace::create() else {
            ferry_skip::missing("the right to make a network namespace");
            return;
        };
        let runtime = tokio::runtime::Handle::current();
        let open = move || {
            let _entered = runtime.enter();
            Changes::open()
        };
        let mut changes = namespace.run(open).unwrap().unwrap();
        let mut netlink = Netlink::open_in(&namespace).unwrap();
        let lo = netlink.link_index("lo").unwrap();
        netlink.set_up(lo).unwrap();
        netlink.add_address(lo, "192.0.2.7/32".parse().unwrap()).unwrap();
        let patience = std::time::Duration::from_secs(5);
        tokio::time::timeout(patience, changes.next()).await.expect("it is told").unwrap();
    }
}
