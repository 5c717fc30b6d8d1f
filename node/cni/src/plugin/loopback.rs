//! `loopback`: sets `lo` up in the pod's namespace.

use ferry_linux::net::Netlink;

use super::{
    CniResult, Code, Command, Error, Invocation, Result,
    config::Network,
    result::{Interface, IpConfig},
};

pub(super) fn call(network: &Network, invocation: &Invocation) -> Result<Option<CniResult>> {
    match invocation.command {
        Command::Add => {
            let mut pod = Netlink::open_in(&invocation.namespace()?)?;
            let lo = pod.link_index("lo")?;
            pod.set_up(lo)?;
            // A plugin after another hands its result on.
            if let Some(result) = &network.prev_result {
                return Ok(Some(result.clone()));
            }
            let ips = pod
                .addresses()?
                .into_iter()
                .filter(|address| address.link == lo)
                .map(|address| IpConfig { interface: Some(0), address: address.net, gateway: None })
                .collect();
            let interface = Interface {
                name: "lo".into(),
                mac: "00:00:00:00:00:00".into(),
                sandbox: invocation.netns.as_deref().map(|p| p.display().to_string()).unwrap_or_default(),
                ..Interface::default()
            };
            Ok(Some(CniResult { interfaces: vec![interface], ips, ..CniResult::default() }))
        }
        Command::Check => {
            let up = Netlink::open_in(&invocation.namespace()?)?.link("lo")?.is_some_and(|lo| lo.up);
            if !up {
                return Err(Error::new(Code::NotAsExpected, "lo is down"));
            }
            Ok(None)
        }
        // lo goes with its namespace.
        Command::Del | Command::Gc | Command::Status | Command::Version => Ok(None),
    }
}
