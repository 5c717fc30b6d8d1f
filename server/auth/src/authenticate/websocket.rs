//! Bearer tokens in a WebSocket's subprotocols: a browser can set no other header.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use super::AuthenticationError;

const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// A token, and the protocols that are left to choose from without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketBearer {
    pub token: String,
    pub protocols: Vec<String>,
}

/// Finds the token among the values of `Sec-WebSocket-Protocol`. For WebSocket requests only: on
/// any other the header means nothing.
pub fn websocket_bearer(header_values: &[&str]) -> Result<Option<WebSocketBearer>, AuthenticationError> {
    let refuse = |reason: &str| Err(AuthenticationError(reason.to_owned()));
    let mut found: Option<String> = None;
    let mut protocols = Vec::new();
    for protocol in header_values.iter().flat_map(|value| value.split(',')).map(str::trim) {
        let Some(encoded) = protocol.strip_prefix(PREFIX) else {
            protocols.push(protocol.to_owned());
            continue;
        };
        if found.is_some() {
            return refuse("multiple base64.bearer.authorization tokens specified");
        }
        let Ok(decoded) = URL_SAFE_NO_PAD.decode(encoded) else {
            return refuse("invalid base64.bearer.authorization token encoding");
        };
        let Ok(token) = String::from_utf8(decoded) else {
            return refuse("invalid base64.bearer.authorization token");
        };
        found = Some(token);
    }
    match found.filter(|token| !token.is_empty()) {
        // The answer has to name a protocol, and it must not be the token.
        Some(_) if protocols.is_empty() => refuse("missing additional subprotocol"),
        Some(token) => Ok(Some(WebSocketBearer { token, protocols })),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_taken_out_of_the_protocols() {
        let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode("s3cret"));
        let found = websocket_bearer(&["v4.channel.k8s.io", &format!("{token}, v5.channel.k8s.io")])
            .unwrap()
            .unwrap();
        assert_eq!(found.token, "s3cret");
        assert_eq!(found.protocols, ["v4.channel.k8s.io", "v5.channel.k8s.io"]);
        assert_eq!(websocket_bearer(&["v4.channel.k8s.io"]), Ok(None));
        assert!(websocket_bearer(&[&token]).is_err(), "alone");
        assert!(websocket_bearer(&[&token, &token, "x"]).is_err(), "twice");
        assert!(websocket_bearer(&[&format!("{PREFIX}!"), "x"]).is_err(), "not base64");
    }
}
