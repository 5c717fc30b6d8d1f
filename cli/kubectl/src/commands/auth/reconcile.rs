//! `kubectl auth reconcile`: makes roles and bindings grant at least what a file says.

use http::Method;
use serde_json::{Value, json};

use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
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
    let object = reconcile(writer, &info).await?;
    writer.report(&object, "reconciled")
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

async fn reconcile(writer: &Writer<'_>, info: &Info) -> Result<Value> {
    let cli = writer.cli;
    let client = cli.client()?;
    let live = match client.get_json(&info.path()).await {
        Ok(live) => live,
        Err(error) if error.is_not_found() => {
            return if writer.dry_run == DryRun::Client {
                Ok(info.object.clone())
            } else {
                writer.create(&info.resource, &info.namespace, &info.object).await
            };
        }
        Err(error) => return Err(error),
    };
    let is_binding = info.resource.kind.ends_with("Binding");
    if is_binding && live.at("roleRef") != info.object.at("roleRef") {
        // the role of a binding cannot change: it is made anew
        if writer.dry_run == DryRun::Client {
            return Ok(info.object.clone());
        }
        client.json(Request::with_body(Method::DELETE, &info.path(), JSON, json!({}).to_string())).await?;
        return writer.create(&info.resource, &info.namespace, &info.object).await;
    }
    let (field, replace) = if is_binding {
        ("subjects", "remove-extra-subjects")
    } else {
        ("rules", "remove-extra-permissions")
    };
    let mut wanted = live.clone();
    wanted[field] = Value::Array(if cli.args.bool(replace) {
        info.object.list(field).to_vec()
    } else {
        union(live.list(field), info.object.list(field))
    });
    if info.object.has("aggregationRule") {
        wanted["aggregationRule"] = info.object.at("aggregationRule").clone();
    }
    for map in ["metadata.labels", "metadata.annotations"] {
        for (key, value) in info.object.entries(map) {
            crate::fields::set_keyed(&mut wanted, map, key, value.clone());
        }
    }
    if wanted == live || writer.dry_run == DryRun::Client {
        return Ok(wanted);
    }
    writer.replace(&info.resource, &info.namespace, &info.name, "", &wanted).await
}

/// All of `have`, and of `want` what it does not cover.
fn union(have: &[Value], want: &[Value]) -> Vec<Value> {
    let mut all = have.to_vec();
    for entry in want {
        if !all.iter().any(|known| covers(known, entry)) {
            all.push(entry.clone());
        }
    }
    all
}

/// Whether a rule grants at least what another does.
fn covers(known: &Value, wanted: &Value) -> bool {
    if known == wanted {
        return true;
    }
    let lists = ["apiGroups", "resources", "verbs", "nonResourceURLs"];
    if !lists.iter().any(|list| wanted.has(list)) {
        return false;
    }
    let includes = |list: &str| {
        let have = known.list(list);
        wanted.list(list).iter().all(|entry| have.contains(entry) || have.iter().any(|value| value == "*"))
    };
    let names = known.list("resourceNames").is_empty()
        || (!wanted.list("resourceNames").is_empty()
            && wanted.list("resourceNames").iter().all(|name| known.list("resourceNames").contains(name)));
    lists.iter().all(|list| includes(list)) && names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_is_covered_is_not_added() {
        let wide = json!({"apiGroups": ["*"], "resources": ["pods"], "verbs": ["*"]});
        let narrow = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
        let named =
            json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": ["x"]});
        let rules = |rules: &[&Value]| rules.iter().map(|rule| (*rule).clone()).collect::<Vec<_>>();
        assert_eq!(union(&rules(&[&wide]), &rules(&[&narrow, &named])), rules(&[&wide]));
        assert_eq!(union(&rules(&[&named]), &rules(&[&narrow])), rules(&[&named, &narrow]));
    }
}
