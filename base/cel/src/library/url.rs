//! `url('https://example.com:80/path?q=1').getHost()`: absolute URLs and absolute paths.

use std::collections::{BTreeMap, HashMap};

use cel::common::types::{CelBool, CelList, CelMap, CelMapKey, CelString};
use cel::common::value::{StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::{opaque, wrong};

/// What does not stand in a path as it is; a percent sign begins what is written so already.
const IN_PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'[')
    .add(b']')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    host: String,
    path: String,
    query: String,
}

opaque!(Url, "kubernetes.URL");

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    add_overload!(env, fn url: (CelString) -> Result<Url>)?;
    add_overload!(env, fn is_url: (CelString) -> CelBool, name = "isURL")?;
    add_member_overload!(env, fn get_scheme: (Url) -> CelString)?;
    add_member_overload!(env, fn get_host: (Url) -> CelString)?;
    add_member_overload!(env, fn get_hostname: (Url) -> CelString)?;
    add_member_overload!(env, fn get_port: (Url) -> CelString)?;
    add_member_overload!(env, fn get_escaped_path: (Url) -> CelString)?;
    add_member_overload!(env, fn get_query: (Url) -> CelMap)
}

fn parse(text: &str) -> Result<Url, ExecutionError> {
    let refuse = |why: &str| {
        wrong("url", format!("URL parse error during conversion from string: parse {text:?}: {why}"))
    };
    if text.is_empty() {
        return Err(refuse("empty url"));
    }
    if text.chars().any(|char| char.is_ascii_control()) {
        return Err(refuse("net/url: invalid control character in URL"));
    }
    let (scheme, rest) = match text.split_once(':') {
        _ if text.starts_with('/') => ("", text),
        Some((scheme, rest)) if is_scheme(scheme) => (scheme, rest),
        _ => return Err(refuse("invalid URI for request")),
    };
    // Behind the fragment's sign nothing is path or query.
    let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (host, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
        Some(rest) => match rest.find('/') {
            Some(at) => (&rest[..at], &rest[at..]),
            None => (rest, ""),
        },
        None if rest.starts_with('/') => ("", rest),
        // Opaque: `mailto:a@b.c`.
        None if !scheme.is_empty() => ("", ""),
        None => return Err(refuse("invalid URI for request")),
    };
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let port = port_of(host);
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(refuse(&format!("invalid port {:?} after host", format!(":{port}"))));
    }
    let (scheme, host) = (scheme.to_ascii_lowercase(), host.to_string());
    Ok(Url { scheme, host, path: path.to_string(), query: query.to_string() })
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|char: char| char.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

fn port_of(host: &str) -> &str {
    let after_brackets = host.rfind(']').map_or(host, |at| &host[at..]);
    after_brackets.rsplit_once(':').map_or("", |(_, port)| port)
}

fn url(text: &CelString<'_>) -> Result<Url, ExecutionError> {
    parse(text.inner())
}

fn is_url(text: &CelString<'_>) -> CelBool {
    parse(text.inner()).is_ok().into()
}

fn get_scheme(this: &Url) -> CelString<'static> {
    CelString::from(this.scheme.clone())
}

fn get_host(this: &Url) -> CelString<'static> {
    CelString::from(this.host.clone())
}

fn get_hostname(this: &Url) -> CelString<'static> {
    let port = port_of(&this.host);
    let name = match port.is_empty() {
        true => this.host.trim_end_matches(':'),
        false => &this.host[..this.host.len() - port.len() - 1],
    };
    CelString::from(name.trim_start_matches('[').trim_end_matches(']').to_string())
}

fn get_port(this: &Url) -> CelString<'static> {
    CelString::from(port_of(&this.host).to_string())
}

fn get_escaped_path(this: &Url) -> CelString<'static> {
    CelString::from(utf8_percent_encode(&this.path, IN_PATH).to_string())
}

fn get_query(this: &Url) -> CelMap<'static> {
    let mut values: BTreeMap<String, Vec<Box<dyn Val>>> = BTreeMap::new();
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    for pair in this.query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        values.entry(decode(key)).or_default().push(Box::new(CelString::from(decode(value))));
    }
    let fields: HashMap<CelMapKey<'static>, Box<dyn Val>> = values
        .into_iter()
        .map(|(key, list)| (CelMapKey::from(key), Box::new(CelList::from(list)) as Box<dyn Val>))
        .collect();
    CelMap::from(fields)
}
