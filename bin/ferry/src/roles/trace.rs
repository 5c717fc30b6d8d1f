//! `ferry trace` and `ferry why`: what happened in the cluster, when and why.

use anyhow::Context;

pub fn run(flags: ferry_timeline::Flags) -> anyhow::Result<()> {
    Ok(runtime()?.block_on(ferry_timeline::run(flags))?)
}

pub fn why(flags: ferry_timeline::why::Flags) -> anyhow::Result<()> {
    Ok(runtime()?.block_on(ferry_timeline::why::run(flags))?)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")
}
