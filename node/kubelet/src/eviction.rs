//! Keeping the node alive: when memory, disk or processes run out, images
//! and pods are given up in an order that is fair and can be predicted.

pub mod image_gc;
pub mod rank;
pub mod signals;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_api::quantity::{Format, Quantity};
use ferry_client::EventType;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::consumption::{self, ContainerUsage};
use crate::context::Context;
use crate::metrics;
use crate::node::capacity::threshold_amount;
use crate::node::status::{NodeStatusSource, Pressure};
use crate::pod;
use crate::pods::Pods;
use crate::resources::{Side, amount_of, container_amounts, pod_amounts};
use crate::status::Ending;
use ferry_linux::disk;
use image_gc::ImageCollector;
use rank::{Candidate, Starved, rank};
use signals::{ThresholdMet, ThresholdTracker};

/// What a pod gets to end when the node cannot wait.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Watches the node's resources and acts on what is short.
pub async fn run(context: &Context, pods: &Pods, node: &NodeStatusSource, pressure: watch::Sender<Pressure>) {
    let config = &context.config;
    let mut ticks = tokio::time::interval(config.eviction_monitoring_period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut patience = ThresholdTracker::default();
    let mut images = ImageCollector::default();
    let mut pressed_until: BTreeMap<&'static str, Instant> = BTreeMap::new();
    loop {
        ticks.tick().await;
        let now = Instant::now();
        let observations = signals::observe(context).await;
        let mut crossed = patience.crossed(config, &observations, now);
        for each in &crossed {
            pressed_until.insert(each.signal, now + config.eviction_pressure_transition_period);
        }
        pressed_until.retain(|_, until| *until > now);
        let is_pressed = |starved: Starved| {
            signals::SIGNALS.iter().any(|(signal, of)| *of == starved && pressed_until.contains_key(signal))
        };
        let current = Pressure {
            memory: is_pressed(Starved::Memory),
            disk: is_pressed(Starved::Disk),
            pids: is_pressed(Starved::Pids),
        };
        pressure.send_if_modified(|before| std::mem::replace(before, current) != current);

        let is_disk_short = crossed.iter().any(|each| each.starved == Starved::Disk);
        match images.collect(context, &observations, is_disk_short, now).await {
            // images that nobody uses go before any pod does
            Ok(true) => crossed = patience.crossed(config, &signals::observe(context).await, now),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "cannot collect unused images"),
        }
        let active = pods.active();
        let is_measured = !crossed.is_empty() || active.iter().any(|pod| has_local_limits(pod));
        let usage = if is_measured { container_usage(context).await } else { vec![] };
        for pod in active {
            if let Some(ending) = over_local_limits(context, &pod, &usage) {
                metrics::evicted("ephemeralpodfs.limit");
                evict(context, pods, &pod, ending, Some(AT_ONCE));
            }
        }
        // one pod at a time: the next look shows whether it was enough
        if let Some(first) = crossed.first()
            && let Some((pod, ending)) = choose(context, pods, first, &usage)
        {
            let grace = if first.is_hard { AT_ONCE } else { config.eviction_max_pod_grace_period };
            context.events.event(
                &*node_object(node),
                EventType::Warning,
                "EvictionThresholdMet",
                "Evicting",
                format!("Attempting to reclaim {}", resource_name(first.starved)),
            );
            metrics::evicted(first.signal);
            evict(context, pods, &pod, ending, Some(grace));
        }
    }
}

fn node_object(node: &NodeStatusSource) -> Arc<k8s_openapi::api::core::v1::Node> {
    node.seen.borrow().clone().unwrap_or_else(|| {
        let mut unseen = k8s_openapi::api::core::v1::Node::default();
        unseen.metadata.name = Some(node.config.node_name.clone());
        Arc::new(unseen)
    })
}

fn evict(context: &Context, pods: &Pods, pod: &Pod, ending: Ending, grace: Option<Duration>) {
    let mut span = ferry_trace::span("kubelet.evict");
    span.object("pods", pod::namespace(pod), pod::name(pod)).set("reason", ending.reason.as_str());
    tracing::warn!(pod = %pod::key(pod), reason = ending.message, "evicting");
    context.events.event(pod, EventType::Warning, "Evicted", "Evicting", ending.message.clone());
    pods.end(pod::uid(pod), ending, grace);
}

async fn container_usage(context: &Context) -> Vec<ContainerUsage> {
    consumption::of_containers(&context.runtime).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read the usage of containers; ranking pods for eviction without it");
        vec![]
    })
}

fn choose(
    context: &Context,
    pods: &Pods,
    crossed: &ThresholdMet,
    all: &[ContainerUsage],
) -> Option<(Arc<Pod>, Ending)> {
    let candidates = pods.active().into_iter().map(|pod| {
        let usage = usage(context, &pod, crossed.starved, all);
        Candidate { pod, usage }
    });
    let chosen = rank(candidates.collect(), crossed.starved).into_iter().next()?.pod;
    let resource = resource_name(crossed.starved);
    let threshold = threshold_amount(&crossed.threshold, crossed.observed.capacity);
    let mut message = format!(
        "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. ",
        shown(threshold),
        shown(crossed.observed.available)
    );
    for container in &pod::spec(&chosen).containers {
        let used = match crossed.starved {
            Starved::Memory => working_set(&chosen, &container.name, all),
            Starved::Disk => consumption::container_disk(context, &chosen, &container.name, all),
            Starved::Pids => break,
        };
        let used = i64::try_from(used).unwrap_or(i64::MAX);
        let requests = container_amounts(container.resources.as_ref(), Side::Requests);
        let request = requests.get(resource).copied().unwrap_or(0);
        if used > request {
            message.push_str(&format!(
                "Container {} was using {}, request is {}, has larger consumption of {resource}. ",
                container.name,
                shown(used),
                shown(request)
            ));
        }
    }
    Some((chosen, evicted(message)))
}

/// An amount as Kubernetes writes it: `100Mi`.
fn shown(amount: i64) -> String {
    Quantity::from_value(amount, Format::BinarySi).to_string()
}

fn evicted(message: String) -> Ending {
    Ending { reason: "Evicted".into(), message, disruption: Some("TerminationByKubelet"), failed: true }
}

fn resource_name(starved: Starved) -> &'static str {
    match starved {
        Starved::Memory => "memory",
        Starved::Disk => "ephemeral-storage",
        Starved::Pids => "pids",
    }
}

fn working_set(pod: &Pod, container: &str, all: &[ContainerUsage]) -> u64 {
    let own = all.iter().filter(|each| each.pod_uid == pod::uid(pod) && each.name == container);
    own.map(|each| each.working_set_bytes).sum()
}

fn usage(context: &Context, pod: &Pod, starved: Starved, all: &[ContainerUsage]) -> i64 {
    let of_cgroup = || context.cgroups.usage(pod);
    let amount = match starved {
        Starved::Memory => of_cgroup().map_or(0, |usage| usage.working_set_bytes),
        Starved::Pids => of_cgroup().map_or(0, |usage| usage.pids),
        Starved::Disk => consumption::disk(context, pod, all),
    };
    i64::try_from(amount).unwrap_or(i64::MAX)
}

const STORAGE: &str = "ephemeral-storage";

/// Whether what a pod writes is bounded.
fn has_local_limits(pod: &Pod) -> bool {
    pod::containers(pod).iter().any(|each| {
        let limits = each.container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        limits.is_some_and(|limits| limits.contains_key(STORAGE))
    })
}

/// A pod that takes more of the disk than it said it would.
fn over_local_limits(context: &Context, pod: &Pod, all: &[ContainerUsage]) -> Option<Ending> {
    let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let directory = context.pod_dir(pod::uid(pod));
    for volume in pod::spec(pod).volumes.iter().flatten() {
        let Some(limit) = volume.empty_dir.as_ref().and_then(|source| source.size_limit.as_ref()) else {
            continue;
        };
        let allowed = amount_of("memory", &limit.0);
        let path = directory.join("volumes").join("kubernetes.io~empty-dir").join(&volume.name);
        if allowed > 0 && number(disk::usage(&path).0) > allowed {
            let message =
                format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{}\". ", volume.name, limit.0);
            return Some(evicted(message));
        }
    }
    if !has_local_limits(pod) {
        return None;
    }
    let limit = pod_amounts(pod, Side::Limits).get(STORAGE).copied().filter(|limit| *limit > 0);
    if let Some(limit) = limit.filter(|limit| number(consumption::disk(context, pod, all)) > *limit) {
        let message = format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
            shown(limit)
        );
        return Some(evicted(message));
    }
    pod::spec(pod).containers.iter().find_map(|container| {
        let limits = container_amounts(container.resources.as_ref(), Side::Limits);
        let limit = limits.get(STORAGE).copied().filter(|limit| *limit > 0)?;
        let used = number(consumption::container_disk(context, pod, &container.name, all));
        (used > limit).then(|| {
            evicted(format!(
                "Container {} exceeded its local ephemeral storage limit \"{}\". ",
                container.name,
                shown(limit)
            ))
        })
    })
}
