//! A profile: which plugins judge the pods of one `schedulerName`, and with what settings.

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{NodeSelector, TopologySpreadConstraint};

use crate::plugins::{PLUGINS, Plugin};
use crate::resources::{CPU, MEMORY};
use crate::snapshot::{HOSTNAME, ZONE};

#[derive(Clone)]
pub struct Profile {
    /// The pods' `schedulerName`.
    pub name: &'static str,
    pub filters: Vec<&'static Plugin>,
    /// With the weight of each.
    pub scores: Vec<(&'static Plugin, i64)>,
    pub preempts: bool,
    /// How many of the nodes are looked at before the best is taken, in percent; None: fewer the
    /// more there are.
    pub percentage_of_nodes_to_score: Option<u32>,
    pub scoring: ScoringStrategy,
    pub ignored_resources: Vec<String>,
    pub balanced_resources: Vec<String>,
    /// Required of every pod of the profile, besides its own affinity.
    pub added_affinity: Option<NodeSelector>,
    pub hard_pod_affinity_weight: i64,
    pub ignore_preferred_terms_of_existing_pods: bool,
    /// How many nodes preemption looks at: this share of them, but at least so many.
    pub min_candidate_nodes_percentage: usize,
    pub min_candidate_nodes_absolute: usize,
    pub default_spread: DefaultSpread,
}

/// How pods spread that say nothing of it themselves, but belong to a service or a workload.
#[derive(Clone, Debug, PartialEq)]
pub enum DefaultSpread {
    /// Over nodes and zones where there is a choice; also where nodes have no zone.
    System,
    List(Vec<TopologySpreadConstraint>),
}

impl DefaultSpread {
    pub fn constraints(&self) -> &[TopologySpreadConstraint] {
        static SYSTEM: LazyLock<[TopologySpreadConstraint; 2]> = LazyLock::new(|| {
            [(HOSTNAME, 3), (ZONE, 5)].map(|(topology_key, max_skew)| TopologySpreadConstraint {
                topology_key: topology_key.into(),
                max_skew,
                when_unsatisfiable: "ScheduleAnyway".into(),
                ..TopologySpreadConstraint::default()
            })
        });
        match self {
            DefaultSpread::System => &*SYSTEM,
            DefaultSpread::List(constraints) => constraints,
        }
    }
}

/// How NodeResourcesFit compares nodes, over resources with weights.
#[derive(Clone, Debug, PartialEq)]
pub enum ScoringStrategy {
    LeastAllocated(Vec<(String, i64)>),
    MostAllocated(Vec<(String, i64)>),
    /// `shape`: points of (utilization in percent, score from 0 to 100).
    RequestedToCapacityRatio {
        resources: Vec<(String, i64)>,
        shape: Vec<(i64, i64)>,
    },
}

impl Default for Profile {
    fn default() -> Self {
        Profile::named("default-scheduler")
    }
}

impl Profile {
    /// Upstream's default plugins and settings. Names live as long as the process, as the trace
    /// and events of what they did do; there are as many as profiles.
    pub fn named(name: &str) -> Self {
        Profile {
            name: String::leak(name.to_owned()),
            filters: PLUGINS.iter().filter(|plugin| plugin.filter.is_some()).collect(),
            scores: PLUGINS.iter().filter(|p| p.score.is_some()).map(|p| (p, p.weight)).collect(),
            preempts: true,
            percentage_of_nodes_to_score: None,
            scoring: ScoringStrategy::LeastAllocated(vec![(CPU.into(), 1), (MEMORY.into(), 1)]),
            ignored_resources: Vec::new(),
            balanced_resources: vec![CPU.into(), MEMORY.into()],
            added_affinity: None,
            hard_pod_affinity_weight: 1,
            ignore_preferred_terms_of_existing_pods: false,
            min_candidate_nodes_percentage: 10,
            min_candidate_nodes_absolute: 100,
            default_spread: DefaultSpread::System,
        }
    }

    /// Whether the profile runs a plugin of this name, at any point.
    pub fn runs(&self, name: &str) -> bool {
        self.filters.iter().chain(self.scores.iter().map(|(plugin, _)| plugin)).any(|p| p.name == name)
    }
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let filters: Vec<&str> = self.filters.iter().map(|plugin| plugin.name).collect();
        let scores: Vec<(&str, i64)> = self.scores.iter().map(|(p, weight)| (p.name, *weight)).collect();
        f.debug_struct("Profile")
            .field("name", &self.name)
            .field("filters", &filters)
            .field("scores", &scores)
            .finish_non_exhaustive()
    }
}
