//! What names may look like. Each rule says everything that is wrong with a value, in the words that
//! Kubernetes users know; an empty answer means nothing is.

pub const DNS1123_LABEL_MAX: usize = 63;
pub const DNS1123_SUBDOMAIN_MAX: usize = 253;
pub const DNS1035_LABEL_MAX: usize = 63;
pub const LABEL_VALUE_MAX: usize = 63;
const LABEL_KEY_MAX: usize = 63;

/// `my-name`
pub fn dns1123_label(value: &str) -> Vec<String> {
    label(value, "characters")
}

/// The same as upstream's generated rules tell it.
pub fn short_name(value: &str) -> Vec<String> {
    label(value, "bytes")
}

fn label(value: &str, unit: &str) -> Vec<String> {
    let mut wrong = at_most(value, DNS1123_LABEL_MAX, unit);
    if !is_dns1123_label(value) {
        wrong.push(if is_dns1123_subdomain(value) {
            "must not contain dots".into()
        } else {
            pattern(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
                 must start and end with an alphanumeric character",
                "[a-z0-9]([-a-z0-9]*[a-z0-9])?",
                &["my-name", "123-abc"],
            )
        });
    }
    wrong
}

/// `example.com`; the rule for most object names.
pub fn dns1123_subdomain(value: &str) -> Vec<String> {
    subdomain(value, "characters")
}

/// The same as upstream's generated rules tell it.
pub fn long_name(value: &str) -> Vec<String> {
    subdomain(value, "bytes")
}

/// `Example.com`
pub fn dns1123_subdomain_caseless(value: &str) -> Vec<String> {
    let mut wrong = at_most(value, DNS1123_SUBDOMAIN_MAX, "bytes");
    if !is_dns1123_subdomain(&value.to_ascii_lowercase()) {
        wrong.push(pattern(
            "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end \
             with an alphanumeric character",
            r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
            &["Example.com"],
        ));
    }
    wrong
}

/// The beginning of such a name: a dash at its end is no fault.
pub fn dns1123_subdomain_prefix(value: &str) -> Vec<String> {
    match value.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => subdomain(&format!("{rest}a"), "characters"),
        _ => subdomain(value, "characters"),
    }
}

/// `example_1.com`: search domains may have underscores.
pub fn dns1123_subdomain_with_underscore(value: &str) -> Vec<String> {
    let mut wrong = at_most(value, DNS1123_SUBDOMAIN_MAX, "characters");
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |label: &str| {
        let label = label.strip_prefix('_').unwrap_or(label);
        label.starts_with(edge)
            && label.ends_with(edge)
            && label.chars().all(|c| edge(c) || c == '-' || c == '_')
    };
    if !value.split('.').all(is_label) {
        wrong.push(pattern(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', \
             and must start and end with an alphanumeric character",
            r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*",
            &["example.com"],
        ));
    }
    wrong
}

/// `my-name`, beginning with a letter.
pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut wrong = at_most(value, DNS1035_LABEL_MAX, "characters");
    if !(is_dns1123_label(value) && value.starts_with(|c: char| c.is_ascii_lowercase())) {
        wrong.push(pattern(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
             alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    wrong
}

/// `*.example.com`
pub fn wildcard_dns1123_subdomain(value: &str) -> Vec<String> {
    let mut wrong = at_most(value, DNS1123_SUBDOMAIN_MAX, "characters");
    if !value.strip_prefix("*.").is_some_and(is_dns1123_subdomain) {
        wrong.push(pattern(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which \
             must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric \
             character",
            r"\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
            &["*.example.com"],
        ));
    }
    wrong
}

/// `MyName` or `example.com/MyName`: keys of labels and annotations, names of resources, finalizers.
pub fn qualified_name(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let not_a_name = || {
        pattern(
            "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character",
            "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]",
            &["MyName", "my.name", "123-abc"],
        )
    };
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        ["", name] => {
            wrong.push("prefix part must be non-empty".into());
            name
        }
        [prefix, name] => {
            wrong.extend(subdomain(prefix, "bytes").iter().map(|message| format!("prefix part {message}")));
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')",
                not_a_name()
            )];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".into());
    } else if name.len() > LABEL_KEY_MAX {
        wrong.push(format!("name part must be no more than {LABEL_KEY_MAX} bytes"));
    }
    if !is_label_text(name) {
        wrong.push(format!("name part {}", not_a_name()));
    }
    wrong
}

pub fn label_value(value: &str) -> Vec<String> {
    let mut wrong = at_most(value, LABEL_VALUE_MAX, "bytes");
    if !value.is_empty() && !is_label_text(value) {
        wrong.push(pattern(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
             and must start and end with an alphanumeric character",
            "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
            &["MyValue", "my_value", "12345"],
        ));
    }
    wrong
}

/// What stands in a URL path as one segment; the weakest rule a name must keep.
pub fn path_segment(value: &str) -> Vec<String> {
    if matches!(value, "." | "..") {
        return vec![format!("may not be '{value}'")];
    }
    ["/", "%"]
        .iter()
        .filter(|forbidden| value.contains(**forbidden))
        .map(|forbidden| format!("may not contain '{forbidden}'"))
        .collect()
}

/// Keys of ConfigMaps and Secrets.
pub fn config_map_key(value: &str) -> Vec<String> {
    let mut wrong = at_most(value, DNS1123_SUBDOMAIN_MAX, "characters");
    if value.is_empty() || !value.bytes().all(is_label_byte) {
        wrong.push(pattern(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    wrong.extend(climbs(value));
    wrong
}

/// Any printable ASCII but `=`.
pub fn env_var_name(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.is_empty() {
        wrong.push("environment variable name must be non-empty".into());
    }
    if !value.chars().all(|c| matches!(c, ' '..='~') && c != '=') {
        wrong.push(
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .into(),
        );
    }
    wrong
}

/// The names that stay out of the way of shells; `envFrom` skips keys that break the rule.
pub fn strict_env_var_name(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if !(value.starts_with(|c: char| !c.is_ascii_digit()) && value.bytes().all(is_label_byte)) {
        wrong.push(pattern(
            "a valid environment variable name must consist of alphabetic characters, digits, '_', '-', or \
             '.', and must not start with a digit",
            "[-._a-zA-Z][-._a-zA-Z0-9]*",
            &["my.env-name", "MY_ENV.NAME", "MyEnvName1"],
        ));
    }
    wrong.extend(climbs(value));
    wrong
}

pub fn c_identifier(value: &str) -> Vec<String> {
    let formed = value.starts_with(|c: char| !c.is_ascii_digit())
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if formed {
        return Vec::new();
    }
    vec![pattern(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of \
         alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// Names of container and service ports (RFC 6335).
pub fn port_name(value: &str) -> Vec<String> {
    let mut wrong = at_most(value, 15, "characters");
    if value.is_empty() || !value.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        wrong.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !value.bytes().any(|b| b.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".into());
    }
    if value.contains("--") {
        wrong.push("must not contain consecutive hyphens".into());
    }
    if value.starts_with('-') || value.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".into());
    }
    wrong
}

pub fn port_number(port: i64) -> Vec<String> {
    in_range(port, 1, 65535)
}

pub fn in_range(value: i64, low: i64, high: i64) -> Vec<String> {
    if (low..=high).contains(&value) {
        return Vec::new();
    }
    vec![format!("must be between {low} and {high}, inclusive")]
}

/// `93%`
pub fn percent(value: &str) -> Vec<String> {
    let digits = value.strip_suffix('%').unwrap_or("");
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        return Vec::new();
    }
    vec![pattern(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

pub fn http_header_name(value: &str) -> Vec<String> {
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Vec::new();
    }
    vec![pattern(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

pub fn is_dns1123_label(value: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    value.starts_with(edge) && value.ends_with(edge) && value.chars().all(|c| edge(c) || c == '-')
}

pub fn is_dns1123_subdomain(value: &str) -> bool {
    value.split('.').all(is_dns1123_label)
}

fn subdomain(value: &str, unit: &str) -> Vec<String> {
    let mut wrong = at_most(value, DNS1123_SUBDOMAIN_MAX, unit);
    if !is_dns1123_subdomain(value) {
        wrong.push(pattern(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
             and must start and end with an alphanumeric character",
            r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
            &["example.com"],
        ));
    }
    wrong
}

fn is_label_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

fn is_label_text(value: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    value.starts_with(edge) && value.ends_with(edge) && value.bytes().all(is_label_byte)
}

/// A name that could leave the directory in which it becomes a file.
fn climbs(value: &str) -> Option<String> {
    match value {
        "." | ".." => Some(format!("must not be '{value}'")),
        _ if value.starts_with("..") => Some("must not start with '..'".into()),
        _ => None,
    }
}

fn at_most(value: &str, limit: usize, unit: &str) -> Vec<String> {
    if value.len() > limit { vec![format!("must be no more than {limit} {unit}")] } else { Vec::new() }
}

fn pattern(rule: &str, regex: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{regex}')", examples.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_pass_and_bad_ones_do_not() {
        let check = |rule: fn(&str) -> Vec<String>, good: &[&str], bad: &[&str]| {
            for value in good {
                assert!(rule(value).is_empty(), "{value}: {:?}", rule(value));
            }
            for value in bad {
                assert!(!rule(value).is_empty(), "{value}");
            }
        };
        let long = "a".repeat(64);
        check(dns1123_label, &["a", "a-1", "1a"], &["", "A", "a.b", "-a", "a-", "a_b", &long]);
        check(dns1123_subdomain, &["a", "a.b-c.1"], &["", "a..b", ".a", "a.", "A.b", &"a.".repeat(127)]);
        check(dns1035_label, &["a", "a-1"], &["1a", "", "a."]);
        check(wildcard_dns1123_subdomain, &["*.a.b"], &["*", "a.b", "*.*.a", "*a.b"]);
        check(
            qualified_name,
            &["a", "A.b_c-1", "example.com/A"],
            &["", "/a", "a/", "a/b/c", "-a", "A.com/b", &long],
        );
        check(label_value, &["", "a", "A.b_c-1"], &["-a", "a b", &long]);
        check(path_segment, &["a:b"], &[".", "..", "a/b", "a%b"]);
        check(config_map_key, &["a.b", "_"], &["", "..", "..a", "a b", "."]);
        check(env_var_name, &["a b", "1"], &["", "a=b", "é"]);
        check(strict_env_var_name, &["a.b", "_a"], &["", "1a", "a b"]);
        check(c_identifier, &["_a1"], &["", "1a", "a-b"]);
        check(port_name, &["http", "a-1"], &["", "1", "-a", "a--b", "A", "sixteen-letters-x"]);
        check(percent, &["1%"], &["", "%", "1", "a%"]);
        check(http_header_name, &["X-A"], &["", "a b"]);
    }

    #[test]
    fn messages_read_as_users_know_them() {
        assert_eq!(
            dns1123_subdomain("A"),
            ["a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
                 '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used \
                 for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"]
        );
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(label_value(&"a".repeat(64)), ["must be no more than 63 bytes"]);
        assert_eq!(port_number(0), ["must be between 1 and 65535, inclusive"]);
        assert!(label_value("-")[0].contains("(e.g. 'MyValue',  or 'my_value',  or '12345', regex used"));
    }
}
