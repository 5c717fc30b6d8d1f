//! `-v=6` and up: what is sent and received, in klog's form. Credentials never appear.

use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};

pub struct Log {
    verbosity: i64,
}

/// Bodies are cut at this length until `-v=10`.
const BODY_LIMIT: usize = 1024;

impl Log {
    pub fn new(verbosity: i64) -> Self {
        Log { verbosity }
    }

    pub fn verbosity(&self) -> i64 {
        self.verbosity
    }

    pub fn request(&self, method: &Method, url: &str, headers: &HeaderMap, body: &[u8]) {
        if self.verbosity >= 8 {
            line(&format!("\"Request Body\" body={}", self.body(body)));
        }
        if self.verbosity >= 9 {
            let flags: String =
                shown(headers).map(|(name, value)| format!(" -H \"{name}: {value}\"")).collect();
            line(&format!("\"Request\" curlCommand=<\n\tcurl -v -X{method} {flags} '{url}'\n >"));
        } else if self.verbosity >= 7 {
            line(&format!("\"Request\" verb=\"{method}\" url=\"{url}\" headers={}", block(headers)));
        }
    }

    pub fn response(
        &self,
        method: &Method,
        url: &str,
        status: StatusCode,
        headers: &HeaderMap,
        took: Duration,
    ) {
        if self.verbosity < 6 {
            return;
        }
        let headers = if self.verbosity >= 8 { block(headers) } else { "\"\"".to_owned() };
        line(&format!(
            "\"Response\" verb=\"{method}\" url=\"{url}\" status=\"{} {}\" headers={headers} milliseconds={}",
            status.as_u16(),
            status.canonical_reason().unwrap_or_default(),
            took.as_millis()
        ));
    }

    pub fn response_body(&self, body: &[u8]) {
        if self.verbosity >= 8 {
            line(&format!("\"Response Body\" body={}", self.body(body)));
        }
    }

    fn body(&self, body: &[u8]) -> String {
        if body.is_empty() {
            return "\"\"".to_owned();
        }
        let text = String::from_utf8_lossy(body);
        let shown: String =
            if self.verbosity >= 10 { text.into_owned() } else { text.chars().take(BODY_LIMIT).collect() };
        let rest = body.len().saturating_sub(shown.len());
        let note = if rest > 0 { format!(" [truncated {rest} chars]") } else { String::new() };
        format!("<\n\t{}{note}\n >", shown.trim_end().replace('\n', "\n\t"))
    }
}

fn shown(headers: &HeaderMap) -> impl Iterator<Item = (String, String)> + '_ {
    headers.iter().filter(|(name, _)| **name != http::header::HOST).map(|(name, value)| {
        let value = match value.to_str() {
            Ok(text) if value.is_sensitive() => {
                format!("{} <masked>", text.split(' ').next().unwrap_or_default())
            }
            Ok(text) => text.to_owned(),
            Err(_) => "<binary>".to_owned(),
        };
        (title_case(name.as_str()), value)
    })
}

fn block(headers: &HeaderMap) -> String {
    let mut lines: Vec<String> = shown(headers).map(|(name, value)| format!("\t{name}: {value}\n")).collect();
    lines.sort();
    format!("<\n{} >", lines.concat())
}

fn title_case(name: &str) -> String {
    let words: Vec<String> = name
        .split('-')
        .map(|word| match word.split_at_checked(1) {
            Some((first, rest)) => first.to_ascii_uppercase() + rest,
            None => String::new(),
        })
        .collect();
    words.join("-")
}

pub fn line(text: &str) {
    let now = jiff::Zoned::now();
    eprintln!("I{} {:>7} transport.rs] {text}", now.strftime("%m%d %H:%M:%S%.6f"), std::process::id());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_masked() {
        let mut headers = HeaderMap::new();
        let mut secret = http::HeaderValue::from_static("Bearer hunter2");
        secret.set_sensitive(true);
        headers.insert(http::header::AUTHORIZATION, secret);
        assert_eq!(block(&headers), "<\n\tAuthorization: Bearer <masked>\n >");
    }
}
