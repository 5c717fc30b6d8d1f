//! Credential plugins: a program that prints an ExecCredential.

use std::io::IsTerminal;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::fields::Fields;

/// What a plugin gave: a token, or a certificate with its key, or both.
#[derive(Debug, Clone, Default)]
pub struct ExecCredential {
    pub token: String,
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// The plugin of a user, refused unless it says all that is needed to run it.
pub fn checked(plugin: &Value, user: &str) -> Result<Value> {
    let mut plugin = plugin.clone();
    let missing = |field: &str| {
        Err(Error::message(format!("{field} must be specified for {user} to use exec authentication plugin")))
    };
    if plugin.text("command").is_empty() {
        return missing("command");
    }
    let version = plugin.text("apiVersion").to_owned();
    if version.is_empty() {
        return missing("apiVersion");
    }
    match plugin.text("interactiveMode") {
        "Never" | "IfAvailable" | "Always" => {}
        // only the first version could go without
        "" if version.ends_with("/v1beta1") => plugin["interactiveMode"] = json!("IfAvailable"),
        "" => return missing("interactiveMode"),
        other => {
            return Err(Error::message(format!("invalid interactiveMode for {user}: {other:?}")));
        }
    }
    if !VERSIONS.contains(&version.as_str()) {
        return Err(Error::message(format!("exec plugin: invalid apiVersion {version:?}")));
    }
    Ok(plugin)
}

/// Whether the program may talk to the user.
fn is_interactive(mode: &str, is_terminal: bool, stdin_taken: bool) -> Result<bool> {
    let refused = |reason: &str| {
        Err(failed(format!("exec plugin cannot support interactive mode: standard input is {reason}")))
    };
    match mode {
        "Never" => Ok(false),
        "Always" if !is_terminal => refused("not a terminal"),
        "Always" if stdin_taken => refused("unavailable: used by stdin resource manifest reader"),
        "Always" => Ok(true),
        _ => Ok(is_terminal && !stdin_taken),
    }
}

pub fn run(plugin: &Value, directory: &Path, cluster: &Value, stdin_taken: bool) -> Result<ExecCredential> {
    let _span = ferry_trace::span("kubectl.exec_plugin");
    let program = plugin.text("command");
    let version = plugin.text("apiVersion");
    let interactive =
        is_interactive(plugin.text("interactiveMode"), std::io::stdin().is_terminal(), stdin_taken)?;
    let mut spec = json!({"interactive": interactive});
    if plugin.flag("provideClusterInfo") {
        spec["cluster"] = cluster.clone();
    }
    let info = json!({"kind": "ExecCredential", "apiVersion": version, "spec": spec});

    // A command with a slash is a path beside the kubeconfig; a bare name is looked up in PATH.
    let path = if program.contains('/') && Path::new(program).is_relative() {
        directory.join(program)
    } else {
        program.into()
    };
    let mut command = Command::new(path);
    command.args(plugin.list("args").iter().filter_map(Value::as_str));
    for variable in plugin.list("env") {
        command.env(variable.text("name"), variable.text("value"));
    }
    command.env("KUBERNETES_EXEC_INFO", info.to_string()).stderr(Stdio::inherit());
    command.stdin(if interactive { Stdio::inherit() } else { Stdio::null() });
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let hint = plugin.text("installHint");
            let hint = if hint.is_empty() { String::new() } else { format!("\n\n{hint}") };
            failed(format!("exec: executable {program} not found{hint}"))
        }
        _ => failed(format!("exec: {error}")),
    })?;
    if !output.status.success() {
        return Err(failed(format!(
            "exec: executable {program} failed with exit code {}",
            output.status.code().unwrap_or(1)
        )));
    }
    let answer: Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        failed(format!("decoding stdout: couldn't get version/kind; json parse error: {error}"))
    })?;
    credential(&answer, version)
}

fn credential(answer: &Value, version: &str) -> Result<ExecCredential> {
    if answer.text("apiVersion") != version {
        return Err(failed(format!(
            "exec plugin is configured to use API version {version}, plugin returned version {}",
            answer.text("apiVersion")
        )));
    }
    let status = answer.at("status");
    if status.is_null() {
        return Err(failed("exec plugin didn't return a status field".to_owned()));
    }
    let credential = ExecCredential {
        token: status.text("token").to_owned(),
        certificate: status.text("clientCertificateData").as_bytes().to_vec(),
        key: status.text("clientKeyData").as_bytes().to_vec(),
    };
    if credential.token.is_empty() && credential.certificate.is_empty() {
        return Err(failed("exec plugin didn't return a token or cert/key pair".to_owned()));
    }
    if credential.certificate.is_empty() != credential.key.is_empty() {
        return Err(failed("exec plugin returned only certificate or key, not both".to_owned()));
    }
    Ok(credential)
}

fn failed(reason: String) -> Error {
    Error::plain(format!("Unable to connect to the server: getting credentials: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "client.authentication.k8s.io/v1";

    fn plugin(script: &str) -> Value {
        json!({"apiVersion": V1, "command": "sh", "args": ["-c", script], "interactiveMode": "Never",
               "env": [{"name": "GREETING", "value": "hello"}]})
    }

    #[test]
    fn a_plugin_gives_a_token_and_sees_its_environment() {
        let script = format!(
            r#"printf '{{"apiVersion":"{V1}","kind":"ExecCredential","status":{{"token":"%s"}}}}' "$GREETING""#
        );
        let credential = run(&plugin(&script), Path::new("."), &Value::Null, false).unwrap();
        assert_eq!(credential.token, "hello");
    }

    #[test]
    fn a_failing_plugin_is_named() {
        let error = run(&plugin("exit 3"), Path::new("."), &Value::Null, false).unwrap_err();
        assert!(error.to_string().contains("executable sh failed with exit code 3"), "{error}");
        let mut missing = plugin("");
        missing["command"] = json!("no-such-plugin");
        missing["installHint"] = json!("install it");
        let error = run(&missing, Path::new("."), &Value::Null, false).unwrap_err();
        assert!(error.to_string().contains("executable no-such-plugin not found\n\ninstall it"), "{error}");
    }

    #[test]
    fn a_plugin_that_must_ask_needs_standard_input_for_itself() {
        assert!(is_interactive("Always", true, false).unwrap());
        let error = is_interactive("Always", true, true).unwrap_err().to_string();
        assert!(error.ends_with("unavailable: used by stdin resource manifest reader"), "{error}");
        assert!(is_interactive("Always", false, false).is_err());
        assert!(!is_interactive("IfAvailable", true, true).unwrap());
        assert!(!is_interactive("Never", true, false).unwrap());
    }

    #[test]
    fn only_the_first_version_may_leave_out_the_interactive_mode() {
        let plugin = |version: &str| json!({"command": "c", "apiVersion": version});
        let beta = checked(&plugin("client.authentication.k8s.io/v1beta1"), "u").unwrap();
        assert_eq!(beta.text("interactiveMode"), "IfAvailable");
        let error = checked(&plugin(V1), "u").unwrap_err().to_string();
        assert_eq!(error, "interactiveMode must be specified for u to use exec authentication plugin");
    }

    #[test]
    fn the_answer_must_have_the_asked_version() {
        let answer = json!({"apiVersion": "client.authentication.k8s.io/v1beta1", "status": {"token": "t"}});
        assert!(credential(&answer, V1).is_err());
        assert!(credential(&json!({"apiVersion": V1}), V1).is_err());
    }
}
