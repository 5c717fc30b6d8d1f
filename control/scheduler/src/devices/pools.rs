//! The pools that have devices for a node: all slices of one driver and pool name, of its newest generation.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use ferry_api::quantity::Quantity;

use super::slice::{Counters, SliceInfo};
use super::taken::Taken;
use super::{Node, slice::DeviceInfo};

/// All slices; those of a single node by its name.
#[derive(Clone, Default)]
pub struct SlicesByNode {
    of_nodes: HashMap<String, Vec<Arc<SliceInfo>>>,
    others: Vec<Arc<SliceInfo>>,
    by_pool: HashMap<(String, String), Vec<Arc<SliceInfo>>>,
}

pub struct Pool {
    pub driver: String,
    pub name: String,
    pub state: State,
    /// The slices with devices for the node, by name.
    pub slices: Vec<Arc<SliceInfo>>,
    /// What is left of the pool's counters, by the names of their sets.
    pub counters: BTreeMap<String, Counters>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum State {
    Usable,
    /// Its driver is publishing it: not all slices are there.
    Incomplete,
    Invalid(String),
}

impl SlicesByNode {
    pub fn new(slices: Vec<Arc<SliceInfo>>) -> SlicesByNode {
        let mut offer = SlicesByNode::default();
        for slice in slices {
            let spec = slice.spec();
            let pool = (spec.driver.clone(), spec.pool.name.clone());
            offer.by_pool.entry(pool).or_default().push(slice.clone());
            match spec.node_name.as_deref().filter(|name| !name.is_empty() && slice.counters.is_empty()) {
                Some(node) => offer.of_nodes.entry(node.to_owned()).or_default().push(slice),
                None => offer.others.push(slice),
            }
        }
        offer
    }

    /// The pools with devices for a node, in the order they are tried: those whose devices are bound by somebody else last.
    pub fn pools(&self, node: &Node<'_>, taken: &Taken) -> Vec<Pool> {
        let own = self.of_nodes.get(node.name).map_or(&[][..], Vec::as_slice);
        let mut found: BTreeMap<(&str, &str), Vec<Arc<SliceInfo>>> = BTreeMap::new();
        for slice in own.iter().chain(&self.others).filter(|slice| is_for(slice, node)) {
            let spec = slice.spec();
            let slices = found.entry((&spec.driver, &spec.pool.name)).or_default();
            let newest = slices.first().map(|first| first.spec().pool.generation);
            match newest.map(|newest| spec.pool.generation.cmp(&newest)) {
                None | Some(std::cmp::Ordering::Equal) => slices.push(slice.clone()),
                Some(std::cmp::Ordering::Greater) => *slices = vec![slice.clone()],
                Some(std::cmp::Ordering::Less) => {}
            }
        }
        let built = found.into_iter().filter_map(|((driver, name), slices)| {
            let whole =
                self.by_pool.get(&(driver.to_owned(), name.to_owned())).map_or(&[][..], Vec::as_slice);
            build(driver, name, slices, whole, taken)
        });
        let (last, mut first): (Vec<Pool>, Vec<Pool>) = built.partition(has_binding_conditions);
        first.extend(last);
        first
    }
}

/// Slices of counters are for the whole pool, wherever its devices are.
fn is_for(slice: &SliceInfo, node: &Node<'_>) -> bool {
    let spec = slice.spec();
    if !slice.counters.is_empty() {
        return true;
    }
    if spec.per_device_node_selection == Some(true) {
        let mut devices = spec.devices.iter().flatten();
        return devices.any(|device| {
            node.is_selected(device.node_name.as_deref(), device.all_nodes, device.node_selector.as_ref())
        });
    }
    node.is_selected(spec.node_name.as_deref(), spec.all_nodes, spec.node_selector.as_ref())
}

fn build(
    driver: &str,
    name: &str,
    mut slices: Vec<Arc<SliceInfo>>,
    whole: &[Arc<SliceInfo>],
    taken: &Taken,
) -> Option<Pool> {
    let of = slices.first()?.spec().pool.clone();
    // somebody else's slices may be newer: the driver is replacing these
    if whole.iter().any(|slice| slice.spec().pool.generation > of.generation) {
        return None;
    }
    let current: Vec<&Arc<SliceInfo>> =
        whole.iter().filter(|slice| slice.spec().pool.generation == of.generation).collect();
    let (driver, name) = (driver.to_owned(), name.to_owned());
    let (counters, none) = (BTreeMap::new(), Vec::new());
    if i64::try_from(current.len()) != Ok(of.resource_slice_count) {
        return Some(Pool { driver, name, state: State::Incomplete, slices: none, counters });
    }
    slices.sort_by(|one, other| one.name().cmp(other.name()));
    Some(match check(&slices, &current, taken) {
        Ok(counters) => {
            slices.retain(|slice| slice.counters.is_empty());
            Pool { driver, name, state: State::Usable, slices, counters }
        }
        Err(why) => Pool { driver, name, state: State::Invalid(why), slices: none, counters },
    })
}

/// What is left of a pool's counters, or what is wrong with the pool.
fn check(
    slices: &[Arc<SliceInfo>],
    current: &[&Arc<SliceInfo>],
    taken: &Taken,
) -> Result<BTreeMap<String, Counters>, String> {
    let mut names: HashSet<&str> = HashSet::new();
    for device in slices.iter().flat_map(|slice| slice.spec().devices.iter().flatten()) {
        if !names.insert(&device.name) {
            return Err(format!("duplicate device name {}", device.name));
        }
    }
    let mut counters: BTreeMap<String, Counters> = BTreeMap::new();
    for (set, own) in slices.iter().flat_map(|slice| &slice.counters) {
        if counters.insert(set.clone(), own.clone()).is_some() {
            return Err(format!("duplicate counter set name {set}"));
        }
    }
    for device in current.iter().flat_map(|slice| &slice.devices) {
        for (set, consumed) in &device.consumes {
            let known = counters.get_mut(set).ok_or_else(|| format!("counter set {set} not found"))?;
            for (counter, amount) in consumed {
                let have = known.get_mut(counter);
                let have = have.ok_or_else(|| format!("counter {counter} not found in counter set {set}"))?;
                if taken.uses(&device.id) {
                    *have -= *amount;
                }
            }
        }
    }
    Ok(counters)
}

fn has_binding_conditions(pool: &Pool) -> bool {
    let devices = pool.slices.iter().flat_map(|slice| slice.spec().devices.iter().flatten());
    devices.into_iter().any(|device| device.binding_conditions.is_some())
}

impl Pool {
    /// Whether the counters have what a device takes beside what was consumed of them; that is then noted.
    pub fn reserve(&self, device: &DeviceInfo, consumed: &mut BTreeMap<String, Counters>) -> bool {
        change(device, consumed, |have, amount| *have += amount);
        let fits = device.consumes.iter().all(|(set, taken)| {
            taken.keys().all(|counter| {
                let amount = |of: &BTreeMap<String, Counters>| of.get(set)?.get(counter).copied();
                amount(consumed).unwrap_or(Quantity::ZERO) <= amount(&self.counters).unwrap_or(Quantity::ZERO)
            })
        });
        if !fits {
            release(device, consumed);
        }
        fits
    }
}

/// The opposite of [`Pool::reserve`].
pub fn release(device: &DeviceInfo, consumed: &mut BTreeMap<String, Counters>) {
    change(device, consumed, |have, amount| *have -= amount);
}

fn change(
    device: &DeviceInfo,
    consumed: &mut BTreeMap<String, Counters>,
    by: impl Fn(&mut Quantity, Quantity),
) {
    for (set, taken) in &device.consumes {
        let own = consumed.entry(set.clone()).or_default();
        for (counter, amount) in taken {
            by(own.entry(counter.clone()).or_insert(Quantity::ZERO), *amount);
        }
    }
}
