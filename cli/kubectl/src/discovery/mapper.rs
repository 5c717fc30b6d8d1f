//! From what a user types (`po`, `deployments.apps`, `Pod`, `all`) or a manifest says (group,
//! version, kind) to a resource.

use super::{Discovery, Resource};
use crate::error::{Error, Result};

impl Discovery {
    /// The resource a word names: plural, singular, kind or short name, with `.group` or
    /// `.version.group` behind it. Names win over short names, earlier groups over later ones.
    pub fn find(&self, word: &str) -> Result<&Resource> {
        let lower = word.to_lowercase();
        let (resource, qualifier) = lower.split_once('.').unwrap_or((&lower, ""));
        if let Some((version, group)) = qualifier.split_once('.')
            && let Some(found) =
                self.best(resource, |candidate| candidate.group == group && candidate.version == version)
        {
            return Ok(found);
        }
        let found = if qualifier.is_empty() {
            self.best(resource, |_| true)
        } else {
            self.best(resource, |candidate| candidate.group == qualifier)
                .or_else(|| {
                    self.best(resource, |candidate| {
                        candidate.group.is_empty() && candidate.version == qualifier
                    })
                })
                .or_else(|| self.best(resource, |candidate| candidate.group.starts_with(qualifier)))
        };
        found.ok_or_else(|| Error::NoMatch { resource: word.split('.').next().unwrap_or(word).to_owned() })
    }

    /// Other resources a short name could mean, behind the one it does mean.
    pub fn also_matching(&self, word: &str) -> Vec<String> {
        let lower = word.to_lowercase();
        let (short, group) = lower.split_once('.').unwrap_or((&lower, ""));
        let fits = |resource: &&Resource| group.is_empty() || resource.group == group;
        if self
            .resources
            .iter()
            .filter(fits)
            .any(|resource| resource.name == short || resource.singular == short)
        {
            return Vec::new();
        }
        let mut names: Vec<String> = Vec::new();
        for resource in self.resources.iter().filter(fits) {
            if resource.short_names.iter().any(|name| name == short) && !names.contains(&resource.qualified())
            {
                names.push(resource.qualified());
            }
        }
        names.into_iter().skip(1).collect()
    }

    fn best(&self, word: &str, fits: impl Fn(&Resource) -> bool) -> Option<&Resource> {
        let by_name = |resource: &&Resource| {
            (resource.name == word || resource.singular == word || resource.kind.eq_ignore_ascii_case(word))
                && fits(resource)
        };
        let by_short_name =
            |resource: &&Resource| resource.short_names.iter().any(|short| short == word) && fits(resource);
        self.preferring(by_name).or_else(|| self.preferring(by_short_name))
    }

    /// The first match; resources stand in the server's order, preferred versions first.
    fn preferring(&self, fits: impl Fn(&&Resource) -> bool) -> Option<&Resource> {
        self.resources.iter().find(fits)
    }

    /// All resources of a category (`all`), one version each.
    pub fn category(&self, word: &str) -> Vec<&Resource> {
        let mut found: Vec<&Resource> = Vec::new();
        for resource in &self.resources {
            let known = found.iter().any(|seen| seen.group == resource.group && seen.name == resource.name);
            if !known && resource.categories.iter().any(|category| category == word) {
                found.push(resource);
            }
        }
        found
    }

    /// The resource of a manifest's apiVersion and kind.
    pub fn for_kind(&self, api_version: &str, kind: &str) -> Option<&Resource> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.resources
            .iter()
            .find(|resource| resource.group == group && resource.version == version && resource.kind == kind)
    }

    pub fn for_group_kind(&self, group: &str, kind: &str) -> Option<&Resource> {
        self.resources.iter().find(|resource| resource.group == group && resource.kind == kind)
    }

    /// Every resource once, in its preferred version.
    pub fn preferred(&self) -> Vec<&Resource> {
        let mut found: Vec<&Resource> = Vec::new();
        for resource in &self.resources {
            if !found.iter().any(|seen| seen.group == resource.group && seen.name == resource.name) {
                found.push(resource);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(group: &str, version: &str, name: &str, kind: &str, short: &str, category: &str) -> Resource {
        Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            name: name.to_owned(),
            singular: kind.to_lowercase(),
            kind: kind.to_owned(),
            namespaced: true,
            verbs: Vec::new(),
            short_names: vec![short.to_owned()],
            categories: vec![category.to_owned()],
            subresources: Vec::new(),
        }
    }

    fn discovery() -> Discovery {
        Discovery {
            groups: Vec::new(),
            resources: vec![
                resource("", "v1", "pods", "Pod", "po", "all"),
                resource("", "v1", "events", "Event", "ev", ""),
                resource("events.k8s.io", "v1", "events", "Event", "ev", ""),
                resource(
                    "autoscaling",
                    "v2",
                    "horizontalpodautoscalers",
                    "HorizontalPodAutoscaler",
                    "hpa",
                    "all",
                ),
                resource(
                    "autoscaling",
                    "v1",
                    "horizontalpodautoscalers",
                    "HorizontalPodAutoscaler",
                    "hpa",
                    "all",
                ),
                resource("example.com", "v1", "po", "Po", "", ""),
            ],
        }
    }

    #[test]
    fn words_find_resources() {
        let discovery = discovery();
        let check = |word: &str, expected: &str| {
            let found = discovery.find(word).unwrap();
            assert_eq!(format!("{}/{}/{}", found.group, found.version, found.name), expected, "{word}");
        };
        check("pods", "/v1/pods");
        check("Pod", "/v1/pods");
        check("events", "/v1/events");
        check("events.events.k8s.io", "events.k8s.io/v1/events");
        check("hpa", "autoscaling/v2/horizontalpodautoscalers");
        check("hpa.v1.autoscaling", "autoscaling/v1/horizontalpodautoscalers");
        check("horizontalpodautoscalers.auto", "autoscaling/v2/horizontalpodautoscalers");
        // a full name wins over a short one, wherever it comes from
        check("po", "example.com/v1/po");
    }

    #[test]
    fn a_short_name_of_several_resources_is_ambiguous() {
        let discovery = discovery();
        assert_eq!(discovery.also_matching("ev"), ["events.events.k8s.io"]);
        assert!(discovery.also_matching("hpa").is_empty());
        assert!(discovery.also_matching("events").is_empty());
    }

    #[test]
    fn unknown_resource_types_are_named() {
        let discovery = discovery();
        let message = |word: &str| discovery.find(word).unwrap_err().to_string();
        assert_eq!(message("foos"), "the server doesn't have a resource type \"foos\"");
        assert_eq!(message("foos.bar.io"), "the server doesn't have a resource type \"foos\"");
    }

    #[test]
    fn a_category_lists_each_resource_once() {
        let discovery = discovery();
        let names: Vec<String> = discovery.category("all").into_iter().map(Resource::group_version).collect();
        assert_eq!(names, ["v1", "autoscaling/v2"]);
        assert!(discovery.for_kind("autoscaling/v1", "HorizontalPodAutoscaler").is_some());
        assert!(discovery.for_kind("v1", "Nope").is_none());
    }
}
