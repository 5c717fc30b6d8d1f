//! `ferry trace`: what happened when.

use anyhow::Context;

pub fn run(flags: ferry_timeline::Flags) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    Ok(runtime.block_on(ferry_timeline::run(flags))?)
}
