//! What a Deployment does next, from what it wants and what its ReplicaSets are.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::ResourceExt;

use super::sets::{self, available, bounds, desired, noted_desired, noted_max, replicas};
use super::status;

/// A write to a ReplicaSet.
#[derive(Debug, PartialEq)]
pub enum Action {
    Create(Box<ReplicaSet>),
    /// `scaled_from` is its size before, if that changes.
    Write {
        set: Box<ReplicaSet>,
        scaled_from: Option<i32>,
    },
    Delete {
        name: String,
        uid: Option<String>,
    },
}

pub struct Plan {
    pub actions: Vec<Action>,
    /// The Deployment with the status and revision it should have.
    pub deployment: Deployment,
    pub again: Option<Duration>,
}

pub fn is_recreate(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate")
}

/// `has_pods` tells whether a set has pods that have not finished, whatever its status says.
pub fn plan(
    deployment: &Deployment,
    sets: Vec<ReplicaSet>,
    has_pods: &dyn Fn(&ReplicaSet) -> bool,
    now: Timestamp,
) -> Plan {
    let before = deployment.status.clone().unwrap_or_default();
    let (new, old) = sets::split(deployment, sets);
    let mut rollout = Rollout { deployment: deployment.clone(), new, old, actions: Vec::new(), now };
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused).unwrap_or(false);
    let deleting = deployment.metadata.deletion_timestamp.is_some();
    if !deleting {
        status::note_pause(&mut rollout.deployment, now);
        rollout.follow_new();
        if paused || rollout.was_scaled() {
            rollout.scale();
        } else {
            match is_recreate(deployment) {
                true => rollout.recreate(has_pods),
                false => rollout.roll(),
            }
            if status::is_complete(deployment, &before) {
                rollout.clean_up();
            }
        }
        if paused {
            rollout.clean_up();
        }
    }
    status::count(&mut rollout.deployment, rollout.new.as_ref(), &rollout.old, now);
    let again = match deleting || paused {
        true => None,
        false => status::judge(&mut rollout.deployment, &before, rollout.new.as_ref(), &rollout.old, now),
    };
    Plan { actions: rollout.actions, deployment: rollout.deployment, again }
}

/// The sets as they will be once the actions so far are done.
struct Rollout {
    deployment: Deployment,
    new: Option<ReplicaSet>,
    old: Vec<ReplicaSet>,
    actions: Vec<Action>,
    now: Timestamp,
}

impl Rollout {
    fn next_revision(&self) -> i64 {
        self.old.iter().filter_map(sets::revision).max().unwrap_or(0).saturating_add(1)
    }

    /// Keeps an existing new set's annotations in line, and the Deployment's revision.
    fn follow_new(&mut self) {
        let revision = self.next_revision();
        let Some(new) = &mut self.new else { return };
        if sets::follow(&self.deployment, new, revision) {
            self.actions.push(Action::Write { set: Box::new(new.clone()), scaled_from: None });
        }
        if let Some(noted) = new.annotations().get(sets::REVISION).cloned() {
            self.deployment.annotations_mut().insert(sets::REVISION.into(), noted);
        }
        status::note_found(&mut self.deployment, new, self.now);
    }

    fn create_new(&mut self, size: i32) {
        let revision = self.next_revision();
        let new = sets::make(&self.deployment, size, revision);
        self.actions.push(Action::Create(Box::new(new.clone())));
        self.deployment.annotations_mut().insert(sets::REVISION.into(), revision.to_string());
        status::note_created(&mut self.deployment, &new, self.now);
        self.new = Some(new);
    }

    fn total(&self) -> i32 {
        self.old.iter().chain(&self.new).map(replicas).fold(0, i32::saturating_add)
    }

    /// Changes a set's size; with `note`, also when only what is noted on it is outdated.
    fn resize(&mut self, which: SetRef, size: i32, note: bool) -> bool {
        let set = match which {
            SetRef::New => self.new.as_mut(),
            SetRef::Old(index) => self.old.get_mut(index),
        };
        let Some(set) = set else { return false };
        let from = replicas(set);
        if from == size && !note {
            return false;
        }
        let noted = sets::note_size(&self.deployment, set);
        set.spec.get_or_insert_default().replicas = Some(size);
        if from == size && !noted {
            return false;
        }
        let scaled_from = (from != size).then_some(from);
        // One write per set: a second would meet a version of its own making.
        let name = set.name_any();
        let earlier = self.actions.iter_mut().find_map(|action| match action {
            Action::Write { set: earlier, scaled_from } if earlier.name_any() == name => {
                Some((earlier, scaled_from))
            }
            _ => None,
        });
        match earlier {
            Some((earlier, earlier_from)) => {
                **earlier = set.clone();
                *earlier_from = earlier_from.or(scaled_from);
            }
            None => self.actions.push(Action::Write { set: Box::new(set.clone()), scaled_from }),
        }
        scaled_from.is_some()
    }

    /// Was the Deployment resized since its sets were last scaled?
    fn was_scaled(&self) -> bool {
        let wanted = desired(&self.deployment);
        let mut active = self.old.iter().chain(&self.new).filter(|set| replicas(set) > 0);
        active.any(|set| noted_desired(set).is_some_and(|noted| noted != wanted))
    }

    /// A resize, in the middle of a rollout or not: shared among the sets in proportion, so
    /// that it neither hastens the rollout nor bets on the new template.
    fn scale(&mut self) {
        let wanted = desired(&self.deployment);
        if let Some(only) = self.only_active_or_newest() {
            self.resize(only, wanted, false);
            return;
        }
        let saturated = self.new.as_ref().is_some_and(|new| {
            noted_desired(new) == Some(wanted) && replicas(new) == wanted && available(new) == wanted
        });
        if saturated {
            for index in 0..self.old.len() {
                self.resize(SetRef::Old(index), 0, false);
            }
        } else if !is_recreate(&self.deployment) {
            self.scale_in_proportion(wanted);
        }
    }

    fn only_active_or_newest(&self) -> Option<SetRef> {
        let olds = (0..self.old.len()).map(SetRef::Old);
        let all: Vec<SetRef> = olds.chain(self.new.as_ref().map(|_| SetRef::New)).collect();
        let active: Vec<SetRef> =
            all.iter().copied().filter(|which| replicas(self.get(*which)) > 0).collect();
        match active.as_slice() {
            [] => all.last().copied(),
            [only] => Some(*only),
            _ => None,
        }
    }

    fn get(&self, which: SetRef) -> &ReplicaSet {
        match which {
            SetRef::New => self.new.as_ref().expect("is named only where it exists"),
            SetRef::Old(index) => &self.old[index],
        }
    }

    fn scale_in_proportion(&mut self, wanted: i32) {
        let allowed = if wanted > 0 { wanted.saturating_add(bounds(&self.deployment).0) } else { 0 };
        let to_add = allowed - self.total();
        let olds = (0..self.old.len()).map(SetRef::Old);
        let mut active: Vec<SetRef> = olds.chain(self.new.as_ref().map(|_| SetRef::New)).collect();
        active.retain(|which| replicas(self.get(*which)) > 0);
        // Largest first; of equals, growing starts with the newest and shrinking with the oldest.
        active.sort_by(|a, b| {
            let created = |which: &SetRef| self.get(*which).metadata.creation_timestamp.clone();
            let by_age = created(a).cmp(&created(b));
            replicas(self.get(*b)).cmp(&replicas(self.get(*a))).then(if to_add > 0 {
                by_age.reverse()
            } else {
                by_age
            })
        });
        let mut added = 0;
        let mut sizes: Vec<i32> = Vec::with_capacity(active.len());
        for which in &active {
            let set = self.get(*which);
            let share = self.fraction(set, wanted);
            let left = to_add - added;
            let part = if to_add > 0 { share.min(left).max(0) } else { share.max(left).min(0) };
            let part = if to_add == 0 { 0 } else { part };
            added += part;
            sizes.push(replicas(set) + part);
        }
        // What rounding left over goes to the largest.
        if let Some(largest) = sizes.first_mut() {
            *largest = (*largest + to_add - added).max(0);
        }
        for (which, size) in active.into_iter().zip(sizes) {
            self.resize(which, size, true);
        }
    }

    /// How much a set would grow if the whole were scaled evenly.
    fn fraction(&self, set: &ReplicaSet, wanted: i32) -> i32 {
        let size = replicas(set);
        if wanted == 0 {
            return -size;
        }
        let now_at_most = f64::from(wanted + bounds(&self.deployment).0);
        let status = self.deployment.status.as_ref();
        let before_at_most = noted_max(set).or(status.and_then(|status| status.replicas)).unwrap_or(0);
        if before_at_most == 0 {
            return 0;
        }
        (f64::from(size) * now_at_most / f64::from(before_at_most)).round() as i32 - size
    }

    fn roll(&mut self) {
        let wanted = desired(&self.deployment);
        let (surge, unavailable) = bounds(&self.deployment);
        let room = (wanted + surge - self.total()).max(0);
        let Some(new) = &self.new else { return self.create_new(room.min(wanted)) };
        let size = replicas(new);
        let next = if size > wanted { wanted } else { size + room.min(wanted - size) };
        if self.resize(SetRef::New, next, false) {
            return;
        }
        self.shrink_old(wanted - unavailable);
    }

    /// Takes pods from the old sets, as many as availability allows: the unhealthy ones first,
    /// whose loss costs nothing, then healthy ones for which the new set has a substitute.
    fn shrink_old(&mut self, min_available: i32) {
        let Some(new) = &self.new else { return };
        let new_unavailable = replicas(new) - available(new);
        let mut may_go = self.total() - min_available - new_unavailable;
        if may_go <= 0 || self.old.iter().all(|set| replicas(set) == 0) {
            return;
        }
        for index in 0..self.old.len() {
            let set = &self.old[index];
            let unhealthy = (replicas(set) - available(set)).clamp(0, may_go);
            let size = replicas(set) - unhealthy;
            may_go -= unhealthy;
            self.resize(SetRef::Old(index), size, false);
        }
        // After the unhealthy went, an old set may claim more available pods than it has room for.
        let healthy: i32 = self
            .old
            .iter()
            .chain(&self.new)
            .filter(|set| replicas(set) > 0)
            .map(available)
            .fold(0, i32::saturating_add);
        let mut may_go = healthy - min_available;
        for index in 0..self.old.len() {
            let size = replicas(&self.old[index]);
            let going = size.min(may_go).max(0);
            may_go -= going;
            self.resize(SetRef::Old(index), size - going, false);
        }
    }

    fn recreate(&mut self, has_pods: &dyn Fn(&ReplicaSet) -> bool) {
        let mut shrunk = false;
        for index in 0..self.old.len() {
            shrunk |= self.resize(SetRef::Old(index), 0, false);
        }
        let counted = |set: &ReplicaSet| set.status.as_ref().is_some_and(|status| status.replicas > 0);
        if shrunk || self.old.iter().any(|set| counted(set) || has_pods(set)) {
            return;
        }
        let wanted = desired(&self.deployment);
        match self.new {
            None => self.create_new(wanted),
            Some(_) => {
                self.resize(SetRef::New, wanted, false);
            }
        }
    }

    /// Removes the oldest empty sets beyond the history limit.
    fn clean_up(&mut self) {
        let limit = self.deployment.spec.as_ref().and_then(|spec| spec.revision_history_limit);
        let Some(limit) = limit.filter(|limit| *limit != i32::MAX) else { return };
        let mut kept: Vec<&ReplicaSet> =
            self.old.iter().filter(|set| set.metadata.deletion_timestamp.is_none()).collect();
        kept.sort_by_key(|set| sets::revision(set).unwrap_or(0));
        let surplus = kept.len().saturating_sub(limit.max(0) as usize);
        for set in &kept[..surplus] {
            let status = set.status.clone().unwrap_or_default();
            let seen = status.observed_generation.unwrap_or(0) >= set.metadata.generation.unwrap_or(0);
            if status.replicas == 0 && replicas(set) == 0 && seen {
                self.actions.push(Action::Delete { name: set.name_any(), uid: set.uid() });
            }
        }
    }
}

/// A ReplicaSet of the plan: the new one, or an old one by its index.
#[derive(Clone, Copy, Debug)]
enum SetRef {
    New,
    Old(usize),
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
