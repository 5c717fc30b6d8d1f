//! `portmap`: ports of the host that lead to a pod (`hostPort`).
//!
//! The rules are two maps in a table of the network: a packet's cost does not grow with the ports. Each
//! pod's mappings are also a record on disk, written before the rules, so that DEL and GC know what to
//! take away whether or not the runtime still remembers.

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use ferry_linux::net::{ToolError, names, nftables, sysctl};
use serde::{Deserialize, Serialize};

use super::{
    CniResult, Code, Command, Error, Invocation, Result,
    config::{Network, PortMapping},
    error, previous_result,
};

const DATA_DIR: &str = "/run/ferry/cni/portmap";

pub(super) fn read_configuration(network: &Network) -> Result<()> {
    folder(network)?;
    let mappings: Vec<&PortMapping> = network.runtime.port_mappings.iter().collect();
    let pods = network.prev_result.iter().flat_map(|result| &result.ips).map(|ip| ip.address.addr());
    elements(&mappings, &pods.collect::<Vec<_>>()).map(drop)
}

pub(super) fn call(network: &Network, invocation: &Invocation) -> Result<Option<CniResult>> {
    match invocation.command {
        Command::Add => {
            let result = previous_result(network)?;
            add(network, invocation, &result)?;
            Ok(Some(result))
        }
        Command::Del => {
            delete(network, invocation)?;
            Ok(None)
        }
        Command::Check => {
            check(network, invocation)?;
            Ok(None)
        }
        Command::Gc => {
            collect_garbage(network)?;
            Ok(None)
        }
        Command::Status | Command::Version => Ok(None),
    }
}

/// Maps the ports the runtime asks for to the pod's addresses. Nothing happens when it asks for none.
pub(super) fn add(network: &Network, invocation: &Invocation, result: &CniResult) -> Result<()> {
    let mappings: Vec<&PortMapping> =
        network.runtime.port_mappings.iter().filter(|m| m.host_port != 0).collect();
    if mappings.is_empty() {
        return Ok(());
    }
    let addresses: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    let record = Record { elements: elements(&mappings, &addresses)?, pods: addresses };
    let folder = folder(network)?;
    fs::create_dir_all(&folder).map_err(|e| error::io("making", &folder, &e))?;
    let path = record_file(&folder, &invocation.container_id, &invocation.ifname);
    // A record left by an ADD that was killed: its rules go first.
    delete(network, invocation)?;
    record.save(&path)?;
    // Connections from the host's own 127.0.0.1 leave by another interface only where this allows it.
    for interface in result.interfaces.iter().filter(|interface| interface.sandbox.is_empty()) {
        // Best effort: without it the port works on every other address of the host.
        let _ = sysctl::set(&format!("net/ipv4/conf/{}/route_localnet", interface.name), "1");
    }
    let table = table(network);
    let applied = nftables::apply(&(skeleton(&table) + &record.change(&table, "create")));
    if let Err(error) = applied {
        fs::remove_file(&path).map_err(|e| error::io("removing", &path, &e))?;
        return Err(match error {
            ToolError::Refused { message, .. } if message.contains("File exists") => {
                let ports: Vec<String> =
                    mappings.iter().map(|m| format!("{}/{}", m.host_port, m.protocol)).collect();
                Error::new(Code::Conflict, format!("host port in use: one of {}", ports.join(", ")))
            }
            error => error.into(),
        });
    }
    Ok(())
}

/// Takes away a pod's mappings; none is no error.
pub(super) fn delete(network: &Network, invocation: &Invocation) -> Result<()> {
    let folder = folder(network)?;
    delete_record(network, &folder, &record_file(&folder, &invocation.container_id, &invocation.ifname))
}

pub(super) fn check(network: &Network, invocation: &Invocation) -> Result<()> {
    if network.runtime.port_mappings.iter().all(|mapping| mapping.host_port == 0) {
        return Ok(());
    }
    let missing = |what: String| Error::new(Code::NotAsExpected, what);
    let path = record_file(&folder(network)?, &invocation.container_id, &invocation.ifname);
    let record = Record::load(&path)?.ok_or_else(|| missing("the pod's host ports are not mapped".into()))?;
    let table = table(network);
    let rules =
        nftables::list_table("inet", &table)?.ok_or_else(|| missing(format!("table {table} is missing")))?;
    let rules: String = rules.split_whitespace().collect::<Vec<_>>().join(" ");
    match record
        .elements
        .iter()
        .find(|element| !rules.contains(&format!("{} : {}", element.key, element.value)))
    {
        Some(element) => Err(missing(format!("the host port {} is not mapped", element.key))),
        None => Ok(()),
    }
}

pub(super) fn collect_garbage(network: &Network) -> Result<()> {
    let folder = folder(network)?;
    let valid: Vec<PathBuf> =
        network.valid_attachments.iter().map(|a| record_file(&folder, &a.container_id, &a.ifname)).collect();
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(error::io("reading", &folder, &e)),
    };
    for entry in entries {
        let path = entry.map_err(|e| error::io("reading", &folder, &e))?.path();
        if !valid.contains(&path) {
            delete_record(network, &folder, &path)?;
        }
    }
    Ok(())
}

fn delete_record(network: &Network, folder: &Path, path: &Path) -> Result<()> {
    let Some(record) = Record::load(path)? else {
        return Ok(());
    };
    let table = table(network);
    // Added first, then deleted, in one transaction: it holds whether the element was there or not.
    let script = skeleton(&table) + &record.change(&table, "add") + &record.change(&table, "delete");
    nftables::apply(&script)?;
    fs::remove_file(path).map_err(|e| error::io("removing", path, &e))?;
    // The last record takes the table along; the folder can only go when it is empty.
    if fs::remove_dir(folder).is_ok() {
        nftables::delete_table("inet", &table)?;
    }
    Ok(())
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    elements: Vec<Element>,
    pods: Vec<IpAddr>,
}

/// One entry of a map: `tcp . 8080` → `10.1.0.2 . 80`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Element {
    map: String,
    key: String,
    value: String,
}

impl Record {
    fn load(path: &Path) -> Result<Option<Self>> {
        match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|e| Error::new(Code::Decode, format!("{}: {e}", path.display()))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(error::io("reading", path, &e)),
        }
    }

    fn save(&self, path: &Path) -> Result<()> {
        let draft = path.with_extension("draft");
        let bytes = serde_json::to_vec(self).expect("a record of strings and addresses can be written");
        fs::write(&draft, bytes)
            .and_then(|()| fs::rename(&draft, path))
            .map_err(|e| error::io("writing", path, &e))
    }

    fn change(&self, table: &str, verb: &str) -> String {
        let mut script = String::new();
        for Element { map, key, value } in &self.elements {
            let value = if verb == "delete" { String::new() } else { format!(" : {value}") };
            script.push_str(&format!("{verb} element inet {table} {map} {{ {key}{value} }}\n"));
        }
        for pod in &self.pods {
            let set = if pod.is_ipv4() { "pods" } else { "pods6" };
            // Several interfaces of one pod never share an address, but a record may come twice.
            let verb = if verb == "create" { "add" } else { verb };
            script.push_str(&format!("{verb} element inet {table} {set} {{ {pod} . {pod} }}\n"));
        }
        script
    }
}

fn elements(mappings: &[&PortMapping], pods: &[IpAddr]) -> Result<Vec<Element>> {
    let mut elements = Vec::new();
    for mapping in mappings {
        let protocol = mapping.protocol.to_lowercase();
        if !matches!(&*protocol, "tcp" | "udp" | "sctp") {
            let message =
                format!("unknown protocol {:?} of host port {}", mapping.protocol, mapping.host_port);
            return Err(Error::new(Code::InvalidConfig, message));
        }
        let host_ip: Option<IpAddr> = match mapping.host_ip.as_str() {
            "" => None,
            text => match text.parse::<IpAddr>() {
                Ok(ip) => Some(ip),
                Err(_) => {
                    return Err(Error::new(Code::InvalidConfig, format!("invalid host address {text:?}")));
                }
            },
        };
        for pod in pods {
            // An address of the host binds one family; the unspecified address stands for all of it.
            if host_ip.is_some_and(|ip| ip.is_ipv4() != pod.is_ipv4()) {
                continue;
            }
            let suffix = if pod.is_ipv4() { "" } else { "6" };
            let (map, key) = match host_ip.filter(|ip| !ip.is_unspecified()) {
                Some(ip) => ("addressports", format!("{ip} . {protocol} . {}", mapping.host_port)),
                None => ("hostports", format!("{protocol} . {}", mapping.host_port)),
            };
            elements.push(Element {
                map: format!("{map}{suffix}"),
                key,
                value: format!("{pod} . {}", mapping.container_port),
            });
        }
    }
    Ok(elements)
}

/// The table without elements. It may be applied again and again.
fn skeleton(table: &str) -> String {
    let mut script = format!("add table inet {table}\n");
    let mut rewrites = String::new();
    for (family, suffix, address, loopback) in
        [("ip", "", "ipv4_addr", "127.0.0.0/8"), ("ip6", "6", "ipv6_addr", "::1")]
    {
        script.push_str(&format!(
            "add map inet {table} hostports{suffix} {{ type inet_proto . inet_service : {address} . inet_service; }}\n\
             add map inet {table} addressports{suffix} {{ type {address} . inet_proto . inet_service : {address} . inet_service; }}\n\
             add set inet {table} pods{suffix} {{ type {address} . {address}; }}\n"
        ));
        rewrites.push_str(&format!(
            "add rule inet {table} hostports dnat {family} to {family} daddr . meta l4proto . th dport map @addressports{suffix}\n\
             add rule inet {table} hostports dnat {family} to meta l4proto . th dport map @hostports{suffix}\n"
        ));
        // A pod that comes back to itself, and the host's own loopback, need an address to answer to.
        rewrites.push_str(&format!(
            "add rule inet {table} postrouting ct status dnat {family} saddr . {family} daddr @pods{suffix} masquerade\n\
             add rule inet {table} postrouting ct status dnat {family} saddr {loopback} masquerade\n"
        ));
    }
    script.push_str(&format!(
        "add chain inet {table} hostports\n\
         add chain inet {table} prerouting {{ type nat hook prerouting priority dstnat; }}\n\
         add chain inet {table} output {{ type nat hook output priority -100; }}\n\
         add chain inet {table} postrouting {{ type nat hook postrouting priority srcnat; }}\n\
         flush chain inet {table} hostports\n\
         flush chain inet {table} prerouting\n\
         flush chain inet {table} output\n\
         flush chain inet {table} postrouting\n\
         add rule inet {table} prerouting fib daddr type local jump hostports\n\
         add rule inet {table} output fib daddr type local jump hostports\n"
    ));
    script + &rewrites
}

fn table(network: &Network) -> String {
    names::table(&network.name, "hostports")
}

fn folder(network: &Network) -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct Section {
        #[serde(rename = "portMapDir")]
        folder: Option<PathBuf>,
    }
    let section: Section = network.section()?;
    Ok(section.folder.unwrap_or_else(|| DATA_DIR.into()).join(&network.name))
}

fn record_file(folder: &Path, container_id: &str, ifname: &str) -> PathBuf {
    folder.join(format!("{container_id}_{ifname}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(host_ip: &str, pods: &[&str], expected: &[(&str, &str, &str)]) {
        let mapping = PortMapping {
            host_port: 8080,
            container_port: 80,
            protocol: "TCP".into(),
            host_ip: host_ip.into(),
        };
        let pods: Vec<IpAddr> = pods.iter().map(|pod| pod.parse().unwrap()).collect();
        let found = elements(&[&mapping], &pods).unwrap();
        let found: Vec<(&str, &str, &str)> =
            found.iter().map(|e| (e.map.as_str(), e.key.as_str(), e.value.as_str())).collect();
        assert_eq!(found, expected, "{host_ip}");
    }

    #[test]
    fn a_mapping_holds_for_the_families_of_its_host_address() {
        let pods = ["10.1.0.2", "fd00::2"];
        let v4 = ("hostports", "tcp . 8080", "10.1.0.2 . 80");
        let v6 = ("hostports6", "tcp . 8080", "fd00::2 . 80");
        check("", &pods, &[v4, v6]);
        check("0.0.0.0", &pods, &[v4]);
        check("::", &pods, &[v6]);
        check("192.0.2.1", &pods, &[("addressports", "192.0.2.1 . tcp . 8080", "10.1.0.2 . 80")]);
    }
}
