//! The kernel's rules behind one face: nftables or iptables, fed with the services that changed.

use ferry_linux::net::{
    ToolError,
    iptables::{self as tool, Family as ToolFamily},
    nftables as nft, sysctl,
};

use crate::{
    Config, Family, Mode, Node, NodePorts,
    iptables::{self, Kind},
    ledger::Owner,
    nftables,
    service::ServicePort,
};

/// Lets packets with a loopback address leave and enter by other interfaces.
const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";

/// A service that changed, with its ports of each family; none when it is gone.
pub struct Changed {
    pub owner: Owner,
    pub ipv4: Vec<ServicePort>,
    pub ipv6: Vec<ServicePort>,
}

/// The same, for one family.
pub struct Update {
    pub owner: Owner,
    /// Empty: the service is gone, or has nothing for this family.
    pub ports: Vec<ServicePort>,
}

pub enum Backend {
    Nftables(Vec<nftables::Table>),
    Iptables(Vec<iptables::Table>),
}

/// The families this kernel has.
fn families() -> Vec<Family> {
    let mut families = vec![Family::V4];
    if std::path::Path::new("/proc/sys/net/ipv6").exists() {
        families.push(Family::V6);
    }
    families
}

impl Backend {
    pub fn new(config: &Config, node: &Node) -> Self {
        let families = families().into_iter();
        match config.mode {
            Mode::Nftables => Backend::Nftables(
                families.map(|family| nftables::Table::new(nft_settings(config, node, family))).collect(),
            ),
            Mode::Iptables => Backend::Iptables(
                families
                    .map(|family| iptables::Table::new(iptables_settings(config, node, family)))
                    .collect(),
            ),
        }
    }

    /// Brings the kernel along. `whole`: whatever the kernel has now is not to be relied on. Blocks.
    ///
    /// After a refusal the tables hold what is wanted and the kernel does not: the next call must be `whole`.
    pub fn apply(&mut self, changes: &[Changed], whole: bool) -> Result<(), ToolError> {
        match self {
            Backend::Nftables(tables) => {
                let mut script = String::new();
                for table in tables {
                    let difference = table.update(updates(changes, table.settings().family));
                    script.push_str(&if whole { table.replace_all() } else { difference });
                }
                if script.is_empty() { Ok(()) } else { nft::apply(&script) }
            }
            Backend::Iptables(tables) => {
                // All take their part in before any may be refused.
                let differences: Vec<String> = tables
                    .iter_mut()
                    .map(|table| table.update(updates(changes, table.settings().family)))
                    .collect();
                for (table, difference) in tables.iter().zip(differences) {
                    let script = if whole { whole_script(table)? } else { difference };
                    if !script.is_empty() {
                        tool::restore(tool_family(table.settings().family), &script)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Takes all our rules out. Blocks.
    pub fn remove(config: &Config) -> Result<(), ToolError> {
        let node = Node::default();
        for family in families() {
            match config.mode {
                Mode::Nftables => {
                    let settings = nft_settings(config, &node, family);
                    nft::delete_table(if family == Family::V4 { "ip" } else { "ip6" }, &settings.table)?;
                }
                Mode::Iptables => remove_iptables(&iptables_settings(config, &node, family))?,
            }
        }
        Ok(())
    }
}

fn updates(changes: &[Changed], family: Family) -> impl Iterator<Item = Update> {
    changes.iter().map(move |changed| {
        let ports = match family {
            Family::V4 => &changed.ipv4,
            Family::V6 => &changed.ipv6,
        };
        Update { owner: changed.owner.clone(), ports: ports.clone() }
    })
}

/// Everything, with the hooks that are missing and without what an earlier run left.
fn whole_script(table: &iptables::Table) -> Result<String, ToolError> {
    let settings = table.settings();
    let saved = saved(settings.family)?;
    let mut script = table.replace_all(&saved);
    for (kind, saved) in &saved {
        script.push_str(&iptables::missing_hooks(settings, *kind, saved));
    }
    if settings.node_ports.on_loopback(settings.family)
        && let Err(error) = sysctl::set(ROUTE_LOCALNET, "1")
    {
        tracing::warn!(%error, "cannot open node ports on loopback addresses");
    }
    Ok(script)
}

fn remove_iptables(settings: &iptables::Settings) -> Result<(), ToolError> {
    let saved = saved(settings.family)?;
    if saved.iter().any(|(_, saved)| iptables::guards_loopback(settings, saved)) {
        // Before the guard goes: open without it, other hosts could reach what listens on loopback alone.
        if let Err(error) = sysctl::set(ROUTE_LOCALNET, "0") {
            tracing::warn!(%error, setting = ROUTE_LOCALNET, "cannot be set back");
        }
    }
    for (kind, saved) in saved {
        tool::restore(tool_family(settings.family), &iptables::removal(settings, kind, &saved))?;
    }
    Ok(())
}

fn saved(family: Family) -> Result<Vec<(Kind, String)>, ToolError> {
    Kind::ALL.into_iter().map(|kind| Ok((kind, tool::save(tool_family(family), kind.name())?))).collect()
}

fn tool_family(family: Family) -> ToolFamily {
    match family {
        Family::V4 => ToolFamily::V4,
        Family::V6 => ToolFamily::V6,
    }
}

fn nft_settings(config: &Config, node: &Node, family: Family) -> nftables::Settings {
    let cidrs = node.pod_cidrs.iter().copied();
    nftables::Settings {
        table: ferry_linux::net::names::table(&config.cluster, "services"),
        family,
        pod_cidrs: cidrs.filter(|cidr| Family::of(cidr.addr()) == family).collect(),
        masquerade_mark: config.masquerade_mark,
        node_ports: node_ports(config, node),
    }
}

fn iptables_settings(config: &Config, node: &Node, family: Family) -> iptables::Settings {
    let node_ports = node_ports(config, node);
    iptables::Settings::new(&config.cluster, family, node.clone(), config.masquerade_mark, node_ports)
}

fn node_ports(config: &Config, node: &Node) -> NodePorts {
    // Maps are looked into before a packet has a way: from a loopback address there would be none.
    let loopback = config.localhost_node_ports && config.mode == Mode::Iptables;
    NodePorts::of(&config.node_port_addresses, &node.addresses, loopback)
}
