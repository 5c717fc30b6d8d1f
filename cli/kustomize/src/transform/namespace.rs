//! The namespace of everything that has one.

use serde_json::Value;

use crate::error::{Error, Result, Within};
use crate::field_spec::{Create, FieldSpec, set_text};
use crate::resource::{Resource, map_at, scalar_text};
use crate::resources::Resources;
use crate::schema::Schemas;

/// Which subjects of a binding get the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SubjectMode {
    /// Those named `default`.
    #[default]
    DefaultOnly,
    AllServiceAccounts,
    None,
}

impl SubjectMode {
    pub fn of(word: &str) -> Result<SubjectMode> {
        match word {
            "" | "defaultOnly" => Ok(SubjectMode::DefaultOnly),
            "allServiceAccounts" => Ok(SubjectMode::AllServiceAccounts),
            "none" => Ok(SubjectMode::None),
            other => Err(Error::new(format!(
                "invalid value {other:?} for setRoleBindingSubjects: must be one of \"defaultOnly\", \"none\" or \"allServiceAccounts\""
            ))),
        }
    }
}

pub fn set_namespace(
    resources: &mut Resources,
    namespace: &str,
    specs: &[FieldSpec],
    unset_only: bool,
    subjects: SubjectMode,
    schemas: &Schemas,
) -> Result<()> {
    if namespace.is_empty() {
        return Ok(());
    }
    for at in 0..resources.0.len() {
        let resource = &mut resources.0[at];
        if resource.value.is_null() {
            continue;
        }
        resource.store_id(schemas);
        set_in_resource(resource, namespace, specs, unset_only, subjects, schemas)?;
        let id = resources.0[at].id(schemas);
        let same: Vec<&Resource> = resources.0.iter().filter(|other| other.id(schemas).is(&id)).collect();
        if same.len() != 1 {
            let shown: Vec<String> =
                same.iter().map(|resource| ferry_api::go_json::compact(&resource.value)).collect();
            return Err(Error::new(format!(
                "namespace transformation produces ID conflict: [{}]",
                shown.join(" ")
            )));
        }
    }
    Ok(())
}

/// The namespace in one resource: of itself, of the subjects of a binding, and in the fields of `specs`.
pub fn set_in_resource(
    resource: &mut Resource,
    namespace: &str,
    specs: &[FieldSpec],
    unset_only: bool,
    subjects: SubjectMode,
    schemas: &Schemas,
) -> Result<()> {
    let mut set = |value: &mut Value| {
        if unset_only && !scalar_text(value).is_empty() { Ok(()) } else { set_text(value, namespace) }
    };
    let gvk = resource.gvk();
    if !schemas.is_cluster_scoped(&gvk) {
        FieldSpec::new("metadata/namespace", true).visit(resource, Create::Scalar, &mut set)?;
    }
    let is_binding = gvk.kind == "RoleBinding" || gvk.kind == "ClusterRoleBinding";
    if is_binding && let Some(Value::Array(list)) = resource.value.get_mut("subjects") {
        for subject in list {
            let text = |field: &str| subject.get(field).map(scalar_text).unwrap_or_default();
            let wanted = match subjects {
                SubjectMode::DefaultOnly => text("name") == "default",
                SubjectMode::AllServiceAccounts => text("kind") == "ServiceAccount",
                SubjectMode::None => false,
            };
            if wanted && let Value::Object(map) = subject {
                set(map.entry("namespace").or_insert(Value::Null))
                    .within("setting namespace field on (cluster)role binding subject")?;
            }
        }
    }
    for spec in specs {
        let of_metadata = spec.path == "metadata/namespace"
            || (spec.path == "metadata/name" && resource.api_version() != "v1");
        let of_subjects = is_binding
            && spec.path == "subjects/namespace"
            && matches!(spec.kind.as_str(), "RoleBinding" | "ClusterRoleBinding");
        if !of_metadata && !of_subjects {
            spec.visit(resource, Create::Scalar, &mut set).within("namespace transformation failed")?;
        }
    }
    map_at(&mut resource.value, "metadata");
    Ok(())
}
