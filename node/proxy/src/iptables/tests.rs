//! What of a service is in which chain, and what a change writes.

use std::sync::Arc;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::json;

use super::*;
use crate::{
    NodePortAddresses,
    backend::Update,
    service,
    test_objects::{owner, service as object, slice},
};

fn settings() -> Settings {
    let node =
        Node { name: "n1".into(), pod_cidrs: vec!["10.244.0.0/16".parse().unwrap()], ..Node::default() };
    let node_ports = NodePorts::of(&NodePortAddresses::In(vec![]), &[], true);
    Settings::new("test", Family::V4, node, 0x4000, node_ports)
}

fn update(service: &Service, slices: &[Arc<EndpointSlice>]) -> Update {
    Update { owner: owner(service), ports: service::ports(service, slices, &settings().node, Family::V4) }
}

fn plain(name: &str, ip: &str) -> Service {
    let port = json!([{ "name": "http", "port": 80, "protocol": "TCP" }]);
    object(name, json!({ "clusterIP": ip, "ports": port }))
}

fn endpoints(name: &str, addresses: &[&str]) -> Vec<Arc<EndpointSlice>> {
    let of = |address: &&str| json!({ "addresses": [address], "nodeName": "n2" });
    vec![slice(name, 8080, &addresses.iter().map(of).collect::<Vec<_>>())]
}

/// The chains a script writes, without our prefix.
fn written(script: &str) -> Vec<String> {
    let prefix = format!(":{}-", settings().prefix);
    script
        .lines()
        .filter_map(|line| line.strip_prefix(&prefix)?.split(' ').next())
        .map(String::from)
        .collect()
}

fn rules(script: &str) -> usize {
    script.lines().filter(|line| line.starts_with("-A")).count()
}

#[test]
fn a_change_of_an_endpoint_writes_one_chain() {
    let mut table = Table::new(settings());
    let all: Vec<Service> =
        (0..600).map(|n| plain(&format!("s{n}"), &format!("10.96.{}.{}", n >> 8, n & 255))).collect();
    table.update(all.iter().map(|service| update(service, &endpoints("s", &["10.244.1.1", "10.244.1.2"]))));
    let whole = table.replace_all(&[]);
    assert_eq!(written(&whole).iter().filter(|name| name.starts_with("N-")).count(), 3, "600 addresses");
    assert_eq!(written(&whole).iter().filter(|name| name.starts_with("P-")).count(), 10 * 4, "in tens of 64");

    let script = table.update([update(&all[7], &endpoints("s", &["10.244.1.1", "10.244.9.9"]))]);
    assert_eq!(written(&script), ["P-0a600000-21"], "the second of two");
    assert_eq!(rules(&script), 64, "{script}");
    assert_eq!(table.update([update(&all[7], &endpoints("s", &["10.244.1.1", "10.244.9.9"]))]), "");

    // A service with another number of endpoints draws with others.
    let script = table.update([update(&all[7], &endpoints("s", &["10.244.1.1"]))]);
    assert_eq!(written(&script), ["P-0a600000", "P-0a600000-20", "P-0a600000-21"]);
    let script =
        table.update([update(&all[7], &endpoints("s", &["10.244.1.1", "10.244.1.2", "10.244.1.3"]))]);
    let drawing = ["P-0a600000", "P-0a600000-3", "P-0a600000-30", "P-0a600000-31", "P-0a600000-32"];
    assert_eq!(written(&script), drawing);

    // One that goes takes along the chains that only it had.
    let gone = table.update([Update { owner: owner(&all[7]), ports: vec![] }]);
    assert_eq!(written(&gone), drawing);
    assert_eq!(gone.lines().filter(|line| line.starts_with("-X ")).count(), 4, "{gone}");
}

#[test]
fn a_service_draws_evenly_among_its_endpoints() {
    // Numbers of endpoints that are drawn for in common, and more than that; addresses in one network that is cut
    // and in one that is not.
    let services: Vec<(Service, Vec<String>)> = (0..90)
        .map(|n| {
            let name = format!("s{n}");
            let of = 1 + n % (networks::MOST_CHOICES + 2);
            let addresses = (0..of).map(|e| format!("10.244.{n}.{e}")).collect();
            (plain(&name, &format!("10.96.{}.{}", n / 80, n * 3 % 256)), addresses)
        })
        .collect();
    let mut table = Table::new(settings());
    let mut kernel = Kernel::default();
    kernel.take(&table.replace_all(&[]));
    kernel.take(&table.update(services.iter().map(|(service, addresses)| {
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        update(service, &endpoints("s", &addresses))
    })));
    for (n, (service, addresses)) in services.iter().enumerate() {
        let to = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()).unwrap();
        for (from, marked) in [("10.244.3.3", false), ("192.0.2.7", true)] {
            let outcomes = kernel.outcomes(from, to, 80);
            let expected: BTreeMap<Outcome, f64> = addresses
                .iter()
                .map(|address| ((marked, Some(format!("{address}:8080"))), 1.0 / addresses.len() as f64))
                .collect();
            assert_eq!(outcomes.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "s{n}");
            for (outcome, chance) in outcomes {
                assert!((chance - expected[&outcome]).abs() < 1e-6, "s{n}: {outcome:?} by {chance}");
            }
            // What is no service's goes on as it came.
            let others: Vec<Outcome> = kernel.outcomes(from, to, 81).into_keys().collect();
            assert_eq!(others, [(false, None)], "s{n}");
        }
    }
}

#[test]
fn scripts_of_changes_lead_where_the_whole_leads() {
    let mut seed = 11_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((seed >> 33) % below) as usize
    };
    let sort = |n: usize, ip: String| {
        let mut service = plain(&format!("s{n}"), &ip);
        let spec = service.spec.as_mut().unwrap();
        match n % 7 {
            0 => spec.session_affinity = Some("ClientIP".into()),
            1 => spec.external_ips = Some(vec!["203.0.113.7".into()]),
            2 => spec.internal_traffic_policy = Some("Local".into()),
            _ => {}
        }
        service
    };
    let mut table = Table::new(settings());
    let mut kernel = Kernel::default();
    kernel.take(&table.replace_all(&[]));
    for _ in 0..600 {
        // Some ask for the same address.
        let n = random(200);
        let service = sort(n, format!("10.96.{}.{}", n / 180, n % 120));
        let addresses: Vec<String> = (0..random(5)).map(|e| format!("10.244.{n}.{e}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        kernel.take(&table.update([match random(8) {
            0 => Update { owner: owner(&service), ports: vec![] },
            _ => update(&service, &endpoints("s", &addresses)),
        }]));
    }
    let mut fresh = Kernel::default();
    fresh.take(&table.replace_all(&[]));
    assert_eq!(kernel, fresh);
    assert!(fresh.chains.keys().any(|(_, name)| name.contains("-P-")), "enough for a network to be cut");
}

/// What `iptables-restore` makes of scripts, and the kernel of packets.
#[derive(Debug, Default, PartialEq)]
struct Kernel {
    chains: BTreeMap<(String, String), Vec<String>>,
}

/// Whether a packet is marked, and where it is sent instead.
type Outcome = (bool, Option<String>);

impl Kernel {
    fn take(&mut self, script: &str) {
        let mut table = String::new();
        for line in script.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name.to_owned();
            } else if let Some(chain) = line.strip_prefix(':') {
                self.chains.insert((table.clone(), chain.split(' ').next().unwrap().to_owned()), vec![]);
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let (chain, rule) = rule.split_once(' ').unwrap();
                let key = (table.clone(), chain.to_owned());
                self.chains.get_mut(&key).expect("a chain is declared first").push(rule.to_owned());
            } else if let Some(chain) = line.strip_prefix("-X ") {
                self.chains.remove(&(table.clone(), chain.to_owned())).expect("a chain that is there");
            } else {
                assert_eq!(line, "COMMIT");
                self.leads_nowhere_else();
            }
        }
    }

    /// The kernel refuses a jump to a chain that is not there, and the removal of one that a rule leads to.
    fn leads_nowhere_else(&self) {
        let own = settings().chain("");
        for ((table, _), rules) in &self.chains {
            for rule in rules {
                let target = rule.rsplit(' ').next().unwrap();
                let known = self.chains.contains_key(&(table.clone(), target.to_owned()));
                assert!(!target.starts_with(&own) || known, "{rule}");
            }
        }
    }

    /// What becomes of a TCP packet in PREROUTING, with the chance of each.
    fn outcomes(&self, from: &str, to: &str, port: u16) -> BTreeMap<Outcome, f64> {
        self.walk(&settings().chain("SERVICES"), (from, to, port), false)
    }

    fn walk(&self, chain: &str, packet: (&str, &str, u16), marked: bool) -> BTreeMap<Outcome, f64> {
        let mut ended: BTreeMap<Outcome, f64> = BTreeMap::new();
        let mut here = BTreeMap::from([(marked, 1.0)]);
        for rule in &self.chains[&("nat".to_owned(), chain.to_owned())] {
            let words: Vec<&str> = rule.split(' ').collect();
            let after = |word: &str| words.iter().position(|w| *w == word).map(|at| words[at + 1]);
            let (from, to, port) = packet;
            let is_in = |net: &str, ip: &str| {
                let net = if net.contains('/') { net.to_owned() } else { format!("{net}/32") };
                net.parse::<ipnet::IpNet>().unwrap().contains(&ip.parse::<std::net::IpAddr>().unwrap())
            };
            let fits = after("-d").is_none_or(|net| is_in(net, to))
                && after("-s").is_none_or(|net| is_in(net, from) != (words[0] == "!"))
                && after("--dport").is_none_or(|number| number == port.to_string())
                && after("--dst-type").is_none();
            if !fits {
                continue;
            }
            let chance: f64 = after("--probability").map_or(1.0, |chance| chance.parse().unwrap());
            let mut on: BTreeMap<bool, f64> = BTreeMap::new();
            for (marked, share) in here {
                let (taken, left) = (share * chance, share * (1.0 - chance));
                *on.entry(marked).or_default() += left;
                match (after("-g"), after("-j")) {
                    (None, Some("MARK")) => *on.entry(after("--or-mark").is_some()).or_default() += taken,
                    (None, Some("DNAT")) => {
                        let destination = after("--to-destination").map(String::from);
                        *ended.entry((marked, destination)).or_default() += taken;
                    }
                    (None, Some(next)) => {
                        for (outcome, part) in self.walk(next, packet, marked) {
                            match outcome {
                                (marked, None) => *on.entry(marked).or_default() += taken * part,
                                _ => *ended.entry(outcome).or_default() += taken * part,
                            }
                        }
                    }
                    (Some(next), _) => {
                        for (outcome, part) in self.walk(next, packet, marked) {
                            *ended.entry(outcome).or_default() += taken * part;
                        }
                    }
                    (None, None) => panic!("{rule} leads nowhere"),
                }
            }
            here = on.into_iter().filter(|(_, share)| *share > 0.0).collect();
        }
        for (marked, share) in here {
            *ended.entry((marked, None)).or_default() += share;
        }
        ended
    }
}

#[test]
fn changes_lead_where_a_fresh_start_leads() {
    let services = [plain("a", "10.96.0.1"), plain("b", "10.96.0.1"), plain("c", "10.97.0.1")];
    let mut grown = Table::new(settings());
    for addresses in [&[][..], &["10.244.1.1"], &["10.244.1.1", "10.244.1.2"]] {
        for service in &services {
            grown.update([update(service, &endpoints("s", addresses))]);
        }
    }
    grown.update([Update { owner: owner(&services[2]), ports: vec![] }]);
    let mut fresh = Table::new(settings());
    let two = ["10.244.1.1", "10.244.1.2"];
    fresh.update(services[..2].iter().rev().map(|service| update(service, &endpoints("s", &two))));
    assert_eq!(grown.replace_all(&[]), fresh.replace_all(&[]));
}

#[test]
fn rules_of_an_earlier_run_are_removed() {
    let prefix = settings().prefix;
    let saved = format!("*nat\n:{prefix}-S-0123456789abc - [0:0]\n:{prefix}-MARK - [0:0]\n:THEIRS - [0:0]\n");
    let script = Table::new(settings()).replace_all(&[(Kind::Nat, saved)]);
    assert!(script.contains(&format!("-X {prefix}-S-0123456789abc\n")), "{script}");
    assert!(!script.contains("THEIRS") && !script.contains(&format!("-X {prefix}-MARK")), "{script}");
}

#[test]
fn only_what_is_ours_is_removed() {
    let p = settings().prefix;
    let saved = format!(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:THEIRS - [0:0]\n:{p}-SERVICES - [0:0]\n-A PREROUTING -j THEIRS\n\
         -A PREROUTING -j {p}-SERVICES\n-A {p}-SERVICES -j {p}-NODEPORTS\nCOMMIT\n"
    );
    assert_eq!(
        removal(&settings(), Kind::Nat, &saved),
        format!("*nat\n:{p}-SERVICES - [0:0]\n-D PREROUTING -j {p}-SERVICES\n-X {p}-SERVICES\nCOMMIT\n")
    );
    let missing = missing_hooks(&settings(), Kind::Nat, &saved);
    assert!(!missing.contains("PREROUTING -j"), "{missing}");
    assert!(missing.contains(&format!("-I OUTPUT -j {p}-SERVICES\n")), "{missing}");
}
