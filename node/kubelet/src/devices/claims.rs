//! Which claims a pod has and may use, what has to be asked of drivers for them, and what is known of those that were
//! prepared. Pure: whoever calls drivers and writes the checkpoint is [`super::Devices`].

use std::collections::{BTreeMap, BTreeSet};

use ferry_client::NamespacedName;
use ferry_plugins_api::dra;
use k8s_openapi::api::core::v1::{Container, Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::checkpoint::{ClaimState, Device};
use crate::pod;

/// In upstream's words; the pod whose event they stand in is not named again.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("pod \"{0}\": ResourceClaim not created yet")]
    NotCreated(NamespacedName),
    #[error("pod \"{pod}\", spec.resourceClaim \"{claim}\": none of the supported fields are set")]
    NoSource { pod: NamespacedName, claim: String },
    #[error("ResourceClaim {claim} was not created for Pod {pod} (Pod is not owner)")]
    NotOwner { claim: NamespacedName, pod: NamespacedName },
    #[error("pod {pod} ({uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved { pod: String, uid: String, claim: String, claim_uid: String },
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(String),
    #[error(
        "old ResourceClaim with same name {claim} and different UID {uid} still exists (previous pod force-deleted?!)"
    )]
    OldClaim { claim: String, uid: String },
    #[error("unable to get information for ResourceClaim {0}")]
    NotKnown(String),
    #[error("{call} returned result for unknown claim UID {uid}")]
    Unasked { call: &'static str, uid: String },
    #[error("{call} failed for ResourceClaim {claim}: {problem}")]
    Refused { call: &'static str, claim: String, problem: String },
    #[error("{call} skipped {count} ResourceClaims")]
    Skipped { call: &'static str, count: usize },
}

/// A claim that a pod has, by the name of the object.
#[derive(Debug, PartialEq, Eq)]
pub struct Reference {
    pub claim: String,
    /// It was made for this pod from a template, so it must be this pod's own.
    pub must_be_owned: bool,
}

/// The claims of a pod, also the one that the scheduler made for its extended resources. One that a template was not
/// to make is none.
pub fn references(pod: &Pod) -> Result<Vec<Reference>, Error> {
    let mut references = Vec::new();
    for claim in pod::spec(pod).resource_claims.iter().flatten() {
        references.extend(reference(pod, claim)?);
    }
    let extended = pod::status(pod).extended_resource_claim_status.as_ref();
    references.extend(
        extended
            .map(|extended| Reference { claim: extended.resource_claim_name.clone(), must_be_owned: false }),
    );
    Ok(references)
}

pub fn reference(pod: &Pod, claim: &PodResourceClaim) -> Result<Option<Reference>, Error> {
    if let Some(name) = &claim.resource_claim_name {
        return Ok(Some(Reference { claim: name.clone(), must_be_owned: false }));
    }
    if claim.resource_claim_template_name.is_none() {
        return Err(Error::NoSource { pod: pod::key(pod), claim: claim.name.clone() });
    }
    let mut made = pod::status(pod).resource_claim_statuses.iter().flatten();
    let made = made.find(|made| made.name == claim.name).ok_or_else(|| Error::NotCreated(pod::key(pod)))?;
    let name = made.resource_claim_name.clone();
    Ok(name.map(|claim| Reference { claim, must_be_owned: true }))
}

/// Whether the pod may use the claim as the API has it.
pub fn check(pod: &Pod, claim: &ResourceClaim, must_be_owned: bool) -> Result<(), Error> {
    let uid = pod::uid(pod);
    let owners = claim.metadata.owner_references.iter().flatten();
    if must_be_owned && !owners.into_iter().any(|owner| owner.controller == Some(true) && owner.uid == uid) {
        return Err(Error::NotOwner { claim: NamespacedName::of(claim), pod: pod::key(pod) });
    }
    let name = claim.metadata.name.clone().unwrap_or_default();
    let status = claim.status.as_ref();
    let mut users = status.into_iter().flat_map(|status| status.reserved_for.iter().flatten());
    if !users.any(|user| user.uid == uid) {
        return Err(Error::NotReserved {
            pod: pod::name(pod).into(),
            uid: uid.into(),
            claim: name,
            claim_uid: claim.metadata.uid.clone().unwrap_or_default(),
        });
    }
    match status.and_then(|status| status.allocation.as_ref()) {
        Some(_) => Ok(()),
        None => Err(Error::NotAllocated(name)),
    }
}

/// The drivers whose devices are allocated to a claim, those of administrative access too.
pub fn drivers(claim: &ResourceClaim) -> BTreeSet<String> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let results = allocation.and_then(|allocation| allocation.devices.as_ref()?.results.as_ref());
    results.into_iter().flatten().map(|result| result.driver.clone()).collect()
}

/// What to ask of each driver, in one call.
pub type Batches = BTreeMap<String, Vec<dra::Claim>>;

/// What is left to do for a pod that lets go of its claims.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Release {
    pub batches: Batches,
    /// Claims that nobody else uses.
    pub last: Vec<NamespacedName>,
    /// Claims that other pods go on using.
    pub shared: Vec<NamespacedName>,
}

/// The claims that were prepared on this node, or are about to be.
#[derive(Debug, Default)]
pub struct Claims {
    known: BTreeMap<NamespacedName, Known>,
}

#[derive(Debug)]
struct Known {
    state: ClaimState,
    /// By this process: a driver is asked again after a restart, before it is relied on.
    prepared: bool,
}

impl Claims {
    pub fn new(states: Vec<ClaimState>) -> Self {
        let known = states.into_iter().map(|state| {
            let key = NamespacedName::new(&state.namespace, &state.claim_name);
            (key, Known { state, prepared: false })
        });
        Self { known: known.collect() }
    }

    pub fn states(&self) -> Vec<&ClaimState> {
        self.known.values().map(|known| &known.state).collect()
    }

    /// Notes that a pod uses claims that were checked, and says which drivers have to prepare which of them. Nothing is
    /// noted if one cannot be used.
    pub fn use_by(&mut self, uid: &str, claims: &[ResourceClaim]) -> Result<Batches, Error> {
        for claim in claims {
            if let Some(known) = self.known.get(&NamespacedName::of(claim))
                && Some(&known.state.claim_uid) != claim.metadata.uid.as_ref()
            {
                let claim = claim.metadata.name.clone().unwrap_or_default();
                return Err(Error::OldClaim { claim, uid: known.state.claim_uid.clone() });
            }
        }
        let mut batches = Batches::new();
        for claim in claims {
            let known = self.known.entry(NamespacedName::of(claim)).or_insert_with(|| Known {
                state: ClaimState::new(&claim.metadata, drivers(claim)),
                prepared: false,
            });
            known.state.pod_uids.insert(uid.into());
            if !known.prepared {
                known.state.add_to(&mut batches);
            }
        }
        Ok(batches)
    }

    /// Takes in what a driver made of claims. What it said of one replaces what it said before.
    pub fn take_in(&mut self, driver: &str, devices: Vec<(NamespacedName, Vec<Device>)>) {
        for (key, devices) in devices {
            if let Some(known) = self.known.get_mut(&key) {
                known.state.driver_state.entry(driver.into()).or_default().devices = devices;
            }
        }
    }

    /// All drivers have prepared these.
    pub fn set_prepared(&mut self, keys: &[NamespacedName]) {
        for key in keys {
            if let Some(known) = self.known.get_mut(key) {
                known.prepared = true;
            }
        }
    }

    pub fn keys_of(&self, uid: &str) -> BTreeSet<NamespacedName> {
        let used = self.known.iter().filter(|(_, known)| known.state.pod_uids.contains(uid));
        used.map(|(key, _)| key.clone()).collect()
    }

    pub fn is_used_by(&self, uid: &str) -> bool {
        self.known.values().any(|known| known.state.pod_uids.contains(uid))
    }

    /// Every pod that uses a claim.
    pub fn pods(&self) -> BTreeSet<String> {
        self.known.values().flat_map(|known| known.state.pod_uids.iter().cloned()).collect()
    }

    /// The pods that use a device.
    pub fn pods_with(&self, driver: &str, is_it: impl Fn(&Device) -> bool) -> BTreeSet<String> {
        let has = |known: &&Known| {
            known.state.driver_state.get(driver).is_some_and(|state| state.devices.iter().any(&is_it))
        };
        self.known.values().filter(has).flat_map(|known| known.state.pod_uids.iter().cloned()).collect()
    }

    /// What it takes for a pod to let go of its claims. Nothing changes until [`Claims::let_go`].
    pub fn release(&self, uid: &str) -> Release {
        let mut release = Release::default();
        for (key, known) in self.known.iter().filter(|(_, known)| known.state.pod_uids.contains(uid)) {
            if known.state.pod_uids.len() > 1 {
                release.shared.push(key.clone());
            } else {
                known.state.add_to(&mut release.batches);
                release.last.push(key.clone());
            }
        }
        release
    }

    pub fn let_go(&mut self, uid: &str, release: &Release) {
        for key in &release.shared {
            if let Some(known) = self.known.get_mut(key) {
                known.state.pod_uids.remove(uid);
            }
        }
        self.known.retain(|key, _| !release.last.contains(key));
    }

    /// The CDI devices of the requests that a container names, each once.
    pub fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for (claim, request) in requests(pod, container)? {
            let devices = self.devices(pod, &claim).ok_or(Error::NotKnown(claim))?;
            for (_, device) in devices.filter(|(_, device)| device.is_for(&request)) {
                for name in &device.cdi_device_ids {
                    if !names.contains(name) {
                        names.push(name.clone());
                    }
                }
            }
        }
        Ok(names)
    }

    /// A claim's devices with their drivers; `None` where the claim is not known here.
    pub fn devices(&self, pod: &Pod, claim: &str) -> Option<impl Iterator<Item = (&str, &Device)> + use<'_>> {
        let known = self.known.get(&NamespacedName::new(pod::namespace(pod), claim))?;
        let drivers = known.state.driver_state.iter();
        Some(
            drivers.flat_map(|(driver, state)| state.devices.iter().map(move |each| (driver.as_str(), each))),
        )
    }
}

/// The claims of a container and the request it takes of each; "" takes all.
pub fn requests(pod: &Pod, container: &Container) -> Result<Vec<(String, String)>, Error> {
    let mut requests = Vec::new();
    let resources = container.resources.as_ref();
    for wanted in resources.into_iter().flat_map(|resources| resources.claims.iter().flatten()) {
        let mut claims = pod::spec(pod).resource_claims.iter().flatten();
        let Some(claim) = claims.find(|claim| claim.name == wanted.name) else { continue };
        if let Some(reference) = reference(pod, claim)? {
            requests.push((reference.claim, wanted.request.clone().unwrap_or_default()));
        }
    }
    if let Some(extended) = &pod::status(pod).extended_resource_claim_status {
        for mapping in extended.request_mappings.iter().filter(|each| each.container_name == container.name) {
            requests.push((extended.resource_claim_name.clone(), mapping.request_name.clone()));
        }
    }
    Ok(requests)
}

/// A driver's answer for the claims it was asked for: every one of them, and no other.
pub fn answers<T>(
    call: &'static str,
    asked: &[dra::Claim],
    answered: impl IntoIterator<Item = (String, T)>,
    problem: impl Fn(&T) -> &str,
) -> Result<Vec<(NamespacedName, T)>, Error> {
    let mut answers = Vec::new();
    for (uid, answer) in answered {
        let Some(claim) = asked.iter().find(|claim| claim.uid == uid) else {
            return Err(Error::Unasked { call, uid });
        };
        if !problem(&answer).is_empty() {
            return Err(Error::Refused { call, claim: claim.name.clone(), problem: problem(&answer).into() });
        }
        answers.push((NamespacedName::new(&claim.namespace, &claim.name), answer));
    }
    match asked.len() - answers.len() {
        0 => Ok(answers),
        count => Err(Error::Skipped { call, count }),
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
