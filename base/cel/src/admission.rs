//! What expressions about a request may name: match conditions of webhooks, and admission policies.

use crate::environment::Environment;
use crate::types::Type;

/// Match conditions of one webhook or policy together may cost this: about a quarter of a second.
pub const MATCH_CONDITIONS_BUDGET: i64 = 2_500_000;
/// The expressions of one policy and binding together.
pub const POLICY_BUDGET: i64 = 10_000_000;

/// `params` for policies that have parameters; `authorizer` where who asks may be asked about.
pub fn environment(params: bool, authorizer: bool) -> Environment {
    let mut environment = Environment::new([
        ("object", Type::Dyn),
        ("oldObject", Type::Dyn),
        ("namespaceObject", namespace()),
        ("request", request()),
    ]);
    if params {
        environment = environment.with("params", Type::Dyn);
    }
    if authorizer {
        environment = environment
            .with("authorizer", Type::Opaque("kubernetes.authorization.Authorizer"))
            .with("authorizer.requestResource", Type::Opaque("kubernetes.authorization.ResourceCheck"));
    }
    environment
}

fn request() -> Type {
    let kind = || {
        let fields = [("group", Type::String), ("version", Type::String), ("kind", Type::String)];
        Type::object("kubernetes.GroupVersionKind", fields)
    };
    let resource = || {
        let fields = [("group", Type::String), ("version", Type::String), ("resource", Type::String)];
        Type::object("kubernetes.GroupVersionResource", fields)
    };
    let user = Type::object(
        "kubernetes.UserInfo",
        [
            ("username", Type::String),
            ("uid", Type::String),
            ("groups", Type::list(Type::String)),
            ("extra", Type::map(Type::list(Type::String))),
        ],
    );
    Type::object(
        "kubernetes.AdmissionRequest",
        [
            ("kind", kind()),
            ("resource", resource()),
            ("subResource", Type::String),
            ("requestKind", kind()),
            ("requestResource", resource()),
            ("requestSubResource", Type::String),
            ("name", Type::String),
            ("namespace", Type::String),
            ("operation", Type::String),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
}

fn namespace() -> Type {
    let metadata = Type::object(
        "kubernetes.NamespaceMetadata",
        [
            ("name", Type::String),
            ("generateName", Type::String),
            ("namespace", Type::String),
            ("labels", Type::map(Type::String)),
            ("annotations", Type::map(Type::String)),
            ("UID", Type::String),
            ("creationTimestamp", Type::Dyn),
            ("deletionGracePeriodSeconds", Type::Int),
            ("deletionTimestamp", Type::Dyn),
            ("generation", Type::Int),
            ("resourceVersion", Type::String),
            ("finalizers", Type::list(Type::String)),
        ],
    );
    let spec = Type::object("kubernetes.NamespaceSpec", [("finalizers", Type::list(Type::String))]);
    let status = Type::object(
        "kubernetes.NamespaceStatus",
        [("conditions", Type::list(Type::Dyn)), ("phase", Type::String)],
    );
    Type::object("kubernetes.Namespace", [("metadata", metadata), ("spec", spec), ("status", status)])
}
