//! One rule of a role, and whether it allows a request.

use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::attributes::Attributes;

pub(super) const ALL: &str = "*";

/// A policy rule with its verbs and groups ready for comparison.
pub(super) struct Rule {
    pub(super) policy: PolicyRule,
    verbs: Verbs,
    any_group: bool,
}

impl Rule {
    pub(super) fn new(policy: PolicyRule) -> Self {
        let verbs = Verbs::of(&policy.verbs);
        let any_group = strings(&policy.api_groups).iter().any(|group| group == ALL);
        Rule { policy, verbs, any_group }
    }

    pub(super) fn allows_verb(&self, verb: &str) -> bool {
        match self.verbs {
            Verbs::All => true,
            Verbs::Known(set) => match known_verb(verb) {
                Some(bit) => set & bit != 0,
                None => false,
            },
            Verbs::Named => self.policy.verbs.iter().any(|allowed| allowed == verb),
        }
    }

    /// Every verb this rule may allow, as a set that can be united with others'.
    pub(super) fn verb_set(&self) -> VerbSet {
        match self.verbs {
            Verbs::Known(set) => VerbSet { known: set, others: false },
            Verbs::All | Verbs::Named => VerbSet { known: u16::MAX, others: true },
        }
    }

    pub(super) fn allows_group(&self, group: &str) -> bool {
        self.any_group || strings(&self.policy.api_groups).iter().any(|allowed| allowed == group)
    }

    pub(super) fn allows_name(&self, name: &str) -> bool {
        let names = strings(&self.policy.resource_names);
        names.is_empty() || names.iter().any(|allowed| allowed == name)
    }

    pub(super) fn allows_path(&self, path: &str) -> bool {
        strings(&self.policy.non_resource_urls).iter().any(|allowed| path_matches(allowed, path))
    }
}

/// Whether one rule, taken alone, allows the request.
pub fn rule_allows(rule: &PolicyRule, attributes: &Attributes<'_>) -> bool {
    let rule = Rule::new(rule.clone());
    if !rule.allows_verb(attributes.verb) {
        return false;
    }
    if !attributes.is_resource_request {
        return rule.allows_path(attributes.path);
    }
    let resources = strings(&rule.policy.resources);
    rule.allows_group(attributes.api_group)
        && rule.allows_name(attributes.name)
        && resources.iter().any(|resource| {
            ResourcePattern::parse(resource).is_some_and(|pattern| pattern.matches(attributes))
        })
}

/// `*` at the end of a path stands for any rest.
pub(super) fn path_matches(pattern: &str, path: &str) -> bool {
    pattern == path || pattern.ends_with(ALL) && path.starts_with(pattern.trim_end_matches('*'))
}

pub(super) fn strings(list: &Option<Vec<String>>) -> &[String] {
    list.as_deref().unwrap_or(&[])
}

/// A resource as rules write it: `pods`, `pods/log`, `*/scale` or `*`.
#[derive(Clone, Copy)]
pub(super) struct ResourcePattern<'a> {
    pub(super) resource: &'a str,
    pub(super) subresource: Subresource<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum Subresource<'a> {
    Any,
    Exactly(&'a str),
}

impl<'a> ResourcePattern<'a> {
    /// `None` if no request can match, as with `pods/`.
    pub(super) fn parse(written: &'a str) -> Option<Self> {
        if written == ALL {
            return Some(ResourcePattern { resource: ALL, subresource: Subresource::Any });
        }
        match written.split_once('/') {
            None => Some(ResourcePattern { resource: written, subresource: Subresource::Exactly("") }),
            Some((_, "")) => None,
            Some((resource, sub)) => {
                Some(ResourcePattern { resource, subresource: Subresource::Exactly(sub) })
            }
        }
    }

    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        let (resource, subresource) = asked(attributes);
        (self.resource == resource && self.subresource.matches(subresource))
            || (self.resource == ALL && self.subresource.matches(attributes.subresource))
    }
}

/// The resource and subresource that a request asks for. A review may name both as the resource (`pods/status`): rules are
/// compared with the joined words, but for `*/status`, which wants a subresource.
pub(super) fn asked<'a>(attributes: &Attributes<'a>) -> (&'a str, &'a str) {
    match attributes.resource.split_once('/') {
        Some((resource, sub)) if attributes.subresource.is_empty() && !sub.is_empty() => (resource, sub),
        _ => (attributes.resource, attributes.subresource),
    }
}

impl Subresource<'_> {
    pub(super) fn matches(&self, subresource: &str) -> bool {
        match self {
            Subresource::Any => true,
            Subresource::Exactly(required) => *required == subresource,
        }
    }
}

/// Nearly all rules use the verbs the API itself knows; those fit in one word.
enum Verbs {
    All,
    Known(u16),
    Named,
}

impl Verbs {
    fn of(verbs: &[String]) -> Self {
        if verbs.iter().any(|verb| verb == ALL) {
            return Verbs::All;
        }
        let bits: Option<u16> =
            verbs.iter().map(|verb| known_verb(verb)).try_fold(0, |set, bit| Some(set | bit?));
        bits.map_or(Verbs::Named, Verbs::Known)
    }
}

/// An upper bound of the verbs that several rules allow.
#[derive(Clone, Copy, Default)]
pub(super) struct VerbSet {
    known: u16,
    others: bool,
}

impl VerbSet {
    pub(super) fn unite(&mut self, other: VerbSet) {
        self.known |= other.known;
        self.others |= other.others;
    }

    pub(super) fn may_contain(&self, verb: &str) -> bool {
        known_verb(verb).map_or(self.others, |bit| self.known & bit != 0)
    }
}

fn known_verb(verb: &str) -> Option<u16> {
    let position = match verb {
        "get" => 0,
        "list" => 1,
        "watch" => 2,
        "create" => 3,
        "update" => 4,
        "patch" => 5,
        "delete" => 6,
        "deletecollection" => 7,
        "impersonate" => 8,
        "bind" => 9,
        "escalate" => 10,
        "proxy" => 11,
        "approve" => 12,
        "sign" => 13,
        "use" => 14,
        "post" => 15,
        _ => return None,
    };
    Some(1 << position)
}
