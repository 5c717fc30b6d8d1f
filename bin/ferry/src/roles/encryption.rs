//! Encryption at rest: the flags, and the file they name, followed while the server runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ferry_registry::encryption::EncryptedResources;
use ferry_store::{Encrypted, Store};

/// As often as keys and certificates are looked at.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(10);

#[derive(Args, Clone)]
pub struct EncryptionFlags {
    /// EncryptionConfiguration file: the resources that are encrypted in the store, and the keys
    #[arg(long)]
    pub encryption_provider_config: Option<PathBuf>,
    /// Reload the file when it changes
    #[arg(long, default_value_t = false, default_missing_value = "true", num_args = 0..=1, action = clap::ArgAction::Set)]
    pub encryption_provider_config_automatic_reload: bool,
}

/// The store as the server sees it: encrypted where the file says so.
pub fn over(store: Arc<dyn Store>, flags: &EncryptionFlags) -> anyhow::Result<Arc<dyn Store>> {
    let Some(path) = &flags.encryption_provider_config else { return Ok(store) };
    let (text, encryption) = read(path)?;
    let encrypted = Arc::new(Encrypted::new(store, encryption));
    if flags.encryption_provider_config_automatic_reload {
        tokio::spawn(follow(path.clone(), text, Arc::downgrade(&encrypted)));
    }
    Ok(encrypted)
}

fn read(path: &Path) -> anyhow::Result<(String, Arc<EncryptedResources>)> {
    let of_file = || format!("the encryption configuration {}", path.display());
    let text = std::fs::read_to_string(path).with_context(of_file)?;
    let encryption = EncryptedResources::parse(&text).with_context(of_file)?;
    Ok((text, Arc::new(encryption)))
}

/// A file that cannot be read changes nothing. Ends with the store.
async fn follow(path: PathBuf, mut known: String, store: Weak<Encrypted>) {
    loop {
        tokio::time::sleep(LOOKED_AT_EVERY).await;
        let Some(store) = store.upgrade() else { return };
        match read(&path) {
            Ok((text, _)) if text == known => {}
            Ok((text, encryption)) => {
                store.replace(encryption);
                known = text;
                tracing::info!(file = %path.display(), "the encryption configuration was reloaded");
            }
            Err(error) => tracing::error!("{error:#}; the previous encryption configuration stays in effect"),
        }
    }
}
