//! Query strings and forms.

use std::fmt::Write;

/// A query string, sorted by parameter; parameters without a value are left out.
#[derive(Debug, Clone, Default)]
pub struct Query(Vec<(String, String)>);

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
    /// Adds a parameter behind those of the same name.
    pub fn push(&mut self, name: &str, value: &str) {
        let position = self.0.partition_point(|(known, _)| known.as_str() <= name);
        self.0.insert(position, (name.to_owned(), value.to_owned()));
    }
    fn encoded(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.0 {
            if !text.is_empty() {
                text.push('&');
            }
            encode_into(&mut text, name);
            text.push('=');
            encode_into(&mut text, value);
        }
        text
    }
}

impl std::fmt::Display for Query {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.is_empty() {
            true => Ok(()),
            false => write!(f, "?{}", self.encoded()),
        }
    }
}

pub fn form_encode(pairs: &[(&str, &str)]) -> String {
    pairs.iter().fold(Query::new(), |query, (name, value)| query.with(name, value)).encoded()
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
        assert_eq!(query.to_string(), "?labelSelector=app%3Dweb%2Ctier%20in%20%28a%29&limit=500");
        assert_eq!(form_encode(&[("a", "b c"), ("d", "é")]), "a=b%20c&d=%C3%A9");
    }
}
