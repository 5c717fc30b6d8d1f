//! What a pod's claims ask for, with their classes looked up and their selectors compiled.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry_cel::{Program, device};
use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClass, DeviceSelector, DeviceToleration, ResourceClaim,
};

use super::capacity::{Amounts, amount};
use super::constraint::Constraint;
use super::slice::{DeviceInfo, SliceInfo};

/// One claim that has no devices yet.
pub struct Demand {
    pub claim: Arc<ResourceClaim>,
    pub requests: Vec<RequestAlternatives>,
    pub constraints: Vec<Constraint>,
}

/// One request of it: the alternatives in the order they are tried, mostly one.
pub struct RequestAlternatives {
    pub name: String,
    pub alternatives: Vec<Request>,
}

pub struct Request {
    /// `request`, or `request/subrequest` for one of several alternatives.
    pub name: String,
    pub class: Arc<DeviceClass>,
    pub count: Count,
    pub is_administration: bool,
    pub tolerations: Vec<DeviceToleration>,
    pub capacity: Amounts,
    /// The class's, then the request's own.
    selectors: Vec<Selector>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Count {
    Exactly(usize),
    /// Every device of the node that is selected, and one at least.
    All,
}

struct Selector {
    /// Whose it is, for errors.
    of: String,
    program: Result<Program, String>,
}

/// Looks classes up by name.
pub type Classes<'c> = dyn Fn(&str) -> Option<Arc<DeviceClass>> + 'c;

impl Demand {
    /// Why the claim cannot be allocated anywhere is for the pod's condition.
    pub fn new(claim: &Arc<ResourceClaim>, classes: &Classes<'_>) -> Result<Demand, String> {
        let devices = claim.spec.devices.clone().unwrap_or_default();
        let name = format!(
            "{}/{}",
            claim.metadata.namespace.as_deref().unwrap_or(""),
            claim.metadata.name.as_deref().unwrap_or("")
        );
        let mut requests = Vec::new();
        for request in devices.requests.iter().flatten() {
            let mut alternatives = Vec::new();
            if let Some(exact) = &request.exactly {
                alternatives.push(Request::new(
                    &name,
                    request.name.clone(),
                    RequestFields {
                        class: &exact.device_class_name,
                        mode: exact.allocation_mode.as_deref(),
                        count: exact.count,
                        is_administration: exact.admin_access == Some(true),
                        selectors: exact.selectors.as_deref().unwrap_or(&[]),
                        tolerations: exact.tolerations.as_deref().unwrap_or(&[]),
                        capacity: exact.capacity.as_ref(),
                    },
                    classes,
                )?);
            }
            for sub in request.first_available.iter().flatten() {
                alternatives.push(Request::new(
                    &name,
                    format!("{}/{}", request.name, sub.name),
                    RequestFields {
                        class: &sub.device_class_name,
                        mode: sub.allocation_mode.as_deref(),
                        count: sub.count,
                        is_administration: false,
                        selectors: sub.selectors.as_deref().unwrap_or(&[]),
                        tolerations: sub.tolerations.as_deref().unwrap_or(&[]),
                        capacity: sub.capacity.as_ref(),
                    },
                    classes,
                )?);
            }
            if alternatives.is_empty() {
                return Err(format!("resource claim {name}, request {}: unknown request type", request.name));
            }
            requests.push(RequestAlternatives { name: request.name.clone(), alternatives });
        }
        let constraints = devices.constraints.iter().flatten().enumerate();
        let constraints = constraints.map(|(number, constraint)| {
            let unknown = || {
                format!("claim {name}, constraint #{number}: empty constraint (unsupported constraint type?)")
            };
            Constraint::new(constraint).ok_or_else(unknown)
        });
        let constraints = constraints.collect::<Result<Vec<_>, String>>()?;
        Ok(Demand { claim: claim.clone(), requests, constraints })
    }

    /// Whether a request has alternatives, so that nodes differ by which of them they have.
    pub fn has_alternatives(&self) -> bool {
        self.requests.iter().any(|request| request.alternatives.len() > 1)
    }
}

/// The fields of a request, of either kind.
struct RequestFields<'a> {
    class: &'a str,
    mode: Option<&'a str>,
    count: Option<i64>,
    is_administration: bool,
    selectors: &'a [DeviceSelector],
    tolerations: &'a [DeviceToleration],
    capacity: Option<&'a CapacityRequirements>,
}

impl Request {
    fn new(
        claim: &str,
        name: String,
        asked: RequestFields<'_>,
        classes: &Classes<'_>,
    ) -> Result<Request, String> {
        if asked.class.is_empty() {
            return Err(format!("request {name}: unsupported request type"));
        }
        let Some(class) = classes(asked.class) else {
            return Err(format!("request {name}: device class {} does not exist", asked.class));
        };
        let count = match asked.mode {
            None | Some("" | "ExactCount") => {
                let count = asked.count.unwrap_or(1);
                Count::Exactly(usize::try_from(count).map_err(|_| {
                    format!("claim {claim}, request {name}: exact count {count} is too large")
                })?)
            }
            Some("All") => Count::All,
            Some(other) => {
                return Err(format!("claim {claim}, request {name}: unsupported count mode {other}"));
            }
        };
        let of_class = class.spec.selectors.as_deref().unwrap_or(&[]);
        let class_name = class.metadata.name.as_deref().unwrap_or("");
        let mut selectors = compiled(&format!("class {class_name}"), of_class)?;
        selectors.extend(compiled(&format!("claim {claim}"), asked.selectors)?);
        let capacity = asked.capacity.and_then(|capacity| capacity.requests.as_ref());
        Ok(Request {
            name,
            class,
            count,
            is_administration: asked.is_administration,
            tolerations: asked.tolerations.to_vec(),
            capacity: capacity
                .into_iter()
                .flatten()
                .map(|(name, text)| (name.clone(), amount(text)))
                .collect(),
            selectors,
        })
    }

    /// The name without the alternative's.
    pub fn base(&self) -> &str {
        self.name.split('/').next().unwrap_or(&self.name)
    }

    /// Whether every selector selects the device; what they cost is taken off `left`. An error is one of the claim or its
    /// class, on whatever node.
    pub fn selects(&self, slice: &SliceInfo, info: &DeviceInfo, left: &mut i64) -> Result<bool, String> {
        if self.selectors.is_empty() {
            return Ok(true);
        }
        let seen = view(slice, info);
        for Selector { of, program } in &self.selectors {
            let program = program.as_ref().map_err(|why| format!("{of}: CEL compile error: {why}"))?;
            let selected = device::selects(program, &seen, left);
            if !selected.map_err(|why| format!("{of}: CEL runtime error: {why}"))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub fn tolerates_all(&self, slice: &SliceInfo, info: &DeviceInfo) -> bool {
        let taints = slice.device(info).taints.iter().flatten();
        let mut hindering = taints.filter(|taint| matches!(&*taint.effect, "NoExecute" | "NoSchedule"));
        hindering.all(|taint| self.tolerations.iter().any(|own| binding_tolerates(own, taint)))
    }
}

fn binding_tolerates(
    toleration: &DeviceToleration,
    taint: &k8s_openapi::api::resource::v1::DeviceTaint,
) -> bool {
    use ferry_api::device_taint::{Words, tolerates};
    fn text(field: &Option<String>) -> &str {
        field.as_deref().unwrap_or("")
    }
    let given = Words {
        key: text(&toleration.key),
        value: text(&toleration.value),
        effect: text(&toleration.effect),
    };
    let taint = Words { key: &taint.key, value: text(&taint.value), effect: &taint.effect };
    tolerates(given, text(&toleration.operator), taint)
}

fn compiled(of: &str, selectors: &[DeviceSelector]) -> Result<Vec<Selector>, String> {
    let each = selectors.iter().enumerate().map(|(number, selector)| {
        let of = format!("{of}: selector #{number}");
        let Some(cel) = &selector.cel else {
            return Err(format!("{of}: CEL expression empty (unsupported selector type?)"));
        };
        Ok(Selector { of, program: device::compile(&cel.expression).map_err(|why| why.to_string()) })
    });
    each.collect()
}

/// A device as selectors see it.
fn view<'s>(slice: &'s SliceInfo, info: &'s DeviceInfo) -> device::Device<'s> {
    use device::Attribute;
    let own = slice.device(info);
    let attributes = own.attributes.iter().flatten().map(|(name, value)| {
        let int = value.int.map(Attribute::Int);
        let bool = value.bool.map(Attribute::Bool);
        let text = value.string.as_deref().map(Attribute::Text);
        let version = value.version.as_deref().map(Attribute::Version);
        (name.as_str(), int.or(bool).or(text).or(version).unwrap_or(Attribute::Unknown))
    });
    device::Device {
        driver: &slice.spec().driver,
        allows_multiple_allocations: info.is_shared,
        attributes: attributes.collect(),
        capacity: capacities(&info.capacity),
    }
}

fn capacities(
    capacity: &BTreeMap<String, super::capacity::Capacity>,
) -> Vec<(&str, ferry_api::quantity::Quantity)> {
    capacity.iter().map(|(name, own)| (name.as_str(), own.value)).collect()
}
