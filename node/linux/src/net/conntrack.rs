//! Forgetting tracked UDP flows, whose rewriting would otherwise outlive the endpoint it points to.

use std::net::IpAddr;

use super::tool::{ToolError, feed};

/// Which UDP flows to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flows {
    /// Sent to this service address and port, and rewritten to this endpoint.
    Rewritten { original: IpAddr, port: u16, endpoint: IpAddr },
    /// Sent to this port of any local address, and rewritten to this endpoint.
    RewrittenPort { port: u16, endpoint: IpAddr },
    /// Sent to this address and port, whatever became of them.
    To { original: IpAddr, port: u16 },
    /// Sent to this port of any address.
    ToPort { port: u16, ipv6: bool },
}

/// Deletes the flows. None to delete is no error.
pub fn forget(flows: &Flows) -> Result<(), ToolError> {
    let arguments = arguments(flows);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match feed("conntrack", &arguments, "") {
        Ok(_) => Ok(()),
        // conntrack exits with 1 when nothing matched, and says so.
        Err(ToolError::Refused { message, .. }) if message.contains("0 flow entries") => Ok(()),
        Err(error) => Err(error),
    }
}

fn arguments(flows: &Flows) -> Vec<String> {
    let family = |ipv6: bool| if ipv6 { "ipv6" } else { "ipv4" };
    let base = |ipv6: bool| ["-D", "-f", family(ipv6), "-p", "udp"].map(String::from).to_vec();
    match *flows {
        Flows::Rewritten { original, port, endpoint } => {
            let mut all = base(original.is_ipv6());
            all.extend(
                ["--orig-dst", &original.to_string(), "--orig-port-dst", &port.to_string()].map(String::from),
            );
            all.extend(["--dst-nat".into(), endpoint.to_string()]);
            all
        }
        Flows::RewrittenPort { port, endpoint } => {
            let mut all = base(endpoint.is_ipv6());
            all.extend([
                "--orig-port-dst".into(),
                port.to_string(),
                "--dst-nat".into(),
                endpoint.to_string(),
            ]);
            all
        }
        Flows::To { original, port } => {
            let mut all = base(original.is_ipv6());
            all.extend(
                ["--orig-dst", &original.to_string(), "--orig-port-dst", &port.to_string()].map(String::from),
            );
            all
        }
        Flows::ToPort { port, ipv6 } => {
            let mut all = base(ipv6);
            all.extend(["--orig-port-dst".into(), port.to_string()]);
            all
        }
    }
}
