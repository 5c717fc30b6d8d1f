//! Which requests the proxy lets through: what a page in a browser could send must not reach the cluster.

use regex::Regex;

use crate::error::{Error, Result};
use crate::flags::Args;

pub struct Filter {
    accept_paths: Vec<Regex>,
    reject_paths: Vec<Regex>,
    accept_hosts: Vec<Regex>,
    reject_methods: Vec<Regex>,
}

impl Filter {
    pub fn from_args(args: &Args) -> Result<Filter> {
        let patterns = |flag: &str| -> Result<Vec<Regex>> {
            let parts = args.text(flag).split(',').filter(|_| !args.text(flag).is_empty());
            parts
                .map(|part| {
                    Regex::new(part).map_err(|error| Error::message(format!("Error compiling re: {error}")))
                })
                .collect()
        };
        Ok(Filter {
            accept_paths: patterns("accept-paths")?,
            reject_paths: patterns("reject-paths")?,
            accept_hosts: patterns("accept-hosts")?,
            reject_methods: patterns("reject-methods")?,
        })
    }

    /// `host` is the request's Host header, with or without a port.
    pub fn accepts(&self, method: &str, path: &str, host: &str) -> bool {
        let fits = |patterns: &[Regex], text: &str| patterns.iter().any(|pattern| pattern.is_match(text));
        !fits(&self.reject_paths, path)
            && !fits(&self.reject_methods, method)
            && fits(&self.accept_paths, path)
            && fits(&self.accept_hosts, without_port(host))
    }
}

/// An IPv6 address loses its brackets with the port, and keeps them without one.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !port.is_empty() => {
            match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
                Some(address) => address,
                None if name.contains(':') => host,
                None => name,
            }
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;

    #[test]
    fn only_local_pages_reach_what_is_harmless() {
        let known: Vec<_> = super::super::COMMAND.own_flags().collect();
        let filter = |words: &str| {
            let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            Filter::from_args(&flags::parse(&known, &words).unwrap()).unwrap()
        };
        let default = filter("");
        assert!(default.accepts("GET", "/api/v1/pods", "localhost:8001"));
        assert!(default.accepts("DELETE", "/api/v1/pods", "127.0.0.1"));
        assert!(default.accepts("GET", "/", "[::1]"));
        assert!(!default.accepts("GET", "/api/v1/pods", "example.com"));
        assert!(!default.accepts("GET", "/api/v1/pods", "localhost.example.com:8001"));
        assert!(!default.accepts("POST", "/api/v1/namespaces/a/pods/b/exec", "localhost"));
        assert!(!default.accepts("GET", "/api/v1/namespaces/a/pods/b/attach", "localhost"));
        let own = filter("--reject-methods=^POST$,^PUT$ --accept-paths=^/apis --accept-hosts=.*");
        assert!(own.accepts("GET", "/apis/apps", "example.com"));
        assert!(!own.accepts("POST", "/apis/apps", "example.com"));
        assert!(!own.accepts("GET", "/api/v1", "example.com"));
        assert_eq!(without_port("[fe80::1]:80"), "fe80::1");
    }
}
