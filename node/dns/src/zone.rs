//! The cluster's names, and what each stands for. Pure.
//!
//! ```text
//! web.shop.svc.cluster.local               A, AAAA   the cluster IPs, or the endpoints if headless
//! web-0.web.shop.svc.cluster.local         A, AAAA   one endpoint of a headless service
//! _http._tcp.web.shop.svc.cluster.local    SRV       a named port
//! 10-244-0-5.shop.pod.cluster.local        A, AAAA   a pod, by its address
//! 5.0.244.10.in-addr.arpa                  PTR       back again
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use hickory_proto::rr::{
    Name, RData, Record, RecordType,
    rdata::{A, AAAA, NS, PTR, SOA, SRV, TXT},
};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};

use crate::Error;

/// Seconds a client may keep an answer: short, since services come and go.
pub const TTL: u32 = 5;
/// The version of the specification, which a well-known name tells.
const SPECIFICATION: &str = "1.1.0";

/// What one service contributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRecords {
    pub cluster_ips: Vec<IpAddr>,
    pub ports: Vec<Port>,
    /// Of a headless service.
    pub endpoints: Vec<Endpoint>,
    pub headless: bool,
    pub external_name: Option<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// As it is asked for: `http`.
    pub name: String,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    pub number: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The pod's hostname, or its address with dashes.
    pub hostname: String,
    pub ip: IpAddr,
    pub ports: Vec<Port>,
}

/// What is known of a name and type.
#[derive(Debug, PartialEq)]
pub enum Lookup {
    Found {
        answers: Vec<Record>,
        additionals: Vec<Record>,
    },
    /// Another name stands for it: the answer so far, and where to go on.
    Alias {
        answer: Box<Record>,
        target: Name,
    },
    /// The name is there, nothing of this type.
    NoData,
    /// No such name.
    NoName,
    /// Not a name of this cluster.
    Elsewhere,
}

pub struct Zone {
    domain: Name,
    /// The domain's labels in lower case.
    labels: Vec<String>,
    /// By `name.namespace`.
    services: HashMap<String, ServiceRecords>,
    /// How many services each namespace has.
    namespaces: HashMap<String, usize>,
    /// Names by address; of several services with one address the first in order answers.
    addresses: HashMap<IpAddr, BTreeMap<String, Name>>,
    serial: u32,
}

/// What a service and its slices stand for; `None` if nothing.
pub fn records_of(service: &Service, slices: &[impl AsRef<EndpointSlice>]) -> Option<ServiceRecords> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        let mut target = Name::from_ascii(spec.external_name.as_deref()?).ok()?;
        target.set_fqdn(true);
        return Some(ServiceRecords { external_name: Some(target), ..ServiceRecords::default() });
    }
    let cluster_ip = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty())?;
    if cluster_ip == "None" {
        return Some(ServiceRecords {
            headless: true,
            endpoints: endpoints(slices),
            ..ServiceRecords::default()
        });
    }
    let ips = spec.cluster_ips.iter().flatten().map(String::as_str);
    let mut cluster_ips: Vec<IpAddr> = ips.filter_map(|ip| ip.parse().ok()).collect();
    if cluster_ips.is_empty() {
        cluster_ips.extend(cluster_ip.parse::<IpAddr>());
    }
    let ports = spec.ports.iter().flatten();
    let ports =
        ports.filter_map(|port| named_port(port.name.as_deref(), port.protocol.as_deref(), Some(port.port)));
    Some(ServiceRecords { cluster_ips, ports: ports.collect(), ..ServiceRecords::default() })
}

fn endpoints(slices: &[impl AsRef<EndpointSlice>]) -> Vec<Endpoint> {
    let mut found: BTreeMap<IpAddr, Endpoint> = BTreeMap::new();
    for slice in slices.iter().map(AsRef::as_ref) {
        let ports = slice.ports.iter().flatten();
        let ports: Vec<Port> = ports
            .filter_map(|port| named_port(port.name.as_deref(), port.protocol.as_deref(), port.port))
            .collect();
        for endpoint in slice.endpoints.iter().flatten() {
            let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true);
            let address = endpoint.addresses.first().and_then(|address| address.parse::<IpAddr>().ok());
            let (true, Some(ip)) = (ready, address) else { continue };
            let hostname =
                endpoint.hostname.clone().unwrap_or_else(|| ip.to_string().replace(['.', ':'], "-"));
            let entry = found.entry(ip).or_insert(Endpoint { hostname, ip, ports: Vec::new() });
            for port in &ports {
                if !entry.ports.contains(port) {
                    entry.ports.push(port.clone());
                }
            }
        }
    }
    found.into_values().collect()
}

fn named_port(name: Option<&str>, protocol: Option<&str>, number: Option<i32>) -> Option<Port> {
    Some(Port {
        name: name.filter(|name| !name.is_empty())?.to_ascii_lowercase(),
        protocol: protocol.unwrap_or("TCP").to_ascii_lowercase(),
        number: u16::try_from(number?).ok()?,
    })
}

impl Zone {
    pub fn new(domain: &str) -> Result<Self, Error> {
        let invalid = || Error::Domain { domain: domain.into() };
        let mut name = Name::from_ascii(domain.to_ascii_lowercase()).map_err(|_| invalid())?;
        name.set_fqdn(true);
        if name.is_root() {
            return Err(invalid());
        }
        let labels = name.iter().map(|label| String::from_utf8_lossy(label).into_owned()).collect();
        Ok(Self {
            domain: name,
            labels,
            services: HashMap::new(),
            namespaces: HashMap::new(),
            addresses: HashMap::new(),
            serial: 1,
        })
    }

    /// Replaces what a service contributes; `None`: it is gone.
    pub fn update(&mut self, namespace: &str, name: &str, records: Option<ServiceRecords>) {
        self.serial = self.serial.wrapping_add(1);
        let key = format!("{name}.{namespace}");
        if let Some(old) = self.services.remove(&key) {
            for (ip, _) in self.reverse(&key, &old) {
                if let Some(names) = self.addresses.get_mut(&ip) {
                    names.remove(&key);
                    if names.is_empty() {
                        self.addresses.remove(&ip);
                    }
                }
            }
            if let Some(count) = self.namespaces.get_mut(namespace) {
                *count -= 1;
                if *count == 0 {
                    self.namespaces.remove(namespace);
                }
            }
        }
        if let Some(records) = records {
            for (ip, target) in self.reverse(&key, &records) {
                self.addresses.entry(ip).or_default().insert(key.clone(), target);
            }
            *self.namespaces.entry(namespace.into()).or_default() += 1;
            self.services.insert(key, records);
        }
    }

    pub fn lookup(&self, name: &Name, kind: RecordType) -> Lookup {
        let lower: Vec<String> =
            name.iter().map(|label| String::from_utf8_lossy(label).to_ascii_lowercase()).collect();
        let labels: Vec<&str> = lower.iter().map(String::as_str).collect();
        if labels.last() == Some(&"arpa") {
            return self.lookup_address(name, kind);
        }
        let own = labels.len().checked_sub(self.labels.len());
        let Some(rest) = own.filter(|at| labels[*at..] == self.labels[..]).map(|at| &labels[..at]) else {
            return Lookup::Elsewhere;
        };
        match *rest {
            [] => self.apex(name, kind),
            ["dns-version"] => of_type(kind, RecordType::TXT, || {
                vec![record(name, RData::TXT(TXT::new(vec![SPECIFICATION.into()])))]
            }),
            ["svc" | "pod"] | [_, "pod"] => Lookup::NoData,
            [namespace, "svc"] if self.namespaces.contains_key(namespace) => Lookup::NoData,
            [service, namespace, "svc"] => match self.service(service, namespace) {
                Some(records) => records.by_name(name, kind),
                None => Lookup::NoName,
            },
            [host, service, namespace, "svc"] => match self.service(service, namespace) {
                Some(records) => records.by_host(name, kind, host),
                None => Lookup::NoName,
            },
            [port, protocol, service, namespace, "svc"] => {
                let (Some(port), Some(protocol)) = (port.strip_prefix('_'), protocol.strip_prefix('_'))
                else {
                    return Lookup::NoName;
                };
                match self.service(service, namespace) {
                    Some(records) => {
                        let base = self.service_name(&format!("{service}.{namespace}"));
                        records.by_port(name, kind, port, protocol, &base)
                    }
                    None => Lookup::NoName,
                }
            }
            [address, _, "pod"] => match dashed(address) {
                Some(ip) => addresses(name, kind, [ip].into_iter()),
                None => Lookup::NoName,
            },
            _ => Lookup::NoName,
        }
    }

    /// Says in a negative answer how long it may be kept.
    pub fn authority(&self) -> Record {
        let below = |label: &str| Name::from_ascii(label).and_then(|name| name.append_domain(&self.domain));
        let name = |label: &str| below(label).unwrap_or_else(|_| self.domain.clone());
        let soa = SOA::new(name("ns.dns"), name("hostmaster"), self.serial, 7200, 1800, 86_400, TTL);
        record(&self.domain, RData::SOA(soa))
    }

    fn apex(&self, name: &Name, kind: RecordType) -> Lookup {
        match kind {
            RecordType::SOA => found(vec![self.authority()]),
            RecordType::NS => {
                let server = Name::from_ascii("ns.dns").and_then(|server| server.append_domain(&self.domain));
                match server {
                    Ok(server) => found(vec![record(name, RData::NS(NS(server)))]),
                    Err(_) => Lookup::NoData,
                }
            }
            _ => Lookup::NoData,
        }
    }

    fn lookup_address(&self, name: &Name, kind: RecordType) -> Lookup {
        let Ok(net) = name.parse_arpa_name() else { return Lookup::Elsewhere };
        if net.prefix_len() != net.max_prefix_len() {
            return Lookup::Elsewhere;
        }
        match self.addresses.get(&net.addr()).and_then(|names| names.values().next()) {
            Some(target) => {
                of_type(kind, RecordType::PTR, || vec![record(name, RData::PTR(PTR(target.clone())))])
            }
            None => Lookup::Elsewhere,
        }
    }

    fn service(&self, service: &str, namespace: &str) -> Option<&ServiceRecords> {
        self.services.get(&format!("{service}.{namespace}"))
    }

    fn service_name(&self, key: &str) -> Name {
        let name = Name::from_ascii(format!("{key}.svc")).and_then(|name| name.append_domain(&self.domain));
        // Names of services and namespaces are valid labels; what is not has no name.
        name.unwrap_or_else(|_| self.domain.clone())
    }

    /// The names the addresses of a service stand for.
    fn reverse(&self, key: &str, records: &ServiceRecords) -> Vec<(IpAddr, Name)> {
        let base = self.service_name(key);
        let mut names: Vec<(IpAddr, Name)> =
            records.cluster_ips.iter().map(|ip| (*ip, base.clone())).collect();
        for endpoint in &records.endpoints {
            if let Ok(name) = base.prepend_label(&*endpoint.hostname) {
                names.push((endpoint.ip, name));
            }
        }
        names
    }
}

impl ServiceRecords {
    fn by_name(&self, name: &Name, kind: RecordType) -> Lookup {
        if let Some(target) = &self.external_name {
            let answer = record(name, RData::CNAME(hickory_proto::rr::rdata::CNAME(target.clone())));
            if kind == RecordType::CNAME {
                return found(vec![answer]);
            }
            return Lookup::Alias { answer: Box::new(answer), target: target.clone() };
        }
        let endpoints = self.endpoints.iter().map(|endpoint| endpoint.ip);
        addresses(name, kind, self.cluster_ips.iter().copied().chain(endpoints))
    }

    fn by_host(&self, name: &Name, kind: RecordType, host: &str) -> Lookup {
        if let Some(protocol) = host.strip_prefix('_') {
            let has = |ports: &[Port]| ports.iter().any(|port| port.protocol == protocol);
            let known = has(&self.ports) || self.endpoints.iter().any(|endpoint| has(&endpoint.ports));
            return if known { Lookup::NoData } else { Lookup::NoName };
        }
        let mut matching = self.endpoints.iter().filter(|e| e.hostname.eq_ignore_ascii_case(host)).peekable();
        if matching.peek().is_none() {
            return Lookup::NoName;
        }
        addresses(name, kind, matching.map(|endpoint| endpoint.ip))
    }

    fn by_port(&self, name: &Name, kind: RecordType, port: &str, protocol: &str, base: &Name) -> Lookup {
        let is_asked = |candidate: &&Port| candidate.name == port && candidate.protocol == protocol;
        // Target and port of each answer, and the addresses of the targets.
        let mut targets: Vec<(Name, u16, IpAddr)> = Vec::new();
        if self.headless {
            for endpoint in &self.endpoints {
                let Ok(target) = base.prepend_label(&*endpoint.hostname) else { continue };
                for port in endpoint.ports.iter().filter(is_asked) {
                    targets.push((target.clone(), port.number, endpoint.ip));
                }
            }
        } else if let Some(port) = self.ports.iter().find(is_asked) {
            targets.extend(self.cluster_ips.iter().map(|ip| (base.clone(), port.number, *ip)));
        }
        if targets.is_empty() {
            return Lookup::NoName;
        }
        if kind != RecordType::SRV {
            return Lookup::NoData;
        }
        let additionals = targets.iter().map(|(target, _, ip)| record(target, address(*ip))).collect();
        let mut places: Vec<(Name, u16)> =
            targets.into_iter().map(|(target, port, _)| (target, port)).collect();
        places.dedup();
        let weight = u16::try_from(100 / places.len()).unwrap_or(1).max(1);
        let answers = places
            .into_iter()
            .map(|(target, port)| record(name, RData::SRV(SRV::new(0, weight, port, target))))
            .collect();
        Lookup::Found { answers, additionals }
    }
}

fn addresses(name: &Name, kind: RecordType, ips: impl Iterator<Item = IpAddr>) -> Lookup {
    let wanted = |ip: &IpAddr| match kind {
        RecordType::A => ip.is_ipv4(),
        RecordType::AAAA => ip.is_ipv6(),
        RecordType::ANY => true,
        _ => false,
    };
    found(ips.filter(wanted).map(|ip| record(name, address(ip))).collect())
}

fn found(answers: Vec<Record>) -> Lookup {
    if answers.is_empty() { Lookup::NoData } else { Lookup::Found { answers, additionals: Vec::new() } }
}

fn of_type(asked: RecordType, is: RecordType, records: impl FnOnce() -> Vec<Record>) -> Lookup {
    if asked == is || asked == RecordType::ANY { found(records()) } else { Lookup::NoData }
}

fn record(name: &Name, data: RData) -> Record {
    Record::from_rdata(name.clone(), TTL, data)
}

fn address(ip: IpAddr) -> RData {
    match ip {
        IpAddr::V4(ip) => RData::A(A(ip)),
        IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
    }
}

/// `10-244-0-5` or `fd00--5`: an address whose separators are dashes.
fn dashed(text: &str) -> Option<IpAddr> {
    let v4 = text.replace('-', ".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    v4.or_else(|| text.replace('-', ":").parse::<Ipv6Addr>().ok().map(IpAddr::V6))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn zone() -> Zone {
        let mut zone = Zone::new("cluster.local").unwrap();
        let service =
            |spec| -> Service { serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap() };
        let slice = |endpoints| -> Vec<Arc<EndpointSlice>> {
            let ports = json!([{ "name": "http", "port": 8080, "protocol": "TCP" }]);
            let slice =
                json!({ "metadata": {}, "addressType": "IPv4", "ports": ports, "endpoints": endpoints });
            vec![Arc::new(serde_json::from_value(slice).unwrap())]
        };
        let ports = json!([{ "name": "http", "port": 80 }, { "name": "dns", "port": 53, "protocol": "UDP" }]);
        let plain = service(
            json!({ "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"], "ports": ports }),
        );
        zone.update("shop", "web", records_of(&plain, &slice(json!([]))));
        let headless = service(json!({ "clusterIP": "None" }));
        let endpoints = json!([
            { "addresses": ["10.244.0.5"], "hostname": "db-0" },
            { "addresses": ["10.244.0.6"] },
            { "addresses": ["10.244.0.7"], "conditions": { "ready": false } },
        ]);
        zone.update("shop", "db", records_of(&headless, &slice(endpoints)));
        let external = service(json!({ "type": "ExternalName", "externalName": "example.org" }));
        zone.update("shop", "away", records_of(&external, &slice(json!([]))));
        zone
    }

    /// The answers as text, or the outcome's name.
    fn ask(zone: &Zone, name: &str, kind: RecordType) -> String {
        match zone.lookup(&Name::from_ascii(name).unwrap(), kind) {
            Lookup::Found { answers, .. } => {
                answers.iter().map(|record| record.data.to_string()).collect::<Vec<_>>().join(" | ")
            }
            Lookup::Alias { target, .. } => format!("-> {target}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn names_mean_what_the_specification_says() {
        use RecordType::{A, AAAA, CNAME, MX, NS, PTR, SRV, TXT};
        let zone = zone();
        let check =
            |name: &str, kind, expected: &str| assert_eq!(ask(&zone, name, kind), expected, "{name} {kind}");
        check("web.shop.svc.cluster.local.", A, "10.96.0.1");
        check("WEB.Shop.SVC.cluster.LOCAL.", A, "10.96.0.1");
        check("web.shop.svc.cluster.local.", AAAA, "fd00::1");
        check("web.shop.svc.cluster.local.", MX, "NoData");
        check("none.shop.svc.cluster.local.", A, "NoName");
        check("shop.svc.cluster.local.", A, "NoData");
        check("nowhere.svc.cluster.local.", A, "NoName");
        check("svc.cluster.local.", A, "NoData");
        check("cluster.local.", A, "NoData");
        check("cluster.local.", NS, "ns.dns.cluster.local.");
        check("_http._tcp.web.shop.svc.cluster.local.", SRV, "0 100 80 web.shop.svc.cluster.local.");
        check("_dns._udp.web.shop.svc.cluster.local.", SRV, "0 100 53 web.shop.svc.cluster.local.");
        check("_dns._tcp.web.shop.svc.cluster.local.", SRV, "NoName");
        check("_http._tcp.web.shop.svc.cluster.local.", A, "NoData");
        check("_tcp.web.shop.svc.cluster.local.", SRV, "NoData");
        check("db.shop.svc.cluster.local.", A, "10.244.0.5 | 10.244.0.6");
        check("db-0.db.shop.svc.cluster.local.", A, "10.244.0.5");
        check("10-244-0-6.db.shop.svc.cluster.local.", A, "10.244.0.6");
        check("db-9.db.shop.svc.cluster.local.", A, "NoName");
        check(
            "_http._tcp.db.shop.svc.cluster.local.",
            SRV,
            "0 50 8080 db-0.db.shop.svc.cluster.local. | 0 50 8080 10-244-0-6.db.shop.svc.cluster.local.",
        );
        check("away.shop.svc.cluster.local.", A, "-> example.org.");
        check("away.shop.svc.cluster.local.", CNAME, "example.org.");
        check("10-244-9-9.shop.pod.cluster.local.", A, "10.244.9.9");
        check("fd00--9.shop.pod.cluster.local.", AAAA, "fd00::9");
        check("10-244-9.shop.pod.cluster.local.", A, "NoName");
        check("1.0.96.10.in-addr.arpa.", PTR, "web.shop.svc.cluster.local.");
        check("5.0.244.10.in-addr.arpa.", PTR, "db-0.db.shop.svc.cluster.local.");
        check("9.9.9.9.in-addr.arpa.", PTR, "Elsewhere");
        check("9.in-addr.arpa.", PTR, "Elsewhere");
        check("dns-version.cluster.local.", TXT, "1.1.0");
        check("example.org.", A, "Elsewhere");
        check("xcluster.local.", A, "Elsewhere");
        check("local.", A, "Elsewhere");
        check(".", NS, "Elsewhere");
    }

    #[test]
    fn a_service_that_goes_takes_its_names_along() {
        let mut zone = zone();
        for service in ["web", "db", "away"] {
            zone.update("shop", service, None);
        }
        assert_eq!(ask(&zone, "web.shop.svc.cluster.local.", RecordType::A), "NoName");
        assert_eq!(ask(&zone, "shop.svc.cluster.local.", RecordType::A), "NoName");
        assert_eq!(ask(&zone, "5.0.244.10.in-addr.arpa.", RecordType::PTR), "Elsewhere");
        assert!(zone.addresses.is_empty() && zone.namespaces.is_empty());
    }
}
