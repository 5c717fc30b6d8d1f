//! The level of a namespace and its version: from labels, or the configured defaults.

use std::fmt::{self, Display};

use ferry_api::FieldErrors;
use serde::Deserialize;

pub const PREFIX: &str = "pod-security.kubernetes.io/";

/// From what allows everything to what allows least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

/// The version of Kubernetes whose rules are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    Minor(u32),
    Latest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelVersion {
    pub level: Level,
    pub version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub enforce: LevelVersion,
    pub audit: LevelVersion,
    pub warn: LevelVersion,
}

impl Level {
    fn parse(text: &str) -> Option<Level> {
        match text {
            "privileged" => Some(Level::Privileged),
            "baseline" => Some(Level::Baseline),
            "restricted" => Some(Level::Restricted),
            _ => None,
        }
    }
}

impl Version {
    fn parse(text: &str) -> Option<Version> {
        if text == "latest" {
            return Some(Version::Latest);
        }
        let number = text.strip_prefix("v1.")?;
        let plain =
            number.bytes().all(|byte| byte.is_ascii_digit()) && (number == "0" || !number.starts_with('0'));
        number.parse().ok().filter(|_| plain).map(Version::Minor)
    }

    /// A rule that came with this minor version is part of it.
    pub fn includes(self, minor: u32) -> bool {
        match self {
            Version::Latest => true,
            Version::Minor(own) => minor <= own,
        }
    }
}

impl Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Version::Latest => write!(f, "{level}:latest"),
            Version::Minor(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}

impl LevelVersion {
    pub const PRIVILEGED: LevelVersion = LevelVersion { level: Level::Privileged, version: Version::Latest };

    fn same_as(self, other: LevelVersion) -> bool {
        self == other || (self.level == Level::Privileged && other.level == Level::Privileged)
    }
}

/// The labels of one mode, as constants: they are looked for with every pod.
struct Mode {
    level: &'static str,
    version: &'static str,
}

macro_rules! mode {
    ($name:literal) => {
        Mode {
            level: concat!("pod-security.kubernetes.io/", $name),
            version: concat!("pod-security.kubernetes.io/", $name, "-version"),
        }
    };
}

const ENFORCE: Mode = mode!("enforce");
const AUDIT: Mode = mode!("audit");
const WARN: Mode = mode!("warn");

impl Policy {
    /// What the labels say; what they do not say is the default's. Labels that cannot be read enforce the
    /// most and audit and warn of the least, and are told.
    pub fn of<'a>(label: impl Fn(&str) -> Option<&'a str>, default: Policy) -> (Policy, FieldErrors) {
        let mut errors = FieldErrors::default();
        let mut policy = default;
        let mut read = |mode: Mode, into: &mut LevelVersion, unreadable: Level| {
            let mut refuse = |key: &str, value: &str, why: &str| {
                errors.invalid(format!("metadata.labels[{key}]"), value, why);
            };
            let mut known = false;
            if let Some(value) = label(mode.level) {
                known = Level::parse(value).is_some();
                into.level = Level::parse(value).unwrap_or(unreadable);
                if !known {
                    refuse(mode.level, value, "must be one of privileged, baseline, restricted");
                }
            }
            if let Some(value) = label(mode.version) {
                into.version = Version::parse(value).unwrap_or(Version::Latest);
                if Version::parse(value).is_none() {
                    refuse(mode.version, value, "must be \"latest\" or \"v1.x\"");
                }
            }
            known
        };
        let enforces = read(ENFORCE, &mut policy.enforce, Level::Restricted);
        read(AUDIT, &mut policy.audit, Level::Privileged);
        read(WARN, &mut policy.warn, Level::Privileged);
        // Who enforces wants at least to be warned of what will be refused.
        if label(WARN.level).is_none() && enforces && policy.enforce.level > policy.warn.level {
            policy.warn.level = policy.enforce.level;
            if label(WARN.version).is_none() {
                policy.warn.version = policy.enforce.version;
            }
        }
        (policy, errors)
    }

    pub fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|one| one.level == Level::Privileged)
    }

    pub fn same_as(&self, other: &Policy) -> bool {
        self.enforce.same_as(other.enforce)
            && self.audit.same_as(other.audit)
            && self.warn.same_as(other.warn)
    }
}

/// Of kind PodSecurityConfiguration.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Configuration {
    defaults: Defaults,
    pub exemptions: Exemptions,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Defaults {
    enforce: Option<String>,
    enforce_version: Option<String>,
    audit: Option<String>,
    audit_version: Option<String>,
    warn: Option<String>,
    warn_version: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Exemptions {
    pub usernames: Vec<String>,
    pub namespaces: Vec<String>,
    pub runtime_classes: Vec<String>,
}

impl Configuration {
    pub fn policy(&self) -> Result<Policy, String> {
        let read = |mode: &str, level: &Option<String>, version: &Option<String>| {
            let level = level.as_deref().unwrap_or("privileged");
            let version = version.as_deref().unwrap_or("latest");
            Ok::<_, String>(LevelVersion {
                level: Level::parse(level).ok_or_else(|| {
                    format!("defaults.{mode}: {level:?} must be one of privileged, baseline, restricted")
                })?,
                version: Version::parse(version).ok_or_else(|| {
                    format!("defaults.{mode}-version: {version:?} must be \"latest\" or \"v1.x\"")
                })?,
            })
        };
        let defaults = &self.defaults;
        Ok(Policy {
            enforce: read("enforce", &defaults.enforce, &defaults.enforce_version)?,
            audit: read("audit", &defaults.audit, &defaults.audit_version)?,
            warn: read("warn", &defaults.warn, &defaults.warn_version)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(labels: &[(&str, &str)], expected: [&str; 3], faults: &[&str]) {
        let label = |key: &str| {
            labels.iter().find(|(name, _)| key.strip_prefix(PREFIX) == Some(*name)).map(|(_, value)| *value)
        };
        let default = Configuration::default().policy().expect("privileged");
        let (policy, errors) = Policy::of(label, default);
        let shown = [policy.enforce, policy.audit, policy.warn].map(|one| one.to_string());
        assert_eq!(shown, expected, "{labels:?}");
        let errors: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(errors, faults);
    }

    #[test]
    fn labels_say_what_holds() {
        check(&[], ["privileged:latest"; 3], &[]);
        check(
            &[("enforce", "baseline"), ("enforce-version", "v1.20")],
            ["baseline:v1.20", "privileged:latest", "baseline:v1.20"],
            &[],
        );
        check(
            &[("enforce", "restricted"), ("warn", "baseline"), ("audit", "restricted")],
            ["restricted:latest", "restricted:latest", "baseline:latest"],
            &[],
        );
        check(
            &[("enforce", "strict"), ("warn-version", "v1.007")],
            ["restricted:latest", "privileged:latest", "privileged:latest"],
            &[
                "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": must be one of privileged, baseline, restricted",
                "metadata.labels[pod-security.kubernetes.io/warn-version]: Invalid value: \"v1.007\": must be \"latest\" or \"v1.x\"",
            ],
        );
    }
}
