//! `host-local`: addresses from configured ranges, one from each range set, leased on this host's disk.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use serde::Deserialize;

use super::{
    CniResult, Code, Command, Error, Invocation, Result,
    config::Network,
    error,
    leases::{Leases, Owner},
    result::{Dns, IpConfig, RouteConfig},
};

const DATA_DIR: &str = "/var/lib/cni/networks";

pub(super) fn read_configuration(network: &Network) -> Result<()> {
    Config::of(network).map(drop)
}

pub(super) fn call(network: &Network, invocation: &Invocation) -> Result<Option<CniResult>> {
    let config = Config::of(network)?;
    let owner = Owner { container_id: &invocation.container_id, ifname: &invocation.ifname };
    let leases = || Leases::lock(&config.data_dir, &network.name);
    match invocation.command {
        Command::Add => {
            let wanted = wanted_addresses(network, invocation)?;
            let ips = allocate(&config, &leases()?, &owner, &wanted)?;
            let dns = config.resolv_conf.as_deref().map(read_resolv_conf).transpose()?.unwrap_or_default();
            return Ok(Some(CniResult { ips, routes: config.routes, dns, ..CniResult::default() }));
        }
        // Nothing was ever leased where there is no folder.
        Command::Del if config.data_dir.join(&network.name).is_dir() => leases()?.release(&owner)?,
        Command::Check => {
            if leases()?.of(&owner)?.is_empty() {
                let message = format!("no address is leased to container {}", owner.container_id);
                return Err(Error::new(Code::NotAsExpected, message));
            }
        }
        Command::Gc => {
            let valid: Vec<Owner> = network
                .valid_attachments
                .iter()
                .map(|a| Owner { container_id: &a.container_id, ifname: &a.ifname })
                .collect();
            leases()?.release_others(&valid)?;
        }
        Command::Status => status(&config, &leases()?)?,
        Command::Del | Command::Version => {}
    }
    Ok(None)
}

/// Runs `then` if no address of the network is leased, and lets none be leased meanwhile.
pub(super) fn if_unused(network: &Network, then: impl FnOnce() -> Result<()>) -> Result<()> {
    let config = Config::of(network)?;
    let leases = Leases::lock(&config.data_dir, &network.name)?;
    if leases.all()?.is_empty() { then() } else { Ok(()) }
}

struct Config {
    range_sets: Vec<Vec<Range>>,
    routes: Vec<RouteConfig>,
    data_dir: PathBuf,
    resolv_conf: Option<PathBuf>,
}

/// Inclusive at both ends; `gateway` is never leased.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    subnet: IpNet,
    start: IpAddr,
    end: IpAddr,
    gateway: IpAddr,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawRange {
    subnet: IpNet,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawIpam {
    /// The oldest form: one range, directly in the section.
    #[serde(flatten)]
    single: Option<RawRange>,
    ranges: Option<Vec<Vec<RawRange>>>,
    #[serde(default)]
    routes: Vec<RouteConfig>,
    data_dir: Option<PathBuf>,
    resolv_conf: Option<PathBuf>,
}

impl Config {
    fn of(network: &Network) -> Result<Self> {
        let invalid = |message: String| Error::new(Code::InvalidConfig, format!("ipam: {message}"));
        let section = network.whole.get("ipam").ok_or_else(|| invalid("the section is missing".into()))?;
        let raw = RawIpam::deserialize(section).map_err(|e| invalid(e.to_string()))?;
        let mut raw_sets: Vec<Vec<RawRange>> = raw.single.into_iter().map(|range| vec![range]).collect();
        if let Some(ranges) = &network.runtime.ip_ranges {
            let ranges = Vec::<Vec<RawRange>>::deserialize(ranges).map_err(|e| invalid(e.to_string()))?;
            raw_sets.extend(ranges);
        }
        raw_sets.extend(raw.ranges.into_iter().flatten());
        let mut range_sets = Vec::new();
        for raw_set in raw_sets {
            let set: Vec<Range> =
                raw_set.into_iter().map(Range::of).collect::<std::result::Result<_, _>>().map_err(invalid)?;
            if set.is_empty() {
                return Err(invalid("a range set is empty".into()));
            }
            if set.iter().any(|range| range.start.is_ipv4() != set[0].start.is_ipv4()) {
                return Err(invalid("a range set mixes address families".into()));
            }
            range_sets.push(set);
        }
        if range_sets.is_empty() {
            return Err(invalid("no ranges".into()));
        }
        let all: Vec<&Range> = range_sets.iter().flatten().collect();
        for (index, range) in all.iter().enumerate() {
            if let Some(other) = all[..index].iter().find(|other| range.overlaps(other)) {
                return Err(invalid(format!("the ranges of {} and {} overlap", other.subnet, range.subnet)));
            }
        }
        Ok(Self {
            range_sets,
            routes: raw.routes,
            data_dir: raw.data_dir.unwrap_or_else(|| DATA_DIR.into()),
            resolv_conf: raw.resolv_conf.filter(|path| !path.as_os_str().is_empty()),
        })
    }
}

impl Range {
    fn of(raw: RawRange) -> std::result::Result<Self, String> {
        let subnet = raw.subnet;
        if subnet.addr() != subnet.network() {
            return Err(format!("subnet {subnet} has host bits set"));
        }
        if subnet.max_prefix_len() - subnet.prefix_len() < 2 {
            return Err(format!("subnet {subnet} is too small to allocate from"));
        }
        let first = step(subnet.network(), 1);
        let last = match subnet {
            IpNet::V4(net) => step(net.broadcast().into(), -1),
            IpNet::V6(net) => net.broadcast().into(),
        };
        let range = Self {
            subnet,
            start: raw.range_start.unwrap_or(first),
            end: raw.range_end.unwrap_or(last),
            gateway: raw.gateway.unwrap_or(first),
        };
        for (name, address) in [("rangeStart", range.start), ("rangeEnd", range.end)] {
            if !subnet.contains(&address) {
                return Err(format!("{name} {address} is not in subnet {subnet}"));
            }
        }
        if number(range.start) > number(range.end) {
            return Err(format!("rangeStart {} is after rangeEnd {}", range.start, range.end));
        }
        Ok(range)
    }

    fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.start.is_ipv4()
            && (number(self.start)..=number(self.end)).contains(&number(address))
    }

    fn overlaps(&self, other: &Range) -> bool {
        self.start.is_ipv4() == other.start.is_ipv4()
            && number(self.start) <= number(other.end)
            && number(other.start) <= number(self.end)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn step(address: IpAddr, by: i32) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from(u32::from(address).wrapping_add_signed(by)).into(),
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address).wrapping_add_signed(by.into())).into(),
    }
}

/// One address from each range set; all or none.
fn allocate(config: &Config, leases: &Leases, owner: &Owner, wanted: &[IpAddr]) -> Result<Vec<IpConfig>> {
    let held = leases.of(owner)?;
    if !held.is_empty() {
        let message =
            format!("{held:?} is leased to container {} {} already", owner.container_id, owner.ifname);
        return Err(Error::new(Code::Conflict, message));
    }
    let unknown =
        wanted.iter().find(|ip| !config.range_sets.iter().flatten().any(|range| range.contains(**ip)));
    if let Some(ip) = unknown {
        return Err(Error::new(Code::InvalidConfig, format!("the requested address {ip} is in no range")));
    }
    let mut ips = Vec::new();
    for (index, set) in config.range_sets.iter().enumerate() {
        let wish = wanted.iter().copied().find(|ip| set.iter().any(|range| range.contains(*ip)));
        match allocate_in(set, index, leases, owner, wish) {
            Ok(ip) => ips.push(ip),
            Err(error) => {
                leases.release(owner)?;
                return Err(error);
            }
        }
    }
    Ok(ips)
}

fn allocate_in(
    set: &[Range],
    index: usize,
    leases: &Leases,
    owner: &Owner,
    wish: Option<IpAddr>,
) -> Result<IpConfig> {
    let lease = |range: &Range, address: IpAddr| -> Result<Option<IpConfig>> {
        if address == range.gateway || !leases.take(address, owner)? {
            return Ok(None);
        }
        let address =
            IpNet::new(address, range.subnet.prefix_len()).expect("the subnet's own prefix length fits");
        Ok(Some(IpConfig { interface: None, address, gateway: Some(range.gateway) }))
    };
    if let Some(address) = wish {
        let range = set.iter().find(|range| range.contains(address)).expect("the wish was found in this set");
        return lease(range, address)?.ok_or_else(|| {
            Error::new(Code::Conflict, format!("the requested address {address} is not free"))
        });
    }
    for (range, address) in candidates(set, leases.last(index)) {
        if let Some(ip) = lease(range, address)? {
            leases.set_last(index, address)?;
            return Ok(ip);
        }
    }
    Err(exhausted(set))
}

fn exhausted(set: &[Range]) -> Error {
    let ranges: Vec<String> = set.iter().map(|range| format!("{}-{}", range.start, range.end)).collect();
    Error::new(Code::RangeExhausted, format!("no address is free in {}", ranges.join(", ")))
}

/// Every address of a set once, beginning after the last one leased.
fn candidates(set: &[Range], last: Option<IpAddr>) -> impl Iterator<Item = (&Range, IpAddr)> {
    let from = last.and_then(|last| Some((set.iter().position(|range| range.contains(last))?, number(last))));
    let (begin, after) = from.map_or((0, None), |(position, last)| (position, Some(last)));
    // The range where the search begins comes twice: first its part after the last lease, and at the
    // end its part up to it.
    let turns = set.len() + usize::from(after.is_some());
    (0..turns).flat_map(move |turn| {
        let range = &set[(begin + turn) % set.len()];
        let first = after.filter(|_| turn == 0).map_or(number(range.start), |last| last + 1);
        let end = after.filter(|_| turn == set.len()).unwrap_or(number(range.end));
        (first..=end).map(move |value| (range, address(value, range.start.is_ipv4())))
    })
}

fn address(number: u128, is_ipv4: bool) -> IpAddr {
    if is_ipv4 {
        Ipv4Addr::from(u32::try_from(number).expect("an IPv4 range holds 32-bit numbers")).into()
    } else {
        Ipv6Addr::from(number).into()
    }
}

fn status(config: &Config, leases: &Leases) -> Result<()> {
    let taken: Vec<IpAddr> = leases.all()?.into_iter().map(|(address, _)| address).collect();
    for set in &config.range_sets {
        let in_use =
            taken.iter().filter(|address| set.iter().any(|range| range.contains(**address))).count() as u128;
        let room: u128 = set
            .iter()
            .map(|range| number(range.end) - number(range.start) + u128::from(!range.contains(range.gateway)))
            .sum();
        if in_use >= room {
            return Err(Error::new(Code::NotAvailable, exhausted(set).message));
        }
    }
    Ok(())
}

/// Addresses the caller asks for: by capability, by `args.cni.ips`, or by `CNI_ARGS`.
fn wanted_addresses(network: &Network, invocation: &Invocation) -> Result<Vec<IpAddr>> {
    let by_args = network.whole.pointer("/args/cni/ips").and_then(|ips| ips.as_array()).into_iter().flatten();
    let texts = network
        .runtime
        .ips
        .iter()
        .map(String::as_str)
        .chain(by_args.filter_map(|ip| ip.as_str()))
        .chain(invocation.arg("IP").into_iter().flat_map(|ips| ips.split(',')));
    texts
        .map(|text| {
            // With or without a prefix length; the range's own counts.
            let address = text.split('/').next().unwrap_or(text);
            address
                .parse()
                .map_err(|_| Error::new(Code::InvalidConfig, format!("invalid requested address {text:?}")))
        })
        .collect()
}

fn read_resolv_conf(path: &Path) -> Result<Dns> {
    let text = std::fs::read_to_string(path).map_err(|e| error::io("reading", path, &e))?;
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => dns.nameservers.extend(words.next().map(String::from)),
            Some("domain") => dns.domain = words.next().map(String::from).unwrap_or_default(),
            Some("search") => dns.search.extend(words.map(String::from)),
            Some("options") => dns.options.extend(words.map(String::from)),
            _ => {}
        }
    }
    Ok(dns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(subnet: &str, start: Option<&str>, end: Option<&str>) -> std::result::Result<Range, String> {
        let address = |text: Option<&str>| text.map(|text| text.parse().unwrap());
        Range::of(RawRange {
            subnet: subnet.parse().unwrap(),
            range_start: address(start),
            range_end: address(end),
            gateway: None,
        })
    }

    #[test]
    fn ranges_have_the_usual_bounds() {
        let whole = range("10.1.2.0/24", None, None).unwrap();
        assert_eq!((whole.start, whole.end), ("10.1.2.1".parse().unwrap(), "10.1.2.254".parse().unwrap()));
        assert_eq!(whole.gateway, whole.start);
        let v6 = range("fd00::/64", None, None).unwrap();
        assert_eq!(v6.end, "fd00::ffff:ffff:ffff:ffff".parse::<IpAddr>().unwrap());
        for (subnet, start, end) in [
            ("10.1.2.0/31", None, None),
            ("10.1.2.1/24", None, None),
            ("10.1.2.0/24", Some("10.1.3.1"), None),
            ("10.1.2.0/24", Some("10.1.2.9"), Some("10.1.2.8")),
        ] {
            assert!(range(subnet, start, end).is_err(), "{subnet}");
        }
    }

    #[test]
    fn the_search_goes_round_once_from_the_last_lease() {
        let set = [
            range("10.1.0.0/24", Some("10.1.0.2"), Some("10.1.0.4")).unwrap(),
            range("10.2.0.0/24", Some("10.2.0.8"), Some("10.2.0.9")).unwrap(),
        ];
        let order = |last: Option<&str>| -> Vec<String> {
            candidates(&set, last.map(|last| last.parse().unwrap())).map(|(_, ip)| ip.to_string()).collect()
        };
        let all = ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.2.0.8", "10.2.0.9"];
        assert_eq!(order(None), all);
        assert_eq!(order(Some("10.1.0.3")), ["10.1.0.4", "10.2.0.8", "10.2.0.9", "10.1.0.2", "10.1.0.3"]);
        assert_eq!(order(Some("10.2.0.9")), all);
        assert_eq!(order(Some("10.9.0.9")), all, "a last lease of another range is forgotten");
    }
}
