//! The whole command, as a person meets it: `ferry up`, `kubectl run`, three containers that serve, a Service
//! that answers by address and by name, `ferry down`. Real containerd, real registry, the kernel's own rules.

mod autoscaling;
mod churn;
mod cluster;
mod conversation;
mod credentials;
mod csi;
mod device_plugins;
mod devices;
mod evictions;
mod faults;
mod host;
mod images;
mod life;
mod metrics;
mod network;
mod nodes;
mod offline;
mod operator;
mod pods;
mod registration;
mod requests;
mod resources;
mod segment;
mod servers;
mod start;
mod streams;
mod volumes;
