//! Formats of text that rows name, beside the rules for names that all kinds share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferry_api::{FieldErrors, names};

use crate::kinds::checks::{self, Path};

/// What is wrong with a text, each with the value that is told.
#[derive(Clone, Copy)]
pub enum Format {
    Rule(fn(&str) -> Vec<String>),
    /// A check that tells more than the text itself, or in other words.
    Own(fn(&str, Path<'_>, &mut FieldErrors)),
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Format")
    }
}

impl Format {
    pub fn judge(self, errors: &mut FieldErrors, path: Path<'_>, text: &str) {
        match self {
            Format::Rule(rule) => checks::named(errors, path, text, rule),
            Format::Own(check) => check(text, path, errors),
        }
    }
}

pub fn named(name: &str) -> Option<Format> {
    Some(match name {
        "label" => Format::Rule(names::dns1123_label),
        "subdomain" => Format::Rule(names::dns1123_subdomain),
        "subdomain-in-one" => Format::Rule(|text| in_one(names::dns1123_subdomain(text))),
        "caseless" => Format::Rule(names::dns1123_subdomain_caseless),
        "short-name" => Format::Rule(names::short_name),
        "long-name" => Format::Rule(names::long_name),
        "pool-name" => Format::Own(pool_name),
        "dns1035-in-one" => Format::Rule(|text| in_one(names::dns1035_label(text))),
        "dns1035" => Format::Rule(names::dns1035_label),
        "qualified" => Format::Rule(names::qualified_name),
        "label-value" => Format::Rule(names::label_value),
        "segment" => Format::Rule(names::path_segment),
        "config-key" => Format::Rule(names::config_map_key),
        "env-name" => Format::Rule(names::env_var_name),
        "port-name" => Format::Rule(names::port_name),
        "c-identifier" => Format::Rule(names::c_identifier),
        "ip" => Format::Rule(ip),
        "ip-canonical" => Format::Rule(canonical_ip),
        "cidr" => Format::Rule(cidr),
        "cidr-canonical" => Format::Rule(canonical_cidr),
        "lower-qualified" => Format::Own(lower_qualified),
        "driver" => Format::Own(driver),
        "domain-path" => Format::Own(domain_path),
        "signer" => Format::Own(signer),
        "no-backsteps" => Format::Rule(no_backsteps),
        "descending-path" => Format::Rule(descending_path),
        "absolute" => Format::Rule(absolute),
        "non-empty" => Format::Rule(non_empty),
        "semantic-version" => Format::Rule(semantic_version),
        _ => return None,
    })
}

const NO_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const NO_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// An address as older clients may write it, but for leading zeros and IPv4 in IPv6.
pub fn ip(text: &str) -> Vec<String> {
    let Some(address) = sloppy_ip(text) else { return vec![NO_IP.into()] };
    match text.parse::<IpAddr>() {
        Err(_) => vec!["must not have leading 0s".into()],
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            vec!["must not be an IPv4-mapped IPv6 address".into()]
        }
        Ok(_) => {
            let _ = address;
            Vec::new()
        }
    }
}

pub fn canonical_ip(text: &str) -> Vec<String> {
    let wrong = ip(text);
    if !wrong.is_empty() {
        return wrong;
    }
    match text.parse::<IpAddr>() {
        Ok(address) if address.to_string() != text => {
            vec![format!("must be in canonical form (\"{address}\")")]
        }
        _ => Vec::new(),
    }
}

/// An address with leading zeros too.
pub fn sloppy_ip(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    let parts: Vec<&str> = text.split('.').collect();
    let digits = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if parts.len() != 4 || !parts.iter().all(digits) {
        return None;
    }
    let bytes: Vec<u8> = parts.iter().filter_map(|part| part.parse().ok()).collect();
    <[u8; 4]>::try_from(bytes).ok().map(|bytes| Ipv4Addr::from(bytes).into())
}

/// The address and length of a network.
pub fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address = sloppy_ip(address)?;
    let length: u8 =
        length.bytes().all(|byte| byte.is_ascii_digit()).then(|| length.parse().ok()).flatten()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    (length <= longest).then_some((address, length))
}

/// The first address of a network.
pub fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            Ipv4Addr::from(u32::from(address) & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            Ipv6Addr::from(u128::from(address) & mask).into()
        }
    }
}

pub fn cidr(text: &str) -> Vec<String> {
    let Some((address, length)) = network(text) else { return vec![NO_CIDR.into()] };
    let (given, digits) = text.split_once('/').unwrap_or((text, ""));
    let strict = given.parse::<IpAddr>().is_ok() && (digits == "0" || !digits.starts_with('0'));
    if !strict {
        return vec!["must not have leading 0s in IP or prefix length".into()];
    }
    if matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
        return vec!["must not have an IPv4-mapped IPv6 address".into()];
    }
    if masked(address, length) != address {
        return vec!["must not have bits set beyond the prefix length".into()];
    }
    Vec::new()
}

pub fn canonical_cidr(text: &str) -> Vec<String> {
    let wrong = cidr(text);
    match network(text) {
        Some((address, length)) if wrong.is_empty() && format!("{address}/{length}") != text => {
            vec![format!("must be in canonical form (\"{address}/{length}\")")]
        }
        _ => wrong,
    }
}

/// Long names between slashes.
pub fn pool_name(text: &str, path: Path<'_>, errors: &mut FieldErrors) {
    if text.len() > names::DNS1123_SUBDOMAIN_MAX {
        errors.too_long(path, names::DNS1123_SUBDOMAIN_MAX);
    }
    for (index, part) in text.split('/').enumerate() {
        if part.is_empty() {
            errors.invalid(path, text, &format!("segment {index}: must not be empty"));
            continue;
        }
        for why in names::long_name(part) {
            errors.invalid(path, part, &format!("segment {index}: {why}"));
        }
    }
}

/// Everything that is wrong in one error.
fn in_one(wrong: Vec<String>) -> Vec<String> {
    if wrong.is_empty() { wrong } else { vec![wrong.join(",")] }
}

fn non_empty(text: &str) -> Vec<String> {
    if text.is_empty() { vec!["must not be empty".into()] } else { Vec::new() }
}

fn semantic_version(text: &str) -> Vec<String> {
    match semver::Version::parse(text) {
        Ok(_) => Vec::new(),
        Err(_) => vec!["must be a valid semantic version".into()],
    }
}

fn lower_qualified(text: &str, path: Path<'_>, errors: &mut FieldErrors) {
    checks::named(errors, path, &text.to_ascii_lowercase(), names::qualified_name);
}

/// The name of a storage or device driver.
pub fn driver(text: &str, path: Path<'_>, errors: &mut FieldErrors) {
    if text.is_empty() {
        return errors.required(path, "");
    }
    if text.len() > 63 {
        errors.too_long(path, 63);
    }
    for why in names::dns1123_subdomain(&text.to_ascii_lowercase()) {
        errors.invalid(path, text, &why);
    }
}

/// `example.com/path`
pub fn domain_path(text: &str, path: Path<'_>, errors: &mut FieldErrors) {
    if text.is_empty() {
        return errors.required(path, "");
    }
    let Some((host, rest)) = text.split_once('/').filter(|(host, rest)| !host.is_empty() && !rest.is_empty())
    else {
        return errors.invalid(path, text, "must be a domain-prefixed path (such as \"acme.io/foo\")");
    };
    for why in names::dns1123_subdomain(host) {
        errors.invalid(path, host, &why);
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c);
    if !rest.chars().all(allowed) {
        errors.invalid(
            path,
            rest,
            "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
        );
    }
}

/// `example.com/signer-name`
pub fn signer(text: &str, path: Path<'_>, errors: &mut FieldErrors) {
    if text.is_empty() {
        return errors.required(path, "");
    }
    let parts: Vec<&str> = text.split('/').collect();
    let [domain, name] = parts.as_slice() else {
        return errors.invalid(
            path,
            text,
            "must be a fully qualified domain and path of the form 'example.com/signer-name'",
        );
    };
    if domain.len() > names::DNS1123_SUBDOMAIN_MAX {
        errors.too_long(path, names::DNS1123_SUBDOMAIN_MAX);
    }
    let mut labels = domain.split('.');
    if let Some(label) = labels.find(|label| !names::dns1123_label(label).is_empty()) {
        for why in names::dns1123_label(label) {
            errors.invalid(path, *domain, &format!("validating label {label:?}: {why}"));
        }
    }
    if !domain.contains('.') {
        errors.invalid(path, *domain, "should be a domain with at least two segments separated by dots");
    }
    if let Some(label) = name.split('.').find(|label| !names::dns1123_subdomain(label).is_empty()) {
        for why in names::dns1123_subdomain(label) {
            errors.invalid(path, *name, &format!("validating label {label:?}: {why}"));
        }
    }
    const LONGEST: usize = 2 * names::DNS1123_SUBDOMAIN_MAX + names::DNS1123_LABEL_MAX + 2;
    if text.len() > LONGEST {
        errors.too_long(path, LONGEST);
    }
}

pub fn no_backsteps(text: &str) -> Vec<String> {
    if text.split('/').any(|part| part == "..") { vec!["must not contain '..'".into()] } else { Vec::new() }
}

pub fn descending_path(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.starts_with('/') {
        wrong.push("must be a relative path".into());
    }
    wrong.extend(no_backsteps(text));
    wrong
}

/// The path of a file below a directory that belongs to the node's agent.
pub fn local_path(text: &str) -> Vec<String> {
    let mut wrong = descending_path(text);
    if text.starts_with("..") && !text.starts_with("../") {
        wrong.push("must not start with '..'".into());
    }
    wrong
}

fn absolute(text: &str) -> Vec<String> {
    if text.starts_with('/') { Vec::new() } else { vec!["must be an absolute path".into()] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_networks_have_one_canonical_form() {
        let check = |rule: fn(&str) -> Vec<String>, text: &str, expected: &str| {
            assert_eq!(rule(text).join("; "), expected, "{text}");
        };
        check(ip, "10.0.0.1", "");
        check(ip, "10.0.0.01", "must not have leading 0s");
        check(ip, "::ffff:10.0.0.1", "must not be an IPv4-mapped IPv6 address");
        check(ip, "x", NO_IP);
        check(canonical_ip, "2001:DB8::1", "must be in canonical form (\"2001:db8::1\")");
        check(cidr, "10.0.0.0/8", "");
        check(cidr, "10.0.0.1/8", "must not have bits set beyond the prefix length");
        check(cidr, "10.0.0.0/08", "must not have leading 0s in IP or prefix length");
        check(cidr, "10.0.0.0/33", NO_CIDR);
        check(canonical_cidr, "2001:DB8::/32", "must be in canonical form (\"2001:db8::/32\")");
    }
}
