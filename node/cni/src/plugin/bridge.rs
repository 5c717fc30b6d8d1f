//! `bridge`: a veth pair per pod, one end a port of the host's bridge.
//!
//! The host's end is named by a digest of container and interface, so a repeated DEL, or an ADD after
//! one that was killed half way, finds what is there. The pod's end has a hardware address made from its
//! IPv4 address: when an address is used again nobody's neighbour entry is wrong.

use std::net::IpAddr;

use ferry_linux::net::{Bridge, Link, MacAddress, Namespace, Netlink, Route, Veth, names, sysctl};
use ipnet::IpNet;
use serde::Deserialize;

use super::{
    CniResult, Code, Command, Error, Invocation, Plugin, Result,
    config::Network,
    host_local, ipam, masquerade, port_map, previous_result,
    result::{Dns, Interface, IpConfig, RouteConfig},
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    bridge: String,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    ip_masq: bool,
    mtu: Option<u32>,
    hairpin_mode: bool,
    promisc_mode: bool,
    port_isolation: bool,
    vlan: Option<u16>,
    vlan_trunk: Option<serde_json::Value>,
    macspoofchk: bool,
    disable_container_interface: bool,
    /// `portMappings` in the capabilities: the bridge maps host ports itself, one process less a pod.
    capabilities: Capabilities,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Capabilities {
    port_mappings: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bridge: "cni0".into(),
            is_gateway: false,
            is_default_gateway: false,
            force_address: false,
            ip_masq: false,
            mtu: None,
            hairpin_mode: false,
            promisc_mode: false,
            port_isolation: false,
            vlan: None,
            vlan_trunk: None,
            macspoofchk: false,
            disable_container_interface: false,
            capabilities: Capabilities::default(),
        }
    }
}

impl Config {
    fn of(network: &Network) -> Result<Self> {
        let mut config: Self = network.section()?;
        let unsupported = [
            ("vlan", config.vlan.is_some_and(|vlan| vlan != 0)),
            ("vlanTrunk", config.vlan_trunk.is_some()),
            ("macspoofchk", config.macspoofchk),
            ("disableContainerInterface", config.disable_container_interface),
        ];
        if let Some((field, _)) = unsupported.iter().find(|(_, set)| *set) {
            return Err(Error::new(Code::UnsupportedField, format!("unsupported field {field}")));
        }
        if config.hairpin_mode && config.promisc_mode {
            let message = "hairpinMode and promiscMode exclude each other";
            return Err(Error::new(Code::InvalidConfig, message));
        }
        config.is_gateway |= config.is_default_gateway;
        config.mtu = config.mtu.filter(|mtu| *mtu != 0);
        Ok(config)
    }
}

pub(super) fn read_configuration(network: &Network) -> Result<()> {
    Config::of(network).map(drop)
}

pub(super) fn call(network: &Network, invocation: &Invocation) -> Result<Option<CniResult>> {
    let config = Config::of(network)?;
    match invocation.command {
        Command::Add => return add(&config, network, invocation).map(Some),
        Command::Del => delete(&config, network, invocation)?,
        Command::Check => check(&config, network, invocation)?,
        Command::Gc => {
            if config.capabilities.port_mappings {
                port_map::collect_garbage(network)?;
            }
            ipam::call(network, invocation)?;
        }
        Command::Status => drop(ipam::call(network, invocation)?),
        Command::Version => {}
    }
    Ok(None)
}

fn add(config: &Config, network: &Network, invocation: &Invocation) -> Result<CniResult> {
    let namespace = invocation.namespace()?;
    let leased = ipam::call(network, invocation)?.unwrap_or_default();
    if ipam::kind(network).is_some() && leased.ips.is_empty() {
        return Err(Error::new(Code::InvalidConfig, "the IPAM plugin gave no address"));
    }
    attach(config, network, invocation, &namespace, leased).inspect_err(|_| {
        // Nothing of a failed ADD stays; why the ADD failed matters more than why this does.
        let _ = delete(config, network, &Invocation { command: Command::Del, ..copy(invocation) });
    })
}

fn copy(invocation: &Invocation) -> Invocation {
    Invocation {
        command: invocation.command,
        container_id: invocation.container_id.clone(),
        netns: invocation.netns.clone(),
        ifname: invocation.ifname.clone(),
        args: invocation.args.clone(),
        path: invocation.path.clone(),
    }
}

fn attach(
    config: &Config,
    network: &Network,
    invocation: &Invocation,
    namespace: &Namespace,
    leased: CniResult,
) -> Result<CniResult> {
    let mut host = Netlink::open()?;
    let bridge = ensure_bridge(&mut host, config, &leased.ips)?;
    let mac = pod_mac(network, invocation, &leased.ips)?;
    let (host_end, pod_end) = connect(&mut host, config, invocation, namespace, mac, bridge.index)?;
    let routes = pod_routes(config, &leased);
    configure_pod(namespace, &pod_end, &leased.ips, &routes)?;
    if config.is_gateway {
        add_gateways(&mut host, config, &bridge, &leased.ips)?;
    }

    let sandbox = invocation.netns.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
    let interface = |link: &Link, sandbox: &str| Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu: Some(link.mtu),
        sandbox: sandbox.into(),
    };
    let ips = leased.ips.into_iter().map(|ip| IpConfig { interface: Some(2), ..ip }).collect();
    let dns = network.dns();
    let result = CniResult {
        interfaces: vec![interface(&bridge, ""), interface(&host_end, ""), interface(&pod_end, &sandbox)],
        ips,
        routes,
        dns: if dns == Dns::default() { leased.dns } else { dns },
    };
    if config.ip_masq {
        masquerade::ensure(network, &result)?;
    }
    if config.capabilities.port_mappings {
        port_map::add(network, invocation, &result)?;
    }
    Ok(result)
}

/// The bridge, made if it is not there. Two pods may start at once: the second to make it finds it made.
fn ensure_bridge(host: &mut Netlink, config: &Config, ips: &[IpConfig]) -> Result<Link> {
    if let Some(link) = host.link(&config.bridge)? {
        return usable(host, config, link);
    }
    let mac = ips.iter().find_map(|ip| match ip.gateway {
        Some(IpAddr::V4(gateway)) if config.is_gateway => Some(MacAddress::from_ipv4(gateway)),
        _ => None,
    });
    match host.add_bridge(&Bridge { name: &config.bridge, mac, mtu: config.mtu }) {
        Ok(()) => {}
        Err(error) if error.is_exists() => {}
        Err(error) => return Err(error.into()),
    }
    let link = host
        .link(&config.bridge)?
        .ok_or_else(|| Error::new(Code::TryAgainLater, format!("bridge {} went away", config.bridge)))?;
    usable(host, config, link)
}

fn usable(host: &mut Netlink, config: &Config, link: Link) -> Result<Link> {
    if link.kind.as_deref() != Some("bridge") {
        let message = format!("link {} is there and is no bridge", config.bridge);
        return Err(Error::new(Code::InvalidConfig, message));
    }
    if !link.up {
        host.set_up(link.index)?;
    }
    if config.promisc_mode {
        host.set_promiscuous(link.index)?;
    }
    Ok(link)
}

fn connect(
    host: &mut Netlink,
    config: &Config,
    invocation: &Invocation,
    namespace: &Namespace,
    peer_mac: Option<MacAddress>,
    bridge: u32,
) -> Result<(Link, Link)> {
    let name = veth_name(invocation);
    let veth = Veth {
        name: &name,
        peer_name: &invocation.ifname,
        peer_namespace: namespace,
        peer_mac,
        mtu: config.mtu,
    };
    let gone = |name: &str| Error::new(Code::UnknownContainer, format!("link {name} went away"));
    if let Err(error) = host.add_veth(&veth) {
        // Ours by its name: what an ADD that was killed left. The pod's end, when it is there under a
        // name that somebody else has taken, is not.
        if !error.is_exists() || host.link(&name)?.is_none() {
            let code = if error.is_exists() { Code::Conflict } else { Code::Kernel };
            return Err(Error::new(code, error.to_string()));
        }
        host.delete_link(&name)?;
        host.add_veth(&veth)?;
    }
    let host_end = host.link(&name)?.ok_or_else(|| gone(&name))?;
    host.set_controller(host_end.index, bridge)?;
    if config.hairpin_mode || config.port_isolation {
        host.set_bridge_port(host_end.index, config.hairpin_mode, config.port_isolation)?;
    }
    host.set_up(host_end.index)?;
    let pod_end =
        Netlink::open_in(namespace)?.link(&invocation.ifname)?.ok_or_else(|| gone(&invocation.ifname))?;
    Ok((host_end, pod_end))
}

fn configure_pod(namespace: &Namespace, link: &Link, ips: &[IpConfig], routes: &[RouteConfig]) -> Result<()> {
    let mut pod = Netlink::open_in(namespace)?;
    for ip in ips {
        pod.add_address(link.index, ip.address)?;
    }
    pod.set_up(link.index)?;
    for route in routes {
        pod.replace_route(&Route {
            mtu: route.mtu,
            priority: route.priority,
            ..Route::new(route.dst, gateway(route, ips), link.index)
        })?;
    }
    Ok(())
}

/// The IPAM plugin's routes as they are, and a default route where this bridge is to be the default
/// gateway.
fn pod_routes(config: &Config, leased: &CniResult) -> Vec<RouteConfig> {
    let mut routes = leased.routes.clone();
    for ip in leased.ips.iter().filter(|_| config.is_default_gateway) {
        let dst = default_route(ip.address.addr().is_ipv4());
        if !routes.iter().any(|route| route.dst == dst) {
            routes.push(RouteConfig { dst, gw: ip.gateway, mtu: None, priority: None });
        }
    }
    routes
}

/// A route that names no gateway goes over the one of its family.
fn gateway(route: &RouteConfig, ips: &[IpConfig]) -> Option<IpAddr> {
    let of_family = ips.iter().filter(|ip| ip.address.addr().is_ipv4() == route.dst.addr().is_ipv4());
    route.gw.or_else(|| of_family.filter_map(|ip| ip.gateway).next())
}

fn default_route(is_ipv4: bool) -> IpNet {
    let text = if is_ipv4 { "0.0.0.0/0" } else { "::/0" };
    text.parse().expect("a constant network")
}

/// The bridge answers for the gateways, and the host forwards.
fn add_gateways(host: &mut Netlink, config: &Config, bridge: &Link, ips: &[IpConfig]) -> Result<()> {
    let held: Vec<IpNet> =
        host.addresses()?.into_iter().filter(|a| a.link == bridge.index).map(|a| a.net).collect();
    for ip in ips {
        let Some(gateway) = ip.gateway else { continue };
        let wanted =
            IpNet::new(gateway, ip.address.prefix_len()).expect("the address' own prefix length fits");
        if !held.contains(&wanted) {
            for other in
                held.iter().filter(|other| other.contains(&gateway) || wanted.contains(&other.addr()))
            {
                if !config.force_address {
                    let message = format!("bridge {} has the address {other}, not {wanted}", bridge.name);
                    return Err(Error::new(Code::InvalidConfig, message));
                }
                host.delete_address(bridge.index, *other)?;
            }
            host.add_address(bridge.index, wanted)?;
        }
        let forwarding =
            if gateway.is_ipv4() { "net/ipv4/ip_forward" } else { "net/ipv6/conf/all/forwarding" };
        sysctl::set(forwarding, "1")
            .map_err(|error| Error::new(Code::Kernel, format!("setting {forwarding}: {error}")))?;
    }
    Ok(())
}

fn delete(config: &Config, network: &Network, invocation: &Invocation) -> Result<()> {
    // Each step is tried whatever became of the others; the first failure is what the runtime hears.
    let ports =
        if config.capabilities.port_mappings { port_map::delete(network, invocation) } else { Ok(()) };
    let leases = ipam::call(network, invocation).map(drop);
    let link = delete_link(invocation);
    ports.and(leases).and(link)?;
    let is_host_local = ipam::kind(network).and_then(Plugin::named) == Some(Plugin::HostLocal);
    if config.ip_masq && is_host_local {
        host_local::if_unused(network, || masquerade::remove(network))?;
    }
    Ok(())
}

fn delete_link(invocation: &Invocation) -> Result<()> {
    let mut host = Netlink::open()?;
    if host.delete_link(&veth_name(invocation))? || invocation.netns.is_none() {
        return Ok(());
    }
    // Made by another plugin under a name of its own: the pod's end takes the host's along. A namespace
    // that is gone took both.
    match invocation.namespace() {
        Ok(namespace) => {
            let mut pod = Netlink::open_in(&namespace)?;
            if pod.link(&invocation.ifname)?.is_some_and(|link| link.kind.as_deref() == Some("veth")) {
                pod.delete_link(&invocation.ifname)?;
            }
            Ok(())
        }
        Err(error) if error.code == Code::UnknownContainer as u32 => Ok(()),
        Err(error) => Err(error),
    }
}

fn check(config: &Config, network: &Network, invocation: &Invocation) -> Result<()> {
    let wrong = |message: String| Error::new(Code::NotAsExpected, message);
    let expected = previous_result(network)?;
    let namespace = invocation.namespace()?;
    ipam::call(network, invocation)?;

    let mut host = Netlink::open()?;
    let bridge =
        host.link(&config.bridge)?.ok_or_else(|| wrong(format!("bridge {} is missing", config.bridge)))?;
    let host_ends = expected.interfaces.iter().filter(|i| i.sandbox.is_empty() && i.name != config.bridge);
    for interface in host_ends {
        let link = host.link(&interface.name)?;
        if link.is_none_or(|link| link.controller != Some(bridge.index)) {
            return Err(wrong(format!("{} is no port of bridge {}", interface.name, config.bridge)));
        }
    }

    let mut pod = Netlink::open_in(&namespace)?;
    let name = &invocation.ifname;
    let link = pod.link(name)?.ok_or_else(|| wrong(format!("link {name} is missing in the pod")))?;
    let in_pod = expected.interfaces.iter().find(|i| !i.sandbox.is_empty() && i.name == *name);
    if let Some(interface) = in_pod
        && !interface.mac.is_empty()
        && link.mac.is_none_or(|mac| mac.to_string() != interface.mac)
    {
        return Err(wrong(format!("link {name} has not the hardware address {}", interface.mac)));
    }
    let addresses: Vec<IpNet> =
        pod.addresses()?.into_iter().filter(|a| a.link == link.index).map(|a| a.net).collect();
    if let Some(ip) = expected.ips.iter().find(|ip| !addresses.contains(&ip.address)) {
        return Err(wrong(format!("link {name} has not the address {}", ip.address)));
    }
    let routes = pod.routes()?;
    let is_there = |wanted: &RouteConfig| {
        routes.iter().any(|r| r.destination == wanted.dst && (wanted.gw.is_none() || r.gateway == wanted.gw))
    };
    if let Some(route) = expected.routes.iter().find(|route| !is_there(route)) {
        return Err(wrong(format!("the route to {} is missing in the pod", route.dst)));
    }
    if config.capabilities.port_mappings {
        port_map::check(network, invocation)?;
    }
    Ok(())
}

fn pod_mac(network: &Network, invocation: &Invocation, ips: &[IpConfig]) -> Result<Option<MacAddress>> {
    let by_args = network.whole.pointer("/args/cni/mac").and_then(|mac| mac.as_str());
    match network.runtime.mac.as_deref().or(by_args).or(invocation.arg("MAC")) {
        Some(text) => match MacAddress::parse(text) {
            Some(mac) => Ok(Some(mac)),
            None => Err(Error::new(Code::InvalidConfig, format!("invalid hardware address {text:?}"))),
        },
        None => Ok(ips.iter().find_map(|ip| match ip.address.addr() {
            IpAddr::V4(address) => Some(MacAddress::from_ipv4(address)),
            IpAddr::V6(_) => None,
        })),
    }
}

fn veth_name(invocation: &Invocation) -> String {
    let digest = names::hex(&format!("{} {}", invocation.container_id, invocation.ifname));
    format!("veth{}", &digest[..11])
}
