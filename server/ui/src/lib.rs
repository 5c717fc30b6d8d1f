//! The web page of `ferry ui`: its files, and the pure part of signing in.
//!
//! ```text
//! ferry ui ── POST /ui/links ──▶ a link, valid once, for two minutes
//!                                  │ opened in a browser
//! the page ── POST /ui/sessions ──▶ a cookie (HttpOnly) and a key that only the page's origin can read
//!    └── any API request: the cookie, the key in a header, from the same origin; otherwise unauthenticated
//! ```
//!
//! The page consists of plain JavaScript modules and CSS without a build step. It is an ordinary API client, so this crate
//! knows no kinds and no rights; it also knows no HTTP library. The API server serves it under `/ui/`.
//!
//! Start reading at [`secrets`], then [`origin`], then [`assets`].

pub mod assets;
pub mod cookie;
pub mod origin;
pub mod secrets;

/// Sent with everything below `/ui/`. Scripts and styles come from this server's files only, never from text in a page; nobody
/// may frame it; where it was opened from is told to nobody.
pub const HEADERS: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("x-frame-options", "DENY"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=()"),
];

/// The header in which the page shows its session's key.
pub const KEY_HEADER: &str = "x-ferry-session-key";
