//! The kernel's rules behind one face: nftables or iptables, fed with the services that changed.

use std::collections::BTreeMap;

use ferry_linux::net::{
    ToolError,
    iptables::{self as tool, Family as ToolFamily},
    nftables as nft,
};

use crate::{
    Config, Family, Mode, Node,
    iptables::{self, Chains, Kind},
    ledger::Owner,
    nftables::{Settings, Table, Update},
    service::ServicePort,
};

/// A service that changed, with its ports of each family; none when it is gone.
pub struct Changed {
    pub owner: Owner,
    pub ipv4: Vec<ServicePort>,
    pub ipv6: Vec<ServicePort>,
}

pub enum Backend {
    Nftables(Vec<Table>),
    Iptables(Vec<IptablesFamily>),
}

/// What one family's iptables hold.
pub struct IptablesFamily {
    settings: iptables::Settings,
    services: BTreeMap<Owner, Vec<ServicePort>>,
    applied: Chains,
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
        match config.mode {
            Mode::Nftables => {
                let table = |family| Table::new(nft_settings(config, node, family));
                Backend::Nftables(families().into_iter().map(table).collect())
            }
            Mode::Iptables => {
                let of = |family| IptablesFamily {
                    settings: iptables::Settings::new(
                        &config.cluster,
                        family,
                        node.clone(),
                        config.masquerade_mark,
                    ),
                    services: BTreeMap::new(),
                    applied: Chains::new(),
                };
                Backend::Iptables(families().into_iter().map(of).collect())
            }
        }
    }

    /// Brings the kernel along. `whole`: whatever the kernel has now is not to be relied on. Blocks.
    pub fn apply(&mut self, changes: Vec<Changed>, whole: bool) -> Result<(), ToolError> {
        match self {
            Backend::Nftables(tables) => {
                let mut script = String::new();
                for table in tables {
                    let family = table.settings().family;
                    let difference = table.update(changes.iter().map(|changed| Update {
                        owner: changed.owner.clone(),
                        ports: changed.ports(family).to_vec(),
                    }));
                    script.push_str(&if whole { table.replace_all() } else { difference });
                }
                if script.is_empty() { Ok(()) } else { nft::apply(&script) }
            }
            Backend::Iptables(families) => {
                families.iter_mut().try_for_each(|family| family.apply(&changes, whole))
            }
        }
    }

    /// Takes all our rules out. Blocks.
    pub fn remove(config: &Config) -> Result<(), ToolError> {
        match config.mode {
            Mode::Nftables => {
                for family in families() {
                    let settings = nft_settings(config, &Node::default(), family);
                    nft::delete_table(if family == Family::V4 { "ip" } else { "ip6" }, &settings.table)?;
                }
                Ok(())
            }
            Mode::Iptables => {
                for family in families() {
                    let settings = iptables::Settings::new(&config.cluster, family, Node::default(), 0);
                    let family = tool_family(family);
                    for kind in Kind::ALL {
                        let saved = tool::save(family, kind.name())?;
                        tool::restore(family, &iptables::removal(&settings, kind, &saved))?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl Changed {
    fn ports(&self, family: Family) -> &[ServicePort] {
        match family {
            Family::V4 => &self.ipv4,
            Family::V6 => &self.ipv6,
        }
    }
}

impl IptablesFamily {
    fn apply(&mut self, changes: &[Changed], whole: bool) -> Result<(), ToolError> {
        for changed in changes {
            // By name alone: a service made again has another rank.
            self.services.retain(|owner, _| owner.name != changed.owner.name);
            let ports = changed.ports(self.settings.family);
            if !ports.is_empty() {
                self.services.insert(changed.owner.clone(), ports.to_vec());
            }
        }
        let family = tool_family(self.settings.family);
        if whole {
            self.applied = Chains::new();
        }
        let wanted = iptables::chains(self.services.values().map(Vec::as_slice), &self.settings);
        let mut script = iptables::difference(&self.applied, &wanted);
        if whole {
            for kind in Kind::ALL {
                let saved = tool::save(family, kind.name())?;
                script.push_str(&iptables::missing_hooks(&self.settings, kind, &saved));
            }
        }
        if !script.is_empty() {
            tool::restore(family, &script)?;
        }
        self.applied = wanted;
        Ok(())
    }
}

fn tool_family(family: Family) -> ToolFamily {
    match family {
        Family::V4 => ToolFamily::V4,
        Family::V6 => ToolFamily::V6,
    }
}

fn nft_settings(config: &Config, node: &Node, family: Family) -> Settings {
    let cidrs = node.pod_cidrs.iter().copied();
    Settings {
        table: ferry_linux::net::names::table(&config.cluster, "services"),
        family,
        pod_cidrs: cidrs.filter(|cidr| Family::of(cidr.addr()) == family).collect(),
        masquerade_mark: config.masquerade_mark,
    }
}
