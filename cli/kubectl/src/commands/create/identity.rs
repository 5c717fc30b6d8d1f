//! `create namespace`, `serviceaccount`, `rolebinding`, `clusterrolebinding`.

use serde_json::{Value, json};

use super::{create_generated, generator_flags, one_name};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::flags::{Args, Flag};

pub const NAMESPACE: Command = Command {
    name: "namespace",
    aliases: &["ns"],
    short: "Create a namespace",
    usage: "NAME",
    flags: generator_flags!(&[]),
    run: Some(|cli| {
        Box::pin(async move {
            let name = one_name(&cli.args)?;
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {}, "status": {}});
            create_generated(cli, object, "").await
        })
    }),
    ..Command::NONE
};

pub const SERVICE_ACCOUNT: Command = Command {
    name: "serviceaccount",
    aliases: &["sa"],
    short: "Create a service account",
    usage: "NAME",
    flags: generator_flags!(&[]),
    run: Some(|cli| {
        Box::pin(async move {
            let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": one_name(&cli.args)?}});
            create_generated(cli, object, "failed to create serviceaccount:").await
        })
    }),
    ..Command::NONE
};

const SUBJECT_FLAGS: [Flag; 3] = [
    Flag::list("user", "User to bind to"),
    Flag::list("group", "Group to bind to"),
    Flag::list("serviceaccount", "Service account to bind to, as namespace:name"),
];

pub const ROLE_BINDING: Command = Command {
    name: "rolebinding",
    short: "Bind a role or cluster role in a namespace",
    usage: "NAME --clusterrole=NAME|--role=NAME [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname]",
    flags: generator_flags!(&[
        Flag::text("clusterrole", "Cluster role to bind"),
        Flag::text("role", "Role to bind"),
        SUBJECT_FLAGS[0],
        SUBJECT_FLAGS[1],
        SUBJECT_FLAGS[2],
    ]),
    run: Some(|cli| {
        Box::pin(async move {
            create_generated(cli, role_binding(&cli.args)?, "failed to create rolebinding:").await
        })
    }),
    ..Command::NONE
};

pub const CLUSTER_ROLE_BINDING: Command = Command {
    name: "clusterrolebinding",
    short: "Bind a cluster role across the cluster",
    usage: "NAME --clusterrole=NAME [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname]",
    flags: generator_flags!(&[
        Flag::text("clusterrole", "Cluster role to bind").required(),
        SUBJECT_FLAGS[0],
        SUBJECT_FLAGS[1],
        SUBJECT_FLAGS[2]
    ]),
    run: Some(|cli| {
        Box::pin(async move {
            create_generated(cli, cluster_role_binding(&cli.args)?, "failed to create clusterrolebinding:")
                .await
        })
    }),
    ..Command::NONE
};

const RBAC: &str = "rbac.authorization.k8s.io";

/// Users, groups and service accounts, in that order.
pub fn subjects(args: &Args) -> Result<Vec<Value>> {
    let mut subjects = Vec::new();
    for user in args.list("user") {
        subjects.push(json!({"apiGroup": RBAC, "kind": "User", "name": user}));
    }
    for group in args.list("group") {
        subjects.push(json!({"apiGroup": RBAC, "kind": "Group", "name": group}));
    }
    for account in args.list("serviceaccount") {
        let Some((namespace, name)) = account
            .split_once(':')
            .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty() && !name.contains(':'))
        else {
            return Err(Error::message("serviceaccount must be <namespace>:<name>"));
        };
        subjects.push(json!({"kind": "ServiceAccount", "name": name, "namespace": namespace}));
    }
    Ok(subjects)
}

fn role_binding(args: &Args) -> Result<Value> {
    let name = one_name(args)?;
    let (kind, role) = match (args.text("clusterrole"), args.text("role")) {
        ("", "") => return Err(Error::message("exactly one of clusterrole or role must be specified")),
        ("", role) => ("Role", role),
        (role, "") => ("ClusterRole", role),
        _ => return Err(Error::message("exactly one of clusterrole or role must be specified")),
    };
    Ok(binding("RoleBinding", name, kind, role, subjects(args)?))
}

fn cluster_role_binding(args: &Args) -> Result<Value> {
    Ok(binding(
        "ClusterRoleBinding",
        one_name(args)?,
        "ClusterRole",
        args.text("clusterrole"),
        subjects(args)?,
    ))
}

fn binding(kind: &str, name: &str, role_kind: &str, role: &str, subjects: Vec<Value>) -> Value {
    let mut object = json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role}});
    if !subjects.is_empty() {
        object["subjects"] = Value::Array(subjects);
    }
    object
}
