//! Brings claims and volumes together. Making volumes is the matter of provisioners; here a claim finds
//! one that fits, or is told what it waits for.

use std::sync::Arc;

use ferry_api::quantity::Quantity;
use ferry_client::{
    Attempt, Client, Error, Event, EventType, Informer, NamespacedName, Outcome, Recorder, error, events,
};
use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::{Api, PostParams};

use crate::context::{Context, Running};
use crate::ownership::{selector, selects};

const CONTROLLER: &str = "persistentvolume-controller";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub(crate) const PROVISIONERS: [&str; 2] =
    ["volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-provisioner"];
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

pub(crate) fn class_of_claim(claim: &PersistentVolumeClaim) -> String {
    let annotated = claim.annotations().get("volume.beta.kubernetes.io/storage-class").cloned();
    annotated.or_else(|| claim.spec.as_ref()?.storage_class_name.clone()).unwrap_or_default()
}

fn class_of_volume(volume: &PersistentVolume) -> String {
    let annotated = volume.annotations().get("volume.beta.kubernetes.io/storage-class").cloned();
    annotated.or_else(|| volume.spec.as_ref()?.storage_class_name.clone()).unwrap_or_default()
}

/// The claim that a volume is bound to, from the point of view of one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BindingState {
    Free,
    /// To this claim by name, from an administrator; any namesake may come.
    Promised,
    Ours,
    Others,
}

fn bond(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> BindingState {
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return BindingState::Free;
    };
    let same_name = reference.name == claim.metadata.name && reference.namespace == claim.metadata.namespace;
    match reference.uid.as_deref() {
        _ if !same_name => BindingState::Others,
        None | Some("") => BindingState::Promised,
        uid if uid == claim.metadata.uid.as_deref() => BindingState::Ours,
        _ => BindingState::Others,
    }
}

/// What a claim says of itself once it is bound.
fn bound_status(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> PersistentVolumeClaimStatus {
    let mut status = claim.status.clone().unwrap_or_default();
    let volume = volume.spec.as_ref();
    if status.phase.as_deref() != Some("Bound") {
        // From then on it is for whoever modifies the volume.
        status.current_volume_attributes_class_name =
            volume.and_then(|spec| spec.volume_attributes_class_name.clone());
    }
    status.phase = Some("Bound".into());
    status.access_modes = volume.and_then(|spec| spec.access_modes.clone());
    // A resize in progress keeps its own account of the capacity.
    if status.capacity.is_none() {
        status.capacity = volume.and_then(|spec| spec.capacity.clone());
    }
    status
}

pub(crate) fn capacity(volume: &PersistentVolume) -> Quantity {
    let amounts = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    amounts.and_then(|amounts| Quantity::parse(&amounts.get("storage")?.0).ok()).unwrap_or(Quantity::ZERO)
}

pub(crate) fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    requests.and_then(|requests| Quantity::parse(&requests.get("storage")?.0).ok()).unwrap_or(Quantity::ZERO)
}

fn fits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let (Some(has), Some(wants)) = (&volume.spec, &claim.spec) else { return false };
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".into());
    let modes = has.access_modes.clone().unwrap_or_default();
    let labelled = wants
        .selector
        .as_ref()
        .is_none_or(|wanted| selector(wanted).is_some_and(|selector| selects(&selector, volume)));
    wants.access_modes.iter().flatten().all(|wanted| modes.contains(wanted))
        && mode(&has.volume_mode) == mode(&wants.volume_mode)
        && capacity(volume) >= requested(claim)
        && labelled
}

/// The volume a claim should have: one promised to it, or else the smallest that fits.
fn best_match<'a>(
    claim: &PersistentVolumeClaim,
    volumes: &'a [Arc<PersistentVolume>],
) -> Option<&'a Arc<PersistentVolume>> {
    let usable = volumes.iter().filter(|volume| volume.metadata.deletion_timestamp.is_none());
    let suitable: Vec<&Arc<PersistentVolume>> = usable.filter(|volume| fits(volume, claim)).collect();
    let promised = suitable
        .iter()
        .find(|volume| matches!(bond(volume, claim), BindingState::Ours | BindingState::Promised));
    promised.copied().or_else(|| {
        let phase =
            |volume: &PersistentVolume| volume.status.as_ref().and_then(|status| status.phase.clone());
        let free = suitable.into_iter().filter(|volume| {
            let available = phase(volume).is_none_or(|phase| phase == "Available");
            available
                && bond(volume, claim) == BindingState::Free
                && class_of_volume(volume) == class_of_claim(claim)
        });
        free.min_by(|a, b| capacity(a).cmp(&capacity(b)).then_with(|| a.name_any().cmp(&b.name_any())))
    })
}

/// What to do about a claim.
#[derive(Debug, PartialEq)]
enum Plan {
    Bind(Arc<PersistentVolume>),
    /// Nothing fits; the reason and note tell what it waits for, `provisioner` who may help.
    Wait {
        kind: EventType,
        reason: &'static str,
        note: String,
        provisioner: Option<String>,
    },
    /// Its volume is gone.
    Lost(&'static str),
    /// Its volume is named but not there, or not free, yet.
    Pending,
}

fn plan(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
    class: Option<&StorageClass>,
) -> Plan {
    let named =
        claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).filter(|name| !name.is_empty());
    if let Some(name) = named {
        return plan_named(claim, volumes.iter().find(|volume| volume.name_any() == name));
    }
    let delays =
        class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    let chosen = claim.annotations().contains_key(SELECTED_NODE);
    let promised = volumes
        .iter()
        .any(|volume| matches!(bond(volume, claim), BindingState::Ours | BindingState::Promised));
    if delays && !chosen && !promised {
        let note = "waiting for first consumer to be created before binding".into();
        return Plan::Wait {
            kind: EventType::Normal,
            reason: "WaitForFirstConsumer",
            note,
            provisioner: None,
        };
    }
    match best_match(claim, volumes) {
        Some(volume) => Plan::Bind(volume.clone()),
        None => without_volume(claim, class),
    }
}

/// The claim names its volume, which may not be there.
fn plan_named(claim: &PersistentVolumeClaim, volume: Option<&Arc<PersistentVolume>>) -> Plan {
    let completed = claim.annotations().contains_key(BIND_COMPLETED);
    match volume.map(|volume| (volume, bond(volume, claim))) {
        None if completed => {
            Plan::Lost("Bound claim has lost its PersistentVolume. Data on the volume is lost!")
        }
        Some((_, BindingState::Others)) if completed => {
            Plan::Lost("Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
        }
        None | Some((_, BindingState::Others)) => Plan::Pending,
        Some((volume, _)) => Plan::Bind(volume.clone()),
    }
}

/// No volume fits: what the claim waits for.
fn without_volume(claim: &PersistentVolumeClaim, class: Option<&StorageClass>) -> Plan {
    match class {
        Some(class) if class.provisioner != NO_PROVISIONER => Plan::Wait {
            kind: EventType::Normal,
            reason: "ExternalProvisioning",
            note: format!(
                "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system \
                 administrator. If volume creation is delayed, please verify that the provisioner is running and correctly \
                 registered.",
                class.provisioner
            ),
            provisioner: Some(class.provisioner.clone()),
        },
        _ if !class_of_claim(claim).is_empty() && class.is_none() => Plan::Wait {
            kind: EventType::Warning,
            reason: "ProvisioningFailed",
            note: format!("storageclass.storage.k8s.io {:?} not found", class_of_claim(claim)),
            provisioner: None,
        },
        _ => Plan::Wait {
            kind: EventType::Normal,
            reason: "FailedBinding",
            note: "no persistent volumes available for this claim and no storage class is set".into(),
            provisioner: None,
        },
    }
}

/// The phase a volume is in, given the claim it refers to.
fn volume_phase(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> &'static str {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let Some(reference) = reference else { return "Available" };
    match (reference.uid.as_deref(), claim) {
        (None | Some(""), _) => "Available",
        (uid, Some(claim)) if uid == claim.metadata.uid.as_deref() => {
            let names_us = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref())
                == volume.metadata.name.as_ref();
            if names_us { "Bound" } else { "Available" }
        }
        _ => "Released",
    }
}

struct Controller {
    client: Client,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (claims, volumes, classes) = (builder.informer(), builder.informer(), builder.informer());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        claims: claims.clone(),
        volumes: volumes.clone(),
        classes: classes.clone(),
        recorder: context.recorder(CONTROLLER),
    });
    let of_claims = builder
        .of(&claims, controller.clone())
        .watches(&volumes, Controller::claims_of)
        .watches(&classes, |it, _| it.unbound_claims())
        .run(Controller::reconcile_claim);
    let of_volumes = builder
        .of(&volumes, controller)
        .watches(&claims, |_, event| {
            let volume = event.object().spec.as_ref().and_then(|spec| spec.volume_name.clone());
            volume.map(NamespacedName::cluster).into_iter().collect()
        })
        .run(Controller::reconcile_volume);
    Box::pin(async move {
        futures::join!(of_claims, of_volumes);
    })
}

impl Controller {
    fn claims_of(&self, event: &Event<PersistentVolume>) -> Vec<NamespacedName> {
        let reference = event.object().spec.as_ref().and_then(|spec| spec.claim_ref.clone());
        match reference {
            None => self.unbound_claims(),
            Some(claim) => {
                vec![NamespacedName::new(claim.namespace.unwrap_or_default(), claim.name.unwrap_or_default())]
            }
        }
    }

    fn unbound_claims(&self) -> Vec<NamespacedName> {
        let mut claims = self.claims.list();
        claims.retain(|claim| !claim.annotations().contains_key(BIND_COMPLETED));
        claims.iter().map(|claim| NamespacedName::of(&**claim)).collect()
    }

    async fn reconcile_claim(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(claim) = self.claims.get(&key).filter(|claim| claim.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Outcome::Done);
        };
        let class = self.classes.get(&NamespacedName::cluster(class_of_claim(&claim)));
        match plan(&claim, &self.volumes.list(), class.as_deref()) {
            Plan::Bind(volume) => self.bind(&claim, &volume).await?,
            Plan::Pending => self.set_claim_phase(&claim, "Pending").await?,
            Plan::Lost(note) => {
                self.set_claim_phase(&claim, "Lost").await?;
                self.recorder.event(&*claim, EventType::Warning, "ClaimLost", "Bind", note);
            }
            Plan::Wait { kind, reason, note, provisioner } => {
                self.recorder.event(&*claim, kind, reason, "Bind", note);
                let claim = self.name_provisioner(&claim, provisioner).await?;
                self.set_claim_phase(&claim, "Pending").await?;
            }
        }
        Ok(Outcome::Done)
    }

    /// Tells provisioners outside whose turn it is.
    async fn name_provisioner(
        &self,
        claim: &PersistentVolumeClaim,
        provisioner: Option<String>,
    ) -> Result<PersistentVolumeClaim, Error> {
        let mut next = claim.clone();
        if let Some(provisioner) = provisioner {
            for key in PROVISIONERS {
                next.annotations_mut().insert(key.into(), provisioner.clone());
            }
        }
        if next.metadata.annotations == claim.metadata.annotations {
            return Ok(next);
        }
        self.claims_api(claim)
            .replace(&next.name_any(), &PostParams::default(), &next)
            .await
            .attempting("name provisioner")
    }

    fn claims_api(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default())
    }

    /// The volume first: once it refers to the claim no other claim can have it, and a crash in
    /// between is picked up from there.
    async fn bind(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<(), Error> {
        let mut span = ferry_trace::span("volume.bind");
        span.set("volume", volume.name_any());
        span.in_scope(async {
            let volume = self.bind_volume(claim, volume).await?;
            let claim = self.bind_claim(claim, &volume).await?;
            self.settle_claim(&claim, &volume).await
        })
        .await
    }

    async fn bind_volume(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<PersistentVolume, Error> {
        if bond(volume, claim) == BindingState::Ours {
            return Ok(volume.clone());
        }
        let mut next = volume.clone();
        if bond(volume, claim) == BindingState::Free {
            next.annotations_mut().insert(BOUND_BY_CONTROLLER.into(), "yes".into());
        }
        let reference = ObjectReference { field_path: None, ..events::reference(claim) };
        next.spec.get_or_insert_default().claim_ref = Some(reference);
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        api.replace(&next.name_any(), &PostParams::default(), &next).await.attempting("bind volume")
    }

    async fn bind_claim(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<PersistentVolumeClaim, Error> {
        let mut next = claim.clone();
        let spec = next.spec.get_or_insert_default();
        if spec.volume_name.as_deref().unwrap_or("").is_empty() {
            spec.volume_name = volume.metadata.name.clone();
            next.annotations_mut().insert(BOUND_BY_CONTROLLER.into(), "yes".into());
        }
        next.annotations_mut().insert(BIND_COMPLETED.into(), "yes".into());
        if next == *claim {
            return Ok(next);
        }
        self.claims_api(claim)
            .replace(&next.name_any(), &PostParams::default(), &next)
            .await
            .attempting("bind claim")
    }

    async fn settle_claim(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(), Error> {
        let mut next = claim.clone();
        next.status = Some(bound_status(claim, volume));
        self.write_claim_status(claim, next).await
    }

    async fn set_claim_phase(&self, claim: &PersistentVolumeClaim, phase: &str) -> Result<(), Error> {
        let mut next = claim.clone();
        next.status.get_or_insert_default().phase = Some(phase.into());
        self.write_claim_status(claim, next).await
    }

    async fn write_claim_status(
        &self,
        claim: &PersistentVolumeClaim,
        next: PersistentVolumeClaim,
    ) -> Result<(), Error> {
        if next.status != claim.status {
            let written =
                self.claims_api(claim).replace_status(&next.name_any(), &PostParams::default(), &next).await;
            error::ignore_not_found(written).attempting("write claim status")?;
        }
        Ok(())
    }

    async fn reconcile_volume(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(volume) = self.volumes.get(&key) else { return Ok(Outcome::Done) };
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone()).unwrap_or_default();
        let claim_key =
            NamespacedName::new(reference.namespace.unwrap_or_default(), reference.name.unwrap_or_default());
        let mut claim = self.claims.get(&claim_key).map(|claim| (*claim).clone());
        if volume_phase(&volume, claim.as_ref()) == "Released" {
            // Data may be lost on this: the server is asked, not the cache.
            let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &claim_key.namespace);
            claim = api.get_opt(&claim_key.name).await.attempting("read claim of volume")?;
        }
        let mut next = (*volume).clone();
        next.status.get_or_insert_default().phase = Some(volume_phase(&volume, claim.as_ref()).into());
        if next.status != volume.status {
            let api: Api<PersistentVolume> = Api::all(self.client.clone());
            let written = api.replace_status(&key.name, &PostParams::default(), &next).await;
            error::ignore_not_found(written).attempting("write volume status")?;
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

    use super::*;
    use crate::testing::named;

    fn storage(amount: &str) -> std::collections::BTreeMap<String, ApiQuantity> {
        [("storage".to_string(), ApiQuantity(amount.into()))].into()
    }

    fn claim(amount: &str, class: &str) -> PersistentVolumeClaim {
        let mut claim: PersistentVolumeClaim = named("data");
        let spec = claim.spec.get_or_insert_default();
        spec.storage_class_name = Some(class.into());
        spec.access_modes = Some(vec!["ReadWriteOnce".into()]);
        spec.resources.get_or_insert_default().requests = Some(storage(amount));
        claim
    }

    fn volume(name: &str, amount: &str, class: &str) -> Arc<PersistentVolume> {
        let mut volume: PersistentVolume = named(name);
        let spec = volume.spec.get_or_insert_default();
        spec.storage_class_name = Some(class.into());
        spec.access_modes = Some(vec!["ReadWriteOnce".into(), "ReadOnlyMany".into()]);
        spec.capacity = Some(storage(amount));
        Arc::new(volume)
    }

    fn referring(volume: &PersistentVolume, uid: Option<&str>) -> Arc<PersistentVolume> {
        let mut volume = volume.clone();
        volume.spec.get_or_insert_default().claim_ref = Some(ObjectReference {
            namespace: Some("default".into()),
            name: Some("data".into()),
            uid: uid.map(Into::into),
            ..Default::default()
        });
        Arc::new(volume)
    }

    fn chosen(claim: &PersistentVolumeClaim, volumes: &[Arc<PersistentVolume>]) -> Option<String> {
        best_match(claim, volumes).map(|volume| volume.name_any())
    }

    #[test]
    fn the_smallest_volume_that_fits_is_taken() {
        let volumes = [
            volume("large", "10Gi", ""),
            volume("small", "2Gi", ""),
            volume("tiny", "1Mi", ""),
            volume("fast", "2Gi", "ssd"),
        ];
        assert_eq!(chosen(&claim("1Gi", ""), &volumes).as_deref(), Some("small"));
        assert_eq!(chosen(&claim("1Gi", "ssd"), &volumes).as_deref(), Some("fast"));
        assert_eq!(chosen(&claim("1Ti", ""), &volumes), None);
        let mut shared = claim("1Gi", "");
        shared.spec.as_mut().unwrap().access_modes = Some(vec!["ReadWriteMany".into()]);
        assert_eq!(chosen(&shared, &volumes), None);
    }

    #[test]
    fn a_volume_promised_to_the_claim_comes_first_and_anothers_never() {
        let promised = referring(&volume("promised", "10Gi", "other"), None);
        let anothers = referring(&volume("anothers", "2Gi", ""), Some("uid-someone"));
        assert_eq!(
            chosen(&claim("1Gi", ""), &[volume("small", "2Gi", ""), promised]).as_deref(),
            Some("promised")
        );
        assert_eq!(chosen(&claim("1Gi", ""), &[anothers]), None);
    }

    #[test]
    fn a_claim_says_what_it_waits_for() {
        let class = |provisioner: &str, mode: &str| StorageClass {
            provisioner: provisioner.into(),
            volume_binding_mode: Some(mode.into()),
            ..Default::default()
        };
        let reason =
            |claim: &PersistentVolumeClaim, class: Option<&StorageClass>| match plan(claim, &[], class) {
                Plan::Wait { reason, .. } => reason,
                other => panic!("{other:?}"),
            };
        assert_eq!(reason(&claim("1Gi", ""), None), "FailedBinding");
        assert_eq!(reason(&claim("1Gi", "ssd"), None), "ProvisioningFailed");
        assert_eq!(
            reason(&claim("1Gi", "ssd"), Some(&class("example.com/disk", "Immediate"))),
            "ExternalProvisioning"
        );
        let delayed = class("example.com/disk", "WaitForFirstConsumer");
        assert_eq!(reason(&claim("1Gi", "ssd"), Some(&delayed)), "WaitForFirstConsumer");
        let mut placed = claim("1Gi", "ssd");
        placed.annotations_mut().insert(SELECTED_NODE.into(), "n1".into());
        assert_eq!(reason(&placed, Some(&delayed)), "ExternalProvisioning");
    }

    #[test]
    fn a_bound_claim_is_lost_with_its_volume() {
        let mut bound = claim("1Gi", "");
        bound.spec.as_mut().unwrap().volume_name = Some("small".into());
        assert_eq!(plan(&bound, &[], None), Plan::Pending);
        bound.annotations_mut().insert(BIND_COMPLETED.into(), "yes".into());
        assert!(matches!(plan(&bound, &[], None), Plan::Lost(_)));
        let ours = referring(&volume("small", "2Gi", ""), Some("uid-data"));
        assert!(matches!(plan(&bound, &[ours], None), Plan::Bind(_)));
    }

    #[test]
    fn a_volume_is_free_bound_or_left_behind() {
        let free = volume("v", "1Gi", "");
        let mut bound = claim("1Gi", "");
        bound.spec.as_mut().unwrap().volume_name = Some("v".into());
        assert_eq!(volume_phase(&free, None), "Available");
        assert_eq!(volume_phase(&referring(&free, None), None), "Available");
        assert_eq!(volume_phase(&referring(&free, Some("uid-data")), Some(&bound)), "Bound");
        assert_eq!(volume_phase(&referring(&free, Some("uid-data")), None), "Released");
        assert_eq!(volume_phase(&referring(&free, Some("uid-older")), Some(&bound)), "Released");
    }

    #[test]
    fn a_claim_has_the_attributes_class_of_its_volume_from_its_binding() {
        let (mut claim, mut volume) = (claim("1Gi", "fast"), (*volume("v", "2Gi", "fast")).clone());
        volume.spec.as_mut().unwrap().volume_attributes_class_name = Some("gold".into());
        claim.status = Some(bound_status(&claim, &volume));
        let class = |claim: &PersistentVolumeClaim| {
            claim.status.as_ref().and_then(|status| status.current_volume_attributes_class_name.clone())
        };
        assert_eq!(class(&claim).as_deref(), Some("gold"));
        claim.status.as_mut().unwrap().current_volume_attributes_class_name = Some("silver".into());
        claim.status = Some(bound_status(&claim, &volume));
        assert_eq!(class(&claim).as_deref(), Some("silver"), "what a driver has done since stays");
    }
}
