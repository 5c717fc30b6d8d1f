//! The facts that all servers of a cluster share: certificate authorities and keys, address ranges, overlay. A cluster
//! on the embedded store has one server, which keeps them in its data directory. On etcd there can be several: the first
//! one stores the facts in etcd, and the others adopt them.
//!
//! They are sealed with the cluster's server token, for who can read etcd or a copy of it should not be able to make
//! himself an administrator. The token is made by the first server, and lies in its data directory.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use ferry_auth::{pki, sealed};
use ferry_store::{Error, Store, Txn};
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::facts::Facts;
use super::layout::Layout;
use super::server::write_private;

const KEY: &str = "/ferry/founding";
/// Bound into what is sealed: nothing else that the token may seal one day can be taken for it.
const PURPOSE: &[u8] = b"ferry founding v1";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Founding {
    facts: Facts,
    /// Files of the directory with the cluster's keys.
    pki: BTreeMap<String, String>,
}

/// What the cluster in `store` has agreed on; where there is none yet, it is founded with `proposed`.
pub async fn agree(
    layout: &Layout,
    store: &dyn Store,
    token: Option<&str>,
    proposed: Facts,
) -> anyhow::Result<Facts> {
    let mut span = ferry_trace::span("cluster.founding");
    let known = match token {
        Some(token) => Some(token.to_owned()),
        None => read_optional(&layout.server_token())?,
    };
    let found = store.get(KEY, None).await.context("look for a cluster in etcd")?;
    let founding = match (found.kv, known) {
        (Some(record), Some(token)) => take_over(layout, &token, &record.value)?,
        (Some(_), None) => bail!(
            "there is a cluster in this etcd already: start with --server-token and what the file server-token in the data directory of one of its servers holds (when none is left, delete the key {KEY} in etcd to give the cluster new keys)"
        ),
        (None, known) => {
            span.set("founded", true);
            let token = known.unwrap_or_else(new_token);
            found_cluster(layout, store, &token, proposed).await?
        }
    };
    Ok(founding.facts)
}

async fn found_cluster(
    layout: &Layout,
    store: &dyn Store,
    token: &str,
    facts: Facts,
) -> anyhow::Result<Founding> {
    // Keys that another server was faster with are never used: they are made aside.
    let aside = tempfile::tempdir_in(&layout.data_dir).context("make a place for new keys")?;
    for (name, text) in files(&layout.pki())? {
        write_private(&aside.path().join(name), &text)?;
    }
    pki::found(aside.path()).context("make the cluster's keys")?;
    let founding = Founding { facts, pki: files(aside.path())? };
    let plain = serde_json::to_vec(&founding).context("write down what the cluster agrees on")?;
    let record = sealed::seal(token, PURPOSE, plain).context("seal what the cluster agrees on")?;
    match store.commit(Txn::create(KEY, record.into())).await {
        Ok(_) => {
            keep(layout, token, &founding)?;
            Ok(founding)
        }
        Err(Error::Conflict { .. }) => {
            let found = store.get(KEY, None).await.context("read what another server wrote down")?;
            let record = found.kv.context("what another server wrote down is gone again")?;
            take_over(layout, token, &record.value)
        }
        Err(error) => Err(error).context("write down what the cluster agrees on"),
    }
}

fn take_over(layout: &Layout, token: &str, record: &Bytes) -> anyhow::Result<Founding> {
    let plain = sealed::open(token, PURPOSE, record).context(
        "the cluster in this etcd has another server token (--server-token, or the data directory's)",
    )?;
    let founding: Founding =
        serde_json::from_slice(&plain).context("understand what the cluster agrees on")?;
    keep(layout, token, &founding)?;
    Ok(founding)
}

/// Puts the keys where the server looks for them. Keys of another cluster are never overwritten.
fn keep(layout: &Layout, token: &str, founding: &Founding) -> anyhow::Result<()> {
    let directory = layout.pki();
    let own = files(&directory)?;
    // An authority's certificate is renewed by each server; its key stays.
    let foreign = founding
        .pki
        .iter()
        .filter(|(name, _)| name.ends_with(".key"))
        .find(|(name, text)| own.get(*name).is_some_and(|own| own != *text));
    if let Some((name, _)) = foreign {
        bail!(
            "{} is of another cluster than the one in this etcd: take another --data-dir, or another etcd",
            directory.join(name).display()
        );
    }
    std::fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
    for (name, text) in founding.pki.iter().filter(|(name, _)| !own.contains_key(*name)) {
        write_private(&directory.join(name), text)?;
    }
    write_private(&layout.server_token(), token)
}

/// The files that all servers share, as far as they are there.
fn files(directory: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for name in pki::SHARED_FILES {
        if let Some(text) = read_optional(&directory.join(name))? {
            files.insert(name.to_owned(), text);
        }
    }
    Ok(files)
}

fn read_optional(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

fn new_token() -> String {
    URL_SAFE_NO_PAD.encode(rand::rng().random::<[u8; 32]>())
}
