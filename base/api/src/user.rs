//! Who a request speaks for, and the names the cluster itself gives to users and groups.

use std::collections::BTreeMap;

/// The user of a request without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// Every user that showed valid credentials is in this group.
pub const ALL_AUTHENTICATED: &str = "system:authenticated";
/// The one group of [`ANONYMOUS`].
pub const ALL_UNAUTHENTICATED: &str = "system:unauthenticated";
/// Members may do anything, whatever the authorizers say: the way back in when RBAC is broken.
pub const MASTERS: &str = "system:masters";
pub const NODES: &str = "system:nodes";
pub const NODE_PREFIX: &str = "system:node:";
pub const ALL_SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// Key of [`User::extra`]: which certificate or token it was, so that audit can tell two apart.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
pub const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
pub const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
pub const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
pub const NODE_UID: &str = "authentication.kubernetes.io/node-uid";

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
const SERVICE_ACCOUNT_GROUP_PREFIX: &str = "system:serviceaccounts:";

/// A user as requests, reviews and audit events know it. Shared as `Arc<User>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    pub fn new(name: impl Into<String>) -> Self {
        User { name: name.into(), ..User::default() }
    }

    pub fn with_groups<S: Into<String>>(mut self, groups: impl IntoIterator<Item = S>) -> Self {
        self.groups.extend(groups.into_iter().map(Into::into));
        self
    }

    pub fn anonymous() -> Self {
        User::new(ANONYMOUS).with_groups([ALL_UNAUTHENTICATED])
    }

    /// The user behind a service account, before the token's own claims are added.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        User {
            name: service_account_username(namespace, name),
            uid: uid.to_owned(),
            groups: service_account_groups(namespace).into(),
            extra: BTreeMap::new(),
        }
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|member_of| member_of == group)
    }

    /// Adds `system:authenticated`, unless the credentials already placed the user in one of the
    /// two groups that say whether it is known.
    pub fn mark_authenticated(&mut self) {
        if self.name != ANONYMOUS && !self.is_in(ALL_AUTHENTICATED) && !self.is_in(ALL_UNAUTHENTICATED) {
            self.groups.push(ALL_AUTHENTICATED.to_owned());
        }
    }
}

pub fn service_account_username(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
}

pub fn service_account_groups(namespace: &str) -> [String; 2] {
    [ALL_SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNT_GROUP_PREFIX}{namespace}")]
}

/// Namespace and name, if `username` is a service account's.
pub fn split_service_account_username(username: &str) -> Option<(&str, &str)> {
    let (namespace, name) = username.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    let valid = !namespace.is_empty() && !name.is_empty() && !name.contains(':');
    valid.then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_account_names_split_back() {
        let username = service_account_username("kube-system", "coredns");
        assert_eq!(split_service_account_username(&username), Some(("kube-system", "coredns")));
        for other in
            ["system:serviceaccount:", "system:serviceaccount:a", "system:serviceaccount:a:b:c", "a:b", ""]
        {
            assert_eq!(split_service_account_username(other), None, "{other}");
        }
    }

    #[test]
    fn the_authenticated_group_is_added_once_and_never_to_the_unauthenticated() {
        let mut user = User::new("jane");
        user.mark_authenticated();
        user.mark_authenticated();
        assert_eq!(user.groups, [ALL_AUTHENTICATED]);
        let mut anonymous = User::anonymous();
        anonymous.mark_authenticated();
        assert_eq!(anonymous.groups, [ALL_UNAUTHENTICATED]);
    }
}
