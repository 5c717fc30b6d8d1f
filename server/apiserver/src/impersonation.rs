//! Impersonation: one user acting as another. Each name, group, uid and extra needs its own right.

use std::collections::BTreeMap;

use ferry_api::{GroupResource, Status};
use ferry_auth::{Attributes, Authorization, User, forbidden_message};
use http::HeaderMap;

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";

/// Who the request wants to be.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

pub fn wanted(headers: &HeaderMap) -> Result<Option<Wanted>, Status> {
    let text =
        |value: &http::HeaderValue| value.to_str().map(str::to_string).unwrap_or_else(|_| String::new());
    let mut wanted = Wanted {
        user: headers.get(USER).map(text).unwrap_or_else(String::new),
        uid: headers.get(UID).map(text).unwrap_or_else(String::new),
        groups: headers.get_all(GROUP).iter().map(text).collect(),
        extra: BTreeMap::new(),
    };
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().into_owned();
            wanted.extra.entry(key).or_default().push(text(value));
        }
    }
    let anything = !wanted.uid.is_empty() || !wanted.groups.is_empty() || !wanted.extra.is_empty();
    match (wanted.user.is_empty(), anything) {
        (true, false) => Ok(None),
        (true, true) => Err(Status::internal("requested [{Group  }] without impersonating a user")),
        (false, _) => Ok(Some(wanted)),
    }
}

/// Refuses unless `user` may be all that is wanted.
pub async fn check(authorization: &Authorization, user: &User, wanted: &Wanted) -> Result<(), Status> {
    let (service_account, _) = split_service_account(&wanted.user);
    let mut questions: Vec<(&str, &str, &str, &str, String)> = Vec::new();
    match &service_account {
        Some((namespace, name)) => questions.push(("", "serviceaccounts", "", namespace, name.clone())),
        None => questions.push(("", "users", "", "", wanted.user.clone())),
    }
    for group in &wanted.groups {
        questions.push(("", "groups", "", "", group.clone()));
    }
    if !wanted.uid.is_empty() {
        questions.push(("authentication.k8s.io", "uids", "", "", wanted.uid.clone()));
    }
    for (key, values) in &wanted.extra {
        for value in values {
            questions.push(("authentication.k8s.io", "userextras", key, "", value.clone()));
        }
    }
    for (group, resource, subresource, namespace, name) in questions {
        let attributes = Attributes {
            subresource,
            namespace,
            name: &name,
            ..Attributes::resource(user, "impersonate", group, resource)
        };
        let decision = authorization.authorize(&attributes).await;
        if !decision.is_allowed() {
            let message = forbidden_message(&attributes, decision.reason());
            let resource = GroupResource::new(group.to_string(), resource.to_string());
            return Err(Status::new(403, "Forbidden", message).about(&resource, &name));
        }
    }
    Ok(())
}

fn split_service_account(user: &str) -> (Option<(String, String)>, &str) {
    let parts = user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    (parts.map(|(namespace, name)| (namespace.to_string(), name.to_string())), user)
}

impl Wanted {
    pub fn into_user(mut self) -> User {
        if self.groups.is_empty()
            && let (Some((namespace, _)), _) = split_service_account(&self.user)
        {
            self.groups =
                vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
        }
        if self.user != ferry_auth::user::ANONYMOUS
            && !self.groups.iter().any(|group| group == ferry_auth::user::ALL_AUTHENTICATED)
        {
            self.groups.push(ferry_auth::user::ALL_AUTHENTICATED.into());
        }
        User { name: self.user, uid: self.uid, groups: self.groups, extra: self.extra }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_account_brings_its_groups() {
        let mut headers = HeaderMap::new();
        headers.insert(USER, "system:serviceaccount:a:b".parse().expect("a header"));
        let user = wanted(&headers).expect("well formed").expect("asked for").into_user();
        assert_eq!(
            user.groups,
            ["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"]
        );
    }

    #[test]
    fn a_group_without_a_user_is_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(GROUP, "system:masters".parse().expect("a header"));
        assert!(wanted(&headers).is_err());
    }
}
