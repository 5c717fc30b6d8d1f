//! Whether a browser's request comes from the page itself.
//!
//! A browser adds what it knows about the user (a cookie, a client certificate) to requests that any page makes. What it
//! also adds, and no script can change, is where the request came from: `Sec-Fetch-Site` and `Origin`.

use std::fmt;

/// What a request says about where it came from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// `Sec-Fetch-Site`: every browser since 2023 says it; no other client does.
    pub site: Option<&'a str>,
    /// `Sec-Fetch-Mode`
    pub mode: Option<&'a str>,
    /// `Sec-Fetch-Dest`
    pub destination: Option<&'a str>,
    pub origin: Option<&'a str>,
    /// The host and port that the request was sent to.
    pub authority: Option<&'a str>,
    /// GET or HEAD.
    pub is_read: bool,
    /// It would turn the connection into a stream: no preflight comes before it, and no policy hides its answer.
    pub is_upgrade: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    NotSameOrigin,
    OtherOrigin,
    Upgrade,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Refusal::NotSameOrigin => "a session is for requests of its own page only",
            Refusal::OtherOrigin => "the request comes from a page of another origin",
            Refusal::Upgrade => "a session opens no streams by upgrade",
        })
    }
}

/// A session speaks for its user only in requests of the page's own scripts.
pub fn of_page(facts: &Facts<'_>) -> Result<(), Refusal> {
    if facts.is_upgrade {
        return Err(Refusal::Upgrade);
    }
    if facts.site != Some("same-origin") {
        return Err(Refusal::NotSameOrigin);
    }
    match facts.origin {
        Some(origin) if !is_own(origin, facts.authority) => Err(Refusal::OtherOrigin),
        _ => Ok(()),
    }
}

/// A client certificate speaks for its user in every request of a browser's, so what other pages send with it is refused. A
/// link that was followed is no page's doing, and changes nothing.
pub fn of_certificate(facts: &Facts<'_>) -> Result<(), Refusal> {
    let is_navigation = facts.mode == Some("navigate") && facts.destination == Some("document");
    match facts.site {
        // No browser, or the user typed the address.
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) if is_navigation && facts.is_read && !facts.is_upgrade => Ok(()),
        Some(_) => Err(Refusal::OtherOrigin),
    }
}

fn is_own(origin: &str, authority: Option<&str>) -> bool {
    // An origin leaves out the port that https has anyway; a request may name it.
    let plain = |text: &str| text.strip_suffix(":443").unwrap_or(text).to_ascii_lowercase();
    match (origin.strip_prefix("https://"), authority) {
        (Some(origin), Some(authority)) => plain(origin) == plain(authority),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Facts<'_> = Facts {
        site: Some("same-origin"),
        mode: Some("cors"),
        destination: Some("empty"),
        origin: Some("https://h:6443"),
        authority: Some("h:6443"),
        is_read: false,
        is_upgrade: false,
    };

    #[test]
    fn a_session_is_for_its_own_page() {
        let check = |facts: Facts<'_>, expected: Result<(), Refusal>| {
            assert_eq!(of_page(&facts), expected, "{facts:?}");
        };
        check(PAGE, Ok(()));
        check(Facts { origin: None, is_read: true, ..PAGE }, Ok(()));
        check(Facts { origin: Some("https://H"), authority: Some("h:443"), ..PAGE }, Ok(()));
        // Another port of the same host is another origin, though the cookie goes there.
        for site in [None, Some("same-site"), Some("cross-site"), Some("none"), Some("")] {
            check(Facts { site, ..PAGE }, Err(Refusal::NotSameOrigin));
        }
        for origin in ["https://h:6444", "http://h:6443", "https://evil", "null", ""] {
            check(Facts { origin: Some(origin), ..PAGE }, Err(Refusal::OtherOrigin));
        }
        check(Facts { authority: None, ..PAGE }, Err(Refusal::OtherOrigin));
        check(Facts { is_upgrade: true, ..PAGE }, Err(Refusal::Upgrade));
    }

    #[test]
    fn a_certificate_does_not_speak_for_other_pages() {
        let check = |facts: Facts<'_>, expected: bool| {
            assert_eq!(of_certificate(&facts).is_ok(), expected, "{facts:?}");
        };
        check(Facts::default(), true);
        check(PAGE, true);
        check(Facts { site: Some("none"), ..PAGE }, true);
        let elsewhere = Facts { site: Some("cross-site"), origin: Some("https://evil"), ..PAGE };
        check(elsewhere, false);
        check(Facts { is_read: true, ..elsewhere }, false);
        check(Facts { site: Some("same-site"), ..elsewhere }, false);
        check(Facts { site: Some("unheard-of"), ..elsewhere }, false);
        let followed =
            Facts { mode: Some("navigate"), destination: Some("document"), is_read: true, ..elsewhere };
        check(followed, true);
        check(Facts { is_read: false, ..followed }, false);
        check(Facts { is_upgrade: true, ..followed }, false);
        check(Facts { destination: Some("iframe"), ..followed }, false);
    }
}
