//! What the runtime is told to make a pod's sandbox.

use std::collections::HashMap;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;

use super::{labels, security};
use crate::cri;
use crate::pod;
use crate::resources::{Side, pod_amounts};
use ferry_linux::cgroup;

pub struct Facts<'a> {
    pub pod: &'a Pod,
    pub attempt: u32,
    pub cgroup_parent: &'a str,
    pub log_directory: &'a Path,
    pub root_dir: &'a Path,
    pub dns: cri::DnsConfig,
    pub host_name: String,
    pub domain: Option<String>,
    pub seccomp_default: bool,
}

pub fn sandbox_config(facts: Facts<'_>) -> cri::PodSandboxConfig {
    let pod = facts.pod;
    let spec = pod::spec(pod);
    let host_name = match &facts.domain {
        Some(domain) if spec.set_hostname_as_fqdn == Some(true) => format!("{}.{domain}", facts.host_name),
        _ => facts.host_name,
    };
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: pod::name(pod).into(),
            uid: pod::uid(pod).into(),
            namespace: pod::namespace(pod).into(),
            attempt: facts.attempt,
        }),
        hostname: if pod::uses_host_network(pod) { String::new() } else { host_name },
        log_directory: facts.log_directory.to_string_lossy().into_owned(),
        dns_config: Some(facts.dns),
        port_mappings: port_mappings(pod),
        labels: labels::for_sandbox(pod),
        annotations: pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: facts.cgroup_parent.into(),
            security_context: Some(security::sandbox(pod, facts.root_dir, facts.seccomp_default)),
            sysctls: sysctls(pod),
            overhead: None,
            resources: Some(resources(pod)),
        }),
        windows: None,
    }
}

/// Ports on the host lead into the sandbox. On the host network they are the
/// same port already.
fn port_mappings(pod: &Pod) -> Vec<cri::PortMapping> {
    if pod::uses_host_network(pod) {
        return vec![];
    }
    let containers = pod::containers(pod);
    let ports = containers.iter().flat_map(|each| each.container.ports.iter().flatten());
    ports
        .map(|port| cri::PortMapping {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => cri::Protocol::Udp as i32,
                Some("SCTP") => cri::Protocol::Sctp as i32,
                _ => cri::Protocol::Tcp as i32,
            },
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or(0),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}

fn sysctls(pod: &Pod) -> HashMap<String, String> {
    let context = pod::spec(pod).security_context.as_ref();
    let sysctls = context.and_then(|context| context.sysctls.as_ref());
    sysctls.into_iter().flatten().map(|each| (each.name.clone(), each.value.clone())).collect()
}

/// For runtimes that give the sandbox a machine of its own size.
fn resources(pod: &Pod) -> cri::LinuxContainerResources {
    let requests = pod_amounts(pod, Side::Requests);
    let limits = pod_amounts(pod, Side::Limits);
    let milli = |amounts: &std::collections::BTreeMap<String, i64>| {
        amounts.get("cpu").copied().unwrap_or(0).max(0) as u64
    };
    let mut resources = cri::LinuxContainerResources {
        cpu_period: cgroup::CPU_PERIOD_MICROSECONDS as i64,
        cpu_shares: cgroup::shares_for_milli_cpu(milli(&requests)) as i64,
        memory_limit_in_bytes: limits.get("memory").copied().unwrap_or(0),
        ..Default::default()
    };
    if milli(&limits) > 0 {
        resources.cpu_quota = cgroup::quota_for_milli_cpu(milli(&limits));
    }
    resources
}
