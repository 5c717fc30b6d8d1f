use serde_json::json;

use super::*;
use crate::authorize::{
    Rbac,
    rbac::{Change, GROUP},
};

struct Map(Vec<(&'static str, &'static str)>);

impl Headers for Map {
    fn values(&self, name: &str) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(header, _)| header.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
            .collect()
    }

    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.0.iter().map(|(header, _)| *header).collect();
        names.dedup();
        names
    }
}

/// An authorization in which `admin` holds the given rules.
fn with_rules(rules: serde_json::Value) -> Authorization {
    let rbac = Rbac::new();
    let role = json!({"metadata": {"name": "r"}, "rules": rules});
    let binding = json!({
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "r"},
        "subjects": [
            {"kind": "User", "name": "admin"},
            {"kind": "User", "name": "system:serviceaccount:ns:agent"},
        ],
    });
    rbac.apply([
        Change::ClusterRole(serde_json::from_value(role).unwrap()),
        Change::ClusterRoleBinding(serde_json::from_value(binding).unwrap()),
    ]);
    Authorization::new(vec![Arc::new(rbac)])
}

fn user(name: &str, groups: &[&str]) -> User {
    User::new(name).with_groups(groups.iter().copied())
}

async fn list_pods_as(
    rules: serde_json::Value,
    requestor: &User,
    wanted: &User,
) -> Result<Impersonated, String> {
    let request = Attributes { namespace: "ns", ..Attributes::resource(requestor, "list", "", "pods") };
    let impersonation = Impersonation::default();
    impersonation.decide(&with_rules(rules), wanted, &request).await.map_err(|refusal| refusal.message)
}

fn legacy() -> serde_json::Value {
    json!([{"apiGroups": [""], "resources": ["users", "groups", "serviceaccounts"], "verbs": ["impersonate"]}])
}

#[test]
fn headers_make_a_user_or_nothing() {
    let parse = |headers: &[(&'static str, &'static str)]| wanted_user(&Map(headers.to_vec()));
    assert_eq!(parse(&[("Accept", "*/*")]), Ok(None));
    let wanted = parse(&[
        ("Impersonate-User", "jane"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-Example.com%2fTeam", "blue"),
        ("Impersonate-Uid", "u1"),
    ]);
    let wanted = wanted.unwrap().unwrap();
    assert_eq!((wanted.name.as_str(), wanted.uid.as_str()), ("jane", "u1"));
    assert_eq!(wanted.groups, ["dev", "ops"]);
    assert_eq!(wanted.extra["example.com/team"], ["blue"]);
    assert_eq!(
        parse(&[("Impersonate-Group", "dev")]).unwrap_err().0,
        r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"dev"}, Extra:map[string][]string(nil)} without impersonating a user name"#
    );
}

#[tokio::test]
async fn the_right_to_impersonate_gives_the_user_and_its_groups() {
    let admin = user("admin", &[]);
    let jane = list_pods_as(legacy(), &admin, &user("jane", &["dev"])).await.unwrap();
    assert_eq!(*jane.user, user("jane", &["dev", "system:authenticated"]));
    assert_eq!(jane.constraint, None);
    let robot = list_pods_as(legacy(), &admin, &user("system:serviceaccount:ns:robot", &[])).await.unwrap();
    assert_eq!(
        robot.user.groups,
        ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]
    );
    let anonymous = list_pods_as(legacy(), &admin, &user("system:anonymous", &[])).await.unwrap();
    assert_eq!(anonymous.user.groups, ["system:unauthenticated"]);
}

#[tokio::test]
async fn without_the_right_the_refusal_names_what_is_missing() {
    let nobody = user("nobody", &[]);
    assert_eq!(
        list_pods_as(json!([]), &nobody, &user("jane", &[])).await.unwrap_err(),
        r#"pods is forbidden: User "nobody" cannot impersonate-on:user-info:list resource "pods" in API group "" in the namespace "ns""#
    );
    assert_eq!(
        list_pods_as(json!([]), &nobody, &user("system:serviceaccount:ns:robot", &["x"])).await.unwrap_err(),
        r#"serviceaccounts "robot" is forbidden: User "nobody" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "ns""#,
        "with groups, no constrained mode applies to a service account"
    );
}

#[tokio::test]
async fn masters_are_out_of_reach_unless_the_group_is_granted() {
    let admin = user("admin", &[]);
    let users_only = json!([{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}]);
    let masters = user("jane", &[MASTERS]);
    assert!(list_pods_as(users_only, &admin, &masters).await.is_err());
    let other_groups = json!([
        {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]},
        {"apiGroups": [""], "resources": ["groups"], "resourceNames": ["dev"], "verbs": ["impersonate"]},
    ]);
    assert!(list_pods_as(other_groups, &admin, &masters).await.is_err());
    // Even with everything granted the constrained way, that one group is not to be had.
    let constrained = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["impersonate:user-info", "impersonate-on:user-info:list"]}]);
    assert_eq!(
        list_pods_as(constrained, &admin, &masters).await.unwrap_err(),
        r#"groups.authentication.k8s.io "system:masters" is forbidden: User "admin" cannot impersonate:user-info resource "groups" in API group "authentication.k8s.io" at the cluster scope: impersonating the system:masters group is not allowed"#
    );
    assert!(
        list_pods_as(legacy(), &admin, &masters).await.unwrap().user.is_in(MASTERS),
        "the old way grants any group"
    );
}

#[tokio::test]
async fn constrained_impersonation_holds_for_the_granted_requests_only() {
    let rules = |on: &str| {
        json!([
            {"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "verbs": ["impersonate:user-info"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": [on]},
        ])
    };
    let (admin, jane) = (user("admin", &[]), user("jane", &[]));
    let allowed = list_pods_as(rules("impersonate-on:user-info:list"), &admin, &jane).await.unwrap();
    assert_eq!(allowed.constraint, Some("impersonate:user-info"));
    assert!(list_pods_as(rules("impersonate-on:user-info:get"), &admin, &jane).await.is_err());
    assert!(
        list_pods_as(rules("impersonate-on:user-info:list"), &admin, &user("system:node:n1", &[]))
            .await
            .is_err(),
        "a node is not an ordinary user"
    );
}

#[tokio::test]
async fn an_agent_may_become_the_node_it_runs_on() {
    let rules = json!([
        {"apiGroups": ["authentication.k8s.io"], "resources": ["nodes"], "verbs": ["impersonate:associated-node"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["impersonate-on:associated-node:list"]},
    ]);
    let mut agent = user("system:serviceaccount:ns:agent", &[]);
    agent.extra.insert(NODE_NAME.to_owned(), vec!["n1".to_owned()]);
    let node = list_pods_as(rules.clone(), &agent, &user("system:node:n1", &[])).await.unwrap();
    assert_eq!(*node.user, user("system:node:n1", &[NODES, "system:authenticated"]));
    assert!(list_pods_as(rules, &agent, &user("system:node:n2", &[])).await.is_err());
}

#[tokio::test]
async fn odd_groups_and_extras_are_refused_in_constrained_modes() {
    let everything = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["impersonate:user-info", "impersonate-on:user-info:list"]}]);
    let admin = user("admin", &[]);
    for (key, value) in [("", "x"), ("nodomain", "x"), ("a.b/c", "")] {
        let mut wanted = user("jane", &[]);
        wanted.extra.insert(key.to_owned(), vec![value.to_owned()]);
        let refusal = list_pods_as(everything.clone(), &admin, &wanted).await.unwrap_err();
        assert!(refusal.contains("in extra is not allowed"), "{key:?}: {refusal}");
    }
    assert!(list_pods_as(everything, &admin, &user("jane", &[""])).await.is_err());
}

#[tokio::test]
async fn refusals_of_legacy_impersonation_have_the_legacy_message() {
    let (authorization, impersonation) = (with_rules(legacy()), Impersonation::default());
    let admin = user("admin", &[]);
    let request = Attributes { namespace: "ns", ..Attributes::resource(&admin, "list", "", "pods") };
    let mut wanted = user("jane", &[]);
    impersonation.decide(&authorization, &wanted, &request).await.unwrap();
    wanted.uid = "7".into();
    let refusal = impersonation.decide(&authorization, &wanted, &request).await.unwrap_err();
    assert_eq!(
        refusal.message,
        r#"uids.authentication.k8s.io "7" is forbidden: User "admin" cannot impersonate resource "uids" in API group "authentication.k8s.io" at the cluster scope"#
    );
}
