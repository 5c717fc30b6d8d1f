//! Devices for pods (resource.k8s.io, "dynamic resource allocation"): which devices of a node a pod's claims get.
//!
//! ```text
//! ResourceClaims ─ demand ┐
//! DeviceClasses  ─────────┤            ┌ none: the node is refused
//! ResourceSlices ─ pools  ├─ search ───┤
//! allocated claims ─ taken┘            └ choices → result → status.allocation
//! ```
//!
//! Everything here is pure: [`demand`] is worked out once for a pod, [`pools`] and [`search`] for each node that is tried,
//! [`result`] for the node that was chosen. The first allocation that satisfies every request is taken, in the order of
//! upstream's allocator: pools and slices by name, devices as their slice lists them, alternatives as their request does.

pub mod binding;
pub mod capacity;
pub mod constraint;
pub mod demand;
pub mod extended;
pub mod pools;
pub mod result;
pub mod search;
pub mod slice;
pub mod taken;

#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::NodeSelector;

/// Upstream's limit of devices in the allocation of one claim.
pub const MAX_RESULTS: usize = 32;
/// Kept on a claim as long as it has an allocation.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// `driver/pool/device`. Drivers and devices have no slash in their names, so no two devices share one.
pub fn device_id(driver: &str, pool: &str, device: &str) -> String {
    format!("{driver}/{pool}/{device}")
}

/// The node that is tried.
pub struct Node<'n> {
    pub name: &'n str,
    pub matches: &'n dyn Fn(&NodeSelector) -> bool,
}

impl Node<'_> {
    /// Whether what says so of its nodes is here; what says nothing is nowhere.
    pub fn is_selected(
        &self,
        name: Option<&str>,
        all: Option<bool>,
        selector: Option<&NodeSelector>,
    ) -> bool {
        match (name.filter(|name| !name.is_empty()), selector) {
            (Some(name), _) => name == self.name,
            (None, _) if all == Some(true) => true,
            (None, Some(selector)) => (self.matches)(selector),
            (None, None) => false,
        }
    }
}
