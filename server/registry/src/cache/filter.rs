//! The objects that a list or watch selects: namespace and name, labels, fields.

use std::sync::Arc;

use ferry_api::selector::{FieldSelector, LabelSelector};
use ferry_api::{Kind, Status};

use super::Entry;
use crate::strategy::Selectable;

#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub namespace: Option<Box<str>>,
    pub name: Option<Box<str>>,
    pub labels: LabelSelector,
    /// Objects that are not finished yet are shown as well.
    pub include_uninitialized: bool,
    fields: Vec<FieldRequirement>,
    /// The version whose fields are asked for, where a webhook has to convert objects to it first.
    seen_in: Option<Arc<Kind>>,
}

#[derive(Debug, Clone)]
struct FieldRequirement {
    field: FieldRef,
    value: Box<str>,
    equal: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldRef {
    Name,
    Namespace,
    /// A position in the strategy's selectable fields.
    Selectable(usize),
}

impl FieldRequirement {
    fn holds(&self, value: &str) -> bool {
        (value == &*self.value) == self.equal
    }
}

impl Filter {
    /// Every object of a namespace.
    pub fn in_namespace(namespace: &str) -> Filter {
        Filter { namespace: Some(namespace.into()), ..Filter::default() }
    }

    /// One object, finished or not.
    pub fn of_object(namespace: &str, name: &str) -> Filter {
        let value: Box<str> = name.into();
        Filter {
            namespace: Some(namespace).filter(|namespace| !namespace.is_empty()).map(Into::into),
            name: Some(value.clone()),
            include_uninitialized: true,
            fields: vec![FieldRequirement { field: FieldRef::Name, value, equal: true }],
            ..Filter::default()
        }
    }

    /// Fails where the selector names a field that this kind cannot be selected by.
    pub fn new(
        namespace: Option<&str>,
        labels: LabelSelector,
        fields: &FieldSelector,
        selectable: &[Selectable],
        may_select: impl Fn(&str) -> bool,
    ) -> Result<Filter, Status> {
        let mut filter = Filter { namespace: namespace.map(Into::into), labels, ..Filter::default() };
        for requirement in fields.requirements() {
            let field = match requirement.field.as_str() {
                "metadata.name" => FieldRef::Name,
                "metadata.namespace" => FieldRef::Namespace,
                other => {
                    match selectable.iter().position(|field| field.field == other && may_select(other)) {
                        Some(position) => FieldRef::Selectable(position),
                        None if selectable.is_empty() => {
                            return Err(Status::bad_request(format!(
                                "{other:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                            )));
                        }
                        None => {
                            return Err(Status::bad_request(format!("field label not supported: {other}")));
                        }
                    }
                }
            };
            if field == FieldRef::Name && requirement.equal {
                filter.name = Some(requirement.value.as_str().into());
            }
            filter.fields.push(FieldRequirement {
                field,
                value: requirement.value.as_str().into(),
                equal: requirement.equal,
            });
        }
        Ok(filter)
    }

    /// The fields are those of the version `kind`, which a webhook converts to: [`Filter::matches`] lets through whatever the
    /// rest of the filter does, and the fields are for [`Filter::matches_converted`].
    pub fn seen_in(mut self, kind: &Arc<Kind>) -> Filter {
        let is_field = |requirement: &FieldRequirement| matches!(requirement.field, FieldRef::Selectable(_));
        self.seen_in = self.fields.iter().any(is_field).then(|| kind.clone());
        self
    }

    /// The version that an object has to be converted to before [`Filter::matches_converted`] can be asked.
    pub fn needs_version(&self) -> Option<&Arc<Kind>> {
        self.seen_in.as_ref()
    }

    pub fn matches(&self, entry: &Entry) -> bool {
        if entry.uninitialized && !self.include_uninitialized {
            return false;
        }
        if self.namespace.as_deref().is_some_and(|namespace| !entry.is_in(namespace)) {
            return false;
        }
        self.fields.iter().all(|requirement| {
            let value = match requirement.field {
                FieldRef::Name => entry.name(),
                FieldRef::Namespace => entry.namespace(),
                FieldRef::Selectable(_) if self.seen_in.is_some() => return true,
                FieldRef::Selectable(position) => &entry.fields[position],
            };
            requirement.holds(value)
        }) && self.labels.matches(|key| entry.label(key))
    }

    /// Whether the selectable fields of an object, converted to the version asked for, are as the selector says.
    pub fn matches_converted(&self, fields: &[Box<str>]) -> bool {
        self.fields.iter().all(|requirement| match requirement.field {
            FieldRef::Selectable(position) => requirement.holds(&fields[position]),
            FieldRef::Name | FieldRef::Namespace => true,
        })
    }

    /// Every object of its namespace matches.
    pub fn is_everything(&self) -> bool {
        self.fields.is_empty() && self.labels.is_everything()
    }

    /// The one value that the selectable field at `position` must have, in the object as it is stored.
    pub fn required_value(&self, position: usize) -> Option<&str> {
        if self.seen_in.is_some() {
            return None;
        }
        self.fields
            .iter()
            .find(|requirement| requirement.equal && requirement.field == FieldRef::Selectable(position))
            .map(|requirement| &*requirement.value)
    }
}
