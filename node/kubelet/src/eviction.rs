//! Keeping the node alive: when memory, disk or processes run out, images
//! and pods are given up in an order that is fair and can be predicted.

pub mod image_gc;
pub mod rank;
pub mod signals;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::EventType;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::context::Context;
use crate::node::status::{NodeStatusSource, Pressure};
use crate::pod;
use crate::pods::Pods;
use crate::resources::{Side, amount_of, pod_amounts};
use crate::status::Ending;
use ferry_linux::disk;
use image_gc::ImageCollector;
use rank::{Candidate, Starved, rank};
use signals::{Crossed, Patience};

/// Watches the node's resources and acts on what is short.
pub async fn run(context: &Context, pods: &Pods, node: &NodeStatusSource, pressure: watch::Sender<Pressure>) {
    let config = &context.config;
    let mut ticks = tokio::time::interval(config.eviction_monitoring_period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut patience = Patience::default();
    let mut images = ImageCollector::default();
    let mut pressed_until: BTreeMap<&'static str, Instant> = BTreeMap::new();
    loop {
        ticks.tick().await;
        let now = Instant::now();
        let observations = signals::observe(context).await;
        let crossed = patience.crossed(config, &observations, now);
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
        if let Err(error) = images.collect(context, &observations, is_disk_short, now).await {
            tracing::warn!(%error, "images not collected");
        }
        for pod in pods.active() {
            if let Some(ending) = over_local_limits(context, &pod) {
                evict(context, pods, &pod, ending, Some(Duration::ZERO));
            }
        }
        // one pod at a time: the next look shows whether it was enough
        if let Some(first) = crossed.first()
            && let Some((pod, ending)) = choose(context, pods, first)
        {
            let grace = if first.is_hard { Duration::ZERO } else { config.eviction_max_pod_grace_period };
            context.events.event(
                &*node_object(node),
                EventType::Warning,
                "EvictionThresholdMet",
                "Evicting",
                format!("Attempting to reclaim {}", resource_name(first.starved)),
            );
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

fn choose(context: &Context, pods: &Pods, crossed: &Crossed) -> Option<(Arc<Pod>, Ending)> {
    let candidates = pods.active().into_iter().map(|pod| {
        let usage = usage(context, &pod, crossed.starved);
        Candidate { pod, usage }
    });
    let chosen = rank(candidates.collect(), crossed.starved).into_iter().next()?;
    let mut message = format!("The node was low on resource: {}. ", resource_name(crossed.starved));
    message.push_str(&format!(
        "Threshold quantity: {}, available: {}. ",
        crossed.threshold, crossed.observed.available
    ));
    let resource = match crossed.starved {
        Starved::Memory => Some("memory"),
        Starved::Disk => Some("ephemeral-storage"),
        Starved::Pids => None,
    };
    if let Some(resource) = resource {
        let request = pod_amounts(&chosen.pod, Side::Requests).get(resource).copied().unwrap_or(0);
        if chosen.usage > request {
            message.push_str(&format!("The pod was using {}, request is {request}. ", chosen.usage));
        }
    }
    Some((chosen.pod, evicted(message)))
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

fn usage(context: &Context, pod: &Pod, starved: Starved) -> i64 {
    let of_cgroup = context.cgroups.usage(pod);
    let amount = match starved {
        Starved::Memory => of_cgroup.map_or(0, |usage| usage.working_set_bytes),
        Starved::Pids => of_cgroup.map_or(0, |usage| usage.pids),
        Starved::Disk => disk::usage(&context.pod_dir(pod::uid(pod))).0,
    };
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// A pod that fills its own volumes beyond what it said it would.
fn over_local_limits(context: &Context, pod: &Pod) -> Option<Ending> {
    let directory = context.pod_dir(pod::uid(pod));
    for volume in pod::spec(pod).volumes.iter().flatten() {
        let Some(limit) = volume.empty_dir.as_ref().and_then(|source| source.size_limit.as_ref()) else {
            continue;
        };
        let allowed = amount_of("memory", &limit.0);
        let path = directory.join("volumes").join("kubernetes.io~empty-dir").join(&volume.name);
        let used = i64::try_from(disk::usage(&path).0).unwrap_or(i64::MAX);
        if allowed > 0 && used > allowed {
            let message =
                format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{}\". ", volume.name, limit.0);
            return Some(evicted(message));
        }
    }
    let limit =
        pod_amounts(pod, Side::Limits).get("ephemeral-storage").copied().filter(|limit| *limit > 0)?;
    let used = i64::try_from(disk::usage(&directory).0).unwrap_or(i64::MAX);
    (used > limit).then(|| {
        evicted(format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "))
    })
}
