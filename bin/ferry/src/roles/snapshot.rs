//! `ferry snapshot save|restore`: the whole store in one file, verified. A running server is asked through
//! its API; a stopped one's directory is read directly.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use ferry_client::Kubeconfig;
use ferry_store::{Embedded, embedded, snapshot};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::compat::FuturesAsyncReadCompatExt;

use crate::progress::Progress;

#[derive(Args)]
pub struct Flags {
    /// Data directory of the cluster
    #[arg(long, default_value = "/var/lib/ferry", global = true)]
    pub data_dir: PathBuf,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Save the store to FILE; works while the server runs
    Save {
        /// File to write
        file: PathBuf,
    },
    /// Restore the store from FILE into a data directory without one
    Restore {
        /// Snapshot to read
        file: PathBuf,
        /// Raise the revision by this number, so that clients list again
        #[arg(long, default_value_t = 1_000_000)]
        revision_bump: u64,
    },
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let store = flags.data_dir.join("store");
    match flags.action {
        Action::Save { file } => {
            let progress = Progress::begin(format!("saving {}", file.display()), None);
            let bytes = runtime.block_on(save(&flags.data_dir, &store, &file))?;
            let summary = embedded::verify(&file).context("verify the snapshot")?;
            drop(progress);
            println!("saved {} ({bytes} bytes, revision {})", file.display(), summary.revision);
        }
        Action::Restore { file, revision_bump } => {
            std::fs::create_dir_all(&flags.data_dir)
                .with_context(|| format!("make {}", flags.data_dir.display()))?;
            let progress = Progress::begin(format!("restoring {}", file.display()), None);
            let restored = embedded::restore(&file, &store, revision_bump);
            drop(progress);
            let summary = restored.with_context(|| format!("restore {}", file.display()))?;
            println!("restored revision {} into {}", summary.revision, store.display());
        }
    }
    Ok(())
}

async fn save(data_dir: &Path, store: &Path, file: &Path) -> anyhow::Result<u64> {
    if !store.is_dir() {
        bail!("{} holds no store; is this the right --data-dir?", data_dir.display());
    }
    match Embedded::open(embedded::Config::new(store)) {
        Ok(stopped) => snapshot::save(&stopped, file).await.context("read the store"),
        Err(damaged @ ferry_store::Error::Corrupt { .. }) => Err(damaged).context("read the store"),
        // A server holds it, as a rule: that one is asked.
        Err(error) => from_server(data_dir, file).await.with_context(|| error.to_string()),
    }
}

async fn from_server(data_dir: &Path, file: &Path) -> anyhow::Result<u64> {
    let kubeconfig = Kubeconfig { path: Some(data_dir.join("admin.kubeconfig")), ..Kubeconfig::default() };
    let client = ferry_client::connect(&kubeconfig).await.context("reach the running server")?;
    let request = http::Request::get("/ferry/v1/snapshot").body(Vec::new()).context("make the request")?;
    let mut body = client.request_stream(request).await.context("ask the running server")?.compat();
    // Under its own name only when it is whole; it holds every secret of the cluster.
    let partial = file.with_extension("partial");
    let out = snapshot::create_private(&partial).with_context(|| format!("write {}", partial.display()))?;
    let mut out = tokio::fs::File::from_std(out);
    let mut bytes = 0;
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let read = body.read(&mut chunk).await.context("read from the running server")?;
        if read == 0 {
            break;
        }
        bytes += read as u64;
        out.write_all(&chunk[..read]).await.with_context(|| format!("write {}", partial.display()))?;
    }
    out.sync_all().await.with_context(|| format!("write {}", partial.display()))?;
    if let Err(error) = embedded::verify(&partial) {
        let _ = tokio::fs::remove_file(&partial).await;
        return Err(error).context("what came from the server is no whole snapshot");
    }
    tokio::fs::rename(&partial, file).await.with_context(|| format!("write {}", file.display()))?;
    let directory = match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let directory = tokio::fs::File::open(directory).await.context("open the snapshot's directory")?;
    directory.sync_all().await.with_context(|| format!("make {} durable", file.display()))?;
    Ok(bytes)
}
