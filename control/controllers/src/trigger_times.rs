//! Since when endpoints have reason to be as they are: the annotation `endpoints.kubernetes.io/last-change-trigger-time`,
//! from which proxies tell how long a change took until the kernel had it.
//!
//! A change is a pod whose readiness changed, or a Service that came; of several since the last look the first counts.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ferry_client::NamespacedName;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use parking_lot::Mutex;

const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// What was seen at the last look at each Service.
#[derive(Default)]
pub struct TriggerTimes(Mutex<HashMap<NamespacedName, HashMap<Box<str>, Timestamp>>>);

impl TriggerTimes {
    /// Since when the endpoints of a Service are due to change; none where nothing that is known changed.
    pub fn since(&self, service: &Service, pods: &[Arc<Pod>]) -> Option<Timestamp> {
        let now: HashMap<Box<str>, Timestamp> =
            pods.iter().filter_map(|pod| Some((pod.name_any().into(), readiness_changed(pod)?))).collect();
        let mut all = self.0.lock();
        let Some(before) = all.get(&NamespacedName::of(service)) else {
            all.insert(NamespacedName::of(service), now);
            return service.creation_timestamp().map(|made| made.0);
        };
        let changed = now.iter().filter(|(pod, at)| before.get(*pod).is_none_or(|before| *at > before));
        let first = changed.map(|(_, at)| *at).min();
        all.insert(NamespacedName::of(service), now);
        first
    }

    pub fn forget(&self, key: &NamespacedName) {
        self.0.lock().remove(key);
    }
}

fn readiness_changed(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    ready.last_transition_time.as_ref().map(|at| at.0)
}

/// Without a time the annotation goes: it would tell of an older change.
pub fn annotate(annotations: &mut Option<BTreeMap<String, String>>, since: Option<Timestamp>) {
    match since {
        Some(since) => {
            annotations.get_or_insert_default().insert(ANNOTATION.into(), since.to_string());
        }
        None => {
            if let Some(annotations) = annotations {
                annotations.remove(ANNOTATION);
            }
            annotations.take_if(|annotations| annotations.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(made: &str) -> Service {
        let metadata = json!({"namespace": "default", "name": "web", "creationTimestamp": made});
        serde_json::from_value(json!({"metadata": metadata})).expect("a Service")
    }

    fn pod(name: &str, ready_since: &str) -> Arc<Pod> {
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": ready_since});
        let pod =
            json!({"metadata": {"namespace": "default", "name": name}, "status": {"conditions": [ready]}});
        Arc::new(serde_json::from_value(pod).expect("a Pod"))
    }

    #[test]
    fn the_first_change_since_the_last_look_counts() {
        let times = TriggerTimes::default();
        let service = service("2026-01-01T00:00:00Z");
        let check = |pods: &[Arc<Pod>], expected: Option<&str>| {
            let since = times.since(&service, pods).map(|since| since.to_string());
            assert_eq!(since.as_deref(), expected);
        };
        let old = || pod("old", "2026-01-01T00:00:05Z");
        check(&[old()], Some("2026-01-01T00:00:00Z"));
        check(&[old()], None);
        let news = [old(), pod("a", "2026-01-01T00:01:02Z"), pod("b", "2026-01-01T00:01:01Z")];
        check(&news, Some("2026-01-01T00:01:01Z"));
        check(&news, None);
        check(&news[..2], None);
        check(&[pod("old", "2026-01-01T00:02:00Z"), news[1].clone()], Some("2026-01-01T00:02:00Z"));
        times.forget(&NamespacedName::of(&service));
        check(&[old()], Some("2026-01-01T00:00:00Z"));
    }

    #[test]
    fn an_older_time_goes_and_other_annotations_stay() {
        let mut annotations = None;
        annotate(&mut annotations, None);
        assert_eq!(annotations, None);
        annotate(&mut annotations, Some("2026-01-01T00:00:00Z".parse().expect("a time")));
        assert_eq!(annotations.as_ref().map(|all| all[ANNOTATION].as_str()), Some("2026-01-01T00:00:00Z"));
        annotations.get_or_insert_default().insert("a".into(), "b".into());
        annotate(&mut annotations, None);
        assert_eq!(annotations, Some(BTreeMap::from([("a".into(), "b".into())])));
    }
}
