//! Taints and tolerations, as far as controllers need them.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Taint, Toleration};

pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
pub const NO_SCHEDULE: &str = "NoSchedule";
pub const NO_EXECUTE: &str = "NoExecute";

pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or("");
    let key = toleration.key.as_deref().unwrap_or("");
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    let (wanted, value) = (toleration.value.as_deref().unwrap_or(""), taint.value.as_deref().unwrap_or(""));
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        Some("Equal" | "") | None => !key.is_empty() && wanted == value,
        Some(comparison) => match (wanted.parse::<i64>(), value.parse::<i64>()) {
            (Ok(wanted), Ok(value)) if comparison == "Lt" => value < wanted,
            (Ok(wanted), Ok(value)) if comparison == "Gt" => value > wanted,
            _ => false,
        },
    }
}

/// How long a pod may stay under these taints: None for ever, zero not at all.
pub fn stays<'a>(tolerations: &[Toleration], taints: impl Iterator<Item = &'a Taint>) -> Option<Duration> {
    let mut shortest: Option<Duration> = None;
    for taint in taints {
        let matching: Vec<&Toleration> =
            tolerations.iter().filter(|toleration| tolerates(toleration, taint)).collect();
        if matching.is_empty() {
            return Some(Duration::ZERO);
        }
        let seconds = matching.iter().filter_map(|toleration| toleration.toleration_seconds).min();
        if let Some(seconds) = seconds {
            let time = Duration::from_secs(seconds.max(0) as u64);
            shortest = Some(shortest.map_or(time, |known| known.min(time)));
        }
    }
    shortest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toleration(key: &str, operator: &str, value: &str, effect: &str, seconds: Option<i64>) -> Toleration {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_string());
        Toleration {
            key: text(key),
            operator: text(operator),
            value: text(value),
            effect: text(effect),
            toleration_seconds: seconds,
        }
    }

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint { key: key.into(), value: Some(value.into()), effect: effect.into(), time_added: None }
    }

    #[test]
    fn a_toleration_matches_key_value_and_effect() {
        let check = |(key, operator, value, effect): (&str, &str, &str, &str), expected: bool| {
            let toleration = toleration(key, operator, value, effect, None);
            assert_eq!(tolerates(&toleration, &taint("k", "v", NO_EXECUTE)), expected, "{toleration:?}");
        };
        check(("k", "Equal", "v", NO_EXECUTE), true);
        check(("k", "", "v", ""), true);
        check(("k", "Equal", "w", NO_EXECUTE), false);
        check(("k", "Exists", "", ""), true);
        check(("", "Exists", "", ""), true);
        check(("", "Exists", "", NO_SCHEDULE), false);
        check(("other", "Exists", "", ""), false);
        check(("", "", "", ""), false);
    }

    #[test]
    fn the_shortest_toleration_decides_how_long() {
        let taints = [taint("a", "", NO_EXECUTE), taint("b", "", NO_EXECUTE)];
        let check = |tolerations: &[Toleration], expected: Option<u64>| {
            assert_eq!(stays(tolerations, taints.iter()), expected.map(Duration::from_secs));
        };
        let all = |seconds| toleration("", "Exists", "", "", seconds);
        check(&[], Some(0));
        check(&[toleration("a", "Exists", "", "", None)], Some(0));
        check(&[all(None)], None);
        check(&[all(Some(300))], Some(300));
        check(&[all(Some(300)), toleration("b", "Exists", "", "", Some(5))], Some(5));
        check(&[all(Some(-1))], Some(0));
    }
}
