//! The chains as they are in the kernel, and the scripts that keep them so.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipnet::IpNet;

use super::{
    Chains, Group, Kind, ServiceRules, Settings, Slot, Target, difference,
    networks::{self, Entries, network_of},
    rules, rules_of, saved_chains,
};
use crate::{
    backend::Update,
    ledger::{Ledger, Owner},
};

/// All services of one family, with the rules each stands for.
pub struct Table {
    settings: Settings,
    services: HashMap<String, (Owner, ServiceRules)>,
    ledger: Ledger<Slot, Target>,
    /// Who shares chains, in the order of what their rules match.
    groups: BTreeMap<(Kind, Group), Entries>,
}

impl Table {
    pub fn new(settings: Settings) -> Self {
        Self { settings, services: HashMap::new(), ledger: Ledger::default(), groups: BTreeMap::new() }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes the updates in and returns the script that brings the kernel along; empty if nothing differs. The
    /// script is for a kernel that has what the table held before.
    pub fn update(&mut self, updates: impl IntoIterator<Item = Update>) -> String {
        let (mut before, mut after) = (Chains::new(), Chains::new());
        let mut change = self.ledger.begin();
        for Update { owner, ports } in updates {
            let rules = rules_of(&ports, &self.settings);
            let old = self.services.remove(&owner.name);
            let held = old.as_ref().map(|(owner, rules)| (owner, &rules.slots[..]));
            self.ledger.hand_over(held, (&owner, &rules.slots), &mut change);
            before.extend(old.into_iter().flat_map(|(_, rules)| rules.chains));
            after.extend(rules.chains.clone());
            if rules != ServiceRules::default() {
                self.services.insert(owner.name.clone(), (owner, rules));
            }
        }
        let differences = self.ledger.finish(change);
        let touched: BTreeSet<(Kind, Group)> =
            differences.iter().map(|difference| (difference.key.kind, difference.key.group)).collect();
        self.shared(&touched, &mut before);
        for difference in differences {
            let group = self.groups.entry((difference.key.kind, difference.key.group)).or_default();
            match difference.after {
                Some(target) => drop(group.insert(difference.key.matched, target)),
                None => drop(group.remove(&difference.key.matched)),
            }
        }
        self.groups.retain(|_, entries| !entries.is_empty());
        self.shared(&touched, &mut after);
        difference(&before, &after)
    }

    /// The script that makes the chains what they should be whatever is there now. `saved`: what
    /// `iptables-save` says, by which chains that nothing asks for any more are found.
    pub fn replace_all(&self, saved: &[(Kind, String)]) -> String {
        let mut all = rules::fixed(&self.settings);
        for (_, rules) in self.services.values() {
            all.extend(rules.chains.clone());
        }
        let groups: BTreeSet<(Kind, Group)> = self.groups.keys().copied().chain(PERMANENT).collect();
        self.shared(&groups, &mut all);
        let mut held = Chains::new();
        for (kind, saved) in saved {
            let chains = saved_chains(&self.settings, saved).into_iter();
            let gone = chains.filter(|name| !all.contains_key(&(*kind, (*name).to_owned())));
            held.extend(gone.map(|name| ((*kind, name.to_owned()), Vec::new())));
        }
        difference(&held, &all)
    }

    /// The chains that these share as they are now, and those that lead to them.
    fn shared(&self, touched: &BTreeSet<(Kind, Group)>, into: &mut Chains) {
        let mut networks: BTreeSet<(Kind, IpNet)> = BTreeSet::new();
        let none = Entries::new();
        for key @ (kind, group) in touched {
            let name = match group {
                Group::Part(part) => {
                    networks.insert((*kind, network_of(*part)));
                    continue;
                }
                Group::NodePorts => rules::node_ports_chain(*kind),
                Group::Hairpin => "HAIRPIN",
                Group::Firewall => "FIREWALL",
            };
            let entries = self.groups.get(key).unwrap_or(&none);
            networks::fill(*kind, &self.settings.chain(name), entries.iter(), &self.settings, into);
        }
        for (kind, network) in networks {
            let parts: Vec<(IpNet, &Entries)> =
                self.parts(kind).filter(|(part, _)| network.contains(part)).collect();
            if !parts.is_empty() {
                networks::chains_of(kind, network, &parts, &self.settings, into);
            }
        }
        for kind in Kind::ALL {
            let networks: BTreeSet<IpNet> = self.parts(kind).map(|(part, _)| network_of(part)).collect();
            let (name, rules) = rules::entrance(kind, networks, &self.settings);
            into.insert(name, rules);
        }
    }

    fn parts(&self, kind: Kind) -> impl Iterator<Item = (IpNet, &Entries)> {
        self.groups.iter().filter_map(move |((of, group), entries)| match group {
            Group::Part(part) if *of == kind => Some((*part, entries)),
            _ => None,
        })
    }
}

/// Shared chains that are there even when no service has a rule in them: others lead to them.
const PERMANENT: [(Kind, Group); 4] = [
    (Kind::Nat, Group::NodePorts),
    (Kind::Filter, Group::NodePorts),
    (Kind::Nat, Group::Hairpin),
    (Kind::Filter, Group::Firewall),
];
