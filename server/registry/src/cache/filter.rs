//! Which objects a list or watch is about: a place, labels and fields.

use ferry_api::Status;
use ferry_api::selector::{FieldSelector, LabelSelector};

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
                FieldRef::Selectable(position) => &entry.fields[position],
            };
            (value == &*requirement.value) == requirement.equal
        }) && self.labels.matches(|key| entry.label(key))
    }

    /// Every object of its namespace matches.
    pub fn is_everything(&self) -> bool {
        self.fields.is_empty() && self.labels.is_everything()
    }

    /// The one value that the selectable field at `position` must have.
    pub fn required_value(&self, position: usize) -> Option<&str> {
        self.fields
            .iter()
            .find(|requirement| requirement.equal && requirement.field == FieldRef::Selectable(position))
            .map(|requirement| &*requirement.value)
    }
}
