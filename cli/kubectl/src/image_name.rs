//! Image references: `[host[:port]/]path[:tag][@digest]`, checked before anything is sent.

/// Whether the text is a reference a registry could know.
pub fn is_valid(reference: &str) -> bool {
    let (rest, digest) = match reference.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (reference, None),
    };
    if !digest.is_none_or(is_digest) {
        return false;
    }
    let (name, tag) = match rest.rsplit_once(':') {
        // a colon before a slash belongs to the host's port
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    tag.is_none_or(is_tag) && is_name(name)
}

/// The last element of the path, without tag and digest: what a pod is named after.
pub fn base_name(reference: &str) -> &str {
    let rest = reference.split('@').next().unwrap_or(reference);
    let last = rest.rsplit('/').next().unwrap_or(rest);
    last.split(':').next().unwrap_or(last)
}

fn is_name(name: &str) -> bool {
    let all_components = |path: &str| path.split('/').all(is_component);
    match name.split_once('/') {
        Some((host, path)) => all_components(name) || (is_host(host) && all_components(path)),
        None => is_component(name),
    }
}

fn is_host(host: &str) -> bool {
    let (host, port) = match host.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (host, None),
    };
    let port_fits =
        port.is_none_or(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(address) = bracketed {
        return port_fits
            && !address.is_empty()
            && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
    }
    let label_fits = |label: &str| {
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        edge(label.chars().next())
            && edge(label.chars().last())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    port_fits && host.split('.').all(label_fits)
}

/// Lower-case words joined by one dot, one or two underscores, or any number of dashes.
fn is_component(component: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !component.starts_with(is_word) || !component.ends_with(is_word) {
        return false;
    }
    component
        .split(is_word)
        .all(|separator| matches!(separator, "" | "." | "_" | "__") || separator.chars().all(|c| c == '-'))
}

fn is_tag(tag: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (1..=128).contains(&tag.len())
        && tag.starts_with(word)
        && tag.chars().all(|c| word(c) || matches!(c, '.' | '-'))
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
            && algorithm.chars().all(|c| c.is_ascii_alphanumeric() || "+.-_".contains(c))
            && hex.len() >= 32
            && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_follow_the_grammar() {
        let digest = format!("nginx@sha256:{}", "a".repeat(64));
        for good in [
            "nginx",
            "nginx:1.29",
            "a/b/c",
            "host:5000/a",
            "Host.io/a_b/c--d:T-1",
            "[::1]:5000/x",
            "a__b",
            digest.as_str(),
        ] {
            assert!(is_valid(good), "{good}");
        }
        for bad in [
            "",
            "Nginx",
            "A:::b",
            "nginx:",
            "a//b",
            "-a",
            "a_",
            "a..b",
            "nginx:a b",
            "nginx@sha256:12",
            "a___b",
            "host:x/a",
        ] {
            assert!(!is_valid(bad), "{bad}");
        }
    }

    #[test]
    fn the_base_name_is_the_last_element() {
        assert_eq!(base_name("registry.example:5000/team/nginx:1.29"), "nginx");
        assert_eq!(base_name("nginx"), "nginx");
    }
}
