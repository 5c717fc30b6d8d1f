//! In which order groups and their versions are listed. Clients take the first they know.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use super::Kind;

/// The higher, the earlier. A custom resource's group comes after all of these.
pub fn group_priority(group: &str) -> u32 {
    match group {
        "apiregistration.k8s.io" => 20000,
        "" => 18000,
        "apps" => 17800,
        "events.k8s.io" => 17750,
        "authentication.k8s.io" => 17700,
        "authorization.k8s.io" => 17600,
        "autoscaling" => 17500,
        "batch" => 17400,
        "certificates.k8s.io" => 17300,
        "networking.k8s.io" => 17200,
        "policy" => 17100,
        "rbac.authorization.k8s.io" => 17000,
        "storage.k8s.io" => 16800,
        "apiextensions.k8s.io" | "admissionregistration.k8s.io" => 16700,
        "scheduling.k8s.io" => 16600,
        "coordination.k8s.io" => 16500,
        "node.k8s.io" => 16300,
        "discovery.k8s.io" | "resource.k8s.io" => 16200,
        "flowcontrol.apiserver.k8s.io" => 16100,
        "internal.apiserver.k8s.io" => 16000,
        "storagemigration.k8s.io" => 15800,
        // What metrics-server registers itself with.
        "metrics.k8s.io" => 100,
        _ => 1000,
    }
}

/// What an APIService says of a version of a group: `versionPriority`.
pub fn version_priority(group: &str, version: &str) -> u32 {
    match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("flowcontrol.apiserver.k8s.io" | "resource.k8s.io", "v1") => 21,
        ("resource.k8s.io", "v1beta2") => 15,
        ("resource.k8s.io", "v1alpha3") => 1,
        ("admissionregistration.k8s.io", "v1beta1") => 12,
        ("coordination.k8s.io", "v1beta1") => 13,
        ("coordination.k8s.io", "v1alpha2") => 12,
        ("scheduling.k8s.io", "v1alpha2") => 2,
        ("certificates.k8s.io", "v1alpha1") => 1,
        _ if group_priority(group) == 1000 => 100,
        (_, "v1") => 15,
        _ => 9,
    }
}

/// The groups that have kinds, in the order of discovery.
pub fn groups<'k>(kinds: impl IntoIterator<Item = &'k Kind>) -> Vec<&'k str> {
    let mut groups: Vec<&str> = kinds.into_iter().map(|kind| kind.group.as_ref()).collect();
    groups.sort_by_key(|group| (Reverse(group_priority(group)), *group));
    groups.dedup();
    groups
}

/// The versions of a group, the preferred one first.
pub fn versions<'k>(kinds: impl IntoIterator<Item = &'k Kind>, group: &str) -> Vec<&'k str> {
    let mut versions: Vec<&str> =
        kinds.into_iter().filter(|kind| kind.group == group).map(|kind| kind.version.as_ref()).collect();
    versions.sort_by(|a, b| {
        let priority = |version| Reverse(version_priority(group, version));
        priority(a).cmp(&priority(b)).then_with(|| compare_versions(b, a))
    });
    versions.dedup();
    versions
}

/// The groups with their versions, both in that order; the rows are gone through once, however many groups there are.
pub fn group_versions<'k>(kinds: impl IntoIterator<Item = &'k Kind>) -> Vec<(&'k str, Vec<&'k str>)> {
    let mut by_group: HashMap<&str, Vec<&Kind>> = HashMap::new();
    for kind in kinds {
        by_group.entry(kind.group.as_ref()).or_default().push(kind);
    }
    let ordered = groups(by_group.values().filter_map(|kinds| kinds.first().copied()));
    let of_group = |group: &str| by_group.get(group).into_iter().flatten().copied();
    ordered.into_iter().map(|group| (group, versions(of_group(group), group))).collect()
}

/// `v2` over `v1` over `v1beta2` over `v1alpha1` over what is no such version.
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (parse_version(a), parse_version(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => b.cmp(a),
    }
}

/// Stability (2 for none named), major, minor.
fn parse_version(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, rest) = rest.split_at(digits);
    let major = major.parse().ok()?;
    if rest.is_empty() {
        return Some((2, major, 0));
    }
    let (stability, minor) = match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
        (Some(minor), _) => (1, minor),
        (_, Some(minor)) => (0, minor),
        _ => return None,
    };
    Some((stability, major, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_versions_come_before_newer_unstable_ones() {
        let mut versions = ["v1alpha1", "v2", "foo", "v10", "v1beta2", "v1", "v1beta10", "bar"];
        versions.sort_by(|a, b| compare_versions(b, a));
        assert_eq!(versions, ["v10", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "bar", "foo"]);
    }
}
