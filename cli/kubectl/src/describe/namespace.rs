//! Namespaces, with what limits them: resource quotas and limit ranges.

use serde_json::Value;

use super::metadata::{annotations, labels};
use super::time;
use crate::cli::Cli;
use crate::error::Result;
use crate::fields::Fields;
use crate::selection::list_all;
use crate::transport::Query;
use ferry_api::json_path::to_text;

pub async fn page(cli: &Cli, namespace: &Value) -> Result<String> {
    let mut text = format!("Name:\t{}\n", namespace.name());
    text.push_str(&labels("Labels", namespace, "metadata.labels", ""));
    text.push_str(&annotations(namespace, ""));
    text.push_str(&format!("Status:\t{}\n", namespace.text("status.phase")));
    let conditions = namespace.list("status.conditions");
    if !conditions.is_empty() {
        text.push_str("Conditions:\n  Type\tStatus\tLastTransitionTime\tReason\tMessage\n");
        text.push_str("  ----\t------\t------------------\t------\t-------\n");
    }
    for condition in conditions {
        text.push_str(&format!(
            "  {}\t{}\t{}\t{}\t{}\n",
            condition.text("type"),
            condition.text("status"),
            time(condition.text("lastTransitionTime")),
            condition.text("reason"),
            condition.text("message")
        ));
    }
    if let Some(mut quotas) = there(cli, namespace, "resourcequotas").await? {
        quotas.sort_by_key(|quota| quota.name().to_owned());
        text.push('\n');
        text.push_str(if quotas.is_empty() { "No resource quota.\n" } else { "Resource Quotas\n" });
        for quota in &quotas {
            text.push_str(&format!("  Name:\t{}\n{}", quota.name(), quota_lines(quota, "  ", "* ")));
        }
    }
    if let Some(ranges) = there(cli, namespace, "limitranges").await? {
        text.push('\n');
        if ranges.is_empty() {
            text.push_str("No LimitRange resource.\n");
        } else {
            text.push_str(&format!("Resource Limits\n{}", limit_header(" ")));
        }
        ranges.iter().for_each(|range| text.push_str(&limit_lines(range, " ")));
    }
    Ok(text)
}

pub fn quota(object: &Value) -> String {
    format!(
        "Name:\t{}\nNamespace:\t{}\n{}",
        object.name(),
        object.namespace(),
        quota_lines(object, "", " * ")
    )
}

pub fn limit_range(object: &Value) -> String {
    format!(
        "Name:\t{}\nNamespace:\t{}\n{}{}",
        object.name(),
        object.namespace(),
        limit_header(""),
        limit_lines(object, "")
    )
}

/// Nothing is said about what the server does not have.
async fn there(cli: &Cli, namespace: &Value, resource: &str) -> Result<Option<Vec<Value>>> {
    let path = format!("/api/v1/namespaces/{}/{resource}", namespace.name());
    match list_all(cli, &path, &Query::new()).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn quota_lines(quota: &Value, indent: &str, bullet: &str) -> String {
    let mut text = String::new();
    let mut scopes: Vec<&str> = quota.list("spec.scopes").iter().filter_map(Value::as_str).collect();
    scopes.sort_unstable();
    if !scopes.is_empty() {
        text.push_str(&format!("{indent}Scopes:\t{}\n", scopes.join(", ")));
    }
    for help in scopes.iter().filter_map(|scope| scope_help(scope)) {
        text.push_str(&format!("{indent}{bullet}{help}\n"));
    }
    let rule = if indent.is_empty() { "--------\t----\t----" } else { "--------\t---\t---" };
    text.push_str(&format!("{indent}Resource\tUsed\tHard\n{indent}{rule}\n"));
    let used = quota.map("status.used");
    for (resource, hard) in quota.entries("status.hard") {
        let used = used.and_then(|used| used.get(resource)).map_or("0".to_owned(), to_text);
        text.push_str(&format!("{indent}{resource}\t{used}\t{}\n", to_text(hard)));
    }
    text
}

fn scope_help(scope: &str) -> Option<&'static str> {
    Some(match scope {
        "Terminating" => {
            "Matches all pods that have an active deadline. These pods have a limited lifespan on a node before being actively terminated by the system."
        }
        "NotTerminating" => {
            "Matches all pods that do not have an active deadline. These pods usually include long running pods whose container command is not expected to terminate."
        }
        "BestEffort" => {
            "Matches all pods that do not have resource requirements set. These pods have a best effort quality of service."
        }
        "NotBestEffort" => {
            "Matches all pods that have at least one resource requirement set. These pods have a burstable or guaranteed quality of service."
        }
        _ => return None,
    })
}

fn limit_header(indent: &str) -> String {
    let titles = "Type\tResource\tMin\tMax\tDefault Request\tDefault Limit\tMax Limit/Request Ratio";
    let lines: Vec<String> = titles.split('\t').map(|title| "-".repeat(title.len())).collect();
    format!("{indent}{titles}\n{indent}{}\n", lines.join("\t"))
}

fn limit_lines(range: &Value, indent: &str) -> String {
    const COLUMNS: [&str; 5] = ["min", "max", "defaultRequest", "default", "maxLimitRequestRatio"];
    let mut text = String::new();
    for limit in range.list("spec.limits") {
        let mut resources: Vec<&str> =
            COLUMNS.iter().flat_map(|column| limit.entries(column)).map(|(key, _)| key).collect();
        resources.sort_unstable();
        resources.dedup();
        for resource in resources {
            let cells: Vec<String> = COLUMNS
                .iter()
                .map(|column| limit.map(column).and_then(|map| map.get(resource)))
                .map(|value| value.map_or("-".to_owned(), to_text))
                .collect();
            text.push_str(&format!("{indent}{}\t{resource}\t{}\n", limit.text("type"), cells.join("\t")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_take_a_line_per_resource() {
        let range = json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1", "memory": "1Mi"}}]}});
        assert_eq!(
            limit_lines(&range, " "),
            " Container\tcpu\t1\t2\t-\t-\t-\n Container\tmemory\t1Mi\t-\t-\t-\t-\n"
        );
        assert!(limit_header("").ends_with(
            "\n----\t--------\t---\t---\t---------------\t-------------\t-----------------------\n"
        ));
    }

    #[test]
    fn a_quota_shows_what_is_used() {
        let quota = json!({"spec": {"scopes": ["BestEffort"]}, "status": {"hard": {"pods": "5"}, "used": {"pods": "1"}}});
        let text = quota_lines(&quota, "", " * ");
        assert!(text.starts_with("Scopes:\tBestEffort\n * Matches all pods"), "{text}");
        assert!(text.ends_with("pods\t1\t5\n"), "{text}");
    }
}
