//! The host's resolver configuration: whom to ask for names outside the cluster.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
};

pub fn read(path: &Path) -> io::Result<Vec<SocketAddr>> {
    Ok(parse(&std::fs::read_to_string(path)?))
}

/// The name servers, in order.
pub fn parse(text: &str) -> Vec<SocketAddr> {
    let mut servers = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next() != Some("nameserver") {
            continue;
        }
        // A zone (`fe80::1%eth0`) names an interface; link-local servers are asked without it.
        let address = words.next().and_then(|word| word.split('%').next()?.parse::<IpAddr>().ok());
        servers.extend(address.map(|address| SocketAddr::new(address, 53)));
    }
    servers
}

/// Without those that lead back to us: a question would go round until it is dropped.
pub fn without_loops(servers: Vec<SocketAddr>, own: &[IpAddr], listen: &[SocketAddr]) -> Vec<SocketAddr> {
    // One that listens on every address is behind every local one.
    let on_all = listen.iter().any(|address| address.ip().is_unspecified() && address.port() == 53);
    let leads_back =
        |server: &SocketAddr| own.contains(&server.ip()) || (on_all && server.ip().is_loopback());
    let (looping, asked): (Vec<_>, Vec<_>) = servers.into_iter().partition(leads_back);
    for server in looping {
        tracing::warn!(%server, "ignoring a name server of the host that forwards to the cluster's DNS");
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_and_loops_left_out() {
        let servers = parse(
            "# c\nsearch a b\nnameserver 10.96.0.10\nnameserver 127.0.0.1\nnameserver fe80::1%eth0\nnameserver x\noptions ndots:5\n",
        );
        assert_eq!(servers.len(), 3);
        let own = ["10.96.0.10".parse().unwrap()];
        let any = ["0.0.0.0:53".parse().unwrap()];
        assert_eq!(without_loops(servers.clone(), &own, &[]).len(), 2);
        assert_eq!(without_loops(servers, &own, &any), ["[fe80::1]:53".parse::<SocketAddr>().unwrap()]);
    }
}
