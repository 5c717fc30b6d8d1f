//! The address ranges of a cluster. They are chosen once, free of overlaps with other clusters and networks of this host,
//! and then kept.

use std::fs::File;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, bail};
use ferry_cni::overlap::{HostNetworks, overlap};
use ferry_linux::net::Netlink;
use ipnet::IpNet;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::layout::Layout;

/// What the defaults are, and what is taken instead where somebody has them: the next of their kind.
const POD_RANGES: std::ops::RangeInclusive<u8> = 244..=254;
const SERVICE_RANGES: std::ops::RangeInclusive<u8> = 96..=111;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ranges {
    pub cluster_cidr: IpNet,
    pub service_cidr: IpNet,
}

impl Ranges {
    /// By custom the tenth address is the cluster's DNS.
    pub fn dns(&self) -> anyhow::Result<IpAddr> {
        let found = self.service_cidr.hosts().nth(9);
        found.with_context(|| format!("{} is too small for services", self.service_cidr))
    }
}

/// What the user asked for, else what this cluster had before, else the first that is free.
pub fn choose(
    layout: &Layout,
    cluster_cidr: Option<IpNet>,
    service_cidr: Option<IpNet>,
) -> anyhow::Result<Ranges> {
    let _lock = lock(layout)?;
    let before = read(&layout.choices())?;
    let is_new = before.is_none();
    let ranges = match before {
        Some(before) => Ranges {
            cluster_cidr: cluster_cidr.unwrap_or(before.cluster_cidr),
            service_cidr: service_cidr.unwrap_or(before.service_cidr),
        },
        None => {
            // What the user asked for is taken, too.
            let mut taken: Vec<IpNet> = cluster_cidr.into_iter().chain(service_cidr).collect();
            if taken.len() < 2 {
                taken.extend(self::taken(layout)?);
            }
            Ranges {
                cluster_cidr: cluster_cidr.map_or_else(|| first_free(POD_RANGES, &taken), Ok)?,
                service_cidr: service_cidr.map_or_else(|| first_free(SERVICE_RANGES, &taken), Ok)?,
            }
        }
    };
    if overlap(&ranges.cluster_cidr, &ranges.service_cidr) {
        bail!(
            "pods and services cannot share addresses: --cluster-cidr {} and --service-cluster-ip-range {} overlap",
            ranges.cluster_cidr,
            ranges.service_cidr
        );
    }
    // Later the host may have become another; that is for its node to say.
    if is_new {
        let host = HostNetworks::read(&layout.cluster).context("ask the kernel for the host's networks")?;
        let Ranges { cluster_cidr, service_cidr } = ranges;
        for (of, range) in
            [("pods (--cluster-cidr)", cluster_cidr), ("services (--service-cluster-ip-range)", service_cidr)]
        {
            if let Some(there) = host.within(&range) {
                bail!("the addresses of {of}, {range}, overlap with {there}: choose others");
            }
        }
    }
    let text = serde_json::to_vec_pretty(&ranges).context("write down the ranges")?;
    std::fs::write(layout.choices(), text)
        .with_context(|| format!("write {}", layout.choices().display()))?;
    Ok(ranges)
}

/// One cluster of this host chooses at a time: two that start together must not take the same.
fn lock(layout: &Layout) -> anyhow::Result<Flock<File>> {
    let path = layout.run_dir.with_file_name("ranges.lock");
    let file = File::create(&path).with_context(|| format!("write {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .with_context(|| format!("lock {}", path.display()))
}

fn read(path: &Path) -> anyhow::Result<Option<Ranges>> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .with_context(|| format!("{} is malformed", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

/// What the host has routes for or has itself, and what other clusters on it have chosen.
fn taken(layout: &Layout) -> anyhow::Result<Vec<IpNet>> {
    let mut netlink = Netlink::open().context("ask the kernel for its routes")?;
    let routes = netlink.routes().context("ask the kernel for its routes")?;
    let mut taken: Vec<IpNet> =
        routes.into_iter().map(|route| route.destination).filter(|net| net.prefix_len() > 0).collect();
    let addresses = netlink.addresses().context("ask the kernel for its addresses")?;
    taken.extend(addresses.into_iter().map(|address| IpNet::from(address.net.addr())));
    let Some(clusters) = layout.run_dir.parent() else { return Ok(taken) };
    for entry in std::fs::read_dir(clusters).with_context(|| format!("read {}", clusters.display()))? {
        let path = entry.context("read a cluster's directory")?.path();
        if path == layout.run_dir {
            continue;
        }
        // A link to the data directory; a cluster that is gone for good has none.
        if let Some(other) = read(&path.join("data/cluster.json")).ok().flatten() {
            taken.extend([other.cluster_cidr, other.service_cidr]);
        }
    }
    Ok(taken)
}

fn first_free(seconds: std::ops::RangeInclusive<u8>, taken: &[IpNet]) -> anyhow::Result<IpNet> {
    seconds
        .clone()
        .filter_map(|second| format!("10.{second}.0.0/16").parse().ok())
        .find(|net| !taken.iter().any(|other| overlap(net, other)))
        .with_context(|| {
            format!(
                "all of 10.{}.0.0 to 10.{}.0.0 is in use on this host: choose with --cluster-cidr and \
                 --service-cluster-ip-range",
                seconds.start(),
                seconds.end()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_range_that_nobody_has_is_taken() {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
        let free = |taken: &[&str]| first_free(POD_RANGES, &nets(taken)).map(|net| net.to_string()).ok();
        assert_eq!(free(&[]).as_deref(), Some("10.244.0.0/16"));
        assert_eq!(free(&["10.244.3.0/24", "192.168.0.0/16"]).as_deref(), Some("10.245.0.0/16"));
        assert_eq!(free(&["10.0.0.0/8"]), None);
    }

    #[test]
    fn the_tenth_address_is_the_dns() {
        let ranges = Ranges {
            cluster_cidr: "10.244.0.0/16".parse().unwrap(),
            service_cidr: "10.96.0.0/16".parse().unwrap(),
        };
        assert_eq!(ranges.dns().unwrap().to_string(), "10.96.0.10");
    }
}
