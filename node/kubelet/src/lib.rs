//! ferry-kubelet
