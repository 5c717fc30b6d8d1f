//! The headers that pass the user to a backend, which trusts them because of this server's front-proxy certificate.

use ferry_auth::User;
use ferry_auth::user::MASTERS;
use http::header::{HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue};
use http::request::Builder;

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const EXTRA: &str = "x-remote-extra-";
/// Of what a client says about this, nothing goes on.
const RESERVED: &str = "x-remote-";

#[derive(Debug, thiserror::Error)]
pub enum InvalidIdentity {
    #[error("cannot pass the user to the aggregated API server: {0}")]
    Value(#[from] InvalidHeaderValue),
    #[error("cannot pass the user to the aggregated API server: {0}")]
    Name(#[from] http::header::InvalidHeaderName),
}

/// Replaces what a client said of its identity by what it is. A user that cannot be told is an error: told in part, it
/// would be another.
pub fn put(headers: &mut HeaderMap, user: &User) -> Result<(), InvalidIdentity> {
    let spoken: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(RESERVED)).cloned().collect();
    for name in spoken {
        headers.remove(name);
    }
    let value = |text: &str| HeaderValue::from_bytes(text.as_bytes());
    headers.insert(USER, value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert(UID, value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append(GROUP, value(group)?);
    }
    for (key, values) in &user.extra {
        let name = HeaderName::try_from(format!("{EXTRA}{}", escaped(key)))?;
        for one in values {
            headers.append(name.clone(), value(one)?);
        }
    }
    Ok(())
}

/// A question of this server's own.
pub fn as_aggregator(url: &str) -> Builder {
    http::Request::get(url).header(USER, "system:kube-aggregator").header(GROUP, MASTERS)
}

/// Bytes that no header's name may have are written as a URL writes them.
fn escaped(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'0'..=b'9'
            | b'a'..=b'z'
            | b'A'..=b'Z'
            | b'!'
            | b'#'
            | b'$'
            | b'&'
            | b'\''
            | b'*'
            | b'+'
            | b'-'
            | b'.'
            | b'^'
            | b'_'
            | b'`'
            | b'|'
            | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_hears_who_asks_and_nothing_that_the_client_made_up() {
        let mut headers = HeaderMap::new();
        for (name, text) in [
            ("x-remote-user", "root"),
            ("x-remote-extra-scopes", "all"),
            ("x-remote-other", "x"),
            ("accept", "a/b"),
        ] {
            headers.append(name, HeaderValue::from_static(text));
        }
        let mut user = User::new("jane").with_groups(["a", "b"]);
        user.extra.insert("example.com/scope%".into(), vec!["x".into(), "y".into()]);
        put(&mut headers, &user).expect("can be told");
        let mut found: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().expect("text"))).collect();
        found.sort_unstable();
        let expected = [
            ("accept", "a/b"),
            ("x-remote-extra-example.com%2fscope%25", "x"),
            ("x-remote-extra-example.com%2fscope%25", "y"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-user", "jane"),
        ];
        assert_eq!(found, expected);
        assert!(put(&mut headers, &User::new("a\nb")).is_err());
    }
}
