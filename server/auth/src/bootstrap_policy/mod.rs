//! The bootstrap roles and bindings.
//!
//! `policy.txt` holds upstream's as a table, `own.txt` those of Ferry's own paths; [`policy`] reads both,
//! [`reconcile::plan`] says what an existing cluster lacks. Aggregated roles (`admin`, `edit`, `view`) are left empty here: a
//! controller fills them.

pub mod reconcile;

use std::collections::BTreeMap;

use k8s_openapi::{
    api::rbac::v1::{
        AggregationRule, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};

use crate::authorize::rbac::GROUP;

/// Says whether Ferry may keep a role or binding complete: "true" on ours, "false" to opt out.
pub const AUTO_UPDATE_ANNOTATION: &str = "rbac.authorization.kubernetes.io/autoupdate";
const BOOTSTRAPPING_LABEL: &str = "kubernetes.io/bootstrapping";
const AGGREGATE_LABEL_PREFIX: &str = "rbac.authorization.k8s.io/aggregate-to-";

const TABLE: &str = include_str!("policy.txt");
const OWN: &str = include_str!("own.txt");

/// A set of RBAC objects: those wanted, or those that exist.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    pub cluster_roles: Vec<ClusterRole>,
    pub cluster_role_bindings: Vec<ClusterRoleBinding>,
    pub roles: Vec<Role>,
    pub role_bindings: Vec<RoleBinding>,
}

/// The built-in policy.
pub fn policy() -> Policy {
    let all = [TABLE, OWN].concat();
    parse(&all).expect("the built-in tables are well formed, as a test makes sure")
}

/// Reads the format that the head of `policy.txt` explains.
fn parse(table: &str) -> Result<Policy, String> {
    let mut policy = Policy::default();
    let mut block: Option<(&str, Vec<&str>)> = None;
    for line in table.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        if line.starts_with(' ') {
            let (_, rows) = block.as_mut().ok_or_else(|| format!("row outside of a block: {line}"))?;
            rows.push(line);
        } else if let Some((head, rows)) = block.replace((line, Vec::new())) {
            add_object(&mut policy, head, &rows)?;
        }
    }
    if let Some((head, rows)) = block {
        add_object(&mut policy, head, &rows)?;
    }
    Ok(policy)
}

fn add_object(policy: &mut Policy, head: &str, rows: &[&str]) -> Result<(), String> {
    let head = Head::parse(head)?;
    let metadata = head.metadata();
    match head.kind {
        "ClusterRole" => policy.cluster_roles.push(ClusterRole {
            metadata,
            aggregation_rule: head.gathers.map(gather),
            rules: if head.gathers.is_some() { None } else { Some(rules(rows)?) },
        }),
        "Role" => policy.roles.push(Role { metadata, rules: Some(rules(rows)?) }),
        "ClusterRoleBinding" => policy.cluster_role_bindings.push(ClusterRoleBinding {
            metadata,
            role_ref: head.role_ref("ClusterRole"),
            subjects: subjects(rows)?,
        }),
        "RoleBinding" => policy.role_bindings.push(RoleBinding {
            metadata,
            role_ref: head.role_ref("Role"),
            subjects: subjects(rows)?,
        }),
        other => return Err(format!("unknown kind {other}")),
    }
    Ok(())
}

/// The first line of a block: kind, name, and pairs of a keyword and its word.
#[derive(Default)]
struct Head<'a> {
    kind: &'a str,
    name: &'a str,
    namespace: Option<&'a str>,
    role: Option<&'a str>,
    part_of: Option<&'a str>,
    gathers: Option<&'a str>,
}

impl<'a> Head<'a> {
    fn parse(line: &'a str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let (Some(kind), Some(name)) = (words.next(), words.next()) else {
            return Err(format!("expected a kind and a name: {line}"));
        };
        let mut head = Head { kind, name, ..Head::default() };
        while let Some(keyword) = words.next() {
            let slot = match keyword {
                "in" => &mut head.namespace,
                "to" => &mut head.role,
                "part-of" => &mut head.part_of,
                "gathers" => &mut head.gathers,
                other => return Err(format!("unknown keyword {other}: {line}")),
            };
            *slot = Some(words.next().ok_or_else(|| format!("{keyword} lacks its word: {line}"))?);
        }
        Ok(head)
    }

    fn metadata(&self) -> ObjectMeta {
        let mut labels = BTreeMap::from([(BOOTSTRAPPING_LABEL.to_owned(), "rbac-defaults".to_owned())]);
        labels.extend(self.part_of.map(aggregate_label));
        ObjectMeta {
            name: Some(self.name.to_owned()),
            namespace: self.namespace.map(str::to_owned),
            labels: Some(labels),
            annotations: Some(BTreeMap::from([(AUTO_UPDATE_ANNOTATION.to_owned(), "true".to_owned())])),
            ..ObjectMeta::default()
        }
    }

    fn role_ref(&self, kind: &str) -> RoleRef {
        RoleRef {
            api_group: Some(GROUP.to_owned()),
            kind: kind.to_owned(),
            name: self.role.unwrap_or(self.name).to_owned(),
        }
    }
}

fn aggregate_label(set: &str) -> (String, String) {
    (format!("{AGGREGATE_LABEL_PREFIX}{set}"), "true".to_owned())
}

fn gather(set: &str) -> AggregationRule {
    let selector = LabelSelector {
        match_labels: Some(BTreeMap::from([aggregate_label(set)])),
        ..LabelSelector::default()
    };
    AggregationRule { cluster_role_selectors: Some(vec![selector]) }
}

fn rules(rows: &[&str]) -> Result<Vec<PolicyRule>, String> {
    rows.iter().map(|row| rule(row)).collect()
}

fn rule(row: &str) -> Result<PolicyRule, String> {
    let list = |words: &str| words.split(',').map(str::to_owned).collect::<Vec<_>>();
    let group = |word: &str| if word == "core" { String::new() } else { word.to_owned() };
    match *row.split_whitespace().collect::<Vec<_>>().as_slice() {
        [verbs, paths] => Ok(PolicyRule {
            verbs: list(verbs),
            non_resource_urls: Some(list(paths)),
            ..PolicyRule::default()
        }),
        [verb_words, group_words, resources, ref names @ ..] if names.len() <= 1 => Ok(PolicyRule {
            verbs: verbs(verb_words),
            api_groups: Some(group_words.split(',').map(group).collect()),
            resources: Some(list(resources)),
            resource_names: names.first().map(|names| list(names)),
            ..PolicyRule::default()
        }),
        _ => Err(format!("expected two to four columns: {row}")),
    }
}

fn verbs(words: &str) -> Vec<String> {
    let words = match words {
        "read" => "get,list,watch",
        "write" => "create,delete,deletecollection,patch,update",
        "all" => "create,delete,deletecollection,get,list,patch,update,watch",
        other => other,
    };
    words.split(',').map(str::to_owned).collect()
}

fn subjects(rows: &[&str]) -> Result<Option<Vec<Subject>>, String> {
    let subjects: Vec<Subject> = rows.iter().map(|row| subject(row)).collect::<Result<_, _>>()?;
    Ok(Some(subjects).filter(|subjects| !subjects.is_empty()))
}

fn subject(row: &str) -> Result<Subject, String> {
    let named = |kind: &str, name: &str| Subject {
        api_group: Some(GROUP.to_owned()),
        kind: kind.to_owned(),
        name: name.to_owned(),
        namespace: None,
    };
    match *row.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["user", name] => Ok(named("User", name)),
        ["group", name] => Ok(named("Group", name)),
        ["serviceaccount", account] => {
            let (namespace, name) =
                account.split_once('/').ok_or_else(|| format!("expected NAMESPACE/NAME: {row}"))?;
            let namespace = Some(namespace.to_owned());
            Ok(Subject { api_group: None, namespace, ..named("ServiceAccount", name) })
        }
        _ => Err(format!("expected a subject: {row}")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde::de::DeserializeOwned;
    use serde_json::Value;

    use super::*;

    const RECORDED: &str = "tests/recorded/rbac.jsonl";

    /// Upstream's roles and bindings, one a line, by the names of its files. `FERRY_REWRITE=1` records them anew from the
    /// folder that `FERRY_FACTS` names.
    fn recorded(file: &str) -> Vec<Value> {
        if std::env::var_os("FERRY_REWRITE").is_some() {
            let facts = std::env::var_os("FERRY_FACTS").expect("FERRY_FACTS names the folder to record from");
            std::fs::write(RECORDED, record(&Path::new(&facts).join("rbac"))).unwrap();
        }
        let text = std::fs::read_to_string(RECORDED).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let of_file = lines.filter(|line: &Value| line["file"] == file);
        of_file.map(|mut line| line["object"].take()).collect()
    }

    fn record(folder: &Path) -> String {
        let mut text = String::new();
        for file in FILES {
            let list = std::fs::read_to_string(folder.join(format!("{file}.yaml"))).unwrap();
            let list: Value = ferry_api::yaml::one(&list).unwrap();
            for object in list["items"].as_array().unwrap() {
                text += &format!("{}\n", serde_json::json!({"file": file, "object": object}));
            }
        }
        text
    }

    const FILES: [&str; 6] = [
        "cluster-roles",
        "controller-roles",
        "cluster-role-bindings",
        "controller-role-bindings",
        "namespace-roles",
        "namespace-role-bindings",
    ];

    fn check<T: DeserializeOwned + PartialEq + std::fmt::Debug>(ours: Vec<T>, files: &[&str]) {
        let theirs: Vec<T> = files
            .iter()
            .flat_map(|file| recorded(file))
            .map(|object| serde_json::from_value(object).unwrap())
            .collect();
        assert!(!theirs.is_empty(), "{files:?}");
        assert_eq!(ours.len(), theirs.len(), "{files:?}");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn the_bootstrap_policy_equals_upstreams() {
        let ours = parse(TABLE).unwrap();
        let brought_by_metrics_server =
            |role: &ClusterRole| role.metadata.name.as_deref() == Some("system:aggregated-metrics-reader");
        let (added, cluster_roles): (Vec<_>, Vec<_>) =
            ours.cluster_roles.into_iter().partition(brought_by_metrics_server);
        assert_eq!(added.len(), 1);
        check(cluster_roles, &["cluster-roles", "controller-roles"]);
        check(ours.cluster_role_bindings, &["cluster-role-bindings", "controller-role-bindings"]);
        check(ours.roles, &["namespace-roles"]);
        check(ours.role_bindings, &["namespace-role-bindings"]);
    }

    #[test]
    fn ferrys_own_roles_are_added_and_replace_none_of_upstreams() {
        let (all, theirs, own) = (policy(), parse(TABLE).unwrap(), parse(OWN).unwrap());
        let names = |roles: &[ClusterRole]| -> std::collections::BTreeSet<Option<String>> {
            roles.iter().map(|role| role.metadata.name.clone()).collect()
        };
        assert!(names(&own.cluster_roles).is_disjoint(&names(&theirs.cluster_roles)));
        assert_eq!(all.cluster_roles.len(), theirs.cluster_roles.len() + own.cluster_roles.len());
        assert_eq!(all.role_bindings, theirs.role_bindings);
        for binding in &own.cluster_role_bindings {
            let role = Some(binding.role_ref.name.clone());
            assert!(names(&own.cluster_roles).contains(&role), "{role:?}");
        }
    }

    #[test]
    fn a_malformed_table_is_refused_with_the_line() {
        for (table, expected) in [
            ("  get  core  pods", "row outside of a block:   get  core  pods"),
            ("ClusterRole", "expected a kind and a name: ClusterRole"),
            ("ClusterRole x of y", "unknown keyword of: ClusterRole x of y"),
            ("Role x in", "in lacks its word: Role x in"),
            ("Thing x", "unknown kind Thing"),
            ("ClusterRole x\n  get", "expected two to four columns:   get"),
            ("ClusterRoleBinding x\n  robot y", "expected a subject:   robot y"),
        ] {
            assert_eq!(parse(table).unwrap_err(), expected);
        }
    }
}
