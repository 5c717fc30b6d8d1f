//! `kubectl auth reconcile`: makes roles and bindings grant at least what a file says. What is missing
//! and what is extra is found by comparing rules broken down to single rights.

use http::Method;
use serde_json::{Value, json};

use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::flags::{Args, Flag};
use crate::printers;
use crate::selection::{Document, FILE_FLAGS, Info, Selection, read_documents};
use crate::transport::{JSON, Request};
use crate::write::{DRY_RUN_FLAGS, DryRun, Writer};

pub const COMMAND: Command = Command {
    name: "reconcile",
    short: "Make roles and bindings grant what a file says",
    usage: "-f FILENAME",
    flags: &[
        FILE_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        &[
            Flag::bool("remove-extra-permissions", "Take away rules the file does not have"),
            Flag::bool("remove-extra-subjects", "Take away subjects the file does not have"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    if !cli.args.has_files() {
        return Err(Error::message("must specify one of -f and -k"));
    }
    let writer = Writer::new(cli)?;
    if writer.dry_run == DryRun::Server {
        return Err(Error::message("--dry-run=server for command reconcile is not supported yet"));
    }
    let selection = Selection::from_args(cli, &[]);
    let mut errors = Vec::new();
    for document in read_documents(&selection.files, selection.recursive, false).await? {
        if let Err(error) = reconcile_document(&writer, &selection, document).await {
            errors.push(error);
        }
    }
    cli.flush()?;
    Error::collect(errors)
}

/// What is no role and no binding stands in the same file for others to use.
async fn reconcile_document(
    writer: &Writer<'_>,
    selection: &Selection,
    document: Result<Document>,
) -> Result<()> {
    let document = document?;
    if document.object.group() != "rbac.authorization.k8s.io" {
        return Ok(());
    }
    let version = document.object.text("apiVersion").rsplit('/').next().unwrap_or_default();
    if version != "v1" {
        return Err(Error::message(format!(
            "only rbac.authorization.k8s.io/v1 is supported: not *{version}.{}",
            document.object.kind()
        )));
    }
    let info = selection.file_info(writer.cli, document).await?;
    make_namespace(writer, &info).await?;
    let live = match writer.cli.client()?.get_json(&info.path()).await {
        Ok(live) => Some(live),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    let mut plan = plan(live.as_ref(), &info.object, Remove::from_args(&writer.cli.args));
    if writer.dry_run == DryRun::No && !plan.protected {
        carry_out(writer, &info, &mut plan).await?;
    }
    writer.report(&plan.object, "reconciled")?;
    writer.cli.flush()?;
    eprint!("{}", plan.summary());
    Ok(())
}

/// A role may stand in a file before the namespace it is for.
async fn make_namespace(writer: &Writer<'_>, info: &Info) -> Result<()> {
    if info.namespace.is_empty() || writer.dry_run != DryRun::No {
        return Ok(());
    }
    let namespaces = writer.cli.resource("namespaces").await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": info.namespace}});
    match writer.cli.client()?.get_json(&namespaces.object_path("", &info.namespace)).await {
        Ok(_) => return Ok(()),
        // whoever may not look may still be allowed to write into it
        Err(error) if !error.is_not_found() => return Ok(()),
        Err(_) => {}
    }
    match writer.create(&namespaces, "", &namespace).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// Whether what the file does not have is taken away.
#[derive(Clone, Copy)]
struct Remove {
    rules: bool,
    subjects: bool,
}

impl Remove {
    fn from_args(args: &Args) -> Self {
        Remove { rules: args.bool("remove-extra-permissions"), subjects: args.bool("remove-extra-subjects") }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operation {
    Nothing,
    Create,
    Update,
    /// The role of a binding cannot change: it is made anew.
    Recreate,
}

#[derive(Debug)]
struct Plan {
    operation: Operation,
    object: Value,
    /// Its owner wants it left alone.
    protected: bool,
    field: &'static str,
    missing: Vec<Value>,
    removed: Vec<Value>,
}

const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

fn plan(live: Option<&Value>, wanted: &Value, remove: Remove) -> Plan {
    let is_binding = wanted.kind().ends_with("Binding");
    let field = if is_binding { "subjects" } else { "rules" };
    let mut plan = Plan {
        operation: Operation::Nothing,
        object: wanted.clone(),
        protected: false,
        field,
        missing: Vec::new(),
        removed: Vec::new(),
    };
    let Some(live) = live else {
        plan.operation = Operation::Create;
        plan.missing = wanted.list(field).to_vec();
        return plan;
    };
    plan.protected = live.keyed("metadata.annotations", AUTO_UPDATE) == "false";
    if is_binding && live.at("roleRef") != wanted.at("roleRef") {
        plan.operation = Operation::Recreate;
        return plan;
    }
    plan.object = live.clone();
    for map in ["metadata.labels", "metadata.annotations"] {
        for (key, value) in wanted.entries(map) {
            if live.map(map).is_none_or(|known| !known.contains_key(key)) {
                fields::set_keyed(&mut plan.object, map, key, value.clone());
            }
        }
    }
    let (have, want) = (live.list(field), wanted.list(field));
    let not_covered: fn(&[Value], &[Value]) -> Vec<Value> =
        if is_binding { subjects_not_in } else { rights_not_in };
    let removes = if is_binding { remove.subjects } else { remove.rules };
    plan.missing = not_covered(have, want);
    let both_aggregate = live.has("aggregationRule") && wanted.has("aggregationRule");
    let extra = if both_aggregate { Vec::new() } else { not_covered(want, have) };
    if removes && !(plan.missing.is_empty() && extra.is_empty()) {
        plan.object[field] = Value::Array(want.to_vec());
        plan.removed = extra;
    } else if !plan.missing.is_empty() {
        plan.object[field] = Value::Array([have, &plan.missing].concat());
    }
    aggregate(&mut plan.object, live, wanted, removes);
    if plan.object != *live {
        plan.operation = Operation::Update;
    }
    plan
}

/// The selectors of a role that is made of others.
fn aggregate(object: &mut Value, live: &Value, wanted: &Value, removes: bool) {
    const SELECTORS: &str = "aggregationRule.clusterRoleSelectors";
    let (have, want) = (live.list(SELECTORS), wanted.list(SELECTORS));
    if !wanted.has("aggregationRule") {
        fields::remove(object, "aggregationRule");
        return;
    }
    let missing = subjects_not_in(have, want);
    if removes {
        fields::set(object, SELECTORS, Value::Array(want.to_vec()));
    } else if !missing.is_empty() {
        fields::set(object, SELECTORS, Value::Array([have, &missing].concat()));
    }
}

async fn carry_out(writer: &Writer<'_>, info: &Info, plan: &mut Plan) -> Result<()> {
    let Info { resource, namespace, name, .. } = info;
    match plan.operation {
        Operation::Nothing => return Ok(()),
        Operation::Create => {}
        Operation::Update => {
            plan.object = writer.replace(resource, namespace, name, "", &plan.object).await?;
            return Ok(());
        }
        Operation::Recreate => {
            let path = info.path();
            let request = Request::with_body(Method::DELETE, &path, JSON, json!({}).to_string());
            writer.cli.client()?.json(request).await?;
        }
    }
    plan.object = writer.create(resource, namespace, &plan.object).await?;
    Ok(())
}

impl Plan {
    /// What was, or would be, changed.
    fn summary(&self) -> String {
        let word = match self.operation {
            Operation::Nothing => return String::new(),
            Operation::Create => "create",
            Operation::Update => "update",
            Operation::Recreate => "recreate",
        };
        let caveat = if self.protected {
            format!(", but object opted out ({AUTO_UPDATE}: false)")
        } else {
            String::new()
        };
        let mut text = format!("\treconciliation required {word}{caveat}\n");
        for (title, entries) in [("missing", &self.missing), ("extra", &self.removed)] {
            let done = if title == "missing" { "added" } else { "removed" };
            if !entries.is_empty() {
                text.push_str(&format!("\t{title} {} {done}:\n", self.field));
            }
            entries.iter().for_each(|entry| text.push_str(&format!("\t\t{}\n", shown(entry, self.field))));
        }
        text
    }
}

/// An entry with all its fields, as Go prints a structure.
fn shown(entry: &Value, field: &str) -> String {
    let texts: &[(&str, &str)] = if field == "rules" {
        &[
            ("Verbs", "verbs"),
            ("APIGroups", "apiGroups"),
            ("Resources", "resources"),
            ("ResourceNames", "resourceNames"),
            ("NonResourceURLs", "nonResourceURLs"),
        ]
    } else {
        &[("Kind", "kind"), ("APIGroup", "apiGroup"), ("Name", "name"), ("Namespace", "namespace")]
    };
    let parts: Vec<String> = texts
        .iter()
        .map(|(title, key)| match entry.at(key) {
            Value::String(text) => format!("{title}:{text}"),
            Value::Array(list) => {
                let words: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
                format!("{title}:[{}]", words.join(" "))
            }
            _ if field == "rules" => format!("{title}:[]"),
            _ => format!("{title}:"),
        })
        .collect();
    format!("{{{}}}", parts.join(" "))
}

fn subjects_not_in(have: &[Value], want: &[Value]) -> Vec<Value> {
    want.iter().filter(|entry| !have.contains(entry)).cloned().collect()
}

/// The single rights of `want` that no rule of `have` grants.
fn rights_not_in(have: &[Value], want: &[Value]) -> Vec<Value> {
    want.iter().flat_map(rights).filter(|right| !have.iter().any(|rule| grants(rule, right))).collect()
}

/// A rule taken apart: one verb on one resource of one group, or on one URL.
fn rights(rule: &Value) -> Vec<Value> {
    let mut rights = Vec::new();
    for group in rule.list("apiGroups") {
        for resource in rule.list("resources") {
            for verb in rule.list("verbs") {
                let right = json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]});
                let names = rule.list("resourceNames");
                if names.is_empty() {
                    rights.push(right.clone());
                }
                for name in names {
                    let mut named = right.clone();
                    named["resourceNames"] = json!([name]);
                    rights.push(named);
                }
            }
        }
    }
    for url in rule.list("nonResourceURLs") {
        for verb in rule.list("verbs") {
            rights.push(json!({"nonResourceURLs": [url], "verbs": [verb]}));
        }
    }
    rights
}

fn grants(rule: &Value, right: &Value) -> bool {
    let has = |list: &str, text: &str| rule.list(list).iter().any(|entry| entry == text);
    let all = |list: &str, also: fn(&str, &str) -> bool| {
        right.list(list).iter().filter_map(Value::as_str).all(|wanted| {
            has(list, "*")
                || has(list, wanted)
                || rule.list(list).iter().filter_map(Value::as_str).any(|entry| also(entry, wanted))
        })
    };
    let never = |_: &str, _: &str| false;
    // `*/scale` is the subresource of everything, `/healthz*` every URL that starts so
    let subresource = |entry: &str, wanted: &str| matches!((entry.strip_prefix("*/"), wanted.split_once('/')), (Some(entry), Some((_, wanted))) if entry == wanted);
    let prefix =
        |entry: &str, wanted: &str| entry.strip_suffix('*').is_some_and(|start| wanted.starts_with(start));
    let names = rule.list("resourceNames").is_empty()
        || (!right.list("resourceNames").is_empty()
            && right.list("resourceNames").iter().all(|name| rule.list("resourceNames").contains(name)));
    names
        && all("verbs", never)
        && all("apiGroups", never)
        && all("resources", subresource)
        && all("nonResourceURLs", prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNION: Remove = Remove { rules: false, subjects: false };
    const EXACT: Remove = Remove { rules: true, subjects: true };

    fn role(rules: Value) -> Value {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": rules})
    }

    #[test]
    fn a_right_that_is_granted_is_not_added() {
        let wide = json!({"apiGroups": ["*"], "resources": ["pods", "*/scale"], "verbs": ["*"]});
        let named =
            json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": ["x"]});
        let narrow = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]});
        let scale = json!({"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["get"]});
        let check = |have: &Value, want: &Value, expected: usize| {
            let missing = rights_not_in(std::slice::from_ref(have), std::slice::from_ref(want));
            assert_eq!(missing.len(), expected, "{have} {want}");
        };
        check(&wide, &narrow, 0);
        check(&wide, &named, 0);
        check(&wide, &scale, 0);
        check(&named, &narrow, 2);
        check(&narrow, &named, 0);
        check(
            &json!({"nonResourceURLs": ["/a*"], "verbs": ["get"]}),
            &json!({"nonResourceURLs": ["/ab"], "verbs": ["get"]}),
            0,
        );
    }

    #[test]
    fn missing_rights_are_added_and_extra_ones_removed_on_request() {
        let live = role(json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]));
        let wanted = role(json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "watch"]}]));
        let united = plan(Some(&live), &wanted, UNION);
        assert_eq!(united.operation, Operation::Update);
        assert_eq!(united.object.list("rules").len(), 2);
        assert_eq!(
            united.summary(),
            "\treconciliation required update\n\tmissing rules added:\n\t\t{Verbs:[watch] APIGroups:[] Resources:[pods] ResourceNames:[] NonResourceURLs:[]}\n"
        );
        let exact = plan(Some(&live), &wanted, EXACT);
        assert_eq!(exact.object.list("rules"), wanted.list("rules"));
        assert_eq!(exact.removed.len(), 1);
        assert_eq!(plan(Some(&live), &live, EXACT).operation, Operation::Nothing);
        assert_eq!(plan(None, &wanted, UNION).operation, Operation::Create);
    }

    #[test]
    fn a_binding_to_another_role_is_made_anew() {
        let binding = |role: &str| json!({"kind": "RoleBinding", "roleRef": {"name": role}, "subjects": []});
        assert_eq!(plan(Some(&binding("a")), &binding("b"), UNION).operation, Operation::Recreate);
    }
}
