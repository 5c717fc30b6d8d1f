//! The attributes of a request for authorizers, and upstream's messages of refusals.

use crate::user::User;

/// A request reduced to what authorization may look at. Empty strings mean "not given".
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    pub user: &'a User,
    pub verb: &'a str,
    pub api_group: &'a str,
    pub api_version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// The URL's path; the only thing besides the verb that counts for a non-resource request.
    pub path: &'a str,
    pub is_resource_request: bool,
    /// What the request's selectors require. A selector that could not be parsed is left out: it
    /// can only widen what is asked for, and so never grants anything.
    pub field_selector: &'a [SelectorRequirement],
    pub label_selector: &'a [SelectorRequirement],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorRequirement {
    pub key: String,
    pub operator: SelectorOperator,
    pub values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectorOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl SelectorOperator {
    pub fn as_str(self) -> &'static str {
        match self {
            SelectorOperator::In => "In",
            SelectorOperator::NotIn => "NotIn",
            SelectorOperator::Exists => "Exists",
            SelectorOperator::DoesNotExist => "DoesNotExist",
        }
    }
}

impl<'a> Attributes<'a> {
    /// A resource request; the rest is filled in with struct update syntax.
    pub fn resource(user: &'a User, verb: &'a str, api_group: &'a str, resource: &'a str) -> Self {
        Attributes {
            verb,
            api_group,
            api_version: "*",
            resource,
            is_resource_request: true,
            ..Attributes::path(user, verb, "")
        }
    }

    pub fn path(user: &'a User, verb: &'a str, path: &'a str) -> Self {
        Attributes {
            user,
            verb,
            api_group: "",
            api_version: "",
            resource: "",
            subresource: "",
            namespace: "",
            name: "",
            path,
            is_resource_request: false,
            field_selector: &[],
            label_selector: &[],
        }
    }

    pub fn is_read_only(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch")
    }

    /// The single value the field selector pins `field` to, if it does.
    pub fn required_field(&self, field: &str) -> Option<&'a str> {
        pinned(self.field_selector, field)
    }

    /// The single value the label selector pins `label` to, if it does.
    pub fn required_label(&self, label: &str) -> Option<&'a str> {
        pinned(self.label_selector, label)
    }
}

fn pinned<'a>(selector: &'a [SelectorRequirement], key: &str) -> Option<&'a str> {
    selector.iter().find_map(|requirement| match (requirement.operator, requirement.values.as_slice()) {
        (SelectorOperator::In, [value]) if requirement.key == key => Some(value.as_str()),
        _ => None,
    })
}

/// A refusal with all that a 403 `Status` says about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Forbidden {
    /// The details' `group`, `kind` and `name`.
    pub api_group: String,
    pub resource: String,
    pub name: String,
    pub message: String,
}

impl Forbidden {
    pub fn new(attributes: &Attributes<'_>, reason: &str) -> Self {
        Forbidden {
            api_group: attributes.api_group.to_owned(),
            resource: attributes.resource.to_owned(),
            name: attributes.name.to_owned(),
            message: forbidden_message(attributes, reason),
        }
    }
}

/// The message of a 403 `Status`, in the words clients and people search for.
pub fn forbidden_message(attributes: &Attributes<'_>, reason: &str) -> String {
    let what = escape_markup(&refusal(attributes));
    let because = if reason.is_empty() { what } else { format!("{what}: {reason}") };
    if attributes.resource.is_empty() && attributes.api_group.is_empty() {
        return format!("forbidden: {because}");
    }
    let subject = match attributes.api_group {
        "" => attributes.resource.to_owned(),
        group => format!("{}.{group}", attributes.resource),
    };
    match attributes.name {
        "" => format!("{subject} is forbidden: {because}"),
        name => format!("{subject} {} is forbidden: {because}", quote(name)),
    }
}

fn refusal(attributes: &Attributes<'_>) -> String {
    let user = quote(&attributes.user.name);
    let verb = attributes.verb;
    if !attributes.is_resource_request {
        return format!("User {user} cannot {verb} path {}", quote(attributes.path));
    }
    let resource = match attributes.subresource {
        "" => quote(attributes.resource),
        subresource => quote(&format!("{}/{subresource}", attributes.resource)),
    };
    let group = quote(attributes.api_group);
    match attributes.namespace {
        "" => {
            format!("User {user} cannot {verb} resource {resource} in API group {group} at the cluster scope")
        }
        namespace => format!(
            "User {user} cannot {verb} resource {resource} in API group {group} in the namespace {}",
            quote(namespace)
        ),
    }
}

/// The refusal repeats what the caller sent; a browser must never take it for a page.
fn escape_markup(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Quotes as Go's `%q` does, which is what clients compare with.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            control if control.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", control as u32)),
            control if control.is_control() => quoted.push_str(&format!("\\u{:04x}", control as u32)),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// A list of quoted strings as Go's `%q` prints a slice: `["a" "b"]`.
pub(crate) fn quote_list<S: AsRef<str>>(texts: &[S]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quote(text.as_ref())).collect();
    format!("[{}]", quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(attributes: Attributes<'_>, reason: &str, expected: &str) {
        assert_eq!(forbidden_message(&attributes, reason), expected);
    }

    #[test]
    fn refusals_use_the_words_clients_know() {
        let user = User::new("x");
        let pods = Attributes::resource(&user, "list", "", "pods");
        check(
            Attributes { namespace: "default", ..pods },
            "",
            r#"pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "default""#,
        );
        check(
            pods,
            "",
            r#"pods is forbidden: User "x" cannot list resource "pods" in API group "" at the cluster scope"#,
        );
        check(
            Attributes {
                name: "web",
                subresource: "scale",
                namespace: "default",
                ..Attributes::resource(&user, "update", "apps", "deployments")
            },
            "no such luck",
            r#"deployments.apps "web" is forbidden: User "x" cannot update resource "deployments/scale" in API group "apps" in the namespace "default": no such luck"#,
        );
        check(
            Attributes::path(&user, "get", "/metrics"),
            "",
            r#"forbidden: User "x" cannot get path "/metrics""#,
        );
    }

    #[test]
    fn a_refusal_cannot_carry_markup() {
        let user = User::new("<script>");
        check(
            Attributes::path(&user, "get", "/a&b"),
            "",
            r#"forbidden: User "&lt;script&gt;" cannot get path "/a&amp;b""#,
        );
    }
}
