//! The objects that a pod or a volume refers to, which its kubelet may read.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, LocalObjectReference, PersistentVolume, Pod, PodSpec, SecretReference, Volume,
};

use super::graph::{PodReferences, Vertex, VertexType, VolumeReferences};

const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// `None` for a pod without a node.
pub(super) fn of_pod(pod: &Pod) -> Option<PodReferences> {
    let spec = pod.spec.as_ref()?;
    let node = spec.node_name.clone().filter(|node| !node.is_empty())?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let name = pod.metadata.name.as_deref().unwrap_or("");
    let mut found =
        Collector { namespace, objects: BTreeSet::from([Vertex::new(VertexType::Pod, namespace, name)]) };
    // A node makes its mirror pods itself: they must not be a way to reach anything. NodeRestriction
    // refuses mirror pods that mention objects; this is the second lock.
    let mirror = pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR_ANNOTATION));
    if !mirror {
        found.pod(pod, spec, name);
    }
    Some(PodReferences { node, objects: found.objects })
}

struct Collector<'a> {
    namespace: &'a str,
    objects: BTreeSet<Vertex>,
}

impl Collector<'_> {
    fn add(&mut self, kind: VertexType, name: &str) {
        if !name.is_empty() {
            self.objects.insert(Vertex::new(kind, self.namespace, name));
        }
    }

    fn secret(&mut self, reference: Option<&LocalObjectReference>) {
        self.add(VertexType::Secret, reference.map_or("", |reference| &reference.name));
    }

    fn pod(&mut self, pod: &Pod, spec: &PodSpec, pod_name: &str) {
        self.add(VertexType::ServiceAccount, spec.service_account_name.as_deref().unwrap_or(""));
        for reference in spec.image_pull_secrets.iter().flatten() {
            self.secret(Some(reference));
        }
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            self.environment(container.env.as_deref(), container.env_from.as_deref());
        }
        for container in spec.ephemeral_containers.iter().flatten() {
            self.environment(container.env.as_deref(), container.env_from.as_deref());
        }
        for volume in spec.volumes.iter().flatten() {
            self.volume(volume, pod_name);
        }
        let status = pod.status.as_ref();
        for claim in spec.resource_claims.iter().flatten() {
            // A claim made from a template is named in the status.
            let statuses = status.and_then(|status| status.resource_claim_statuses.as_deref()).unwrap_or(&[]);
            let made = statuses.iter().find(|status| status.name == claim.name);
            let made = made.and_then(|status| status.resource_claim_name.as_deref());
            self.add(VertexType::ResourceClaim, claim.resource_claim_name.as_deref().or(made).unwrap_or(""));
        }
        if let Some(extended) = status.and_then(|status| status.extended_resource_claim_status.as_ref()) {
            self.add(VertexType::ResourceClaim, &extended.resource_claim_name);
        }
    }

    fn environment(&mut self, variables: Option<&[EnvVar]>, sources: Option<&[EnvFromSource]>) {
        for source in variables.into_iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            self.add(VertexType::Secret, source.secret_key_ref.as_ref().map_or("", |key| &key.name));
            self.add(VertexType::ConfigMap, source.config_map_key_ref.as_ref().map_or("", |key| &key.name));
        }
        for source in sources.into_iter().flatten() {
            self.add(VertexType::Secret, source.secret_ref.as_ref().map_or("", |secret| &secret.name));
            self.add(VertexType::ConfigMap, source.config_map_ref.as_ref().map_or("", |map| &map.name));
        }
    }

    fn volume(&mut self, volume: &Volume, pod_name: &str) {
        if let Some(claim) = &volume.persistent_volume_claim {
            self.add(VertexType::PersistentVolumeClaim, &claim.claim_name);
        } else if volume.ephemeral.is_some() {
            self.add(VertexType::PersistentVolumeClaim, &format!("{pod_name}-{}", volume.name));
        }
        if let Some(secret) = &volume.secret {
            self.add(VertexType::Secret, secret.secret_name.as_deref().unwrap_or(""));
        }
        self.add(VertexType::ConfigMap, volume.config_map.as_ref().map_or("", |map| &map.name));
        let projected = volume.projected.as_ref().and_then(|projected| projected.sources.as_deref());
        for source in projected.into_iter().flatten() {
            self.add(VertexType::Secret, source.secret.as_ref().map_or("", |secret| &secret.name));
            self.add(VertexType::ConfigMap, source.config_map.as_ref().map_or("", |map| &map.name));
        }
        self.add(VertexType::Secret, volume.azure_file.as_ref().map_or("", |source| &source.secret_name));
        self.secret(volume.cephfs.as_ref().and_then(|source| source.secret_ref.as_ref()));
        self.secret(volume.cinder.as_ref().and_then(|source| source.secret_ref.as_ref()));
        self.secret(volume.flex_volume.as_ref().and_then(|source| source.secret_ref.as_ref()));
        self.secret(volume.rbd.as_ref().and_then(|source| source.secret_ref.as_ref()));
        self.secret(volume.scale_io.as_ref().map(|source| &source.secret_ref));
        self.secret(volume.iscsi.as_ref().and_then(|source| source.secret_ref.as_ref()));
        self.secret(volume.storageos.as_ref().and_then(|source| source.secret_ref.as_ref()));
        self.secret(volume.csi.as_ref().and_then(|source| source.node_publish_secret_ref.as_ref()));
    }
}

/// `None` for a volume that is not bound to a claim. Only secrets a kubelet needs are counted,
/// not those of a CSI driver's controller.
pub(super) fn of_volume(volume: &PersistentVolume) -> Option<VolumeReferences> {
    let spec = volume.spec.as_ref()?;
    let claim = spec.claim_ref.as_ref()?;
    let claim_namespace = claim.namespace.as_deref().unwrap_or("");
    let mut secrets = BTreeSet::new();
    let mut add = |namespace: Option<&str>, name: &str| {
        let namespace = namespace.filter(|namespace| !namespace.is_empty()).unwrap_or(claim_namespace);
        if !name.is_empty() {
            secrets.insert(Vertex::new(VertexType::Secret, namespace, name));
        }
    };
    if let Some(source) = &spec.azure_file {
        add(source.secret_namespace.as_deref(), &source.secret_name);
    }
    if let Some(source) = &spec.storageos
        && let Some(secret) = &source.secret_ref
    {
        add(secret.namespace.as_deref(), secret.name.as_deref().unwrap_or(""));
    }
    let csi = spec.csi.as_ref();
    let references: [Option<&SecretReference>; 9] = [
        spec.cephfs.as_ref().and_then(|source| source.secret_ref.as_ref()),
        spec.cinder.as_ref().and_then(|source| source.secret_ref.as_ref()),
        spec.flex_volume.as_ref().and_then(|source| source.secret_ref.as_ref()),
        spec.rbd.as_ref().and_then(|source| source.secret_ref.as_ref()),
        spec.scale_io.as_ref().map(|source| &source.secret_ref),
        spec.iscsi.as_ref().and_then(|source| source.secret_ref.as_ref()),
        csi.and_then(|source| source.node_publish_secret_ref.as_ref()),
        csi.and_then(|source| source.node_stage_secret_ref.as_ref()),
        csi.and_then(|source| source.node_expand_secret_ref.as_ref()),
    ];
    for reference in references.into_iter().flatten() {
        add(reference.namespace.as_deref(), reference.name.as_deref().unwrap_or(""));
    }
    let claim =
        Vertex::new(VertexType::PersistentVolumeClaim, claim_namespace, claim.name.as_deref().unwrap_or(""));
    Some(VolumeReferences { claim, secrets })
}
