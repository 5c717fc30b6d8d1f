//! `ferry bench` at its smallest: every phase comes to its end and is told. How much each takes is for people to read.

use std::process::Command;

use ferry_e2e::binary::ferry;
use serde_json::Value;

fn bench(words: &[&str]) -> Option<Value> {
    let output =
        Command::new(ferry()?).arg("bench").args(words).args(["-o", "json"]).output().expect("ferry starts");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).expect("what it prints is JSON"))
}

fn column<'a>(rows: &'a Value, name: &str) -> Vec<&'a str> {
    rows.as_array().expect("rows").iter().map(|row| row[name].as_str().expect(name)).collect()
}

#[test]
fn every_request_of_the_api_is_measured() {
    let Some(rows) = bench(&["api", "--pods", "30", "--clients", "4", "--watches", "6"]) else { return };
    let expected = [
        "create",
        "get",
        "get + update",
        "patch status",
        "list",
        "list, consistent",
        "list by label",
        "event to a watch",
        "delete",
    ];
    assert_eq!(column(&rows, "operation"), expected);
    assert_eq!(rows[7]["count"], 1_200, "200 events to 6 watches");
    assert!(rows[8]["memoryBytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{rows}");
}

#[test]
fn a_deployment_is_made_and_collected() {
    let Some(rows) = bench(&["controllers", "--replicas", "12"]) else { return };
    assert_eq!(column(&rows, "phase"), ["start", "make", "collect"]);
}

#[test]
fn nodes_run_pods_and_remove_them() {
    let words = ["cluster", "--nodes", "5", "--pods", "20", "--seconds", "1"];
    let Some(rows) = bench(&words) else { return };
    assert_eq!(column(&rows, "phase"), ["nodes", "start", "steady", "end"]);
    assert_eq!(column(&rows[2]["requests"], "request"), ["create", "get", "list of 500 pods"]);
}

#[test]
fn pods_are_bound() {
    let words = ["scheduler", "--nodes", "20", "--pods", "40", "--workload", "plain"];
    let Some(row) = bench(&words) else { return };
    assert_eq!((&row["workload"], &row["pods"]), (&Value::from("plain"), &Value::from(40)));
    assert!(row["podsPerSecond"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
}

#[test]
fn definitions_are_made_served_and_there_after_a_restart() {
    let Some(told) = bench(&["definitions", "--definitions", "3"]) else { return };
    assert_eq!(told["definitions"], 3);
    for figure in
        ["oneMoreServedMillis", "oneMoreOpenapiV3Millis", "openapiV2AfterChangeMillis", "startMillis"]
    {
        assert!(told[figure].as_f64().is_some_and(|millis| millis > 0.0), "{figure}: {told}");
    }
}
