//! EventRateLimit: limits the rate of events of the server, a namespace, a user, or a source and object.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use ferry_api::{Object, Status};
use ferry_registry::verbs::Operation;
use parking_lot::Mutex;
use serde::Deserialize;

use super::Context;
use crate::chain::{Phase, Plugin, Request};
use crate::configuration::BadConfiguration;

const CACHE_SIZE: usize = 4096;

pub fn make(context: &Context) -> Result<Arc<dyn Plugin>, BadConfiguration> {
    let configuration: Configuration = context.configuration.of("EventRateLimit")?;
    if configuration.limits.is_empty() {
        return Err(BadConfiguration("limits: Invalid value: []: must not be empty".into()));
    }
    let limits = configuration.limits.into_iter().map(Enforcer::new).collect::<Result<_, _>>()?;
    Ok(Arc::new(EventRateLimit { limits }))
}

/// Of group eventratelimit.admission.k8s.io.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Configuration {
    limits: Vec<Limit>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Limit {
    r#type: String,
    qps: i32,
    burst: i32,
    #[serde(default)]
    cache_size: i32,
}

struct EventRateLimit {
    limits: Vec<Enforcer>,
}

#[async_trait]
impl Plugin for EventRateLimit {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete && !request.call.dry_run && &*request.call.kind.kind == "Event"
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        let now = Instant::now();
        let exceeded: Vec<String> =
            self.limits.iter().filter_map(|limit| limit.refusal(request, object, now)).collect();
        match exceeded.as_slice() {
            [] => Ok(()),
            [one] => Err(Status::too_many_requests(one, 1)),
            many => Err(Status::too_many_requests(format!("[{}]", many.join(", ")), 1)),
        }
    }
}

/// One limit, and what is left of it for each key. Keys share a fixed number of buckets, so that no flood of
/// keys takes memory.
struct Enforcer {
    limit: Limit,
    size: usize,
    hasher: RandomState,
    buckets: Mutex<HashMap<usize, Bucket>>,
}

#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Enforcer {
    fn new(limit: Limit) -> Result<Enforcer, BadConfiguration> {
        if !["Server", "Namespace", "User", "SourceAndObject"].contains(&limit.r#type.as_str()) {
            return Err(BadConfiguration(format!("unknown event rate limit type: {}", limit.r#type)));
        }
        if limit.qps <= 0 || limit.burst <= 0 {
            return Err(BadConfiguration("an event rate limit needs a positive qps and burst".into()));
        }
        let size = usize::try_from(limit.cache_size).ok().filter(|size| *size > 0).unwrap_or(CACHE_SIZE);
        Ok(Enforcer { limit, size, hasher: RandomState::new(), buckets: Mutex::default() })
    }

    fn refusal(&self, request: &Request<'_>, event: Option<&Object>, now: Instant) -> Option<String> {
        let key = match self.limit.r#type.as_str() {
            "Namespace" => request.call.namespace.to_string(),
            "User" => request.call.user.name.clone(),
            "SourceAndObject" => event.map_or_else(String::new, source_and_object),
            _ => String::new(),
        };
        (!self.accept(&key, now))
            .then(|| format!("limit reached on type {} for key {key}", self.limit.r#type))
    }

    fn accept(&self, key: &str, now: Instant) -> bool {
        let slot = self.hasher.hash_one(key) as usize % self.size;
        let burst = f64::from(self.limit.burst);
        let mut buckets = self.buckets.lock();
        let bucket = buckets.entry(slot).or_insert(Bucket { tokens: burst, at: now });
        let earned = now.saturating_duration_since(bucket.at).as_secs_f64() * f64::from(self.limit.qps);
        *bucket = Bucket { tokens: (bucket.tokens + earned).min(burst), at: now };
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }
}

fn source_and_object(event: &Object) -> String {
    const PATHS: [&[&str]; 7] = [
        &["source", "component"],
        &["source", "host"],
        &["involvedObject", "kind"],
        &["involvedObject", "namespace"],
        &["involvedObject", "name"],
        &["involvedObject", "uid"],
        &["involvedObject", "apiVersion"],
    ];
    PATHS.iter().map(|path| event.text_at(path)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn enforcer(qps: i32, burst: i32) -> Enforcer {
        Enforcer::new(Limit { r#type: "Namespace".into(), qps, burst, cache_size: 0 }).expect("well formed")
    }

    #[test]
    fn a_burst_goes_through_and_then_one_at_a_time() {
        let limit = enforcer(2, 3);
        let now = Instant::now();
        assert_eq!((0..5).filter(|_| limit.accept("a", now)).count(), 3);
        assert!(limit.accept("b", now), "another namespace has its own");
        let later = now + Duration::from_millis(600);
        assert!(limit.accept("a", later));
        assert!(!limit.accept("a", later));
    }

    #[test]
    fn a_limit_of_nothing_is_refused() {
        let limit = |kind: &str, qps| Limit { r#type: kind.into(), qps, burst: 1, cache_size: 0 };
        assert!(Enforcer::new(limit("Server", 0)).is_err());
        assert!(Enforcer::new(limit("Planet", 1)).is_err());
    }
}
