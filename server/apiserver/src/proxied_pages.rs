//! Pages of pods, services, nodes and aggregated API servers, shown in a browser at this server's own address.
//!
//! Such a page is anybody's, and has the origin of the API: its scripts could read what the page of `ferry ui` keeps there,
//! and send requests with the client certificate that the browser shows. So it is put into a sandbox, where its origin is
//! nobody's: the browser keeps it from the origin's storage and says of each of its requests that another site makes it, and
//! such requests are refused ([`ferry_ui::origin`]). Cookies that it sets would be the origin's, and are left out.
//!
//! Programs are no browsers, and `kubectl proxy` has an address of its own: what they get is passed on as it is.

use http::header::{CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, SET_COOKIE};

/// Scripts run, forms can be filled in, windows be opened; what is missing is `allow-same-origin`.
const SANDBOX: HeaderValue =
    HeaderValue::from_static("sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads");

/// Every browser says it, and no script can take it away.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Said by proxies. No page can say it in a request whose answer is shown as a page.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// What an answer could do to the whole origin.
const OF_ORIGIN: [HeaderName; 3] = [
    SET_COOKIE,
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("service-worker-allowed"),
];

/// Whether a browser asks that would show the answer as a page of this server.
pub fn is_shown(request: &HeaderMap) -> bool {
    request.contains_key(FETCH_SITE) && !request.contains_key(FORWARDED_FOR)
}

/// Puts what somebody else answered into the sandbox.
pub fn confine(answer: &mut HeaderMap) {
    OF_ORIGIN.iter().for_each(|name| while answer.remove(name).is_some() {});
    // Its own policy goes on to hold as well.
    answer.append(CONTENT_SECURITY_POLICY, SANDBOX);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(request: &[(&'static str, &'static str)]) -> HeaderMap {
        let headers = |pairs: &[(&'static str, &'static str)]| -> HeaderMap {
            let parsed = |(name, value): &(&'static str, &'static str)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            };
            pairs.iter().map(parsed).collect()
        };
        let own = [
            ("set-cookie", "a=b"),
            ("content-security-policy", "default-src 'self'"),
            ("clear-site-data", "*"),
            ("content-type", "text/html"),
        ];
        let mut answer = headers(&own);
        if is_shown(&headers(request)) {
            confine(&mut answer);
        }
        answer
    }

    #[test]
    fn proxied_pages_in_a_browser_are_sandboxed_and_set_no_cookies() {
        for site in ["none", "same-origin", "cross-site", "same-site"] {
            let answer = answered(&[("sec-fetch-site", site)]);
            let policies: Vec<_> = answer.get_all(CONTENT_SECURITY_POLICY).iter().collect();
            assert_eq!(policies, ["default-src 'self'", SANDBOX.to_str().expect("text")]);
            assert!(!answer.contains_key("set-cookie") && !answer.contains_key("clear-site-data"));
            assert_eq!(answer["content-type"], "text/html");
        }
    }

    #[test]
    fn proxied_pages_for_programs_are_unchanged() {
        for request in [&[][..], &[("sec-fetch-site", "same-origin"), ("x-forwarded-for", "127.0.0.1")]] {
            let answer = answered(request);
            assert_eq!(answer["set-cookie"], "a=b");
            assert_eq!(answer["content-security-policy"], "default-src 'self'");
        }
    }
}
