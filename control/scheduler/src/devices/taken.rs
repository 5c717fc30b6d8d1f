//! The devices that claims have, whoever's they are.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::resource::v1::ResourceClaim;

use super::capacity::{Amounts, amount};
use super::device_id;

#[derive(Clone, Debug, Default)]
pub struct Taken {
    devices: HashSet<String>,
    /// Of devices that several claims share.
    shares: HashMap<String, Amounts>,
}

impl Taken {
    /// What the claims have, those without an allocation nothing. With access for administration a device is looked at,
    /// not taken.
    pub fn of<'c>(claims: impl Iterator<Item = &'c ResourceClaim>) -> Taken {
        let mut taken = Taken::default();
        let allocations = claims.filter_map(|claim| claim.status.as_ref()?.allocation.as_ref());
        let results = allocations.flat_map(|allocation| allocation.devices.iter());
        for result in results.flat_map(|devices| devices.results.iter().flatten()) {
            if result.admin_access == Some(true) {
                continue;
            }
            let id = device_id(&result.driver, &result.pool, &result.device);
            if result.share_id.is_none() {
                taken.devices.insert(id);
                continue;
            }
            let share = taken.shares.entry(id).or_default();
            for (name, consumed) in result.consumed_capacity.iter().flatten() {
                *share.entry(name.clone()).or_insert(ferry_api::quantity::Quantity::ZERO) += amount(consumed);
            }
        }
        taken
    }

    pub fn has(&self, id: &str) -> bool {
        self.devices.contains(id)
    }

    /// What is taken of a device that is shared.
    pub fn share(&self, id: &str) -> Option<&Amounts> {
        self.shares.get(id)
    }

    pub fn uses(&self, id: &str) -> bool {
        self.has(id) || self.shares.contains_key(id)
    }
}
