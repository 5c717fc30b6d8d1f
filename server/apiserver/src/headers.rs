//! The significant headers: credentials, impersonation and media types. A request with a malformed one is refused; ignoring
//! it would change the meaning of the request.

use ferry_api::Status;
use ferry_auth::authenticate::{AuthenticationError, Headers, WebSocketBearer, websocket_bearer};
use ferry_auth::impersonate::{EXTRA_HEADER_PREFIX, GROUP_HEADER, UID_HEADER, USER_HEADER};
use ferry_ui::cookie;
use http::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, COOKIE, HeaderName, HeaderValue, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{HeaderMap, header};

use crate::server::MAX_HEADERS;
use crate::websocket;

/// What a request may say in its headers altogether. The protocols take more, so that it is refused here, where the audit
/// log hears of it.
pub const MAX_HEADER_BYTES: usize = 128 * 1024;

const DECIDING: [HeaderName; 8] = [
    AUTHORIZATION,
    ACCEPT,
    KEY_HEADER,
    CONTENT_TYPE,
    CONNECTION,
    UPGRADE,
    SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL,
];

const KEY_HEADER: HeaderName = HeaderName::from_static(ferry_ui::KEY_HEADER);

fn decides(name: &HeaderName) -> bool {
    let text = name.as_str();
    // What the front proxy says, and who somebody wants to be.
    text.starts_with("x-remote-") || text.starts_with("impersonate-") || DECIDING.contains(name)
}

/// Over HTTP/1.1 the connection refuses too many, see [`crate::malformed_requests`].
pub fn check(headers: &HeaderMap) -> Result<(), Status> {
    let too_large = |message: String| Err(Status::new(431, "", message));
    if headers.len() > MAX_HEADERS {
        return too_large(format!("the request has more than {MAX_HEADERS} headers"));
    }
    let mut bytes = 0;
    for (name, value) in headers {
        bytes += name.as_str().len() + value.len();
        if decides(name) && value.to_str().is_err() {
            return Err(Status::bad_request(format!("the header {name} has signs that are not ASCII")));
        }
    }
    match bytes > MAX_HEADER_BYTES {
        true => too_large(format!("the request has more than {MAX_HEADER_BYTES} bytes of headers")),
        false => Ok(()),
    }
}

/// Headers that were checked, for those who know nothing of HTTP.
pub struct PlainHeaders<'a>(pub &'a HeaderMap);

impl Headers for PlainHeaders<'_> {
    fn values(&self, name: &str) -> Vec<&str> {
        // What decides nothing may be unreadable. It is there all the same, and equal to nothing that is expected.
        self.0.get_all(name).iter().map(|value| value.to_str().unwrap_or("\u{fffd}")).collect()
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(header::HeaderName::as_str).collect()
    }
}

/// A browser cannot set headers: it hides its token in the subprotocols of a WebSocket's handshake.
pub fn websocket_token(headers: &HeaderMap) -> Result<Option<WebSocketBearer>, AuthenticationError> {
    match websocket::is_upgrade(headers) {
        true => websocket_bearer(&PlainHeaders(headers).values(SEC_WEBSOCKET_PROTOCOL.as_str())),
        false => Ok(None),
    }
}

/// Nothing behind the filters shall see who somebody wanted to be.
pub fn without_credentials(mut headers: HeaderMap) -> HeaderMap {
    headers.remove(AUTHORIZATION);
    headers.remove(KEY_HEADER);
    let others: Vec<HeaderValue> = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|cookies| HeaderValue::from_bytes(&cookie::without_session(cookies.as_bytes())?).ok())
        .collect();
    headers.remove(COOKIE);
    for cookies in others {
        headers.append(COOKIE, cookies);
    }
    if let Ok(Some(bearer)) = websocket_token(&headers)
        && let Ok(protocols) = HeaderValue::from_str(&bearer.protocols.join(", "))
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocols);
    }
    let spoken: Vec<HeaderName> = headers
        .keys()
        .filter(|name| {
            [USER_HEADER, UID_HEADER, GROUP_HEADER].contains(&name.as_str())
                || name.as_str().starts_with(EXTRA_HEADER_PREFIX)
        })
        .cloned()
        .collect();
    for name in spoken {
        headers.remove(name);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_cookies_and_keys_are_removed_before_the_verb() {
        let mut headers = HeaderMap::new();
        headers.insert(KEY_HEADER, HeaderValue::from_static("key"));
        headers.append(COOKIE, HeaderValue::from_static("a=1; __Host-ferry-session=secret"));
        headers.append(COOKIE, HeaderValue::from_static("__Host-ferry-session=secret"));
        headers.append(COOKIE, HeaderValue::from_static("b=2"));
        let not_text = HeaderValue::from_bytes(b"c=\xfc; __Host-ferry-session=secret").expect("a value");
        headers.append(COOKIE, not_text);
        let seen = without_credentials(headers);
        let cookies: Vec<&[u8]> = seen.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(cookies, [&b"a=1"[..], b"b=2", b"c=\xfc"]);
        assert!(!seen.contains_key(KEY_HEADER));
    }

    #[test]
    fn a_header_that_decides_something_is_read_or_refused() {
        let check = |name: &'static str, value: &[u8], expected: Option<u16>| {
            let mut headers = HeaderMap::new();
            headers.append(name, HeaderValue::from_static("plain"));
            headers.append(name, HeaderValue::from_bytes(value).expect("a value"));
            assert_eq!(super::check(&headers).err().map(|status| status.code), expected, "{name}");
        };
        let not_ascii = "jürgen".as_bytes();
        for name in [
            "authorization",
            "impersonate-user",
            "impersonate-uid",
            "impersonate-group",
            "impersonate-extra-scopes",
            "x-remote-user",
            "x-remote-group",
            "x-remote-extra-scopes",
            "content-type",
            "accept",
            "upgrade",
            "sec-websocket-protocol",
        ] {
            check(name, not_ascii, Some(400));
            check(name, b"plain", None);
        }
        check("user-agent", not_ascii, None);
        check("traceparent", not_ascii, None);
        check("x-long", &[b'x'; MAX_HEADER_BYTES], Some(431));
    }

    #[test]
    fn header_values_with_invalid_bytes_are_kept() {
        let mut headers = HeaderMap::new();
        headers.append("x", HeaderValue::from_bytes(b"\xff").expect("a value"));
        headers.append("x", HeaderValue::from_static("y"));
        assert_eq!(PlainHeaders(&headers).values("x"), ["\u{fffd}", "y"]);
    }
}
