//! Forgetting tracked UDP flows, whose rewriting would otherwise outlive the endpoint it points to.

use std::{collections::BTreeSet, net::IpAddr};

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

/// Above so many, what is tracked is read first, and only what is there is deleted.
const FEW: usize = 8;

/// Deletes many: each deletion is a process and a walk over all that is tracked, so the usual case, that
/// next to none of them is there, is found out with one listing.
pub fn forget_all(flows: &BTreeSet<Flows>) -> Result<(), ToolError> {
    if flows.len() <= FEW {
        return flows.iter().try_for_each(forget);
    }
    let mut there = BTreeSet::new();
    for family in ["ipv4", "ipv6"] {
        let listing = feed("conntrack", &["-L", "-f", family, "-p", "udp"], "")?;
        there.extend(listing.lines().filter_map(Tracked::parse).flat_map(|tracked| tracked.kinds()));
    }
    flows.intersection(&there).try_for_each(forget)
}

/// One line of the listing: where it was sent, and who answers.
#[derive(Debug, PartialEq, Eq)]
struct Tracked {
    original: IpAddr,
    port: u16,
    endpoint: IpAddr,
}

impl Tracked {
    fn parse(line: &str) -> Option<Self> {
        // The tuple as sent comes first, then the tuple of the answer, each `src= dst= sport= dport=`.
        let values = |name: &str| -> Vec<&str> {
            line.split_whitespace().filter_map(|word| word.strip_prefix(name)).collect()
        };
        Some(Self {
            original: values("dst=").first()?.parse().ok()?,
            port: values("dport=").first()?.parse().ok()?,
            endpoint: values("src=").get(1)?.parse().ok()?,
        })
    }

    /// Everything a deletion that takes this flow along can be called.
    fn kinds(self) -> [Flows; 4] {
        let Self { original, port, endpoint } = self;
        [
            Flows::Rewritten { original, port, endpoint },
            Flows::RewrittenPort { port, endpoint },
            Flows::To { original, port },
            Flows::ToPort { port, ipv6: original.is_ipv6() },
        ]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_flow_is_known_by_every_name() {
        let line = "udp      17 29 src=10.200.1.2 dst=10.96.0.1 sport=5353 dport=80 [UNREPLIED] \
                    src=10.200.1.3 dst=10.200.1.2 sport=8080 dport=5353 mark=0 use=1";
        let (original, endpoint) = ("10.96.0.1".parse().unwrap(), "10.200.1.3".parse().unwrap());
        let tracked = Tracked::parse(line).unwrap();
        assert_eq!(tracked, Tracked { original, port: 80, endpoint });
        assert!(tracked.kinds().contains(&Flows::To { original, port: 80 }));
        assert_eq!(
            Tracked::parse("conntrack v1.4.7 (conntrack-tools): 3 flow entries have been shown."),
            None
        );
    }
}
