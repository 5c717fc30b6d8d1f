//! Giving running containers what they have been granted since they started:
//! resources after a resize, and the CPUs that nobody has for itself.

use std::collections::HashSet;
use std::sync::Arc;

use ferry_client::EventType;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};

use super::Worker;
use super::sync::Error;
use crate::cri;
use crate::pod;
use crate::resize::{needs_restart, stated};
use crate::runtime::container_config;
use crate::runtime::view::{PodRuntime, State};

/// The resources that the runtime has applied to a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AppliedResources {
    pub resources: Option<ResourceRequirements>,
    /// A list of CPUs; `None` where nothing was said about them.
    pub cpus: Option<String>,
}

impl AppliedResources {
    pub fn new(resources: Option<&ResourceRequirements>, cpus: Option<String>) -> Self {
        Self { resources: stated(resources).cloned(), cpus }
    }
}

impl Worker {
    /// Takes note of containers that a former kubelet started: they have what
    /// their status says.
    pub(super) fn note_given(&mut self, pod: &Pod, runtime: &PodRuntime) {
        self.given.retain(|id, _| runtime.containers.iter().any(|record| &record.id == id));
        for record in runtime.containers.iter().filter(|record| record.state == State::Running) {
            if self.given.contains_key(&record.id) {
                continue;
            }
            let shown = pod::container_status(&self.status, &record.name).filter(|status| {
                status.container_id.as_deref().is_some_and(|shown| shown.ends_with(&record.id))
            });
            let of_spec =
                || pod::find_container(pod, &record.name).and_then(|each| each.container.resources.clone());
            let resources = shown.and_then(|status| status.resources.clone()).or_else(of_spec);
            self.given.insert(record.id.clone(), AppliedResources::new(resources.as_ref(), None));
        }
    }

    /// The pod as its containers run, while they lack what was granted.
    pub(super) fn as_given(&self, pod: &Pod, runtime: &PodRuntime) -> Option<Pod> {
        let lacking = |container: &Container| {
            let (_, has) = self.given_to(container, runtime)?;
            (has.resources.as_ref() != stated(container.resources.as_ref())).then(|| has.resources.clone())
        };
        let spec = pod::spec(pod);
        let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
        if !all.any(|container| lacking(container).is_some()) {
            return None;
        }
        let mut given = pod.clone();
        let spec = given.spec.as_mut()?;
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            if let Some(resources) = lacking(container) {
                container.resources = resources;
            }
        }
        Some(given)
    }

    fn given_to(&self, container: &Container, runtime: &PodRuntime) -> Option<(String, &AppliedResources)> {
        let record = runtime.current_container(&container.name)?;
        let given = self.given.get(&record.id).filter(|_| record.state == State::Running)?;
        Some((record.id.clone(), given))
    }

    /// Containers that must start anew to get what was granted.
    pub(super) fn restarts_for_resize(&self, pod: &Pod, runtime: &PodRuntime) -> HashSet<String> {
        pod::containers(pod)
            .iter()
            .filter_map(|each| {
                let (id, has) = self.given_to(&each.container, runtime)?;
                needs_restart(&each.container, has.resources.as_ref()).then_some(id)
            })
            .collect()
    }

    /// Changes what runs, in place, and says whether anything changed. The
    /// pod's own group holds the larger of both while its containers change:
    /// what they have never exceeds it.
    pub(super) async fn give(&mut self, pod: &Arc<Pod>, runtime: &PodRuntime) -> Result<bool, Error> {
        if let Some(before) = self.as_given(pod, runtime) {
            self.resizing = true;
            self.ensure_cgroup(pod, Some(before)).await?;
        }
        let restarts = self.restarts_for_resize(pod, runtime);
        let mut changed = false;
        for each in pod::containers(pod) {
            let container = &each.container;
            let Some((id, has)) = self.given_to(container, runtime) else { continue };
            let cpus = self.context.cpus.of_running(pod::uid(pod), &container.name);
            let wanted = AppliedResources::new(container.resources.as_ref(), cpus);
            if *has == wanted || restarts.contains(&id) {
                continue;
            }
            match self.update(pod, container, &id, &wanted).await {
                Ok(()) => {
                    changed = true;
                    self.resize_problem = None;
                    self.given.insert(id, wanted);
                }
                // memory that is in use cannot be taken away, say; it is tried again, and told meanwhile
                Err(error) => {
                    let note = format!("Error resizing container {}: {error}", container.name);
                    self.event(pod, &container.name, EventType::Warning, "ResizeError", note.clone());
                    self.resize_problem = Some(note);
                    return Ok(changed);
                }
            }
        }
        if self.resizing && self.as_given(pod, runtime).is_none() {
            self.resizing = false;
            self.resize_problem = None;
            self.ensure_cgroup(pod, None).await?;
            let note = "Pod resize completed".to_string();
            self.context.events.event(&**pod, EventType::Normal, "ResizeCompleted", "Resizing", note);
        }
        Ok(changed)
    }

    async fn update(
        &mut self,
        pod: &Pod,
        container: &Container,
        id: &str,
        wanted: &AppliedResources,
    ) -> Result<(), cri::Error> {
        let (config, memory) = (&self.context.config, self.context.machine_memory);
        let mut resources = container_config::resources(pod, container, memory, config.enable_cfs_quota);
        resources.cpuset_cpus = wanted.cpus.clone().unwrap_or_default();
        let mut span = ferry_trace::span("kubelet.resize");
        span.object("pods", pod::namespace(pod), pod::name(pod)).set("container", container.name.as_str());
        self.acted = true;
        let updated = span.in_scope(self.runtime.update_container_resources(id, resources)).await;
        updated.inspect_err(|error| {
            span.fail(error);
        })
    }
}
