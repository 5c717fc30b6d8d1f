//! No Secret with a value that is easily guessed.

use base64::Engine;
use serde_json::Value;

use crate::Decision;

const SHORTEST: usize = 20;

pub fn long_secrets(secret: &mut Value) -> Decision {
    for (key, value) in secret["data"].as_object().into_iter().flatten() {
        let decoded = base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap_or(""));
        let length = decoded.map_or(0, |bytes| String::from_utf8_lossy(&bytes).chars().count());
        if length < SHORTEST {
            return Decision::Refused(format!("the value of {key:?} has fewer than {SHORTEST} characters"));
        }
    }
    Decision::Finished
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn short_values_are_refused() {
        let check = |value: &str, expected: bool| {
            let value = base64::engine::general_purpose::STANDARD.encode(value);
            let decision = long_secrets(&mut json!({"data": {"password": value}}));
            assert_eq!(decision == Decision::Finished, expected, "{decision:?}");
        };
        check("short", false);
        check("0123456789012345678", false);
        check("01234567890123456789", true);
    }
}
