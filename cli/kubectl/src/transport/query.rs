//! Query strings and forms.

use std::fmt::Write;

/// A query string built parameter by parameter; parameters without a value are left out.
#[derive(Debug, Clone, Default)]
pub struct Query(String);

impl Query {
    pub fn new() -> Self {
        Query::default()
    }
    pub fn with(mut self, name: &str, value: &str) -> Self {
        if !value.is_empty() {
            self.push(name, value);
        }
        self
    }
    pub fn push(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        encode_into(&mut self.0, name);
        self.0.push('=');
        encode_into(&mut self.0, value);
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Query {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

pub fn form_encode(pairs: &[(&str, &str)]) -> String {
    let query = pairs.iter().fold(Query::new(), |query, (name, value)| query.with(name, value));
    query.0.trim_start_matches('?').to_owned()
}

fn encode_into(target: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                target.push(char::from(byte))
            }
            _ => write!(target, "%{byte:02X}").expect("writing to a String cannot fail"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_encoded_and_empty_ones_left_out() {
        let query = Query::new()
            .with("labelSelector", "app=web,tier in (a)")
            .with("fieldSelector", "")
            .with("limit", "500");
        assert_eq!(query.as_str(), "?labelSelector=app%3Dweb%2Ctier%20in%20%28a%29&limit=500");
        assert_eq!(form_encode(&[("a", "b c"), ("d", "é")]), "a=b%20c&d=%C3%A9");
    }
}
