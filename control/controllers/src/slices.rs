//! Distributing endpoints over EndpointSlices so that a change touches as few as it can: each
//! slice that is written goes to every node.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry_client::{Attempt, Client, Error, Expectations, NamespacedName, error, undecoded};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};

use crate::ownership::{Namespaced, controller_ref};

pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub const HEADLESS: &str = "service.kubernetes.io/headless";
pub const MAX_ENDPOINTS: usize = 100;

/// What makes endpoints fit into one slice: their family and their ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    pub address_type: String,
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    pub name: String,
    pub protocol: String,
    pub number: Option<i32>,
    pub app_protocol: Option<String>,
}

/// Endpoints by shape, each under its identity.
pub type Wanted = BTreeMap<Shape, BTreeMap<String, Endpoint>>;

/// Writes that bring slices in line.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    pub create: Vec<EndpointSlice>,
    pub update: Vec<EndpointSlice>,
    pub delete: Vec<String>,
}

/// `owner` is what the slices are named after and go with.
pub fn plan<O: Namespaced>(
    owner: &O,
    mut wanted: Wanted,
    labels: &BTreeMap<String, String>,
    slices: &[Arc<EndpointSlice>],
) -> Plan {
    let mut plan = Plan::default();
    let mut kept: BTreeMap<Shape, Vec<Draft>> = BTreeMap::new();
    let mut free: Vec<&EndpointSlice> = Vec::new();
    for slice in slices {
        let shape = Shape::of(slice);
        match wanted.get_mut(&shape) {
            // A former namesake's, which the garbage collector is about to delete.
            _ if !is_owned_by(slice, owner) => plan.delete.push(slice.name_any()),
            Some(endpoints) => kept.entry(shape).or_default().push(Draft::keep(slice, endpoints, labels)),
            None => free.push(slice),
        }
    }
    for (shape, missing) in wanted {
        let mut drafts = kept.remove(&shape).unwrap_or_default();
        place(missing.into_values().collect(), &mut drafts);
        let has_any = drafts.iter().any(|draft| !draft.endpoints.is_empty());
        let mut placeholder = false;
        for draft in drafts {
            let empty = draft.endpoints.is_empty();
            // One empty slice stays where all are empty: it says that this was looked at.
            let superfluous = empty && (has_any || placeholder);
            placeholder |= empty;
            match (draft.existing, superfluous) {
                (true, true) => plan.delete.push(draft.slice.name_any()),
                (true, false) if draft.changed => {
                    plan.update.push(EndpointSlice { endpoints: Some(draft.endpoints), ..draft.slice });
                }
                (false, false) => {
                    let made = make(owner, &shape, labels, draft.endpoints);
                    let fits = |slice: &&EndpointSlice| slice.address_type == made.address_type;
                    match free.iter().position(fits) {
                        Some(index) => plan.update.push(rewritten(free.remove(index), made)),
                        None => plan.create.push(made),
                    }
                }
                _ => {}
            }
        }
    }
    plan.delete.extend(free.iter().map(|slice| slice.name_any()));
    plan
}

/// A slice that nobody needs as it is, in the place of one that would be made: one write instead of two.
fn rewritten(slice: &EndpointSlice, made: EndpointSlice) -> EndpointSlice {
    let metadata = ObjectMeta { labels: made.metadata.labels, ..slice.metadata.clone() };
    EndpointSlice { metadata, ..made }
}

fn is_owned_by<O: Namespaced>(slice: &EndpointSlice, owner: &O) -> bool {
    let uid = owner.meta().uid.as_deref();
    slice.owner_references().iter().any(|reference| Some(reference.uid.as_str()) == uid)
}

/// Carries a plan out. What is made is expected, so that a look at an older state does not
/// make it again.
pub async fn apply(
    client: &Client,
    key: &NamespacedName,
    plan: Plan,
    expectations: &Expectations<NamespacedName>,
) -> Result<(), Error> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), &key.namespace);
    for slice in plan.create {
        expectations.expect_creations(key.clone(), 1);
        if let Err(failed) = api.create(&PostParams::default(), &slice).await {
            expectations.creation_observed(key);
            if error::is_namespace_terminating(&failed) {
                return Ok(());
            }
            return Err(Error::new("create endpoint slice", failed));
        }
    }
    for slice in plan.update {
        api.replace(&slice.name_any(), &PostParams::default(), &slice)
            .await
            .attempting("write endpoint slice")?;
    }
    for name in plan.delete {
        error::ignore_not_found(undecoded::delete(&api, &name, &DeleteParams::default()).await)
            .attempting("delete endpoint slice")?;
    }
    Ok(())
}

/// A slice while it is decided on.
struct Draft {
    slice: EndpointSlice,
    endpoints: Vec<Endpoint>,
    existing: bool,
    changed: bool,
}

impl Draft {
    /// What stays of an existing slice; what it keeps is taken out of `wanted`.
    fn keep(
        slice: &EndpointSlice,
        wanted: &mut BTreeMap<String, Endpoint>,
        labels: &BTreeMap<String, String>,
    ) -> Draft {
        let kept = slice.endpoints.iter().flatten().filter_map(|endpoint| wanted.remove(&identity(endpoint)));
        let endpoints: Vec<Endpoint> = kept.collect();
        let mut next = slice.clone();
        // The server may give back an empty list as none.
        next.endpoints = slice.endpoints.as_ref().map(|_| endpoints.clone());
        // Those alone, as upstream: a label that the service no longer has (`service-proxy-name`) would stay in force.
        next.metadata.labels = Some(labels.clone());
        let changed = next != *slice;
        Draft { slice: next, endpoints, existing: true, changed }
    }
}

/// Puts endpoints into slices: those that are written anyway first, then the fullest that has
/// room, then new ones.
fn place(mut missing: Vec<Endpoint>, drafts: &mut Vec<Draft>) {
    drafts.sort_by_key(|draft| (!draft.changed, std::cmp::Reverse(draft.endpoints.len())));
    for draft in drafts.iter_mut() {
        let room = MAX_ENDPOINTS.saturating_sub(draft.endpoints.len()).min(missing.len());
        if room > 0 {
            draft.endpoints.extend(missing.drain(..room));
            draft.changed = true;
        }
    }
    while !missing.is_empty() || drafts.is_empty() {
        let endpoints = missing.drain(..missing.len().min(MAX_ENDPOINTS)).collect();
        drafts.push(Draft { slice: EndpointSlice::default(), endpoints, existing: false, changed: true });
    }
}

pub fn identity(endpoint: &Endpoint) -> String {
    let target = endpoint.target_ref.as_ref().and_then(|target| target.uid.clone()).unwrap_or_default();
    format!("{target} {}", endpoint.addresses.join(","))
}

impl Shape {
    pub fn of(slice: &EndpointSlice) -> Shape {
        let ports = slice.ports.iter().flatten().map(|port| Port {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
            number: port.port,
            app_protocol: port.app_protocol.clone(),
        });
        let mut ports: Vec<Port> = ports.collect();
        ports.sort();
        Shape { address_type: slice.address_type.clone(), ports }
    }
}

fn make<O: Namespaced>(
    owner: &O,
    shape: &Shape,
    labels: &BTreeMap<String, String>,
    endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    let port = |port: &Port| EndpointPort {
        name: Some(port.name.clone()),
        protocol: Some(port.protocol.clone()),
        port: port.number,
        app_protocol: port.app_protocol.clone(),
    };
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", owner.name_any())),
            namespace: owner.namespace(),
            labels: Some(labels.clone()),
            owner_references: Some(vec![controller_ref(owner)]),
            ..Default::default()
        },
        address_type: shape.address_type.clone(),
        ports: Some(shape.ports.iter().map(port).collect()),
        endpoints: Some(endpoints),
    }
}
