//! Impersonation (`kubectl --as`): parses the requested user, and authorizes the caller.
//!
//! There are two ways to be allowed. The old one grants a person outright: the verb `impersonate`
//! on the user, each group and so on. The constrained one (KEP-5284) grants it for certain requests only:
//! `impersonate:MODE` on the identity *and* `impersonate-on:MODE:VERB` on the request's own
//! resource. The mode by which a caller was last allowed is tried first, since most keep to one; then
//! all from the narrowest to the widest. The first refusal is the one the caller reads.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    attributes::{Attributes, Forbidden, quote, quote_list},
    authenticate::{Headers, unescape_key},
    authorize::{Authorization, Decision},
    user::{
        ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, ANONYMOUS, MASTERS, NODE_NAME, NODE_PREFIX, NODES, User,
        service_account_groups, split_service_account_username,
    },
};

pub const USER_HEADER: &str = "impersonate-user";
pub const UID_HEADER: &str = "impersonate-uid";
pub const GROUP_HEADER: &str = "impersonate-group";
pub const EXTRA_HEADER_PREFIX: &str = "impersonate-extra-";

const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";
/// From this many single questions on, a constrained mode first asks for all at once.
const MANY: usize = 4;

/// Parts of an identity without a user name: a 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MalformedImpersonation(pub String);

/// The user the headers ask for, if any. The headers must not travel further with the request.
pub fn wanted_user(headers: &dyn Headers) -> Result<Option<User>, MalformedImpersonation> {
    let first = |name: &str| headers.values(name).first().copied().unwrap_or("").to_owned();
    let mut wanted = User { name: first(USER_HEADER), uid: first(UID_HEADER), ..User::default() };
    wanted.groups = headers.values(GROUP_HEADER).into_iter().map(str::to_owned).collect();
    for header in headers.names() {
        let Some((start, key)) = header.split_at_checked(EXTRA_HEADER_PREFIX.len()) else { continue };
        if start.eq_ignore_ascii_case(EXTRA_HEADER_PREFIX) {
            let values = headers.values(header).into_iter().map(str::to_owned);
            wanted.extra.entry(unescape_key(key)).or_default().extend(values);
        }
    }
    let only_user_missing = !wanted.uid.is_empty() || !wanted.groups.is_empty() || !wanted.extra.is_empty();
    match (wanted.name.is_empty(), only_user_missing) {
        (true, true) => Err(MalformedImpersonation(format!(
            "requested {} without impersonating a user name",
            describe_go_user(&wanted)
        ))),
        (true, false) => Ok(None),
        (false, _) => Ok(Some(wanted)),
    }
}

/// The user as clients see it in this one message: a Go value.
fn describe_go_user(user: &User) -> String {
    let list = |values: &[String]| {
        let quoted: Vec<String> = values.iter().map(|value| quote(value)).collect();
        format!("[]string{{{}}}", quoted.join(", "))
    };
    let groups = if user.groups.is_empty() { "[]string(nil)".to_owned() } else { list(&user.groups) };
    let extra = if user.extra.is_empty() {
        "map[string][]string(nil)".to_owned()
    } else {
        let entries: Vec<String> =
            user.extra.iter().map(|(key, values)| format!("{}:{}", quote(key), list(values))).collect();
        format!("map[string][]string{{{}}}", entries.join(", "))
    };
    format!(
        "&user.DefaultInfo{{Name:{}, UID:{}, Groups:{groups}, Extra:{extra}}}",
        quote(&user.name),
        quote(&user.uid)
    )
}

/// The user a request goes on as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonated {
    pub user: Arc<User>,
    /// The verb that allowed it, if it was a constrained one; for the audit event's
    /// `authenticationMetadata.impersonationConstraint`.
    pub constraint: Option<&'static str>,
}

/// Who was allowed by which mode. It only chooses what is asked first, never the decision.
#[derive(Default)]
pub struct Impersonation {
    modes: Mutex<HashMap<String, Kind>>,
}

/// More callers than this are forgotten together.
const MAX_REMEMBERED: usize = 10_000;

impl Impersonation {
    /// Decides whether the user of `request` may act as `wanted` in that request.
    pub async fn decide(
        &self,
        authorization: &Authorization,
        wanted: &User,
        request: &Attributes<'_>,
    ) -> Result<Impersonated, Forbidden> {
        let remembered = self.modes.lock().get(&request.user.name).copied();
        let is_first = |mode: &&Mode| Some(mode.kind) == remembered;
        let first = MODES.iter().filter(is_first);
        let others = MODES.iter().filter(|mode| !is_first(mode));
        let mut first_refusal = None;
        for mode in first.chain(others).filter(|mode| mode.applies(wanted, request.user)) {
            match mode.check(authorization, wanted, request).await {
                Ok(user) => {
                    if remembered != Some(mode.kind) {
                        self.remember(&request.user.name, mode.kind);
                    }
                    let constraint = (mode.kind != Kind::Legacy).then_some(mode.verb);
                    return Ok(Impersonated { user: Arc::new(user), constraint });
                }
                Err(refusal) => {
                    first_refusal.get_or_insert(refusal);
                }
            }
        }
        Err(first_refusal.expect("the last mode applies to every user"))
    }

    fn remember(&self, requestor: &str, kind: Kind) {
        let mut modes = self.modes.lock();
        if modes.len() >= MAX_REMEMBERED {
            modes.clear();
        }
        modes.insert(requestor.to_owned(), kind);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
    Legacy,
}

struct Mode {
    kind: Kind,
    verb: &'static str,
    /// Prefix of the verb that is checked on the request itself.
    on: &'static str,
}

const MODES: [Mode; 5] = [
    Mode {
        kind: Kind::AssociatedNode,
        verb: "impersonate:associated-node",
        on: "impersonate-on:associated-node:",
    },
    Mode {
        kind: Kind::ArbitraryNode,
        verb: "impersonate:arbitrary-node",
        on: "impersonate-on:arbitrary-node:",
    },
    Mode {
        kind: Kind::ServiceAccount,
        verb: "impersonate:serviceaccount",
        on: "impersonate-on:serviceaccount:",
    },
    Mode { kind: Kind::UserInfo, verb: "impersonate:user-info", on: "impersonate-on:user-info:" },
    Mode { kind: Kind::Legacy, verb: "impersonate", on: "" },
];

impl Mode {
    fn applies(&self, wanted: &User, requestor: &User) -> bool {
        let only_name = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let node = node_of(&wanted.name);
        let account = split_service_account_username(&wanted.name);
        match self.kind {
            Kind::AssociatedNode => only_name && node.is_some_and(|node| runs_on(requestor, node)),
            Kind::ArbitraryNode => only_name && node.is_some(),
            Kind::ServiceAccount => only_name && account.is_some(),
            Kind::UserInfo => node.is_none() && account.is_none(),
            Kind::Legacy => true,
        }
    }

    async fn check(
        &self,
        authorization: &Authorization,
        wanted: &User,
        request: &Attributes<'_>,
    ) -> Result<User, Forbidden> {
        // Which node it is has been checked above; authorizers shall decide alike for all of them.
        let mut requestor = request.user.clone();
        if self.kind == Kind::AssociatedNode {
            let keys = requestor.extra.keys().cloned().collect();
            requestor.extra = [("authentication.kubernetes.io/associated-node-keys".to_owned(), keys)].into();
        }
        let asker = Asker { authorization, mode: self, requestor: &requestor };
        if self.kind != Kind::Legacy {
            let verb = format!("{}{}", self.on, request.verb);
            asker.ask(Attributes { verb: &verb, user: &requestor, ..*request }).await?;
        }
        let mut user = wanted.clone();
        asker.check_name(&mut user).await?;
        if !wanted.uid.is_empty() {
            asker.ask(asker.about(AUTHENTICATION_GROUP, "uids", &wanted.uid)).await?;
        }
        asker.check_groups(&wanted.groups).await?;
        asker.check_extra(wanted).await?;
        if user.name == ANONYMOUS {
            ensure_group(&mut user, ALL_UNAUTHENTICATED);
        } else if !user.is_in(ALL_UNAUTHENTICATED) {
            ensure_group(&mut user, ALL_AUTHENTICATED);
        }
        Ok(user)
    }
}

fn ensure_group(user: &mut User, group: &str) {
    if !user.is_in(group) {
        user.groups.push(group.to_owned());
    }
}

fn node_of(username: &str) -> Option<&str> {
    username.strip_prefix(NODE_PREFIX).filter(|name| is_dns_subdomain(name))
}

fn is_dns_subdomain(name: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let label = |label: &str| {
        edge(label.bytes().next())
            && edge(label.bytes().last())
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// Whether the requestor is a service account whose token says that its pod runs on the node.
fn runs_on(requestor: &User, node: &str) -> bool {
    let is_account = split_service_account_username(&requestor.name).is_some();
    is_account && requestor.extra.get(NODE_NAME).is_some_and(|nodes| nodes.as_slice() == [node])
}

struct Asker<'a> {
    authorization: &'a Authorization,
    mode: &'a Mode,
    requestor: &'a User,
}

impl<'a> Asker<'a> {
    fn is_constrained(&self) -> bool {
        self.mode.kind != Kind::Legacy
    }

    fn about(&self, api_group: &'a str, resource: &'a str, name: &'a str) -> Attributes<'a> {
        Attributes {
            api_version: "v1",
            name,
            ..Attributes::resource(self.requestor, self.mode.verb, api_group, resource)
        }
    }

    async fn ask(&self, attributes: Attributes<'_>) -> Result<(), Forbidden> {
        match self.authorization.authorize(&attributes).await {
            Decision::Allow { .. } => Ok(()),
            other => Err(Forbidden::new(&attributes, other.reason())),
        }
    }

    /// Users and groups are the core group's in the old way, and authentication.k8s.io's since.
    fn identity_group(&self) -> &'static str {
        if self.is_constrained() { AUTHENTICATION_GROUP } else { "" }
    }

    /// Checks the name and gives nodes and service accounts the groups that follow from it.
    async fn check_name(&self, user: &mut User) -> Result<(), Forbidden> {
        let username = user.name.clone();
        let mut question = self.about(self.identity_group(), "users", &username);
        if let Some(node) = node_of(&username).filter(|_| self.is_constrained()) {
            question.resource = "nodes";
            question.name = if self.mode.kind == Kind::AssociatedNode { "*" } else { node };
            user.groups = vec![NODES.to_owned()];
        }
        if let Some((namespace, name)) = split_service_account_username(&username) {
            question.resource = "serviceaccounts";
            question.namespace = namespace;
            question.name = name;
            if user.groups.is_empty() {
                user.groups = service_account_groups(namespace).into();
            }
        }
        self.ask(question).await
    }

    async fn check_groups(&self, groups: &[String]) -> Result<(), Forbidden> {
        let question = |name| self.about(self.identity_group(), "groups", name);
        if self.is_constrained() {
            if groups.iter().any(String::is_empty) {
                return Err(Forbidden::new(
                    &question(""),
                    "impersonating the empty string group is not allowed",
                ));
            }
            if groups.iter().any(|group| group == MASTERS) {
                return Err(Forbidden::new(
                    &question(MASTERS),
                    "impersonating the system:masters group is not allowed",
                ));
            }
            if groups.len() >= MANY && self.ask(question("*")).await.is_ok() {
                return Ok(());
            }
        }
        for group in groups {
            self.ask(question(group)).await?;
        }
        Ok(())
    }

    async fn check_extra(&self, wanted: &User) -> Result<(), Forbidden> {
        let question = |subresource, name| Attributes {
            subresource,
            ..self.about(AUTHENTICATION_GROUP, "userextras", name)
        };
        if self.is_constrained() {
            if let Some(problem) = wanted.extra.iter().find_map(|(key, values)| extra_problem(key, values)) {
                return Err(Forbidden::new(&question("", ""), &problem));
            }
            let count: usize = wanted.extra.values().map(Vec::len).sum();
            if count >= MANY && self.ask(question("*", "*")).await.is_ok() {
                return Ok(());
            }
        }
        for (key, values) in &wanted.extra {
            for value in values {
                self.ask(question(key, value)).await?;
            }
        }
        Ok(())
    }
}

fn extra_problem(key: &str, values: &[String]) -> Option<String> {
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".to_owned());
    }
    let (domain, path) = key.split_once('/').unwrap_or((key, ""));
    if !is_dns_subdomain(domain) || path.is_empty() {
        let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        return Some(format!(
            "impersonating an invalid key in extra is not allowed: extra.key: Invalid value: {}: {why}",
            quote(key)
        ));
    }
    if values.is_empty() {
        return Some("impersonating empty values in extra is not allowed".to_owned());
    }
    if values.iter().any(String::is_empty) {
        return Some("impersonating the empty string value in extra is not allowed".to_owned());
    }
    None
}

/// How logs name the two: `jane[dev] is impersonating joe`.
pub fn describe(requestor: &User, impersonated: &User) -> String {
    let name = |user: &User| format!("{}{}", user.name, quote_list(&user.groups));
    format!("{} is impersonating {}", name(requestor), name(impersonated))
}

#[cfg(test)]
mod tests;
