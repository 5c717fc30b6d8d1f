//! The session's cookie. The `__Host-` prefix makes browsers refuse it unless it is `Secure`, of this very host and of
//! all paths, so no neighbour in the domain can set it.

use std::time::Duration;

pub const NAME: &str = "__Host-ferry-session";

pub fn set(secret: &str, life: Duration) -> String {
    format!("{NAME}={secret}; Path=/; Max-Age={}; Secure; HttpOnly; SameSite=Strict", life.as_secs())
}

/// Makes the browser forget it.
pub fn forget() -> String {
    format!("{NAME}=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Strict")
}

/// The session's secret among the `Cookie` headers of a request. Two of them are none: nobody can say which is meant.
pub fn find<'a>(headers: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut found = headers.into_iter().flat_map(cookies).filter_map(secret);
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// A `Cookie` header as others may see it: without the session. Nothing if nothing else was in it. Of bytes: a neighbour in
/// the domain can set a cookie that is no text, and the browser sends it in one header with the session's.
pub fn without_session(header: &[u8]) -> Option<Vec<u8>> {
    let cookies = header.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let others: Vec<&[u8]> = cookies.filter(|cookie| !cookie.is_empty() && !is_session(cookie)).collect();
    (!others.is_empty()).then(|| others.join(&b"; "[..]))
}

fn is_session(cookie: &[u8]) -> bool {
    let name = cookie.split(|byte| *byte == b'=').next().unwrap_or(cookie);
    name.trim_ascii() == NAME.as_bytes()
}

fn cookies(header: &str) -> impl Iterator<Item = &str> {
    header.split(';').map(str::trim).filter(|cookie| !cookie.is_empty())
}

fn secret(cookie: &str) -> Option<&str> {
    let (name, value) = cookie.split_once('=')?;
    (name.trim() == NAME).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_is_as_strict_as_cookies_can_be() {
        let cookie = set("x", Duration::from_secs(60));
        assert_eq!(cookie, "__Host-ferry-session=x; Path=/; Max-Age=60; Secure; HttpOnly; SameSite=Strict");
        assert!(forget().contains("Max-Age=0") && forget().starts_with("__Host-ferry-session=;"));
    }

    #[test]
    fn the_session_is_found_among_others_and_only_if_there_is_one() {
        let check = |headers: &[&str], expected: Option<&str>| {
            assert_eq!(find(headers.iter().copied()), expected, "{headers:?}");
        };
        check(&["a=1; __Host-ferry-session=x; b=2"], Some("x"));
        // HTTP/2 may send each cookie in a header of its own.
        check(&["a=1", "__Host-ferry-session=x"], Some("x"));
        check(&["__Host-ferry-session=x", "__Host-ferry-session=y"], None);
        check(&["x__Host-ferry-session=x; __host-ferry-session=x; __Host-ferry-session"], None);
        check(&[], None);
    }

    #[test]
    fn others_never_see_it() {
        let check = |header: &[u8], expected: Option<&[u8]>| {
            assert_eq!(without_session(header).as_deref(), expected, "{}", header.escape_ascii());
        };
        check(b"a=1; __Host-ferry-session=x; b=2", Some(b"a=1; b=2"));
        check(b"__Host-ferry-session=x", None);
        check(b"__Host-ferry-session", None);
        check(b"a=\xff;__Host-ferry-session =x;", Some(b"a=\xff"));
    }
}
