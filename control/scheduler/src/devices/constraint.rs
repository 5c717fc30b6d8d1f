//! What the devices of several requests must have in common, or must not. A constraint that a device breaks stays broken
//! whatever else is added, so the search gives the device up at once.

use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceConstraint};

use super::slice::{DeviceInfo, SliceInfo};

#[derive(Clone, Debug)]
pub struct Constraint {
    /// Of these requests, `request` or `request/subrequest`; of all where there are none.
    requests: Vec<String>,
    attribute: String,
    rule: Rule,
    /// The values of the devices added so far.
    values: Vec<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    Same,
    Distinct,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Int(i64),
    Bool(bool),
    Version(String),
}

impl Constraint {
    /// None for a sort of constraint that is not known.
    pub fn new(constraint: &DeviceConstraint) -> Option<Constraint> {
        let same = constraint.match_attribute.as_ref().map(|name| (Rule::Same, name));
        let distinct = constraint.distinct_attribute.as_ref().map(|name| (Rule::Distinct, name));
        let (rule, attribute) = same.or(distinct)?;
        let requests = constraint.requests.clone().unwrap_or_default();
        Some(Constraint { requests, attribute: attribute.clone(), rule, values: Vec::new() })
    }

    /// Takes a device for a request, if it may.
    pub fn add(&mut self, request: &Names<'_>, slice: &SliceInfo, device: &DeviceInfo) -> bool {
        if !self.concerns(request) {
            return true;
        }
        let Some(value) = slice.attribute(device, &self.attribute).and_then(read) else { return false };
        let may = match self.rule {
            Rule::Same => self.values.first().is_none_or(|first| *first == value),
            Rule::Distinct => !self.values.contains(&value),
        };
        if may {
            self.values.push(value);
        }
        may
    }

    /// Gives the device back that was added last.
    pub fn remove(&mut self, request: &Names<'_>) {
        if self.concerns(request) {
            self.values.pop();
        }
    }

    fn concerns(&self, request: &Names<'_>) -> bool {
        let named = |name: &str| self.requests.iter().any(|own| own == name);
        self.requests.is_empty() || named(request.base) || named(request.full)
    }
}

/// A request by its own name, and with that of the alternative chosen.
pub struct Names<'r> {
    pub base: &'r str,
    pub full: &'r str,
}

/// Lists cannot be compared yet (DRAListTypeAttributes, alpha).
fn read(attribute: &DeviceAttribute) -> Option<Value> {
    let text = attribute.string.clone().map(Value::Text);
    let int = attribute.int.map(Value::Int);
    let bool = attribute.bool.map(Value::Bool);
    text.or(int).or(bool).or_else(|| attribute.version.clone().map(Value::Version))
}
