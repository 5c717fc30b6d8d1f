//! KubeSchedulerConfiguration v1 (`--config`): profiles, plugins, weights and their arguments.
//!
//! Read strictly: a field or plugin that is not known is an error, since a setting that is
//! silently dropped is worse than a scheduler that does not start.

use std::collections::BTreeMap;
use std::time::Duration;

use ferry_api::yaml::{self, BadDocument};
use ferry_client::leader::Election;
use k8s_openapi::api::core::v1::{NodeAffinity, TopologySpreadConstraint};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::Config;
use crate::extender;
use crate::plugins;
use crate::profile::{DefaultSpread, Profile, ScoringStrategy};
use crate::queue::Backoff;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FileError {
    #[error("the configuration is no YAML: {0}")]
    Yaml(String),
    #[error("expected one {0}, found {1} documents")]
    Documents(&'static str, usize),
    #[error("{0}")]
    Malformed(String),
    #[error("no kind {kind:?} is registered for version {version:?}")]
    Kind { kind: String, version: String },
    #[error("{path}: unknown plugin {name:?}")]
    UnknownPlugin { path: String, name: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    parallelism: Option<usize>,
    leader_election: Option<LeaderElection>,
    #[serde(rename = "clientConnection")]
    _client_connection: Option<Value>,
    percentage_of_nodes_to_score: Option<u32>,
    pod_initial_backoff_seconds: Option<u64>,
    pod_max_backoff_seconds: Option<u64>,
    #[serde(default)]
    profiles: Vec<FileProfile>,
    #[serde(default)]
    extenders: Vec<FileExtender>,
    #[serde(rename = "enableProfiling")]
    _enable_profiling: Option<bool>,
    #[serde(rename = "enableContentionProfiling")]
    _enable_contention_profiling: Option<bool>,
    #[serde(rename = "delayCacheUntilActive")]
    _delay_cache_until_active: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LeaderElection {
    leader_elect: Option<bool>,
    lease_duration: Option<String>,
    renew_deadline: Option<String>,
    retry_period: Option<String>,
    #[serde(rename = "resourceLock")]
    _resource_lock: Option<String>,
    resource_name: Option<String>,
    resource_namespace: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileProfile {
    scheduler_name: Option<String>,
    percentage_of_nodes_to_score: Option<u32>,
    #[serde(default)]
    plugins: BTreeMap<String, PluginSet>,
    #[serde(default)]
    plugin_config: Vec<PluginConfig>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginSet {
    #[serde(default)]
    enabled: Vec<PluginName>,
    #[serde(default)]
    disabled: Vec<PluginName>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginName {
    name: String,
    weight: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginConfig {
    name: String,
    args: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct FileExtender {
    url_prefix: String,
    #[serde(default)]
    filter_verb: String,
    #[serde(default)]
    prioritize_verb: String,
    #[serde(default)]
    bind_verb: String,
    #[serde(default)]
    preempt_verb: String,
    #[serde(default)]
    weight: i64,
    /// The address says it already.
    #[serde(rename = "enableHTTPS", alias = "enableHttps")]
    enable_https: Option<bool>,
    tls_config: Option<FileTls>,
    #[serde(rename = "httpTimeout")]
    timeout: Option<FileDuration>,
    #[serde(default)]
    node_cache_capable: bool,
    #[serde(default)]
    managed_resources: Vec<ManagedResource>,
    #[serde(default)]
    ignorable: bool,
}

/// Text as `5s`, or nanoseconds as the older policy files have them.
#[derive(Deserialize)]
#[serde(untagged)]
enum FileDuration {
    Text(String),
    Nanoseconds(u64),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileTls {
    #[serde(default)]
    insecure: bool,
    server_name: Option<String>,
    cert_file: Option<String>,
    key_file: Option<String>,
    ca_file: Option<String>,
    cert_data: Option<String>,
    key_data: Option<String>,
    ca_data: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ManagedResource {
    name: String,
    #[serde(default)]
    ignored_by_scheduler: bool,
}

impl FileExtender {
    fn settings(self) -> Result<extender::Settings, FileError> {
        let mut tls = self.tls_config.map_or_else(extender::Tls::default, |file| extender::Tls {
            insecure: file.insecure,
            server_name: file.server_name,
            cert_file: file.cert_file,
            key_file: file.key_file,
            ca_file: file.ca_file,
            cert_data: file.cert_data,
            key_data: file.key_data,
            ca_data: file.ca_data,
        });
        // as upstream: who asks for TLS and names no authority believes whoever answers
        tls.insecure |= self.enable_https == Some(true) && tls.ca_file.is_none() && tls.ca_data.is_none();
        let timeout = match self.timeout {
            Some(FileDuration::Text(text)) => Some(read_duration(&text)?),
            Some(FileDuration::Nanoseconds(nanoseconds)) => Some(Duration::from_nanos(nanoseconds)),
            None => None,
        };
        Ok(extender::Settings {
            url_prefix: self.url_prefix,
            filter_verb: self.filter_verb,
            prioritize_verb: self.prioritize_verb,
            bind_verb: self.bind_verb,
            preempt_verb: self.preempt_verb,
            weight: self.weight,
            tls,
            timeout: timeout.filter(|timeout| !timeout.is_zero()),
            node_cache_capable: self.node_cache_capable,
            managed_resources: self.managed_resources.into_iter().map(|own| own.name).collect(),
            ignorable: self.ignorable,
        })
    }
}

/// The extension points a plugin can be named at, in the file's words.
const POINTS: [&str; 13] = [
    "multiPoint",
    "preEnqueue",
    "queueSort",
    "preFilter",
    "filter",
    "postFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "bind",
    "postBind",
];

/// Reads a configuration; what it does not say stays as in `base`.
pub fn read(text: &str, base: Config) -> Result<Config, FileError> {
    let file: File = parse(text, "KubeSchedulerConfiguration")?;
    if file.kind != "KubeSchedulerConfiguration" || file.api_version != "kubescheduler.config.k8s.io/v1" {
        return Err(FileError::Kind { kind: file.kind, version: file.api_version });
    }
    let seconds = |seconds: Option<u64>, default: Duration| seconds.map_or(default, Duration::from_secs);
    let backoff = Backoff {
        initial: seconds(file.pod_initial_backoff_seconds, base.backoff.initial),
        max: seconds(file.pod_max_backoff_seconds, base.backoff.max),
        ..base.backoff
    };
    let profiles: Result<Vec<Profile>, FileError> =
        file.profiles.iter().enumerate().map(|(at, profile)| read_profile(at, profile)).collect();
    let mut profiles = profiles?;
    if profiles.is_empty() {
        profiles = base.profiles;
    }
    let extenders = read_extenders(file.extenders, &mut profiles)?;
    Ok(Config {
        profiles,
        extenders,
        leader_election: read_election(file.leader_election, base.leader_election, &base.instance)?,
        percentage_of_nodes_to_score: file.percentage_of_nodes_to_score.or(base.percentage_of_nodes_to_score),
        parallelism: file.parallelism.unwrap_or(base.parallelism),
        backoff,
        ..base
    })
}

/// What the plugins are told of the extenders goes into the profiles.
pub(crate) fn read_extenders(
    file: Vec<FileExtender>,
    profiles: &mut [Profile],
) -> Result<Vec<extender::Settings>, FileError> {
    let mut extenders = Vec::new();
    for extender in file {
        for resource in extender.managed_resources.iter().filter(|own| own.ignored_by_scheduler) {
            for profile in profiles.iter_mut() {
                profile.ignored_resources.push(resource.name.clone());
            }
        }
        extenders.push(extender.settings()?);
    }
    Ok(extenders)
}

/// One document of YAML or JSON as a type.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, what: &'static str) -> Result<T, FileError> {
    yaml::one(text).map_err(|error| match error {
        BadDocument::Yaml(error) => FileError::Yaml(error.to_string()),
        BadDocument::Count(count) => FileError::Documents(what, count),
        BadDocument::Type(error) => FileError::Malformed(error.to_string()),
    })
}

fn read_election(
    file: Option<LeaderElection>,
    base: Option<Election>,
    instance: &str,
) -> Result<Option<Election>, FileError> {
    let Some(file) = file else { return Ok(base) };
    if file.leader_elect == Some(false) {
        return Ok(None);
    }
    let mut election = base.unwrap_or_else(|| Election::new("kube-system", "kube-scheduler", instance));
    election.name = file.resource_name.unwrap_or(election.name);
    election.namespace = file.resource_namespace.unwrap_or(election.namespace);
    for (text, duration) in [
        (file.lease_duration, &mut election.lease_duration),
        (file.renew_deadline, &mut election.renew_deadline),
        (file.retry_period, &mut election.retry_period),
    ] {
        if let Some(text) = text {
            *duration = read_duration(&text)?;
        }
    }
    Ok(Some(election))
}

fn read_duration(text: &str) -> Result<Duration, FileError> {
    let invalid = || FileError::Malformed(format!("invalid duration {text:?}"));
    let span: jiff::SignedDuration = text.parse().map_err(|_| invalid())?;
    Duration::try_from(span).map_err(|_| invalid())
}

fn read_profile(at: usize, file: &FileProfile) -> Result<Profile, FileError> {
    let mut profile = Profile::named(file.scheduler_name.as_deref().unwrap_or("default-scheduler"));
    profile.percentage_of_nodes_to_score = file.percentage_of_nodes_to_score;
    if let Some(unknown) = file.plugins.keys().find(|point| !POINTS.contains(&point.as_str())) {
        return Err(FileError::Malformed(format!("profiles[{at}].plugins: unknown field {unknown:?}")));
    }
    // the points in their order, so that a point has the last word over multiPoint
    for point in POINTS {
        let Some(set) = file.plugins.get(point) else { continue };
        let (filters, scores, room) = match point {
            "multiPoint" => (true, true, true),
            "filter" => (true, false, false),
            "score" => (false, true, false),
            "postFilter" => (false, false, true),
            _ => (false, false, false),
        };
        for plugin in &set.disabled {
            let every = plugin.name == "*";
            let is = |name: &str| every || name == plugin.name;
            if filters {
                profile.filters.retain(|own| !is(own.name));
            }
            if scores {
                profile.scores.retain(|(own, _)| !is(own.name));
            }
            if room && is("DefaultPreemption") {
                profile.preempts = false;
            }
        }
        for plugin in &set.enabled {
            let path = || format!("profiles[{at}].plugins.{point}.enabled");
            let row = plugins::find(&plugin.name)
                .ok_or_else(|| FileError::UnknownPlugin { path: path(), name: plugin.name.clone() })?;
            if filters && row.filter.is_some() && !profile.filters.iter().any(|own| own.name == row.name) {
                profile.filters.push(row);
            }
            if scores && row.score.is_some() {
                let weight = plugin.weight.filter(|weight| *weight != 0).unwrap_or(row.weight.max(1));
                profile.scores.retain(|(own, _)| own.name != row.name);
                profile.scores.push((row, weight));
            }
            profile.preempts |= room && row.name == "DefaultPreemption";
        }
    }
    for config in &file.plugin_config {
        read_arguments(at, &mut profile, config)?;
    }
    Ok(profile)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FitArguments {
    #[serde(rename = "apiVersion")]
    _api_version: Option<String>,
    #[serde(rename = "kind")]
    _kind: Option<String>,
    #[serde(default)]
    ignored_resources: Vec<String>,
    #[serde(default)]
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<FileStrategy>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileStrategy {
    #[serde(rename = "type")]
    kind: String,
    resources: Option<Vec<FileResource>>,
    requested_to_capacity_ratio: Option<FileRatio>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileResource {
    name: String,
    weight: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRatio {
    shape: Vec<FilePoint>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePoint {
    utilization: i64,
    score: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OtherArguments {
    #[serde(rename = "apiVersion")]
    _api_version: Option<String>,
    #[serde(rename = "kind")]
    _kind: Option<String>,
    resources: Option<Vec<FileResource>>,
    added_affinity: Option<NodeAffinity>,
    hard_pod_affinity_weight: Option<i64>,
    ignore_preferred_terms_of_existing_pods: Option<bool>,
    min_candidate_nodes_percentage: Option<usize>,
    min_candidate_nodes_absolute: Option<usize>,
    defaulting_type: Option<String>,
    #[serde(default)]
    default_constraints: Vec<TopologySpreadConstraint>,
}

fn read_arguments(at: usize, profile: &mut Profile, config: &PluginConfig) -> Result<(), FileError> {
    let path = format!("profiles[{at}].pluginConfig[{}].args", config.name);
    let malformed = |error: serde_json::Error| FileError::Malformed(format!("{path}: {error}"));
    if config.name == "NodeResourcesFit" {
        let arguments: FitArguments = serde_json::from_value(config.args.clone()).map_err(malformed)?;
        profile.ignored_resources = arguments.ignored_resources;
        profile.ignored_resources.extend(arguments.ignored_resource_groups);
        if let Some(strategy) = arguments.scoring_strategy {
            profile.scoring = read_strategy(strategy, &path)?;
        }
        return Ok(());
    }
    if plugins::find(&config.name).is_none() {
        return Err(FileError::UnknownPlugin { path, name: config.name.clone() });
    }
    let arguments: OtherArguments = serde_json::from_value(config.args.clone()).map_err(malformed)?;
    if let Some(resources) = arguments.resources {
        profile.balanced_resources = resources.into_iter().map(|resource| resource.name).collect();
    }
    if let Some(affinity) = arguments.added_affinity {
        profile.added_affinity = affinity.required_during_scheduling_ignored_during_execution;
    }
    profile.hard_pod_affinity_weight =
        arguments.hard_pod_affinity_weight.unwrap_or(profile.hard_pod_affinity_weight);
    profile.ignore_preferred_terms_of_existing_pods |=
        arguments.ignore_preferred_terms_of_existing_pods.unwrap_or(false);
    profile.min_candidate_nodes_percentage =
        arguments.min_candidate_nodes_percentage.unwrap_or(profile.min_candidate_nodes_percentage);
    profile.min_candidate_nodes_absolute =
        arguments.min_candidate_nodes_absolute.unwrap_or(profile.min_candidate_nodes_absolute);
    if config.name == "PodTopologySpread" {
        let (constraints, has) = (arguments.default_constraints, "defaultConstraints");
        profile.default_spread = match arguments.defaulting_type.as_deref() {
            None | Some("System") if constraints.is_empty() => DefaultSpread::System,
            Some("System") => {
                return Err(FileError::Malformed(format!("{path}: {has} must be empty with type System")));
            }
            None | Some("List") if constraints.iter().any(|own| own.label_selector.is_some()) => {
                return Err(FileError::Malformed(format!("{path}: {has} must not have a labelSelector")));
            }
            None | Some("List") => DefaultSpread::List(constraints),
            Some(other) => {
                return Err(FileError::Malformed(format!("{path}: defaultingType {other:?} is not known")));
            }
        };
    }
    Ok(())
}

fn read_strategy(strategy: FileStrategy, path: &str) -> Result<ScoringStrategy, FileError> {
    let resources = match strategy.resources {
        None => vec![("cpu".into(), 1), ("memory".into(), 1)],
        Some(resources) => resources.into_iter().map(|r| (r.name, r.weight.unwrap_or(1))).collect(),
    };
    match (&*strategy.kind, strategy.requested_to_capacity_ratio) {
        ("LeastAllocated", _) => Ok(ScoringStrategy::LeastAllocated(resources)),
        ("MostAllocated", _) => Ok(ScoringStrategy::MostAllocated(resources)),
        ("RequestedToCapacityRatio", Some(ratio)) => {
            // scores in the file go up to 10
            let shape: Vec<(i64, i64)> =
                ratio.shape.iter().map(|point| (point.utilization, point.score * 10)).collect();
            let rising = shape.windows(2).all(|pair| pair[0].0 < pair[1].0);
            let within = shape.iter().all(|(x, y)| (0..=100).contains(x) && (0..=100).contains(y));
            if shape.is_empty() || !rising || !within {
                return Err(FileError::Malformed(format!("{path}: shape must rise within 0-100 and 0-10")));
            }
            Ok(ScoringStrategy::RequestedToCapacityRatio { resources, shape })
        }
        (kind, _) => Err(FileError::Malformed(format!("{path}: unsupported scoring strategy {kind:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

    fn config(rest: &str) -> Result<Config, FileError> {
        read(&format!("{HEAD}{rest}"), Config::default())
    }

    #[test]
    fn profiles_plugins_and_weights() {
        let config = config(
            "podMaxBackoffSeconds: 20\nprofiles:\n- schedulerName: packed\n  plugins:\n    score:\n      disabled:\n      - name: '*'\n      enabled:\n      - name: NodeResourcesFit\n        weight: 5\n    multiPoint:\n      disabled:\n      - name: NodePorts\n  pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      scoringStrategy:\n        type: MostAllocated\n        resources:\n        - name: cpu\n          weight: 2\n",
        )
        .unwrap();
        let profile = &config.profiles[0];
        assert_eq!((profile.name, config.backoff.max), ("packed", Duration::from_secs(20)));
        let scores: Vec<(&str, i64)> = profile.scores.iter().map(|(p, weight)| (p.name, *weight)).collect();
        assert_eq!(scores, [("NodeResourcesFit", 5)]);
        assert!(!profile.runs("NodePorts") && profile.runs("NodeAffinity"));
        assert_eq!(profile.scoring, ScoringStrategy::MostAllocated(vec![("cpu".into(), 2)]));
    }

    #[test]
    fn extenders_with_what_the_plugins_shall_not_count() {
        let config = config(
            "extenders:\n- urlPrefix: https://gpu.example/api\n  filterVerb: filter\n  prioritizeVerb: rank\n  weight: 3\n  enableHTTPS: true\n  httpTimeout: 200ms\n  nodeCacheCapable: true\n  ignorable: true\n  tlsConfig:\n    caFile: /ca.pem\n  managedResources:\n  - name: example.com/gpu\n    ignoredByScheduler: true\n",
        )
        .unwrap();
        let extender = &config.extenders[0];
        assert_eq!((&*extender.prioritize_verb, extender.weight), ("rank", 3));
        assert_eq!(extender.timeout, Some(Duration::from_millis(200)));
        assert_eq!(extender.tls.ca_file.as_deref(), Some("/ca.pem"));
        assert!(extender.node_cache_capable && extender.ignorable);
        assert_eq!(config.profiles[0].ignored_resources, ["example.com/gpu"]);
    }

    #[test]
    fn unknown_scheduler_configuration_is_an_error() {
        let fails = |rest: &str, words: &str| {
            let error = config(rest).map(drop).unwrap_err().to_string();
            assert!(error.contains(words), "{rest}: {error}");
        };
        fails("colour: red\n", "colour");
        fails("profiles:\n- plugins:\n    filter:\n      enabled:\n      - name: Nonsense\n", "Nonsense");
        fails("profiles:\n- plugins:\n    nowhere: {}\n", "nowhere");
        fails(
            "profiles:\n- pluginConfig:\n  - name: NodeResourcesFit\n    args: {scoringStrategy: {type: Best}}\n",
            "Best",
        );
        fails("extenders:\n- urlPrefix: http://localhost\n  filterverb: f\n", "filterverb");
        fails("extenders:\n- urlPrefix: http://localhost\n  httpTimeout: soon\n", "soon");
        assert!(read("kind: Policy\napiVersion: v1\n", Config::default()).is_err());
    }
}
