use super::*;
use crate::{authorize::Authorization, user::MASTERS};

fn object<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> T {
    serde_json::from_value(json).unwrap()
}

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str], names: &[&str]) -> PolicyRule {
    let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(owned(groups)),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        resource_names: Some(owned(names)),
        non_resource_urls: None,
    }
}

fn path_rule(paths: &[&str], verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        non_resource_urls: Some(paths.iter().map(|text| (*text).to_owned()).collect()),
        verbs: verbs.iter().map(|text| (*text).to_owned()).collect(),
        ..PolicyRule::default()
    }
}

fn cluster_role(name: &str, rules: Vec<PolicyRule>) -> Change {
    let mut role: ClusterRole = object(serde_json::json!({"metadata": {"name": name}}));
    role.rules = Some(rules);
    Change::ClusterRole(role)
}

fn role(namespace: &str, name: &str, rules: Vec<PolicyRule>) -> Change {
    let mut role: Role = object(serde_json::json!({"metadata": {"name": name, "namespace": namespace}}));
    role.rules = Some(rules);
    Change::Role(role)
}

fn subject(kind: &str, name: &str) -> serde_json::Value {
    match name.split_once('/') {
        Some((namespace, name)) => serde_json::json!({"kind": kind, "name": name, "namespace": namespace}),
        None => serde_json::json!({"kind": kind, "name": name}),
    }
}

fn cluster_binding(name: &str, role: &str, kind: &str, subject_name: &str) -> Change {
    Change::ClusterRoleBinding(object(serde_json::json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [subject(kind, subject_name)],
    })))
}

fn binding(namespace: &str, name: &str, role: (&str, &str), kind: &str, subject_name: &str) -> Change {
    Change::RoleBinding(object(serde_json::json!({
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": GROUP, "kind": role.0, "name": role.1},
        "subjects": [subject(kind, subject_name)],
    })))
}

fn jane() -> User {
    User::new("jane").with_groups(["dev", "system:authenticated"])
}

/// `verb group resource[/sub] [namespace] [name]`, with `-` for an empty word.
fn allows(rbac: &Rbac, user: &User, request: &str) -> bool {
    let words: Vec<&str> = request.split(' ').map(|word| if word == "-" { "" } else { word }).collect();
    let word = |index: usize| words.get(index).copied().unwrap_or("");
    let (resource, subresource) = word(2).split_once('/').unwrap_or((word(2), ""));
    let attributes = Attributes {
        subresource,
        namespace: word(3),
        name: word(4),
        ..Attributes::resource(user, word(0), word(1), resource)
    };
    rbac.decide(&attributes).is_allowed()
}

#[test]
fn rules_match_as_written() {
    let table: &[(PolicyRule, &[&str], &[&str])] = &[
        (
            rule(&[""], &["pods"], &["get", "list"], &[]),
            &["get - pods", "list - pods ns", "get - pods ns web"],
            &["watch - pods", "get apps pods", "get - pods/log", "get - services"],
        ),
        (rule(&["*"], &["*"], &["*"], &[]), &["get - pods", "frob apps x/y ns n"], &[]),
        (
            rule(&[""], &["*/scale"], &["update"], &[]),
            &["update - pods/scale", "update - x/scale"],
            &["update - pods", "update - pods/scal", "update - pods/autoscale"],
        ),
        (rule(&[""], &["pods/log"], &["get"], &[]), &["get - pods/log"], &["get - pods", "get - pods/logs"]),
        (rule(&[""], &["pods/"], &["get"], &[]), &[], &["get - pods"]),
        (rule(&[""], &["pods/*"], &["get"], &[]), &[], &["get - pods/log", "get - pods"]),
        (
            rule(&[""], &["cm"], &["get"], &["a", "b"]),
            &["get - cm - a", "get - cm ns b"],
            &["get - cm", "get - cm ns c"],
        ),
        (
            rule(&["x", "y"], &["r"], &["frob", "get"], &[]),
            &["frob x r", "get y r"],
            &["frob - r", "list x r"],
        ),
        (
            rule(&["authentication.k8s.io"], &["userextras/example.com/team"], &["impersonate"], &[]),
            &["impersonate authentication.k8s.io userextras/example.com/team"],
            &["impersonate authentication.k8s.io userextras/example.com"],
        ),
    ];
    for (rule, allowed, refused) in table {
        let rbac = Rbac::new();
        rbac.apply([cluster_role("r", vec![rule.clone()]), cluster_binding("b", "r", "User", "jane")]);
        for request in *allowed {
            assert!(allows(&rbac, &jane(), request), "{rule:?} should allow {request}");
        }
        for request in *refused {
            assert!(!allows(&rbac, &jane(), request), "{rule:?} should not allow {request}");
        }
    }
}

#[test]
fn a_review_may_name_the_subresource_in_the_resource() {
    let table: &[(&str, &[&str], &[&str])] = &[
        ("pods/status", &["pods/status"], &["pods", "pods/", "pods/log", "x/status"]),
        ("*/status", &["*/status"], &["pods/status", "pods"]),
        ("*", &["pods/status", "pods/", "pods"], &[]),
        ("pods", &["pods"], &["pods/", "pods/status"]),
    ];
    for (written, allowed, refused) in table {
        let rbac = Rbac::new();
        let rule = rule(&[""], &[written], &["get"], &[]);
        rbac.apply([cluster_role("r", vec![rule]), cluster_binding("b", "r", "User", "jane")]);
        let user = jane();
        let allows = |resource| rbac.decide(&Attributes::resource(&user, "get", "", resource)).is_allowed();
        for resource in *allowed {
            assert!(allows(resource), "{written} should allow {resource}");
        }
        for resource in *refused {
            assert!(!allows(resource), "{written} should not allow {resource}");
        }
    }
}

#[test]
fn paths_match_exactly_or_by_prefix() {
    let rbac = Rbac::new();
    rbac.apply([
        cluster_role("r", vec![path_rule(&["/healthz", "/apis/*"], &["get"])]),
        cluster_binding("b", "r", "Group", "dev"),
    ]);
    let jane = jane();
    for (path, expected) in
        [("/healthz", true), ("/healthz/", false), ("/apis/", true), ("/apis/x/y", true), ("/apis", false)]
    {
        assert_eq!(rbac.decide(&Attributes::path(&jane, "get", path)).is_allowed(), expected, "{path}");
        assert!(!rbac.decide(&Attributes::path(&jane, "post", path)).is_allowed());
    }
    assert!(!allows(&rbac, &jane, "get - pods"), "a path rule grants no resource");
}

#[test]
fn bindings_reach_their_own_namespace_only() {
    let rbac = Rbac::new();
    let pods = || vec![rule(&[""], &["pods"], &["get"], &[])];
    rbac.apply([
        role("a", "reader", pods()),
        cluster_role("reader", pods()),
        binding("a", "one", ("Role", "reader"), "User", "jane"),
        binding("b", "two", ("ClusterRole", "reader"), "Group", "dev"),
        binding("c", "three", ("Role", "reader"), "User", "jane"),
    ]);
    assert!(allows(&rbac, &jane(), "get - pods a"));
    assert!(allows(&rbac, &jane(), "get - pods b"));
    assert!(!allows(&rbac, &jane(), "get - pods c"), "namespace c has no such role");
    assert!(!allows(&rbac, &jane(), "get - pods"), "nothing was granted in the whole cluster");
}

#[test]
fn service_accounts_default_to_the_namespace_of_the_binding() {
    let rbac = Rbac::new();
    rbac.apply([
        cluster_role("reader", vec![rule(&[""], &["pods"], &["get"], &[])]),
        binding("a", "one", ("ClusterRole", "reader"), "ServiceAccount", "robot"),
        binding("a", "two", ("ClusterRole", "reader"), "ServiceAccount", "b/robot"),
        cluster_binding("three", "reader", "ServiceAccount", "lost"),
    ]);
    let account = |namespace, name| User::service_account(namespace, name, "");
    assert!(allows(&rbac, &account("a", "robot"), "get - pods a"));
    assert!(allows(&rbac, &account("b", "robot"), "get - pods a"));
    assert!(!allows(&rbac, &account("c", "robot"), "get - pods a"));
    assert!(!allows(&rbac, &User::new("system:serviceaccount::lost"), "get - pods"));
}

#[test]
fn every_change_is_seen_by_the_next_question() {
    let rbac = Rbac::new();
    let jane = jane();
    rbac.apply([cluster_binding("b", "r", "User", "jane")]);
    assert!(!allows(&rbac, &jane, "get - pods"));
    rbac.apply([cluster_role("r", vec![rule(&[""], &["pods"], &["get"], &[])])]);
    assert!(allows(&rbac, &jane, "get - pods"));
    rbac.apply([cluster_role("r", vec![rule(&[""], &["pods"], &["list"], &[])])]);
    assert!(!allows(&rbac, &jane, "get - pods") && allows(&rbac, &jane, "list - pods"));
    rbac.apply([cluster_binding("b", "r", "User", "joe")]);
    assert!(!allows(&rbac, &jane, "list - pods") && allows(&rbac, &User::new("joe"), "list - pods"));
    rbac.apply([cluster_binding("b", "r", "Group", "dev")]);
    assert!(allows(&rbac, &jane, "list - pods"));
    rbac.apply([Change::RemoveClusterRole { name: "r".to_owned() }]);
    assert!(!allows(&rbac, &jane, "list - pods"));
    rbac.apply([cluster_role("r", vec![rule(&[""], &["pods"], &["list"], &[])])]);
    assert!(allows(&rbac, &jane, "list - pods"));
    rbac.apply([Change::RemoveClusterRoleBinding { name: "b".to_owned() }]);
    assert!(!allows(&rbac, &jane, "list - pods"));
    assert!(rbac.tables().subjects.is_empty() && rbac.writer.lock().bindings_of_role.is_empty());
}

#[test]
fn the_reason_names_the_binding_or_the_missing_role() {
    let rbac = Rbac::new();
    rbac.apply([
        role("a", "reader", vec![rule(&[""], &["pods"], &["get"], &[])]),
        binding("a", "one", ("Role", "reader"), "ServiceAccount", "robot"),
        cluster_binding("two", "gone", "User", "jane"),
    ]);
    let robot = User::service_account("a", "robot", "");
    let get = Attributes { namespace: "a", ..Attributes::resource(&robot, "get", "", "pods") };
    assert_eq!(
        rbac.decide(&get).reason(),
        r#"RBAC: allowed by RoleBinding "one/a" of Role "reader" to ServiceAccount "robot/a""#
    );
    let jane = jane();
    assert_eq!(
        rbac.decide(&Attributes { user: &jane, ..get }).reason(),
        r#"RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found"#
    );
}

#[test]
fn rules_for_lists_each_binding_once() {
    let rbac = Rbac::new();
    rbac.apply([
        cluster_role("r", vec![rule(&[""], &["pods"], &["get"], &[]), path_rule(&["/x"], &["get"])]),
        Change::ClusterRoleBinding(object(serde_json::json!({
            "metadata": {"name": "b"},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "r"},
            "subjects": [subject("User", "jane"), subject("Group", "dev")],
        }))),
    ]);
    let rules = rbac.rules_for(&jane(), "default");
    assert_eq!((rules.resource_rules.len(), rules.non_resource_rules.len()), (1, 1));
    assert!(!rules.incomplete && rules.errors.is_empty());
}

#[test]
fn rights_cover_rights() {
    let check = |held: &[PolicyRule], wanted: &[PolicyRule], missing: usize| {
        assert_eq!(covers(held, wanted).len(), missing, "{held:?} covers {wanted:?}");
    };
    let pods = [rule(&[""], &["pods"], &["get", "list"], &[])];
    check(&pods, &pods, 0);
    check(&pods, &[rule(&[""], &["pods"], &["get"], &["web"])], 0);
    check(&[rule(&[""], &["pods"], &["get"], &["web"])], &[rule(&[""], &["pods"], &["get"], &[])], 1);
    check(
        &[rule(&[""], &["pods"], &["get"], &["web"])],
        &[rule(&[""], &["pods"], &["get"], &["web", "db"])],
        1,
    );
    check(&pods, &[rule(&["*"], &["pods"], &["get"], &[])], 1);
    check(&pods, &[rule(&[""], &["*"], &["*"], &[])], 1);
    check(&[rule(&["*"], &["*"], &["*"], &[])], &[rule(&["apps"], &["x/y"], &["frob"], &["n"])], 0);
    check(&[rule(&["*"], &["*"], &["*"], &[])], &[path_rule(&["/x"], &["get"])], 1);
    check(
        &[rule(&[""], &["*/scale"], &["get"], &[])],
        &[rule(&[""], &["pods/scale", "pods/log"], &["get"], &[])],
        1,
    );
    check(&[path_rule(&["/api/*"], &["get"])], &[path_rule(&["/api/x", "/api/*", "/"], &["get"])], 1);
    check(&[rule(&[""], &["pods"], &["get"], &[]), rule(&[""], &["pods"], &["list"], &[])], &pods, 0);
    check(&[], &[], 0);
}

fn write<'a>(user: &'a User, rules: &'a [PolicyRule], aggregates: bool) -> RoleWrite<'a> {
    RoleWrite { user, resource: "clusterroles", namespace: "", request_name: "", rules, aggregates }
}

#[tokio::test]
async fn writing_a_role_needs_all_its_rights() {
    let rbac = Arc::new(Rbac::new());
    let authorization = Authorization::new(vec![rbac.clone()]);
    rbac.apply([
        cluster_role("r", vec![rule(&[""], &["pods"], &["get"], &[])]),
        cluster_binding("b", "r", "User", "jane"),
        cluster_role("escalator", vec![rule(&[GROUP], &["clusterroles"], &["escalate"], &[])]),
        cluster_binding("c", "escalator", "User", "joe"),
    ]);
    let held = [rule(&[""], &["pods"], &["get"], &[])];
    let more = [rule(&[""], &["pods"], &["get", "list", "watch"], &[]), path_rule(&["/x"], &["get"])];
    let jane = jane();
    assert_eq!(rbac.check_role(write(&jane, &held, false), &authorization).await, Ok(()));
    assert_eq!(
        rbac.check_role(write(&jane, &more, false), &authorization).await,
        Err(EscalationError::Forbidden(
            "user \"jane\" (groups=[\"dev\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n\
             {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\" \"watch\"]}\n\
             {NonResourceURLs:[\"/x\"], Verbs:[\"get\"]}"
                .to_owned()
        ))
    );
    assert_eq!(
        rbac.check_role(write(&jane, &held, true), &authorization).await,
        Err(EscalationError::Forbidden(
            "must have cluster-admin privileges to use the aggregationRule".to_owned()
        ))
    );
    let joe = User::new("joe");
    assert_eq!(
        rbac.check_role(write(&joe, &more, true), &authorization).await,
        Ok(()),
        "the verb escalate lets him"
    );
    let root = User::new("root").with_groups([MASTERS]);
    assert_eq!(rbac.check_role(write(&root, &more, true), &authorization).await, Ok(()));
}

#[tokio::test]
async fn binding_a_role_needs_all_its_rights() {
    let rbac = Arc::new(Rbac::new());
    let authorization = Authorization::new(vec![rbac.clone()]);
    rbac.apply([
        cluster_role("admin", vec![rule(&["*"], &["*"], &["*"], &[])]),
        cluster_role("reader", vec![rule(&[""], &["pods"], &["get"], &[])]),
        cluster_role("binder", vec![rule(&[GROUP], &["clusterroles"], &["bind"], &["admin"])]),
        binding("a", "one", ("ClusterRole", "reader"), "User", "jane"),
        binding("a", "two", ("ClusterRole", "binder"), "User", "joe"),
    ]);
    let role_ref = |name: &str| RoleRef {
        api_group: Some(GROUP.to_owned()),
        kind: "ClusterRole".to_owned(),
        name: name.to_owned(),
    };
    let (jane, joe) = (jane(), User::new("joe"));
    assert_eq!(rbac.check_binding(&jane, &role_ref("reader"), "a", &authorization).await, Ok(()));
    assert!(
        rbac.check_binding(&jane, &role_ref("reader"), "b", &authorization).await.is_err(),
        "held in a only"
    );
    assert!(rbac.check_binding(&jane, &role_ref("reader"), "", &authorization).await.is_err());
    assert!(rbac.check_binding(&jane, &role_ref("admin"), "a", &authorization).await.is_err());
    assert_eq!(
        rbac.check_binding(&joe, &role_ref("admin"), "a", &authorization).await,
        Ok(()),
        "the verb bind lets him"
    );
    assert!(
        rbac.check_binding(&joe, &role_ref("admin"), "", &authorization).await.is_err(),
        "but not everywhere"
    );
    assert_eq!(
        rbac.check_binding(&jane, &role_ref("none"), "a", &authorization).await,
        Err(EscalationError::RoleNotFound { resource: "rolebindings", role: "none".to_owned() })
    );
}
