//! The `continue` token of a list, in upstream's format, so that a client can switch between servers in the middle of a
//! list.

use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use base64::{DecodeError, Engine};
use ferry_api::{Status, json};
use ferry_registry::verbs::list::Continue;
use ferry_store::Revision;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Token {
    v: String,
    rv: i64,
    start: String,
}

pub fn encode(next: &Continue) -> String {
    // Upstream names the key to start at: the first that can follow the last one sent.
    let token = Token { v: "meta.k8s.io/v1".into(), rv: next.revision.0, start: format!("{}\0", next.after) };
    BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).expect("a token writes to memory"))
}

pub fn decode(text: &str) -> Result<Continue, Status> {
    let bad =
        |why: &str| Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
    let text = text.trim_end_matches('=');
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|error| {
        let at = match error {
            DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => at,
            // One letter too many, and it is the last.
            _ => text.len().saturating_sub(1),
        };
        bad(&format!("illegal base64 data at input byte {at}"))
    })?;
    let token: Token =
        serde_json::from_slice(&bytes).map_err(|error| bad(&json::why_unreadable(&bytes, &error)))?;
    if token.v != "meta.k8s.io/v1" {
        return Err(bad("server does not recognize this encoded version"));
    }
    if token.rv == 0 || token.start.is_empty() {
        return Err(bad("incorrect encoded start resourceVersion"));
    }
    let revision = if token.rv < 0 { Continue::NEWEST } else { Revision(token.rv) };
    Ok(Continue { revision, after: token.start.trim_end_matches('\0').to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_and_a_made_up_one_does_not() {
        let next = Continue { revision: Revision(7), after: "ns/a".into() };
        assert_eq!(decode(&encode(&next)).expect("our own"), next);
        let rest = Continue { revision: Continue::NEWEST, after: "ns/a".into() };
        assert_eq!(decode(&encode(&rest)).expect("our own"), rest);
        assert_eq!(decode("%%%").expect_err("no base64").code, 400);
        assert_eq!(decode("e30").expect_err("no token").code, 400);
    }
}
