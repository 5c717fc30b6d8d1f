//! The controllers alone, against any Kubernetes:
//! `cargo run -p ferry-controllers --example controllers -- KUBECONFIG ROOT_CA [CONTROLLER …]`.

use std::path::PathBuf;

use ferry_client::{CancellationToken, Kubeconfig, connect};
use ferry_controllers::{Config, run};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().ok_or("first argument: a kubeconfig")?);
    let root_ca = std::fs::read(arguments.next().ok_or("second argument: the bundle pods trust")?)?;
    let controllers: Vec<String> = arguments.collect();
    let client = connect(&Kubeconfig { path: Some(path), ..Default::default() }).await?;
    let mut config = Config { root_ca: Some(root_ca), ..Config::default() };
    if !controllers.is_empty() {
        config.controllers = controllers;
    }
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(std::io::stderr).init();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        stop.cancel();
    });
    run(client, config, shutdown).await?;
    Ok(())
}
