//! The PodResources API (v1) on `pod-resources/kubelet.sock`: which devices and CPUs containers have, and which the node
//! has. What watches devices asks here whose they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry_client::CancellationToken;
use ferry_plugins_api::podresources as api;
use ferry_plugins_api::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::context::Context;
use crate::device_plugins::AllocatedDevice;
use crate::grpc_socket;
use crate::metrics::{self, PodResourcesCall};
use crate::pod;
use crate::pods::Pods;

/// Below the kubelet's directory.
pub const SOCKETS: &str = "pod-resources";
const SOCKET: &str = "kubelet.sock";
/// Upstream's.
const CALLS_PER_SECOND: f64 = 100.0;
const BURST: f64 = 10.0;

/// Serves until stopped.
pub async fn run(context: Arc<Context>, pods: Pods, stop: CancellationToken) {
    let socket = context.config.root_dir.join(SOCKETS).join(SOCKET);
    let listener = match grpc_socket::bind(&socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(socket = %socket.display(), %error, "the PodResources API is not served");
            return;
        }
    };
    let limit = Mutex::new(Limit::new(Instant::now()));
    let service = PodResourcesListerServer::new(Service { context, pods, limit });
    grpc_socket::serve(listener, service, stop).await;
}

/// So many calls at once, and so many a second after that.
struct Limit {
    left: f64,
    at: Instant,
}

impl Limit {
    fn new(now: Instant) -> Self {
        Self { left: BURST, at: now }
    }

    fn allows(&mut self, now: Instant) -> bool {
        let passed = now.duration_since(self.at).as_secs_f64();
        (self.left, self.at) = ((self.left + passed * CALLS_PER_SECOND).min(BURST), now);
        let is_allowed = self.left >= 1.0;
        if is_allowed {
            self.left -= 1.0;
        }
        is_allowed
    }
}

struct Service {
    context: Arc<Context>,
    pods: Pods,
    limit: Mutex<Limit>,
}

#[tonic::async_trait]
impl PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<api::ListPodResourcesRequest>,
    ) -> Result<Response<api::ListPodResourcesResponse>, Status> {
        self.asked(PodResourcesCall::List)?;
        let pod_resources = self.pods.active().iter().map(|pod| self.of_pod(pod)).collect();
        Ok(Response::new(api::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<api::AllocatableResourcesRequest>,
    ) -> Result<Response<api::AllocatableResourcesResponse>, Status> {
        self.asked(PodResourcesCall::GetAllocatable)?;
        let devices = self.context.device_plugins.healthy().into_iter().map(device).collect();
        let cpu_ids = self.context.cpus.allocatable().into_iter().map(i64::from).collect();
        Ok(Response::new(api::AllocatableResourcesResponse { devices, cpu_ids, memory: vec![] }))
    }

    async fn get(
        &self,
        request: Request<api::GetPodResourcesRequest>,
    ) -> Result<Response<api::GetPodResourcesResponse>, Status> {
        self.asked(PodResourcesCall::Get)?;
        let asked = request.into_inner();
        let pod = self.pods.find(&asked.pod_namespace, &asked.pod_name).ok_or_else(|| {
            metrics::pod_resources_missed();
            Status::unknown(format!("pod {} in namespace {} not found", asked.pod_name, asked.pod_namespace))
        })?;
        Ok(Response::new(api::GetPodResourcesResponse { pod_resources: Some(self.of_pod(&pod)) }))
    }
}

impl Service {
    fn asked(&self, call: PodResourcesCall) -> Result<(), Status> {
        if !self.limit.lock().allows(Instant::now()) {
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        metrics::pod_resources_asked(call);
        Ok(())
    }

    /// Init containers have no part in it but those that go on running.
    fn of_pod(&self, pod: &Pod) -> api::PodResources {
        let spec = pod::spec(pod);
        let sidecars = spec.init_containers.iter().flatten().filter(|container| pod::is_sidecar(container));
        let containers = sidecars.chain(&spec.containers).map(|container| self.of_container(pod, container));
        api::PodResources {
            name: pod::name(pod).into(),
            namespace: pod::namespace(pod).into(),
            containers: containers.collect(),
        }
    }

    fn of_container(&self, pod: &Pod, container: &Container) -> api::ContainerResources {
        let (uid, name) = (pod::uid(pod), &container.name);
        let cpus = self.context.cpus.own(uid, name);
        api::ContainerResources {
            name: name.clone(),
            devices: self.context.device_plugins.given(uid, name).into_iter().map(device).collect(),
            cpu_ids: cpus.into_iter().map(i64::from).collect(),
            memory: vec![],
            dynamic_resources: self.of_claims(pod, container),
        }
    }

    fn of_claims(&self, pod: &Pod, container: &Container) -> Vec<api::DynamicResource> {
        let mut claims: BTreeMap<String, Vec<api::ClaimResource>> = BTreeMap::new();
        for (claim, driver, device) in self.context.devices.of_container(pod, container) {
            let cdi_devices = device.cdi_device_ids.into_iter().map(|name| api::CdiDevice { name });
            claims.entry(claim).or_default().push(api::ClaimResource {
                cdi_devices: cdi_devices.collect(),
                driver_name: driver,
                pool_name: device.pool_name,
                device_name: device.device_name,
                share_id: device.share_id,
            });
        }
        let resource = |(claim_name, claim_resources)| api::DynamicResource {
            claim_name,
            claim_namespace: pod::namespace(pod).into(),
            claim_resources,
        };
        claims.into_iter().map(resource).collect()
    }
}

fn device(given: AllocatedDevice) -> api::ContainerDevices {
    let nodes: Vec<_> = given.nodes.into_iter().map(|id| api::NumaNode { id }).collect();
    api::ContainerDevices {
        resource_name: given.resource,
        device_ids: vec![given.device],
        topology: (!nodes.is_empty()).then_some(api::TopologyInfo { nodes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn calls_beyond_the_limit_are_rejected_until_time_has_passed() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let allowed = |limit: &mut Limit, now| (0..20).filter(|_| limit.allows(now)).count();
        assert_eq!(allowed(&mut limit, start), 10);
        assert_eq!(allowed(&mut limit, start + Duration::from_millis(50)), 5);
        assert_eq!(allowed(&mut limit, start + Duration::from_secs(60)), 10);
    }
}
