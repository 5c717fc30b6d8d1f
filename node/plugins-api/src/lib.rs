//! The protocols between the kubelet and its plugins (of Kubernetes v1.36): registration, dynamic resource allocation with
//! device health, device plugins, PodResources, and the container storage interface (v1.13). Messages, clients and
//! servers are generated from `proto/` by `tests/protocols`. The kubelet calls drivers and device plugins, which tests
//! simulate, and serves `deviceplugin`'s Registration and `podresources`.

/// A plugin that tells the kubelet of itself.
#[rustfmt::skip]
pub mod pluginregistration;

/// The calls of a driver that prepares devices. `v1beta1` has the same messages but for `Device.share_id`, which it
/// lacks: only the service's name differs on the wire.
#[rustfmt::skip]
#[path = "k8s.io.kubelet.pkg.apis.dra.v1.rs"]
pub mod dra;

/// How a driver's devices are, as the driver streams it.
#[rustfmt::skip]
#[path = "v1alpha1.rs"]
pub mod dra_health;

/// Device plugins: how they register at the kubelet's own socket, and how they are called.
#[rustfmt::skip]
#[path = "v1beta1.rs"]
pub mod deviceplugin;

/// What pods have of the node's resources.
#[rustfmt::skip]
#[path = "v1.rs"]
pub mod podresources;

/// Volumes of drivers: the container storage interface, `csi.v1`.
#[rustfmt::skip]
#[path = "csi.v1.rs"]
pub mod csi;
