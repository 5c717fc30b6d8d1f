//! The table as it is in the kernel, and the scripts that keep it so.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    Chain, Key, Map, ServiceRules, Settings, Value, rules_of, script,
    structure::{self, Body, Declaration, Objects},
};
use crate::{
    backend::Update,
    ledger::{Difference, Ledger, Owner},
};

/// All services of one family, with the rules each stands for.
pub struct Table {
    settings: Settings,
    services: HashMap<String, (Owner, ServiceRules)>,
    ledger: Ledger<(Map, Key), Value>,
    /// How many elements lead to each chain.
    used: BTreeMap<Chain, usize>,
}

impl Table {
    pub fn new(settings: Settings) -> Self {
        Self { settings, services: HashMap::new(), ledger: Ledger::default(), used: BTreeMap::new() }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes the updates in and returns the script that brings the kernel along; empty if nothing
    /// differs. The script is for a kernel that has what the table held before.
    pub fn update(&mut self, updates: impl IntoIterator<Item = Update>) -> String {
        let mut change = self.ledger.begin();
        let mut before = Objects::default();
        let mut after = Objects::default();
        for Update { owner, ports } in updates {
            let rules = rules_of(&ports, &self.settings);
            let old = self.services.remove(&owner.name);
            let held = old.as_ref().map(|(owner, rules)| (owner, &rules.elements[..]));
            self.ledger.hand_over(held, (&owner, &rules.elements), &mut change);
            if let Some((_, old)) = &old {
                add_private(&mut before, old);
            }
            add_private(&mut after, &rules);
            if rules != ServiceRules::default() {
                self.services.insert(owner.name.clone(), (owner, rules));
            }
        }
        let differences = self.ledger.finish(change);
        let used_before: BTreeSet<Chain> = self.used.keys().cloned().collect();
        count_verdicts(&mut self.used, &differences);
        if !used_before.iter().eq(self.used.keys()) {
            merge(&mut before, structure::shared(&self.settings, used_before.iter()));
            merge(&mut after, structure::shared(&self.settings, self.used.keys()));
        }
        script::difference(&self.settings, &before, &after, &differences)
    }

    /// The script that makes the table what it should be whatever is there now, in one transaction.
    pub fn replace_all(&self) -> String {
        let mut all = structure::fixed(&self.settings);
        merge(&mut all, structure::shared(&self.settings, self.used.keys()));
        for (_, rules) in self.services.values() {
            add_private(&mut all, rules);
        }
        let mut elements: Vec<Difference<(Map, Key), Value>> = self
            .ledger
            .iter()
            .map(|(key, value)| Difference { key: key.clone(), before: None, after: Some(value.clone()) })
            .collect();
        elements.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let at = format!("{} {}", structure::ip(self.settings.family), self.settings.table);
        format!(
            "add table {at}\ndelete table {at}\nadd table {at}\n{}",
            script::difference(&self.settings, &Objects::default(), &all, &elements)
        )
    }
}

fn add_private(objects: &mut Objects, rules: &ServiceRules) {
    let sets = rules.sets.iter();
    objects
        .sets
        .extend(sets.map(|(name, text)| (name.clone(), Declaration { kind: "set", text: text.clone() })));
    let chains = rules.chains.iter();
    objects
        .chains
        .extend(chains.map(|(name, rules)| (name.clone(), Body { hook: None, rules: rules.clone() })));
}

fn merge(into: &mut Objects, from: Objects) {
    into.sets.extend(from.sets);
    into.chains.extend(from.chains);
}

fn count_verdicts(used: &mut BTreeMap<Chain, usize>, differences: &[Difference<(Map, Key), Value>]) {
    for difference in differences {
        if let Some(Value::Goto(chain)) = &difference.after {
            *used.entry(chain.clone()).or_default() += 1;
        }
    }
    for difference in differences {
        if let Some(Value::Goto(chain)) = &difference.before {
            let count = used.get_mut(chain).expect("what led somewhere was counted");
            *count -= 1;
            if *count == 0 {
                used.remove(chain);
            }
        }
    }
}
