//! Which Kubernetes this kubectl is of, and whether a server is of the same.

use serde_json::{Value, json};

use crate::cli::{VERSION, go_arch};
use crate::error::{Error, Result};
use crate::fields::Fields;

/// Fields of a version, by their name in Go and in JSON.
const FIELDS: [(&str, &str); 13] = [
    ("Major", "major"),
    ("Minor", "minor"),
    ("EmulationMajor", "emulationMajor"),
    ("EmulationMinor", "emulationMinor"),
    ("MinCompatibilityMajor", "minCompatibilityMajor"),
    ("MinCompatibilityMinor", "minCompatibilityMinor"),
    ("GitVersion", "gitVersion"),
    ("GitCommit", "gitCommit"),
    ("GitTreeState", "gitTreeState"),
    ("BuildDate", "buildDate"),
    ("GoVersion", "goVersion"),
    ("Compiler", "compiler"),
    ("Platform", "platform"),
];

pub fn of_client() -> Value {
    json!({"major": "1", "minor": "36", "gitVersion": VERSION, "gitCommit": "", "gitTreeState": "clean",
           "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
           "platform": format!("{}/{}", std::env::consts::OS, go_arch())})
}

/// `--match-server-version`. Upstream compares the commit as well, so that a build matches no other; here the release
/// decides, and what follows `+` says who built the server. A script that passes the flag wants no skew, and kubectl has
/// none with any build of its own release.
pub fn require_match(server: &Value) -> Result<()> {
    if server.text("gitVersion").split('+').next() == Some(VERSION) {
        return Ok(());
    }
    let (server, client) = (in_go(server), in_go(&of_client()));
    Err(Error::message(format!("server version (&{server}) differs from client version ({client})")))
}

/// As Go prints the struct (`%#v`), which upstream's words quote.
fn in_go(version: &Value) -> String {
    let fields = FIELDS.map(|(name, key)| format!("{name}:{:?}", version.text(key)));
    format!("version.Info{{{}}}", fields.join(", "))
}
