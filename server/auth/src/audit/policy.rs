//! The audit policy file: the audited requests and their levels.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{API_VERSION, Level, Stage};
use crate::attributes::Attributes;

#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("reading the audit policy {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the audit policy is malformed: {0}")]
    Malformed(String),
}

/// The first rule that matches a request decides.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    api_version: String,
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: serde_json::Value,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GroupResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

/// What the policy says about one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestConfig {
    pub level: Level,
    pub omit_stages: Vec<Stage>,
    pub omit_managed_fields: bool,
}

impl RequestConfig {
    pub fn wants(&self, stage: Stage) -> bool {
        self.level > Level::None && !self.omit_stages.contains(&stage)
    }
}

impl Policy {
    pub fn open(path: &Path) -> Result<Self, PolicyError> {
        let text = std::fs::read_to_string(path);
        Policy::parse(&text.map_err(|source| PolicyError::Read { path: path.to_owned(), source })?)
    }

    pub fn parse(yaml: &str) -> Result<Self, PolicyError> {
        let policy: Policy =
            ferry_api::yaml::one(yaml).map_err(|error| PolicyError::Malformed(error.to_string()))?;
        let problem = if policy.api_version != API_VERSION || policy.kind != "Policy" {
            Some(format!("expected a Policy of {API_VERSION}"))
        } else if policy.rules.is_empty() {
            Some("it has no rules, so that nothing would be written down".to_owned())
        } else {
            policy.rules.iter().find_map(Rule::problem)
        };
        match problem {
            Some(problem) => Err(PolicyError::Malformed(problem)),
            None => Ok(policy),
        }
    }

    pub fn level(&self, attributes: &Attributes<'_>) -> Level {
        self.rules.iter().find(|rule| rule.matches(attributes)).map_or(Level::None, |rule| rule.level)
    }

    pub fn decide(&self, attributes: &Attributes<'_>) -> RequestConfig {
        let rule = self.rules.iter().find(|rule| rule.matches(attributes));
        let mut omit_stages = self.omit_stages.clone();
        omit_stages.extend(rule.iter().flat_map(|rule| &rule.omit_stages));
        RequestConfig {
            level: rule.map_or(Level::None, |rule| rule.level),
            omit_stages,
            omit_managed_fields: rule
                .and_then(|rule| rule.omit_managed_fields)
                .unwrap_or(self.omit_managed_fields),
        }
    }
}

impl Rule {
    fn problem(&self) -> Option<String> {
        let about_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        if about_resources && !self.non_resource_urls.is_empty() {
            return Some("a rule cannot apply to both resources and non-resource URLs".to_owned());
        }
        let bad_url = |url: &&String| *url != "*" && !url.starts_with('/');
        if let Some(url) = self.non_resource_urls.iter().find(bad_url) {
            return Some(format!("non-resource URL {url} does not start with /"));
        }
        let names_alone =
            |group: &&GroupResources| group.resources.is_empty() && !group.resource_names.is_empty();
        let names_alone = self.resources.iter().find(names_alone);
        names_alone.map(|_| "using resourceNames requires at least one resource".to_owned())
    }

    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        let has = |list: &[String], item: &str| list.iter().any(|entry| entry == item);
        let user = attributes.user;
        if !self.users.is_empty() && !has(&self.users, &user.name) {
            return false;
        }
        if !self.user_groups.is_empty() && !user.groups.iter().any(|group| has(&self.user_groups, group)) {
            return false;
        }
        if !self.verbs.is_empty() && !has(&self.verbs, attributes.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            let namespace_fits = self.namespaces.is_empty() || has(&self.namespaces, attributes.namespace);
            let resource_fits = self.resources.is_empty()
                || self.resources.iter().any(|resources| resources.include(attributes));
            return attributes.is_resource_request && namespace_fits && resource_fits;
        }
        if !self.non_resource_urls.is_empty() {
            let fits = |url: &String| {
                url == attributes.path
                    || url.ends_with('*') && attributes.path.starts_with(url.trim_end_matches('*'))
            };
            return !attributes.is_resource_request && self.non_resource_urls.iter().any(fits);
        }
        true
    }
}

impl GroupResources {
    fn include(&self, attributes: &Attributes<'_>) -> bool {
        if self.group != "*" && self.group != attributes.api_group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        let names = &self.resource_names;
        if !names.is_empty() && !names.iter().any(|name| name == attributes.name) {
            return false;
        }
        self.resources.iter().any(|written| match written.split_once('/') {
            None => written == "*" || written == attributes.resource && attributes.subresource.is_empty(),
            Some(("*", subresource)) => {
                !attributes.subresource.is_empty() && subresource == attributes.subresource
            }
            Some((resource, "*")) => resource == attributes.resource,
            Some((resource, subresource)) => {
                resource == attributes.resource && subresource == attributes.subresource
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::User;

    const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: None
  users: ["system:kube-proxy"]
  verbs: [watch]
  resources: [{group: "", resources: [endpoints, services]}]
- level: None
  userGroups: ["system:authenticated"]
  nonResourceURLs: ["/api*", /version]
- level: Request
  resources: [{group: "", resources: [configmaps], resourceNames: [leader]}]
  namespaces: [kube-system]
  omitManagedFields: false
- level: Metadata
  resources: [{group: "", resources: [secrets, "pods/*"]}, {group: "*", resources: ["*/scale"]}]
- level: RequestResponse
  resources: [{group: apps}]
  omitStages: [ResponseStarted]
- level: Metadata
  verbs: [delete]
"#;

    fn check(user: &User, request: &str, expected: Level) {
        let policy = Policy::parse(POLICY).unwrap();
        let words: Vec<&str> = request.split(' ').map(|word| if word == "-" { "" } else { word }).collect();
        let word = |index: usize| words.get(index).copied().unwrap_or("");
        let attributes = if word(1).starts_with('/') {
            Attributes::path(user, word(0), word(1))
        } else {
            let (resource, subresource) = word(2).split_once('/').unwrap_or((word(2), ""));
            Attributes {
                subresource,
                namespace: word(3),
                name: word(4),
                ..Attributes::resource(user, word(0), word(1), resource)
            }
        };
        assert_eq!(policy.level(&attributes), expected, "{request}");
        assert_eq!(policy.decide(&attributes).level, expected);
    }

    #[test]
    fn the_first_matching_rule_sets_the_level() {
        let user = User::new("jane").with_groups(["system:authenticated"]);
        let proxy = User::new("system:kube-proxy");
        check(&proxy, "watch - services", Level::None);
        check(&proxy, "delete - services", Level::Metadata);
        check(&user, "get /api/v1", Level::None);
        check(&user, "get /metrics", Level::None);
        check(&proxy, "delete /api", Level::Metadata);
        check(&user, "update - configmaps kube-system leader", Level::Request);
        check(&user, "update - configmaps kube-system other", Level::None);
        check(&user, "update - configmaps default leader", Level::None);
        check(&user, "get - secrets ns x", Level::Metadata);
        check(&user, "create - pods/exec ns x", Level::Metadata);
        check(&user, "get - pods ns x", Level::Metadata);
        check(&user, "get - secrets/x ns x", Level::None);
        check(&user, "update x deployments/scale ns x", Level::Metadata);
        check(&user, "update apps deployments ns x", Level::RequestResponse);
        check(&user, "get batch jobs ns x", Level::None);
        check(&user, "delete batch jobs ns x", Level::Metadata);
    }

    #[test]
    fn omissions_come_from_the_policy_and_the_rule() {
        let policy = Policy::parse(POLICY).unwrap();
        let user = User::new("jane");
        let config = policy.decide(&Attributes::resource(&user, "get", "apps", "deployments"));
        assert_eq!(config.omit_stages, [Stage::RequestReceived, Stage::ResponseStarted]);
        assert!(config.omit_managed_fields && config.wants(Stage::ResponseComplete));
        assert!(!config.wants(Stage::RequestReceived) && !config.wants(Stage::ResponseStarted));
        let leader = Attributes {
            namespace: "kube-system",
            name: "leader",
            ..Attributes::resource(&user, "get", "", "configmaps")
        };
        assert!(!policy.decide(&leader).omit_managed_fields);
        let nothing = policy.decide(&Attributes::resource(&user, "get", "batch", "jobs"));
        assert!(!nothing.wants(Stage::ResponseComplete) && !nothing.wants(Stage::Panic));
    }

    #[test]
    fn a_policy_that_cannot_work_is_refused() {
        let rules = |rules: &str| format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: {rules}\n");
        for bad in [
            rules("[]"),
            rules("[{level: Everything}]"),
            rules("[{level: None, verb: [get]}]"),
            rules("[{level: None, omitStages: [Never]}]"),
            rules("[{level: None, nonResourceURLs: [api]}]"),
            rules("[{level: None, nonResourceURLs: [/api], namespaces: [x]}]"),
            rules("[{level: None, resources: [{resourceNames: [x]}]}]"),
            "apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]".to_owned(),
            "nonsense".to_owned(),
        ] {
            assert!(Policy::parse(&bad).is_err(), "{bad}");
        }
        assert!(Policy::parse(&rules("[{level: None}]")).is_ok());
    }
}
