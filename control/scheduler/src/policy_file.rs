//! The older `--policy-config-file`: predicates and priorities by name. Each name stands for
//! the plugin that does its work today.

use serde::Deserialize;

use crate::config::Config;
use crate::configuration_file::{FileError, FileExtender, parse, read_extenders};
use crate::plugins;
use crate::profile::{Profile, ScoringStrategy};
use crate::resources::{CPU, MEMORY};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Policy {
    kind: String,
    api_version: String,
    predicates: Option<Vec<Predicate>>,
    priorities: Option<Vec<Priority>>,
    hard_pod_affinity_symmetric_weight: Option<i64>,
    #[serde(rename = "alwaysCheckAllPredicates")]
    _always_check_all_predicates: Option<bool>,
    #[serde(default)]
    extenders: Vec<FileExtender>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Predicate {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Priority {
    name: String,
    weight: i64,
}

/// Predicates, and the plugins that do their work.
const PREDICATES: &[(&str, &[&str])] = &[
    ("GeneralPredicates", &["NodeName", "NodePorts", "NodeAffinity", "NodeResourcesFit"]),
    ("PodFitsHostPorts", &["NodePorts"]),
    ("PodFitsPorts", &["NodePorts"]),
    ("PodFitsResources", &["NodeResourcesFit"]),
    ("HostName", &["NodeName"]),
    ("MatchNodeSelector", &["NodeAffinity"]),
    ("NoDiskConflict", &["VolumeRestrictions"]),
    ("NoVolumeZoneConflict", &["VolumeZone"]),
    ("MaxCSIVolumeCountPred", &["NodeVolumeLimits"]),
    ("MaxEBSVolumeCount", &["NodeVolumeLimits"]),
    ("MaxGCEPDVolumeCount", &["NodeVolumeLimits"]),
    ("MaxAzureDiskVolumeCount", &["NodeVolumeLimits"]),
    ("CheckVolumeBinding", &["VolumeBinding"]),
    ("MatchInterPodAffinity", &["InterPodAffinity"]),
    ("EvenPodsSpread", &["PodTopologySpread"]),
    ("PodToleratesNodeTaints", &["TaintToleration"]),
    ("CheckNodeUnschedulable", &["NodeUnschedulable"]),
];

/// Never left out, whatever the policy says.
const MANDATORY: [&str; 2] = ["TaintToleration", "NodeUnschedulable"];

const PRIORITIES: &[(&str, &str)] = &[
    ("LeastRequestedPriority", "NodeResourcesFit"),
    ("MostRequestedPriority", "NodeResourcesFit"),
    ("BalancedResourceAllocation", "NodeResourcesBalancedAllocation"),
    ("SelectorSpreadPriority", "PodTopologySpread"),
    ("EvenPodsSpreadPriority", "PodTopologySpread"),
    ("InterPodAffinityPriority", "InterPodAffinity"),
    ("NodeAffinityPriority", "NodeAffinity"),
    ("TaintTolerationPriority", "TaintToleration"),
    ("ImageLocalityPriority", "ImageLocality"),
];

/// Reads a policy as the default scheduler's profile; all else stays as in `base`.
pub fn read(text: &str, base: Config) -> Result<Config, FileError> {
    let policy: Policy = parse(text, "Policy")?;
    if policy.kind != "Policy" || policy.api_version != "v1" {
        return Err(FileError::Kind { kind: policy.kind, version: policy.api_version });
    }
    let unknown = |path: &str, name: &str| FileError::UnknownPlugin { path: path.into(), name: name.into() };
    let mut profile = Profile::default();
    if let Some(predicates) = policy.predicates {
        let mut names: Vec<&str> = MANDATORY.to_vec();
        for predicate in &predicates {
            let row = PREDICATES.iter().find(|(name, _)| *name == predicate.name);
            names.extend(row.ok_or_else(|| unknown("predicates", &predicate.name))?.1);
        }
        profile.filters.retain(|plugin| names.contains(&plugin.name));
    }
    if let Some(priorities) = policy.priorities {
        profile.scores.clear();
        for priority in &priorities {
            let row = PRIORITIES.iter().find(|(name, _)| *name == priority.name);
            let name = row.ok_or_else(|| unknown("priorities", &priority.name))?.1;
            if priority.name == "MostRequestedPriority" {
                profile.scoring = ScoringStrategy::MostAllocated(vec![(CPU.into(), 1), (MEMORY.into(), 1)]);
            }
            let plugin = plugins::find(name).ok_or_else(|| unknown("priorities", name))?;
            profile.scores.push((plugin, priority.weight));
        }
    }
    profile.hard_pod_affinity_weight =
        policy.hard_pod_affinity_symmetric_weight.unwrap_or(profile.hard_pod_affinity_weight);
    let mut profiles = vec![profile];
    let extenders = read_extenders(policy.extenders, &mut profiles)?;
    Ok(Config { profiles, extenders, ..base })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_names_stand_for_todays_plugins() {
        let config = read(
            r#"{"kind": "Policy", "apiVersion": "v1",
                "predicates": [{"name": "PodFitsResources"}, {"name": "HostName"}],
                "priorities": [{"name": "MostRequestedPriority", "weight": 7}],
                "extenders": [{"urlPrefix": "http://e", "filterVerb": "f", "httpTimeout": 1000000000}]}"#,
            Config::default(),
        )
        .unwrap();
        assert_eq!(config.extenders[0].filter_verb, "f");
        let profile = &config.profiles[0];
        let filters: Vec<&str> = profile.filters.iter().map(|plugin| plugin.name).collect();
        assert_eq!(filters, ["NodeUnschedulable", "NodeName", "TaintToleration", "NodeResourcesFit"]);
        assert_eq!(profile.scores.len(), 1);
        assert_eq!((profile.scores[0].0.name, profile.scores[0].1), ("NodeResourcesFit", 7));
        assert!(matches!(profile.scoring, ScoringStrategy::MostAllocated(_)));
    }

    #[test]
    fn an_unknown_predicate_is_an_error() {
        let error = read(
            r#"{"kind": "Policy", "apiVersion": "v1", "predicates": [{"name": "Lucky"}]}"#,
            Config::default(),
        );
        assert!(error.map(drop).unwrap_err().to_string().contains("Lucky"));
    }

    #[test]
    fn every_name_leads_to_a_plugin() {
        let named = PREDICATES.iter().flat_map(|(_, names)| names.iter());
        for name in named.chain(PRIORITIES.iter().map(|(_, name)| name)) {
            assert!(plugins::find(name).is_some(), "{name}");
        }
    }
}
