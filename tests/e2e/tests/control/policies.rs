//! Expressions of policies are checked against what the kinds that they are about look like.

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::processes::Cluster;
use super::until;

const GROUP: &str = "stable.example.com";

fn policy(name: &str, expressions: &[&str]) -> Value {
    let validations: Vec<Value> =
        expressions.iter().map(|expression| json!({"expression": expression})).collect();
    let rule = json!({"operations": ["CREATE"], "apiGroups": [GROUP], "apiVersions": ["v1"], "resources": ["crontabs"]});
    json!({"metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": validations}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_type_errors_on_custom_kinds_are_warnings() {
    let Some(cluster) = Cluster::start().await else { return };
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let spec = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}});
    let definition = json!({"metadata": {"name": format!("crontabs.{GROUP}")}, "spec": {
        "group": GROUP, "scope": "Namespaced", "names": {"plural": "crontabs", "kind": "CronTab"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    let definition = serde_json::from_value(definition).expect("a definition");
    definitions.create(&PostParams::default(), &definition).await.expect("it is made");
    until("the kind is served", || async {
        cluster.client.list_api_group_resources(&format!("{GROUP}/v1")).await.ok()
    })
    .await;
    let _manager = cluster.controller_manager();
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let confused = ["object.spec.replicas > '1'", "object.spec.maxRetries < 10"];
    for (name, expressions) in [("right", &["object.spec.replicas > 1"][..]), ("confused", &confused)] {
        let policy = serde_json::from_value(policy(name, expressions)).expect("a policy");
        policies.create(&PostParams::default(), &policy).await.expect("it is made");
    }
    let warnings = async |name: &str| {
        let checked = policies.get(name).await.ok()?.status?.type_checking?;
        let warnings = checked.expression_warnings.unwrap_or_default().into_iter();
        Some(warnings.map(|warning| (warning.field_ref, warning.warning)).collect::<Vec<_>>())
    };
    assert_eq!(until("the right one is checked", || warnings("right")).await, []);
    let found = until("the confused one is checked", || warnings("confused")).await;
    let [(first, mismatch), (second, unknown)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(
        (first.as_str(), second.as_str()),
        ("spec.validations[0].expression", "spec.validations[1].expression")
    );
    assert!(
        mismatch.contains("found no matching overload for '_>_' applied to '(int, string)'"),
        "{mismatch}"
    );
    assert!(unknown.contains("undefined field 'maxRetries'"), "{unknown}");
}
