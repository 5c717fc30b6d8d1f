//! Versions of the CNI specification.

use std::fmt;

use super::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

impl Version {
    pub const LATEST: Version = Version::V1_1_0;

    const ALL: [(&'static str, Version); 5] = [
        ("0.3.0", Version::V0_3_0),
        ("0.3.1", Version::V0_3_1),
        ("0.4.0", Version::V0_4_0),
        ("1.0.0", Version::V1_0_0),
        ("1.1.0", Version::V1_1_0),
    ];

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, version)| *version)
    }

    /// Commands came in sets: CHECK with 0.4.0, GC and STATUS with 1.1.0. [`Command`] is ordered newest
    /// first, so everything from the returned command on is known.
    pub fn first_command_set(self) -> Command {
        match self {
            Version::V0_3_0 | Version::V0_3_1 => Command::Add,
            Version::V0_4_0 | Version::V1_0_0 => Command::Check,
            Version::V1_1_0 => Command::Gc,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) =
            Self::ALL.iter().find(|(_, version)| version == self).expect("every version is in ALL");
        f.write_str(name)
    }
}

/// The answer to VERSION repeats the version asked in, whatever it is.
pub(super) fn answer(input: &[u8]) -> String {
    let asked = serde_json::from_slice::<serde_json::Value>(input)
        .ok()
        .and_then(|value| value.get("cniVersion")?.as_str().map(String::from))
        .unwrap_or_else(|| Version::LATEST.to_string());
    let supported: Vec<&str> = Version::ALL.iter().map(|(name, _)| *name).collect();
    serde_json::json!({ "cniVersion": asked, "supportedVersions": supported }).to_string()
}
