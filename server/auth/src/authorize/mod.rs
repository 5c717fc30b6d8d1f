//! Authorization: a union of authorizers, in the order of `--authorization-mode`.

mod abac;
pub mod node;
pub mod rbac;
mod webhook;

use std::{fmt, ops::Deref, sync::Arc};

use crate::{MaybeReady, attributes::Attributes, user};

pub use abac::{Abac, AbacError};
pub use node::NodeAuthorizer;
pub use rbac::Rbac;
pub use webhook::{WebhookAuthorizer, WebhookAuthorizerConfig};

/// The decision of one authorizer, or of the union of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Allow {
        reason: Reason,
    },
    /// Final: no later authorizer runs.
    Deny {
        reason: Reason,
    },
    NoOpinion {
        reason: Reason,
    },
    /// The authorizer could not find out. Others are still asked; if none of them allows, the
    /// request fails as an internal error instead of a refusal.
    Failed {
        error: String,
    },
}

impl Decision {
    fn verdict(&self) -> &'static str {
        match self {
            Decision::Allow { .. } => "allow",
            Decision::Deny { .. } => "deny",
            Decision::NoOpinion { .. } => "no opinion",
            Decision::Failed { .. } => "failed",
        }
    }
}

impl Decision {
    pub fn is_allowed(&self) -> bool {
        matches!(self, Decision::Allow { .. })
    }

    pub fn reason(&self) -> &str {
        match self {
            Decision::Allow { reason } | Decision::Deny { reason } | Decision::NoOpinion { reason } => reason,
            Decision::Failed { error } => error,
        }
    }
}

/// Why. Cheap to clone, since every allowed request carries one.
#[derive(Clone, Debug, Default)]
pub enum Reason {
    #[default]
    None,
    Static(&'static str),
    Shared(Arc<str>),
}

impl Deref for Reason {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Reason::None => "",
            Reason::Static(text) => text,
            Reason::Shared(text) => text,
        }
    }
}

impl PartialEq for Reason {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Reason {}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self)
    }
}

impl From<&'static str> for Reason {
    fn from(text: &'static str) -> Self {
        if text.is_empty() { Reason::None } else { Reason::Static(text) }
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        if text.is_empty() { Reason::None } else { Reason::Shared(text.into()) }
    }
}

/// Decides at once from memory, or later from the network: see [`MaybeReady`].
pub trait Authorizer: Send + Sync {
    /// Its name in the trace: what it is called here.
    fn name(&self) -> &'static str {
        crate::short_type_name::<Self>()
    }

    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeReady<'a, Decision>;

    /// The rules of the user in a namespace, for SelfSubjectRulesReview.
    fn rules_for(&self, user: &user::User, namespace: &str) -> Rules;
}

/// What a user may do, as far as an authorizer can list it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    pub resource_rules: Vec<ResourceRule>,
    pub non_resource_rules: Vec<NonResourceRule>,
    /// The list is not everything: some authorizer can only answer single questions.
    pub incomplete: bool,
    pub errors: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRule {
    pub verbs: Vec<String>,
    pub api_groups: Vec<String>,
    pub resources: Vec<String>,
    pub resource_names: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonResourceRule {
    pub verbs: Vec<String>,
    pub non_resource_urls: Vec<String>,
}

impl Rules {
    pub(crate) fn everything() -> Self {
        let all = || vec!["*".to_owned()];
        Rules {
            resource_rules: vec![ResourceRule {
                verbs: all(),
                api_groups: all(),
                resources: all(),
                resource_names: Vec::new(),
            }],
            non_resource_rules: vec![NonResourceRule { verbs: all(), non_resource_urls: all() }],
            ..Rules::default()
        }
    }

    /// Rules that an authorizer cannot list.
    pub(crate) fn unknown(why: &str) -> Self {
        Rules { incomplete: true, errors: vec![why.to_owned()], ..Rules::default() }
    }

    fn merge(&mut self, other: Rules) {
        self.resource_rules.extend(other.resource_rules);
        self.non_resource_rules.extend(other.non_resource_rules);
        self.incomplete |= other.incomplete;
        self.errors.extend(other.errors);
    }
}

/// The configured authorizers. The first decision to allow or deny applies.
#[derive(Clone, Default)]
pub struct Authorization {
    members: Vec<Arc<dyn Authorizer>>,
}

impl Authorization {
    /// `members` in the order of `--authorization-mode`. Members of `system:masters` are let
    /// through before any of them is asked, so that a broken policy can be repaired.
    pub fn new(members: Vec<Arc<dyn Authorizer>>) -> Self {
        Authorization { members }
    }

    pub async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        if attributes.user.is_in(user::MASTERS) {
            return Decision::Allow { reason: Reason::None };
        }
        let mut reasons: Vec<Reason> = Vec::new();
        let mut errors: Vec<String> = Vec::new();
        for member in &self.members {
            let mut span = ferry_trace::span("auth.authorizer");
            span.set("name", member.name());
            let decision = span.in_scope(member.authorize(attributes).get()).await;
            span.set("verdict", decision.verdict());
            drop(span);
            match decision {
                decision @ (Decision::Allow { .. } | Decision::Deny { .. }) => return decision,
                Decision::NoOpinion { reason: Reason::None } => {}
                Decision::NoOpinion { reason } => reasons.push(reason),
                Decision::Failed { error } => errors.push(error),
            }
        }
        if !errors.is_empty() {
            return Decision::Failed { error: aggregate(&errors) };
        }
        match reasons.as_slice() {
            [] => Decision::NoOpinion { reason: Reason::None },
            [reason] => Decision::NoOpinion { reason: reason.clone() },
            several => {
                let lines: Vec<&str> = several.iter().map(|reason| &**reason).collect();
                Decision::NoOpinion { reason: lines.join("\n").into() }
            }
        }
    }

    pub fn rules_for(&self, user: &user::User, namespace: &str) -> Rules {
        let mut rules = Rules::default();
        if user.is_in(user::MASTERS) {
            rules.merge(Rules::everything());
        }
        for member in &self.members {
            rules.merge(member.rules_for(user, namespace));
        }
        rules
    }
}

/// Several errors in one line, each once.
pub(crate) fn aggregate(errors: &[String]) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for error in errors {
        if !distinct.contains(&error.as_str()) {
            distinct.push(error);
        }
    }
    match distinct.as_slice() {
        [single] => (*single).to_owned(),
        several => format!("[{}]", several.join(", ")),
    }
}

pub struct AlwaysAllow;

impl Authorizer for AlwaysAllow {
    fn authorize<'a>(&'a self, _: &'a Attributes<'a>) -> MaybeReady<'a, Decision> {
        MaybeReady::Now(Decision::Allow { reason: Reason::None })
    }

    fn rules_for(&self, _: &user::User, _: &str) -> Rules {
        Rules::everything()
    }
}

pub struct AlwaysDeny;

impl Authorizer for AlwaysDeny {
    fn authorize<'a>(&'a self, _: &'a Attributes<'a>) -> MaybeReady<'a, Decision> {
        MaybeReady::Now(Decision::NoOpinion { reason: Reason::Static("Everything is forbidden.") })
    }

    fn rules_for(&self, _: &user::User, _: &str) -> Rules {
        Rules::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::User;

    struct Says(Decision);

    impl Authorizer for Says {
        fn authorize<'a>(&'a self, _: &'a Attributes<'a>) -> MaybeReady<'a, Decision> {
            let decision = self.0.clone();
            MaybeReady::Later(Box::pin(async move { decision }))
        }

        fn rules_for(&self, _: &User, _: &str) -> Rules {
            Rules::default()
        }
    }

    fn allow(reason: &'static str) -> Decision {
        Decision::Allow { reason: reason.into() }
    }
    fn deny(reason: &'static str) -> Decision {
        Decision::Deny { reason: reason.into() }
    }
    fn no_opinion(reason: &'static str) -> Decision {
        Decision::NoOpinion { reason: reason.into() }
    }
    fn failed(error: &str) -> Decision {
        Decision::Failed { error: error.to_owned() }
    }

    async fn check(members: &[Decision], expected: Decision) {
        let user = User::new("jane");
        let members = members.iter().map(|decision| Arc::new(Says(decision.clone())) as Arc<dyn Authorizer>);
        let union = Authorization::new(members.collect());
        assert_eq!(union.authorize(&Attributes::path(&user, "get", "/")).await, expected);
    }

    #[tokio::test]
    async fn the_first_allow_or_deny_decides() {
        check(&[no_opinion("a"), allow("b"), deny("c")], allow("b")).await;
        check(&[no_opinion("a"), deny("b"), allow("c")], deny("b")).await;
        check(&[failed("broken"), allow("b")], allow("b")).await;
        check(&[], no_opinion("")).await;
        check(&[no_opinion("a"), no_opinion(""), no_opinion("b")], no_opinion("a\nb")).await;
        check(&[failed("one"), no_opinion("a"), failed("two"), failed("one")], failed("[one, two]")).await;
    }

    #[tokio::test]
    async fn masters_pass_before_anyone_is_asked() {
        let user = User::new("root").with_groups([user::MASTERS]);
        let union = Authorization::new(vec![Arc::new(Says(deny("never")))]);
        assert!(union.authorize(&Attributes::path(&user, "get", "/")).await.is_allowed());
    }
}
