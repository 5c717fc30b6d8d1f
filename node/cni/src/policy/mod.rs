//! Network policies: who may talk to a pod of this node, and to whom it may talk. Upstream leaves this to the
//! network, and the pods' network is ours.
//!
//! ```text
//! NetworkPolicies, Pods, Namespaces ─► decide: for each pod of this node, what is allowed ─► script ─► nft -f -
//!
//! forward   ct state established,related accept
//!           ip saddr vmap @egress-4      10.244.0.5 : jump out-1a2b   (each rule returns what it allows,
//!           ip daddr vmap @ingress-4     10.244.0.6 : jump in-3c4d     the last one drops)
//! ```
//!
//! A packet costs two look-ups, however many pods and policies there are, and then the rules of its own pods. Only
//! what is forwarded is looked at: a node always reaches its own pods, which probes rely on, and they it.
//!
//! Start reading at [`decide()`].

mod decide;
mod keep;
mod script;
#[cfg(test)]
mod tests;

pub use decide::{Allowed, Peers, PodRules, Ports, decide};
pub use keep::{remove, run};
pub use script::script;
