//! The version of Ferry that last used a data directory: `DATA_DIR/version`.
//!
//! A later minor version may store what an earlier one cannot read, so going back is refused before anything is opened.
//! Versions that differ only in their last number read each other's data.

use std::path::Path;

use anyhow::{Context, bail};
use semver::Version;

use crate::cluster::server::write_private;

const NAME: &str = "version";

/// Refuses a directory that a later version has worked on, and else notes that this one does.
pub fn claim(data_dir: &Path) -> anyhow::Result<()> {
    let running = Version::parse(env!("CARGO_PKG_VERSION")).context("read this program's version")?;
    let path = data_dir.join(NAME);
    let recorded = match std::fs::read_to_string(&path) {
        Ok(text) => {
            let version = Version::parse(text.trim());
            Some(version.with_context(|| format!("{} holds no version: {:?}", path.display(), text.trim()))?)
        }
        // Written by none of the versions that note theirs.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    match decide(recorded.as_ref(), &running) {
        Claim::Held => Ok(()),
        Claim::Note => {
            if let Some(recorded) = recorded {
                tracing::info!(from = %recorded, to = %running, "the data directory was last used by another version");
            }
            write_private(&path, &format!("{running}\n"))
        }
        Claim::Refuse { by } => bail!(
            "{} was last used by ferry {by}; this is {running}, which may not understand all that lies there. Use \
             {by} or later, or restore a snapshot that was saved before the upgrade: `ferry snapshot restore FILE \
             --data-dir NEW_DIRECTORY`",
            data_dir.display()
        ),
    }
}

#[derive(Debug, PartialEq)]
enum Claim {
    /// It is noted already.
    Held,
    Note,
    Refuse {
        by: Version,
    },
}

fn decide(recorded: Option<&Version>, running: &Version) -> Claim {
    match recorded {
        Some(recorded) if (recorded.major, recorded.minor) > (running.major, running.minor) => {
            Claim::Refuse { by: recorded.clone() }
        }
        Some(recorded) if recorded == running => Claim::Held,
        _ => Claim::Note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_later_minor_version_keeps_its_data_to_itself() {
        let check = |recorded: Option<&str>, expected: Claim| {
            let recorded = recorded.map(|text| Version::parse(text).unwrap());
            assert_eq!(
                decide(recorded.as_ref(), &Version::parse("1.4.2").unwrap()),
                expected,
                "{recorded:?}"
            );
        };
        check(None, Claim::Note);
        check(Some("1.4.2"), Claim::Held);
        check(Some("1.4.9"), Claim::Note);
        check(Some("1.3.0"), Claim::Note);
        check(Some("0.9.0"), Claim::Note);
        check(Some("1.5.0-rc.1"), Claim::Refuse { by: Version::parse("1.5.0-rc.1").unwrap() });
        check(Some("2.0.0"), Claim::Refuse { by: Version::parse("2.0.0").unwrap() });
    }

    #[test]
    fn a_refused_directory_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(NAME);
        claim(folder.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), env!("CARGO_PKG_VERSION"));
        for (text, word) in [("9999.0.0\n", "last used by ferry 9999.0.0"), ("gibberish", "holds no version")]
        {
            std::fs::write(&file, text).unwrap();
            let refused = format!("{:#}", claim(folder.path()).unwrap_err());
            assert!(refused.contains(word), "{refused}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }
}
