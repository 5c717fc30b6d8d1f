//! HorizontalPodAutoscaler: sets the replicas of anything that has a scale, by what is measured of it.
//!
//! `metrics` asks what is measured, `replicas` says how many replicas a value asks for, `behavior` how fast the target
//! may follow, `plan` puts these together.

mod behavior;
mod metrics;
mod plan;
mod replicas;
mod source;

use std::collections::HashMap;
use std::sync::Arc;

use ferry_api::selector::LabelSelector;
use ferry_client::{
    Attempt, Client, ConsistencyStore, Error, Event, EventType, Informer, NamespacedName, Outcome, Recorder,
    error,
};
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus, MetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams, VersionMatch};
use kube::core::{ApiResource, DynamicObject};
use parking_lot::Mutex;

use crate::config::Config;
use crate::context::{Context, Running};
use crate::discovery::{Resource, discover};
use behavior::History;
use plan::{Conditions, Need, Plan, plan};
use replicas::Target;

const CONTROLLER: &str = "horizontal-pod-autoscaler-controller";
/// How often a write of the scale is tried again on a conflict.
const ATTEMPTS: usize = 5;

struct Controller {
    client: Client,
    config: Arc<Config>,
    autoscalers: Informer<HorizontalPodAutoscaler>,
    histories: Mutex<HashMap<NamespacedName, History>>,
    /// What each autoscaler's target selected when it was last looked at.
    selectors: Mutex<HashMap<NamespacedName, LabelSelector>>,
    /// Resources by group and kind, from discovery.
    kinds: Mutex<HashMap<(String, String), Resource>>,
    consistency: ConsistencyStore,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let builder =
        context.controller(CONTROLLER).workers(context.config.horizontal_pod_autoscaler.concurrent_syncs);
    let autoscalers = builder.informer::<HorizontalPodAutoscaler>();
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        config: context.config.clone(),
        autoscalers: autoscalers.clone(),
        histories: Mutex::default(),
        selectors: Mutex::default(),
        kinds: Mutex::default(),
        consistency: ConsistencyStore::default(),
        recorder: context.recorder("horizontal-pod-autoscaler"),
    });
    builder
        .keys_of::<HorizontalPodAutoscaler, _>(controller)
        .watches(&autoscalers, |_, event| if matters(event) { vec![event.key()] } else { vec![] })
        .run(Controller::reconcile)
}

/// The controller's own writes of the status do not wake it: it looks again after its period.
fn matters(event: &Event<HorizontalPodAutoscaler>) -> bool {
    event.old().is_none_or(|old| old.spec != event.object().spec)
}

/// The target as it is now.
struct ScaleTarget {
    resource: ApiResource,
    scale: Scale,
    current: i32,
}

/// What a pass came to, as metrics name it.
struct Decision {
    action: &'static str,
    error: &'static str,
}

impl Default for Decision {
    fn default() -> Decision {
        Decision { action: "none", error: "none" }
    }
}

impl Controller {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(autoscaler) = self.autoscalers.get(&key) else {
            self.histories.lock().remove(&key);
            self.selectors.lock().remove(&key);
            self.consistency.forget(&key);
            return Ok(Outcome::Done);
        };
        if !self.consistency.is_stale(&*autoscaler) {
            let began = std::time::Instant::now();
            let mut decision = Decision::default();
            let scaled = self.scale(&key, &autoscaler, &mut decision).await;
            let error = if scaled.is_err() { "internal" } else { decision.error };
            crate::metrics::autoscaled(decision.action, error, began.elapsed());
            scaled?;
        }
        Ok(Outcome::After(self.config.horizontal_pod_autoscaler.sync_period))
    }

    /// What cannot be read or measured is said in conditions and events, and looked at again after the period; only a
    /// failed write of the status is an error of the loop.
    async fn scale(
        &self,
        key: &NamespacedName,
        autoscaler: &HorizontalPodAutoscaler,
        decision: &mut Decision,
    ) -> Result<(), Error> {
        let now = Timestamp::now();
        let mut span = ferry_trace::span("autoscaler.scale");
        let scaled = match span.in_scope(self.target(autoscaler)).await {
            Ok(scaled) => scaled,
            Err(cause) => {
                self.warn(autoscaler, "FailedGetScale", &cause);
                span.fail(&cause);
                decision.error = "internal";
                let mut conditions = Conditions::of(autoscaler, now);
                let message =
                    format!("the HPA controller was unable to get the target's current scale: {cause}");
                conditions.set("AbleToScale", false, "FailedGetScale", message);
                let mut status = autoscaler.status.clone().unwrap_or_default();
                status.conditions = Some(conditions.list);
                return self.write_status(autoscaler, status).await;
            }
        };
        self.histories.lock().entry(key.clone()).or_default().begin(scaled.current, now);
        let plan = span.in_scope(self.plan(key, autoscaler, &scaled, now)).await;
        span.set("replicas", plan.rescale.as_ref().map_or(scaled.current, |(replicas, _)| *replicas));
        for (reason, cause) in &plan.failures {
            self.warn(autoscaler, reason, cause);
        }
        if let Some(failure) = &plan.failure {
            self.warn(autoscaler, "FailedComputeMetricsReplicas", failure);
            span.fail(failure);
            decision.error = "internal";
        }
        if let Some((replicas, _)) = &plan.rescale {
            decision.action = if *replicas > scaled.current { "scale_up" } else { "scale_down" };
        }
        span.in_scope(self.apply(key, autoscaler, scaled, plan, now)).await
    }

    async fn plan(
        &self,
        key: &NamespacedName,
        autoscaler: &HorizontalPodAutoscaler,
        scaled: &ScaleTarget,
        now: Timestamp,
    ) -> Plan {
        let mut measured = Vec::new();
        if plan::need(&autoscaler.spec, scaled.current) == Need::Metrics {
            let selector = scaled.scale.status.as_ref().and_then(|status| status.selector.as_deref());
            let pods = match self.pods(key, selector.unwrap_or_default()).await {
                Ok(pods) => pods,
                Err(SelectorError { event, reason, message, error }) => {
                    let mut conditions = Conditions::of(autoscaler, now);
                    conditions.set("AbleToScale", true, plan::GOT_SCALE.0, plan::GOT_SCALE.1);
                    conditions.set("ScalingActive", false, reason, message);
                    let failures = vec![(event, error.clone())];
                    return Plan {
                        conditions: conditions.list,
                        failures,
                        failure: Some(error),
                        ..Plan::default()
                    };
                }
            };
            let settings = &self.config.horizontal_pod_autoscaler;
            let target = Target {
                pods: &pods,
                current: scaled.current,
                observed: scaled.scale.status.as_ref().map_or(0, |status| status.replicas),
                tolerances: plan::tolerances(&autoscaler.spec, settings.tolerance),
                cpu_initialization_period: settings.cpu_initialization_period,
                initial_readiness_delay: settings.initial_readiness_delay,
                now,
            };
            for spec in autoscaler.spec.metrics.iter().flatten() {
                measured.push(self.measure(spec, target, &key.namespace, selector.unwrap_or_default()).await);
            }
        }
        let mut histories = self.histories.lock();
        let history = histories.entry(key.clone()).or_default();
        let window = self.config.horizontal_pod_autoscaler.downscale_stabilization;
        plan(autoscaler, scaled.current, &measured, history, window, now)
    }

    async fn apply(
        &self,
        key: &NamespacedName,
        autoscaler: &HorizontalPodAutoscaler,
        scaled: ScaleTarget,
        plan: Plan,
        now: Timestamp,
    ) -> Result<(), Error> {
        let mut conditions = Conditions { list: plan.conditions, now };
        let current = scaled.current;
        let known = autoscaler.status.clone().unwrap_or_default();
        let mut status = HorizontalPodAutoscalerStatus {
            current_replicas: Some(current),
            desired_replicas: if plan.failure.is_some() { known.desired_replicas } else { current },
            last_scale_time: known.last_scale_time,
            current_metrics: Some(plan.metrics).filter(|metrics: &Vec<MetricStatus>| !metrics.is_empty()),
            conditions: None,
            observed_generation: None,
        };
        if let Some((replicas, reason)) = plan.rescale {
            match self.set_scale(autoscaler, scaled, replicas).await {
                Ok(()) => {
                    let message =
                        format!("the HPA controller was able to update the target scale to {replicas}");
                    conditions.set("AbleToScale", true, "SucceededRescale", message);
                    let note = format!("New size: {replicas}; reason: {reason}");
                    self.recorder.event(autoscaler, EventType::Normal, "SuccessfulRescale", "Rescale", note);
                    self.histories.lock().entry(key.clone()).or_default().changed(current, replicas, now);
                    status.desired_replicas = replicas;
                    status.last_scale_time = Some(Time(now));
                }
                Err(failed) => {
                    let cause = error::message(&failed);
                    let note = format!("New size: {replicas}; reason: {reason}; error: {cause}");
                    self.warn(autoscaler, "FailedRescale", note);
                    let message =
                        format!("the HPA controller was unable to update the target scale: {cause}");
                    conditions.set("AbleToScale", false, "FailedUpdateScale", message);
                    status.desired_replicas = known.desired_replicas;
                }
            }
        }
        status.conditions = Some(conditions.list);
        self.write_status(autoscaler, status).await
    }

    async fn target(&self, autoscaler: &HorizontalPodAutoscaler) -> Result<ScaleTarget, String> {
        let reference = &autoscaler.spec.scale_target_ref;
        let group = group_of(reference.api_version.as_deref().unwrap_or(""))?;
        let resource = self.resource(&group, &reference.kind).await?;
        let scale = match self.scales(autoscaler, &resource.api).get_scale(&reference.name).await {
            Ok(scale) => scale,
            Err(failed) => {
                if error::is_not_found(&failed) {
                    // the kind may have been replaced by another version or resource
                    self.kinds.lock().remove(&(group, reference.kind.clone()));
                }
                return Err(error::message(&failed));
            }
        };
        let current = scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
        Ok(ScaleTarget { resource: resource.api, scale, current })
    }

    fn scales(&self, autoscaler: &HorizontalPodAutoscaler, resource: &ApiResource) -> Api<DynamicObject> {
        let namespace = autoscaler.namespace().unwrap_or_default();
        Api::namespaced_with(self.client.clone(), &namespace, resource)
    }

    /// The resource of a kind. Discovery is asked when the kind is not known yet.
    async fn resource(&self, group: &str, kind: &str) -> Result<Resource, String> {
        let wanted = (group.to_owned(), kind.to_owned());
        if let Some(known) = self.kinds.lock().get(&wanted) {
            return Ok(known.clone());
        }
        let found = discover(&self.client).await.map_err(|failed| error::message(&failed))?;
        let mut kinds = self.kinds.lock();
        let found = found.resources.into_iter();
        *kinds = found.map(|found| ((found.api.group.clone(), found.api.kind.clone()), found)).collect();
        let none = || format!("no matches for kind {kind:?} in group {group:?}");
        kinds.get(&wanted).cloned().ok_or_else(none)
    }

    async fn set_scale(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        ScaleTarget { resource, mut scale, .. }: ScaleTarget,
        replicas: i32,
    ) -> Result<(), kube::Error> {
        let api = self.scales(autoscaler, &resource);
        let name = &autoscaler.spec.scale_target_ref.name;
        let mut attempts = 1;
        loop {
            scale.spec.get_or_insert_default().replicas = Some(replicas);
            match api.replace_scale(name, &PostParams::default(), &scale).await {
                Ok(_) => return Ok(()),
                Err(failed) if error::is_conflict(&failed) && attempts < ATTEMPTS => {
                    scale = api.get_scale(name).await?;
                    attempts += 1;
                }
                Err(failed) => return Err(failed),
            }
        }
    }

    /// The pods of a target, read from the server: the informer's leave out containers that request nothing.
    async fn pods(&self, key: &NamespacedName, selector: &str) -> Result<Vec<Pod>, SelectorError> {
        if selector.is_empty() {
            return Err(SelectorError {
                event: "SelectorRequired",
                reason: "InvalidSelector",
                message: "the HPA target's scale is missing a selector".into(),
                error: "selector is required".into(),
            });
        }
        let invalid =
            |event, error: String| SelectorError { event, reason: event, message: error.clone(), error };
        let parsed = LabelSelector::parse(selector).map_err(|bad| {
            let cause = "couldn't convert selector into a corresponding internal selector object";
            invalid("InvalidSelector", format!("{cause}: {bad}"))
        })?;
        self.selectors.lock().insert(key.clone(), parsed);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let params = ListParams::default().labels(selector).at("0").matching(VersionMatch::NotOlderThan);
        let pods = api.list(&params).await.map_err(|failed| {
            invalid("FailedListPods", format!("unable to list pods: {}", error::message(&failed)))
        })?;
        let others = autoscalers_of(&self.selectors.lock(), &key.namespace, &pods.items);
        if others.len() > 1 {
            let names: Vec<String> =
                others.iter().map(|key| format!("{{{} {}}}", key.name, key.namespace)).collect();
            return Err(invalid(
                "AmbiguousSelector",
                format!("pods by selector {selector} are controlled by multiple HPAs: [{}]", names.join(" ")),
            ));
        }
        Ok(pods.items)
    }

    async fn write_status(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        status: HorizontalPodAutoscalerStatus,
    ) -> Result<(), Error> {
        if autoscaler.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let mut next = autoscaler.clone();
        next.status = Some(status);
        let api: Api<HorizontalPodAutoscaler> =
            Api::namespaced(self.client.clone(), &autoscaler.namespace().unwrap_or_default());
        let written = api.replace_status(&autoscaler.name_any(), &PostParams::default(), &next).await;
        match error::ignore_not_found(written) {
            Ok(written) => written.iter().for_each(|written| self.consistency.wrote(written)),
            Err(failed) => {
                self.warn(autoscaler, "FailedUpdateStatus", error::message(&failed));
                return Err(failed).attempting("write status");
            }
        }
        Ok(())
    }

    fn warn(&self, autoscaler: &HorizontalPodAutoscaler, reason: &str, note: impl Into<String>) {
        self.recorder.event(autoscaler, EventType::Warning, reason, "Scale", note);
    }
}

/// Why the pods of a target are not known.
struct SelectorError {
    event: &'static str,
    reason: &'static str,
    message: String,
    error: String,
}

/// The autoscalers of a namespace whose targets select one of these pods.
fn autoscalers_of(
    selectors: &HashMap<NamespacedName, LabelSelector>,
    namespace: &str,
    pods: &[Pod],
) -> Vec<NamespacedName> {
    let selects = |selector: &LabelSelector| {
        pods.iter().any(|pod| selector.matches(|label| pod.labels().get(label).map(String::as_str)))
    };
    let mut found: Vec<NamespacedName> = selectors
        .iter()
        .filter(|(key, selector)| key.namespace == namespace && selects(selector))
        .map(|(key, _)| key.clone())
        .collect();
    found.sort();
    found
}

fn group_of(api_version: &str) -> Result<String, String> {
    match api_version.split('/').collect::<Vec<_>>()[..] {
        [_] => Ok(String::new()),
        [group, _] => Ok(group.into()),
        _ => Err(format!("unexpected GroupVersion string: {api_version}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{labels, pod};

    #[test]
    fn a_pod_that_two_targets_select_is_nobodys() {
        let mut selected = pod("a", "n", "Running", None);
        selected.metadata.labels = Some(labels(&[("app", "web"), ("tier", "front")]));
        let selector = |text: &str| LabelSelector::parse(text).expect("a selector");
        let selectors = HashMap::from([
            (NamespacedName::new("default", "b"), selector("tier=front")),
            (NamespacedName::new("default", "a"), selector("app=web")),
            (NamespacedName::new("default", "c"), selector("app=db")),
            (NamespacedName::new("other", "d"), selector("app=web")),
        ]);
        let names = |pods: &[Pod]| -> Vec<String> {
            autoscalers_of(&selectors, "default", pods).into_iter().map(|key| key.name).collect()
        };
        assert_eq!(names(&[selected]), ["a", "b"]);
        assert!(names(&[]).is_empty());
    }

    #[test]
    fn a_target_is_found_by_its_group() {
        assert_eq!(group_of("apps/v1"), Ok("apps".into()));
        assert_eq!(group_of("v1"), Ok(String::new()));
        assert_eq!(group_of(""), Ok(String::new()));
        assert!(group_of("a/b/c").is_err());
    }
}
