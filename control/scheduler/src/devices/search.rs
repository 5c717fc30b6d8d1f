//! Which devices of a node the claims get: every combination is tried, in order, until one satisfies all requests and
//! constraints.
//!
//! Claims are done one after the other, their requests too, and each device is taken for the rest of the search until that
//! turns out not to lead anywhere. Within a request devices are only taken in their order, since the same devices in another
//! order are the same allocation.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ferry_cel::device::SELECTOR_BUDGET;

use super::capacity::{self, Amounts};
use super::constraint::{Constraint, Names};
use super::demand::{Count, Demand, Request};
use super::pools::{Pool, SlicesByNode, State, release};
use super::slice::{Counters, DeviceInfo, SliceInfo};
use super::taken::Taken;
use super::{MAX_RESULTS, Node};

/// How many devices are tried before a node is given up: claims with many alternatives have more combinations than
/// anybody can wait for.
const MAX_STEPS: usize = 200_000;
/// What all selectors may cost before a node is given up: five seconds, about. Whoever may create claims writes them.
const MAX_COST: i64 = 50 * SELECTOR_BUDGET;
/// How many devices and claims are chosen one on top of the other: each takes some of the stack.
const MAX_DEPTH: usize = 1_024;

/// A device that a request gets.
#[derive(Clone)]
pub struct Choice {
    pub slice: Arc<SliceInfo>,
    /// Its place in the slice.
    pub device: usize,
    /// The request it is for, and which of the alternatives.
    pub request: usize,
    pub alternative: usize,
    /// What it takes of a device that is shared.
    pub share: Option<Amounts>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// A claim or a class is wrong, or asks for more than a claim can have.
    Claim(String),
    /// Only this node's devices are.
    Node(String),
    TooManySteps,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Claim(why) | Failure::Node(why) => f.write_str(why),
            Failure::TooManySteps => f.write_str("timed out trying to allocate devices"),
        }
    }
}

/// The devices of each claim on a node; None where there are not enough.
pub fn search(
    demands: &[&Demand],
    offer: &SlicesByNode,
    taken: &Taken,
    node: &Node<'_>,
) -> Result<Option<Vec<Vec<Choice>>>, Failure> {
    let pools = offer.pools(node, taken);
    let mut search = Search {
        demands,
        pools: &pools,
        taken,
        node,
        all: HashMap::new(),
        selected: HashMap::new(),
        constraints: demands.iter().map(|demand| demand.constraints.clone()).collect(),
        allocating: HashMap::new(),
        sharing: HashMap::new(),
        consumed: vec![BTreeMap::new(); pools.len()],
        choices: vec![Vec::new(); demands.len()],
        steps: 0,
        cost_left: MAX_COST,
        depth: 0,
    };
    search.check()?;
    match search.next(At::default(), false, Position::default()) {
        Ok(true) => Ok(Some(search.choices)),
        Ok(false) | Err(Stop::TooManyDevices) => {
            match pools.iter().any(|pool| matches!(pool.state, State::Invalid(_))) {
                true => Err(Failure::Node("invalid resource pools were encountered".into())),
                false => Ok(None),
            }
        }
        Err(Stop::Failed(failure)) => Err(failure),
    }
}

/// Which device is looked for.
#[derive(Clone, Copy, Default)]
struct At {
    claim: usize,
    request: usize,
    alternative: usize,
    device: usize,
}

/// The position of a device.
#[derive(Clone, Copy, Default, PartialEq)]
struct Position {
    pool: usize,
    slice: usize,
    device: usize,
}

enum Stop {
    /// The claim's allocation would not hold them; another alternative may ask for fewer.
    TooManyDevices,
    Failed(Failure),
}

struct Search<'s> {
    demands: &'s [&'s Demand],
    pools: &'s [Pool],
    taken: &'s Taken,
    node: &'s Node<'s>,
    /// The devices of requests for all of them, by claim, request and alternative.
    all: HashMap<(usize, usize, usize), Vec<Position>>,
    /// Whether a request selects a device; selectors are not asked twice.
    selected: HashMap<(usize, usize, usize, Place2), bool>,
    constraints: Vec<Vec<Constraint>>,
    /// The claims that are getting a device which they do not share.
    allocating: HashMap<&'s str, Vec<usize>>,
    /// What is taken of devices that are shared, once for each share.
    sharing: HashMap<&'s str, Vec<Amounts>>,
    /// Of each pool's counters.
    consumed: Vec<BTreeMap<String, Counters>>,
    choices: Vec<Vec<Choice>>,
    steps: usize,
    cost_left: i64,
    depth: usize,
}

/// A place as a key.
type Place2 = (usize, usize, usize);

impl<'s> Search<'s> {
    /// Finds the devices of requests for all of them, and refuses claims that want more than they can have.
    fn check(&mut self) -> Result<(), Failure> {
        let demands = self.demands;
        for (claim, demand) in demands.iter().enumerate() {
            let mut least = 0usize;
            for (number, wanted) in demand.requests.iter().enumerate() {
                let mut fewest = usize::MAX;
                for (alternative, request) in wanted.alternatives.iter().enumerate() {
                    let at = At { claim, request: number, alternative, device: 0 };
                    let count = match request.count {
                        Count::Exactly(count) => count,
                        Count::All => {
                            let all = self.all_devices(at, request, demand)?;
                            let count = all.len();
                            self.all.insert((claim, number, alternative), all);
                            count
                        }
                    };
                    fewest = fewest.min(count);
                }
                // Each may be as large as a number can be.
                least = least.saturating_add(fewest);
            }
            if least > MAX_RESULTS {
                return Err(Failure::Claim(format!(
                    "claim {}: number of requested devices {least} exceeds the claim limit of {MAX_RESULTS}",
                    claim_name(demand)
                )));
            }
        }
        Ok(())
    }

    fn all_devices(&mut self, at: At, request: &Request, demand: &Demand) -> Result<Vec<Position>, Failure> {
        let mut all = Vec::new();
        for (number, pool) in self.pools.iter().enumerate() {
            let what = match pool.state {
                State::Usable => "",
                State::Incomplete => "being updated",
                State::Invalid(_) => "invalid",
            };
            if !what.is_empty() {
                return Err(Failure::Claim(format!(
                    "claim {}, request {}: asks for all devices, but resource pool {}/{} is currently {what}",
                    claim_name(demand),
                    request.name,
                    pool.driver,
                    pool.name
                )));
            }
            for (slice_number, slice) in pool.slices.iter().enumerate() {
                for (device_number, device) in slice.devices.iter().enumerate() {
                    let place = Position { pool: number, slice: slice_number, device: device_number };
                    if self.is_selected(at, request, place)? && self.has_capacity(request, device) {
                        all.push(place);
                    }
                }
            }
        }
        Ok(all)
    }

    fn device(&self, place: Position) -> (&'s Arc<SliceInfo>, &'s DeviceInfo) {
        let slice = &self.pools[place.pool].slices[place.slice];
        (slice, &slice.devices[place.device])
    }

    /// Looks for the device at `at` and all that come after it. `chosen` says that the alternative of the request is settled.
    fn next(&mut self, at: At, chosen: bool, start: Position) -> Result<bool, Stop> {
        if self.depth == MAX_DEPTH {
            return Err(Stop::Failed(Failure::TooManySteps));
        }
        self.depth += 1;
        let found = self.next_within(at, chosen, start);
        self.depth -= 1;
        found
    }

    fn next_within(&mut self, at: At, chosen: bool, start: Position) -> Result<bool, Stop> {
        let demands = self.demands;
        let Some(demand) = demands.get(at.claim) else { return Ok(true) };
        let Some(wanted) = demand.requests.get(at.request) else {
            return match self.next(At { claim: at.claim + 1, ..At::default() }, false, Position::default()) {
                // other devices for this claim may lead the next to another alternative
                Err(Stop::TooManyDevices) => Ok(false),
                other => other,
            };
        };
        if !chosen && wanted.alternatives.len() > 1 {
            return self.next_of_alternatives(at, wanted.alternatives.len());
        }
        let request = &wanted.alternatives[at.alternative];
        let all = self.all.get(&(at.claim, at.request, at.alternative));
        let count = match (request.count, all) {
            (Count::Exactly(count), _) => count,
            (Count::All, all) => all.map_or(0, Vec::len),
        };
        if request.count == Count::All && count == 0 {
            return Ok(false);
        }
        if at.device >= count {
            let next = At { claim: at.claim, request: at.request + 1, ..At::default() };
            return self.next(next, false, Position::default());
        }
        if self.choices[at.claim].len() + count - at.device > MAX_RESULTS {
            return Err(Stop::TooManyDevices);
        }
        let following = At { device: at.device + 1, ..at };
        if let Some(place) = all.and_then(|all| all.get(at.device)).copied() {
            let Some(undo) = self.take(at, request, place, true)? else { return Ok(false) };
            return match self.next(following, chosen, Position::default()) {
                Ok(true) => Ok(true),
                other => {
                    self.give_back(at, request, place, undo);
                    other
                }
            };
        }
        self.next_of_pools(at, chosen, request, start)
    }

    /// Tries each alternative of a request in turn.
    fn next_of_alternatives(&mut self, at: At, alternatives: usize) -> Result<bool, Stop> {
        let mut all_too_many = true;
        for alternative in 0..alternatives {
            match self.next(At { alternative, ..at }, true, Position::default()) {
                Ok(true) => return Ok(true),
                Ok(false) => all_too_many = false,
                Err(Stop::TooManyDevices) => {}
                Err(failed) => return Err(failed),
            }
        }
        if all_too_many { Err(Stop::TooManyDevices) } else { Ok(false) }
    }

    /// Tries each device from `start` on.
    fn next_of_pools(
        &mut self,
        at: At,
        chosen: bool,
        request: &Request,
        start: Position,
    ) -> Result<bool, Stop> {
        let following = At { device: at.device + 1, ..at };
        let (pools, mut place) = (self.pools, start);
        while let Some(pool) = pools.get(place.pool) {
            let Some(slice) = pool.slices.get(place.slice) else {
                place = Position { pool: place.pool + 1, ..Position::default() };
                continue;
            };
            let Some(device) = slice.devices.get(place.device) else {
                place = Position { slice: place.slice + 1, device: 0, ..place };
                continue;
            };
            let after = Position { device: place.device + 1, ..place };
            let this = std::mem::replace(&mut place, after);
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err(Stop::Failed(Failure::TooManySteps));
            }
            if self.is_in_use(at, request, device)
                || !self.is_selected(at, request, this).map_err(Stop::Failed)?
                || !self.has_capacity(request, device)
            {
                continue;
            }
            let Some(undo) = self.take(at, request, this, false)? else { continue };
            let found = self.next(following, chosen, after);
            if let Ok(true) = found {
                return found;
            }
            self.give_back(at, request, this, undo);
            found?;
        }
        Ok(false)
    }

    /// Whether the device is somebody's, or was taken by this search. For administration only a device that the same claim
    /// has already is in use.
    fn is_in_use(&self, at: At, request: &Request, device: &DeviceInfo) -> bool {
        let allocating = self.allocating.get(device.id.as_str()).map_or(&[][..], Vec::as_slice);
        match request.is_administration {
            true => allocating.contains(&at.claim),
            false => self.taken.has(&device.id) || !allocating.is_empty(),
        }
    }

    fn is_selected(&mut self, at: At, request: &Request, place: Position) -> Result<bool, Failure> {
        let key = (at.claim, at.request, at.alternative, (place.pool, place.slice, place.device));
        if let Some(selected) = self.selected.get(&key) {
            return Ok(*selected);
        }
        let (slice, info) = self.device(place);
        let selects = request.selects(slice, info, &mut self.cost_left);
        if self.cost_left < 0 {
            return Err(Failure::TooManySteps);
        }
        let mut selected = selects.map_err(Failure::Claim)?;
        if selected && slice.spec().per_device_node_selection == Some(true) {
            let device = slice.device(info);
            let (name, all) = (device.node_name.as_deref(), device.all_nodes);
            selected = self.node.is_selected(name, all, device.node_selector.as_ref());
        }
        self.selected.insert(key, selected);
        Ok(selected)
    }

    fn has_capacity(&self, request: &Request, device: &DeviceInfo) -> bool {
        let now = self.sharing.get(device.id.as_str()).map_or(&[][..], Vec::as_slice);
        let before = self.taken.share(&device.id);
        let others: Vec<&Amounts> = before.into_iter().chain(now).collect();
        capacity::fits(&device.capacity, &request.capacity, &others)
    }

    /// Takes a device, if nothing speaks against it; `must` where the request wants this one and no other.
    fn take(&mut self, at: At, request: &Request, place: Position, must: bool) -> Result<Option<Undo>, Stop> {
        let (slice, device) = self.device(place);
        if self.is_in_use(at, request, device) {
            return Ok(None);
        }
        let names = Names { base: request.base(), full: &request.name };
        let mut undo = Undo::default();
        // whoever shared the device first has paid its counters
        let is_paid = device.is_shared
            && (self.taken.share(&device.id).is_some() || self.sharing.contains_key(device.id.as_str()));
        if !is_paid && !device.consumes.is_empty() {
            if !self.pools[place.pool].reserve(device, &mut self.consumed[place.pool]) {
                return Ok(None);
            }
            undo.counters = true;
        }
        let mut refused = !request.tolerates_all(slice, device);
        if !refused {
            for constraint in &mut self.constraints[at.claim] {
                if !constraint.add(&names, slice, device) {
                    refused = true;
                    if must {
                        let claim = claim_name(self.demands[at.claim]);
                        return Err(Stop::Failed(Failure::Claim(format!(
                            "claim {claim}, request {}: cannot add device {} because a claim constraint would not be satisfied",
                            request.name, device.id
                        ))));
                    }
                    break;
                }
                undo.constraints += 1;
            }
        }
        if refused || !self.has_capacity(request, device) {
            self.undo_reservation(at, &names, place, &undo);
            return Ok(None);
        }
        let mut share = None;
        if device.is_shared {
            let amounts = capacity::taken(&device.capacity, &request.capacity);
            self.sharing.entry(&device.id).or_default().push(amounts.clone());
            share = Some(amounts);
        } else {
            self.allocating.entry(&device.id).or_default().push(at.claim);
        }
        self.choices[at.claim].push(Choice {
            slice: slice.clone(),
            device: place.device,
            request: at.request,
            alternative: at.alternative,
            share,
        });
        Ok(Some(undo))
    }

    fn give_back(&mut self, at: At, request: &Request, place: Position, undo: Undo) {
        let (_, device) = self.device(place);
        self.choices[at.claim].pop();
        let id = device.id.as_str();
        if device.is_shared {
            let shares = self.sharing.entry(id).or_default();
            shares.pop();
            if shares.is_empty() {
                self.sharing.remove(id);
            }
        } else if let Some(claims) = self.allocating.get_mut(id) {
            claims.pop();
        }
        let names = Names { base: request.base(), full: &request.name };
        self.undo_reservation(at, &names, place, &undo);
    }

    fn undo_reservation(&mut self, at: At, names: &Names<'_>, place: Position, undo: &Undo) {
        for constraint in self.constraints[at.claim][..undo.constraints].iter_mut().rev() {
            constraint.remove(names);
        }
        if undo.counters {
            let (_, device) = self.device(place);
            release(device, &mut self.consumed[place.pool]);
        }
    }
}

/// What taking a device changed besides the choice itself.
#[derive(Default)]
struct Undo {
    counters: bool,
    constraints: usize,
}

fn claim_name(demand: &Demand) -> String {
    let metadata = &demand.claim.metadata;
    format!("{}/{}", metadata.namespace.as_deref().unwrap_or(""), metadata.name.as_deref().unwrap_or(""))
}
