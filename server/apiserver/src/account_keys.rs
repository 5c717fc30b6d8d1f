//! The keys of service account tokens: one signs tokens, several verify them.
//!
//! By default they are files in the PKI's directory: `sa.key` signs, and every `sa*.pub` verifies. The server reloads the
//! files, so keys are rotated by replacing them.

use std::path::{Path, PathBuf};

use ferry_auth::pki::Pki;

use crate::run::{Config, StartError};

/// As PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct AccountKeys {
    pub signing: String,
    pub verifying: Vec<String>,
}

impl AccountKeys {
    /// A server's own key may not be in its file yet when it starts for the first time.
    pub fn at_start(config: &Config, pki: &Pki) -> Result<AccountKeys, StartError> {
        let signing = match &config.service_account_signing_key_file {
            Some(path) => read(path)?,
            None => pki.service_account_key().to_owned(),
        };
        let mut verifying = read_all(&config.service_account_key_files)?;
        if verifying.is_empty() {
            let own = pki.service_account_public_key();
            verifying = read_all(&public_keys(pki.directory())?)?;
            verifying.retain(|key| key != own);
            verifying.push(own.to_owned());
        }
        Ok(AccountKeys { signing, verifying })
    }

    pub fn read(config: &Config, pki: &Pki) -> Result<AccountKeys, StartError> {
        let signing = config.service_account_signing_key_file.as_deref();
        let own = pki.directory().join("sa.key");
        let mut files = config.service_account_key_files.clone();
        if files.is_empty() {
            files = public_keys(pki.directory())?;
        }
        Ok(AccountKeys { signing: read(signing.unwrap_or(&own))?, verifying: read_all(&files)? })
    }
}

fn public_keys(directory: &Path) -> Result<Vec<PathBuf>, StartError> {
    let failed = |source| StartError::Read { path: directory.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        if name.starts_with("sa") && name.ends_with(".pub") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<String>, StartError> {
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<String, StartError> {
    std::fs::read_to_string(path).map_err(|source| StartError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use ferry_auth::pki::PkiConfig;

    use super::*;

    #[test]
    fn a_server_starts_with_the_keys_that_it_reads_later() {
        let home = tempfile::tempdir().expect("a directory");
        let config = Config::new(home.path());
        let (pki, new) =
            Pki::open(home.path().join("pki"), PkiConfig::new("cluster.local", ["host"])).expect("keys");
        let at_start = AccountKeys::at_start(&config, &pki).expect("keys");
        assert_eq!(at_start.verifying, [pki.service_account_public_key()]);
        new.write().expect("files");
        assert!(AccountKeys::read(&config, &pki).expect("keys") == at_start);
        assert!(AccountKeys::at_start(&config, &pki).expect("keys") == at_start);

        // Of an earlier key tokens are still about.
        std::fs::write(home.path().join("pki/sa-old.pub"), "another").expect("a file");
        let both = AccountKeys::at_start(&config, &pki).expect("keys").verifying;
        assert_eq!(both, ["another", pki.service_account_public_key()]);
    }
}
