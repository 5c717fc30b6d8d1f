//! The user's preferences, `~/.kube/kuberc`: names for command lines used often, default values of flags,
//! and which credential plugins may run.
//!
//! A preference changes the line before it is parsed: an alias becomes the command it stands for, and a
//! default becomes a flag where the line does not have it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::command::{Command, GLOBAL_FLAGS, find};
use crate::error::{Error, Result, system_words};
use crate::fields::Fields;
use crate::flags::{Flag, parse_bool};
use crate::kubeconfig;

pub const API_VERSION: &str = "kubectl.config.k8s.io/v1beta1";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Preferences {
    pub api_version: String,
    pub kind: String,
    pub defaults: Option<Vec<Defaults>>,
    pub aliases: Option<Vec<Alias>>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub credential_plugin_policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential_plugin_allowlist: Option<Vec<AllowlistEntry>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Defaults {
    pub command: String,
    pub options: Option<Vec<FlagDefault>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Alias {
    pub name: String,
    pub command: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prepend_args: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub append_args: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<FlagDefault>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FlagDefault {
    pub name: String,
    pub default: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AllowlistEntry {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
}

/// The preferences file, and whether the user named it. None when preferences are turned off.
pub fn file(flag: &str) -> Result<Option<(PathBuf, bool)>> {
    let variable = std::env::var("KUBERC").unwrap_or_default();
    if variable == "off" {
        if !flag.is_empty() {
            return Err(Error::message(
                "disabling kuberc via KUBERC=off and passing kuberc flag are mutually exclusive",
            ));
        }
        return Ok(None);
    }
    Ok(Some(match (flag, variable.as_str()) {
        ("", "") => (kubeconfig::home().join(".kube/kuberc"), false),
        ("", path) | (path, _) => (PathBuf::from(path), true),
    }))
}

/// The line as the preferences make it, and the preferences.
pub fn apply(line: &[String]) -> Result<(Vec<String>, Preferences, bool)> {
    let unchanged = || Ok((line.to_vec(), Preferences::default(), true));
    let enabled = std::env::var("KUBECTL_KUBERC").ok().and_then(|value| parse_bool(&value)).unwrap_or(true);
    if !enabled || line.is_empty() {
        return unchanged();
    }
    let failed = |error: Error| Error::plain(format!("error occurred while applying preferences {error}"));
    let flag = flag_of(line).map_err(failed)?;
    let loaded = file(&flag).and_then(|file| match file {
        Some((path, explicit)) => load(&path, explicit, shows_details(line)),
        None => Ok(None),
    });
    let loaded = loaded.map_err(|error| failed(Error::message(format!("kuberc error {error}"))))?;
    let Some(preferences) = loaded else { return unchanged() };
    preferences.check().map_err(failed)?;
    let (line, is_alias) = preferences.expand(line).map_err(failed)?;
    Ok((line, preferences, !is_alias))
}

fn flag_of(line: &[String]) -> Result<String> {
    for (at, word) in line.iter().enumerate().take_while(|(_, word)| *word != "--") {
        let value = match word.strip_prefix("--kuberc") {
            Some("") => line.get(at + 1).map_or("", String::as_str),
            Some(rest) if rest.starts_with('=') => &rest[1..],
            _ => continue,
        };
        if value.is_empty() {
            return Err(Error::message("kuberc file is not found"));
        }
        return Ok(value.to_owned());
    }
    Ok(String::new())
}

/// `-v=5` or more, before flags are parsed.
fn shows_details(line: &[String]) -> bool {
    line.iter().enumerate().any(|(at, word)| {
        let value = match word.strip_prefix("--v").or_else(|| word.strip_prefix("-v")) {
            Some("") => line.get(at + 1).map_or("", String::as_str),
            Some(rest) => rest.trim_start_matches('='),
            None => return false,
        };
        value.parse::<i64>().is_ok_and(|verbosity| verbosity >= 5)
    })
}

fn load(path: &Path, explicit: bool, details: bool) -> Result<Option<Preferences>> {
    let shown = path.display();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !explicit => return Ok(None),
        Err(error) => {
            let reason = format!("open {shown}: {}", system_words(&error));
            if explicit {
                return Err(Error::message(format!("kuberc: {reason}")));
            }
            eprintln!("kuberc: no preferences loaded from {shown}: {reason}");
            return Ok(None);
        }
    };
    let mut tried = 0;
    for document in crate::yaml::each_document(&text) {
        tried += 1;
        let Ok(document) = document else { continue };
        let version = document.text("apiVersion").strip_prefix("kubectl.config.k8s.io/");
        if !matches!(version, Some("v1beta1" | "v1alpha1")) || document.kind() != "Preference" {
            continue;
        }
        let Ok(preferences) = serde_json::from_value::<Preferences>(document.clone()) else { continue };
        let unknown = unknown_fields(&document);
        if !unknown.is_empty() {
            eprint!(
                "kuberc: ignoring strict decoding error in {shown}: strict decoding error: {}",
                unknown.join(", ")
            );
        }
        return Ok(Some(preferences));
    }
    if tried > 0 {
        let reason = format!("no valid preferences found in {shown}, use --v=5 to see details");
        if explicit {
            return Err(Error::message(format!("kuberc: {reason}")));
        }
        eprintln!("kuberc: no preferences loaded from {shown}: {reason}");
    } else if details {
        eprintln!("kuberc: no preferences found in {shown}");
    }
    Ok(None)
}

fn unknown_fields(document: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut look = |value: &Value, place: &str, known: &[&str]| {
        for field in value.as_object().into_iter().flat_map(|map| map.keys()) {
            if !known.contains(&field.as_str()) {
                unknown.push(format!("unknown field \"{place}{field}\""));
            }
        }
    };
    look(
        document,
        "",
        &["apiVersion", "kind", "defaults", "aliases", "credentialPluginPolicy", "credentialPluginAllowlist"],
    );
    for (at, entry) in document.list("defaults").iter().enumerate() {
        look(entry, &format!("defaults[{at}]."), &["command", "options"]);
    }
    for (at, entry) in document.list("aliases").iter().enumerate() {
        look(entry, &format!("aliases[{at}]."), &["name", "command", "prependArgs", "appendArgs", "options"]);
    }
    unknown
}

impl Preferences {
    fn check(&self) -> Result<()> {
        let mut names: Vec<&str> = Vec::new();
        let long = |options: &[FlagDefault]| match options.iter().find(|option| option.name.starts_with('-'))
        {
            Some(option) => Err(Error::message(format!(
                "flag name {} should be in long form without dashes",
                option.name
            ))),
            None => Ok(()),
        };
        for alias in self.aliases.iter().flatten() {
            if alias.name.is_empty() || !alias.name.chars().all(|c| c.is_ascii_alphabetic()) {
                return Err(Error::message("invalid alias name, can only include alphabetical characters"));
            }
            long(&alias.options)?;
            if names.contains(&alias.name.as_str()) {
                return Err(Error::message(format!("duplicate alias name {}", alias.name)));
            }
            names.push(&alias.name);
        }
        for defaults in self.defaults.iter().flatten() {
            long(defaults.options.as_deref().unwrap_or_default())?;
        }
        self.check_policy()
    }

    fn check_policy(&self) -> Result<()> {
        let policy = self.credential_plugin_policy.as_str();
        let refuse = |words: String| Err(Error::message(words));
        match (policy, &self.credential_plugin_allowlist) {
            ("" | "AllowAll" | "DenyAll", None) => Ok(()),
            ("" | "AllowAll" | "DenyAll", Some(_)) => refuse(format!(
                "misconfigured credential plugin allowlist: plugin policy is {policy:?} but allowlist is non-nil"
            )),
            ("Allowlist", None) => refuse(
                "credential plugin policy set to \"Allowlist\", but allowlist is unspecified".to_owned(),
            ),
            ("Allowlist", Some(list)) if list.is_empty() => refuse(
                "credential plugin policy set to \"Allowlist\", but allowlist is empty; use \"DenyAll\" policy instead"
                    .to_owned(),
            ),
            ("Allowlist", Some(list)) => {
                match list.iter().position(|entry| entry.command.is_empty() && entry.name.is_empty()) {
                    Some(at) => refuse(format!(
                        "misconfigured credential plugin allowlist: empty allowlist entry #{}",
                        at + 1
                    )),
                    None => Ok(()),
                }
            }
            _ => refuse(format!("unknown plugin policy: {policy:?}")),
        }
    }

    /// Puts what an alias stands for in its place. Answers whether there was one.
    fn expand(&self, line: &[String]) -> Result<(Vec<String>, bool)> {
        if find(line).is_ok() {
            return Ok((line.to_vec(), false));
        }
        let Some(at) = line.iter().position(|word| !word.starts_with('-')) else {
            return Ok((line.to_vec(), false));
        };
        let Some(alias) = self.aliases.iter().flatten().find(|alias| alias.name == line[at]) else {
            return Ok((line.to_vec(), false));
        };
        let words: Vec<String> = alias.command.split_whitespace().map(str::to_owned).collect();
        let command = find(&words).ok().and_then(|(path, _)| path.last().copied()).ok_or_else(|| {
            Error::message(format!("command {:?} not found to set alias {:?}", alias.command, alias.name))
        })?;
        let mut expanded = line[..at].to_vec();
        expanded.extend(words);
        for option in &alias.options {
            let flag = flag_named(command, &option.name).ok_or_else(|| {
                Error::message(format!("invalid alias flag {} in alias {}", option.name, alias.name))
            })?;
            if !is_given(flag, line) {
                expanded.push(format!("--{}={}", option.name, option.default));
            }
        }
        expanded.extend(alias.prepend_args.iter().cloned());
        expanded.extend(line[at + 1..].iter().cloned());
        expanded.extend(alias.append_args.iter().cloned());
        Ok((expanded, true))
    }

    /// The flags that defaults add to a command's line.
    pub fn defaults_of(&self, command: &Command, line: &[String]) -> Result<Vec<String>> {
        let mut flags = Vec::new();
        for defaults in self.defaults.iter().flatten() {
            let words: Vec<String> = defaults.command.split_whitespace().map(str::to_owned).collect();
            let Some(target) = find(&words).ok().and_then(|(path, _)| path.last().copied()) else {
                eprintln!("Warning: command {:?} not found to set kuberc override", defaults.command);
                continue;
            };
            if target.name != command.name {
                continue;
            }
            for option in defaults.options.iter().flatten() {
                let flag = flag_named(command, &option.name).ok_or_else(|| {
                    Error::plain(format!(
                        "error occurred while applying preferences invalid flag {} for command {}",
                        option.name, defaults.command
                    ))
                })?;
                if !is_given(flag, line) {
                    flags.push(format!("--{}={}", option.name, option.default));
                }
            }
        }
        Ok(flags)
    }

    /// Whether a kubeconfig's credential plugin may run.
    pub fn check_plugin(&self, program: &str, directory: &Path) -> Result<()> {
        let refused = |why: String| {
            Err(Error::plain(format!("Unable to connect to the server: getting credentials: {why}")))
        };
        match self.credential_plugin_policy.as_str() {
            "DenyAll" => refused(format!("plugin {program:?} not allowed: policy set to \"DenyAll\"")),
            "Allowlist" => {
                let path = if program.contains('/') && Path::new(program).is_relative() {
                    Some(directory.join(program))
                } else {
                    crate::plugins::look_up(program)
                };
                let listed = self.credential_plugin_allowlist.iter().flatten().any(|entry| {
                    let allowed = if entry.command.is_empty() { &entry.name } else { &entry.command };
                    allowed == program
                        || path.as_ref().is_some_and(|path| {
                            path == Path::new(allowed)
                                || crate::plugins::look_up(allowed).as_ref() == Some(path)
                        })
                });
                if listed {
                    return Ok(());
                }
                let shown = path.unwrap_or_else(|| program.into());
                refused(format!(
                    "plugin path {:?} is not permitted by the credential plugin allowlist",
                    shown.display().to_string()
                ))
            }
            _ => Ok(()),
        }
    }
}

fn flag_named(command: &Command, name: &str) -> Option<&'static Flag> {
    command.own_flags().chain(GLOBAL_FLAGS).find(|flag| flag.name == name)
}

/// Whether the line has the flag: by name, by letter, or among letters written together.
fn is_given(flag: &Flag, line: &[String]) -> bool {
    line.iter().any(|word| {
        if let Some(long) = word.strip_prefix("--") {
            return long.split('=').next() == Some(flag.name);
        }
        let (Some(letter), Some(letters)) = (flag.short, word.strip_prefix('-')) else { return false };
        letters.starts_with(letter)
            || (letters.chars().all(|c| c.is_ascii_alphabetic()) && letters.contains(letter))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn preferences() -> Preferences {
        serde_json::from_value(json!({
            "defaults": [{"command": "get", "options": [{"name": "output", "default": "json"}]},
                {"command": "set env", "options": [{"name": "all", "default": "true"}]}],
            "aliases": [
                {"name": "getn", "command": "get", "prependArgs": ["namespace"],
                    "options": [{"name": "output", "default": "wide"}]},
                {"name": "crns", "command": "create namespace", "appendArgs": ["x"]},
            ],
        }))
        .unwrap()
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn an_alias_becomes_its_command() {
        let check = |line: &str, expected: &str| {
            let (expanded, _) = preferences().expand(&words(line)).unwrap();
            assert_eq!(expanded.join(" "), expected, "{line}");
        };
        check("getn a", "get --output=wide namespace a");
        check("getn a -ojson", "get namespace a -ojson");
        check("--context=c getn", "--context=c get --output=wide namespace");
        check("crns --dry-run", "create namespace --dry-run x");
        check("get pods", "get pods");
        check("unknown a", "unknown a");
    }

    #[test]
    fn defaults_give_way_to_what_is_written() {
        let check = |line: &str, expected: &[&str]| {
            let (path, _) = find(&words(line)).unwrap();
            let flags = preferences().defaults_of(path.last().unwrap(), &words(line)).unwrap();
            assert_eq!(flags, expected, "{line}");
        };
        check("get pods", &["--output=json"]);
        check("get pods -o yaml", &[]);
        check("get pods --output=yaml", &[]);
        check("get pods -Aoyaml", &[]);
        check("describe pods", &[]);
        check("set env x", &["--all=true"]);
    }

    #[test]
    fn credential_plugins_run_as_the_policy_says() {
        let with = |policy: &str, list: Value| -> Preferences {
            serde_json::from_value(
                json!({"credentialPluginPolicy": policy, "credentialPluginAllowlist": list}),
            )
            .unwrap()
        };
        let runs = |preferences: &Preferences| {
            preferences.check().is_ok() && preferences.check_plugin("/bin/helper", Path::new("/")).is_ok()
        };
        assert!(runs(&with("", Value::Null)) && runs(&with("AllowAll", Value::Null)));
        assert!(!runs(&with("DenyAll", Value::Null)));
        assert!(runs(&with("Allowlist", json!([{"command": "/bin/helper"}]))));
        assert!(!runs(&with("Allowlist", json!([{"command": "/bin/other"}]))));
        for (policy, list) in [("Allowlist", Value::Null), ("Allowlist", json!([])), ("X", Value::Null)] {
            assert!(with(policy, list).check().is_err(), "{policy}");
        }
        assert!(with("DenyAll", json!([{"command": "a"}])).check().is_err());
    }
}
