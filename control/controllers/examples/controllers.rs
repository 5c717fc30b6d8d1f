//! The controllers alone, against any Kubernetes, each with the permissions of its own account:
//! `cargo run -p ferry-controllers --example controllers -- KUBECONFIG ROOT_CA [CONTROLLER …]`.
//! The kubeconfig's user must be allowed to impersonate them.

use std::sync::Arc;

use ferry_client::CancellationToken;
use ferry_client::connect::connect_with;
use ferry_controllers::{Config, run_as};
use kube::config::{KubeConfigOptions, Kubeconfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(std::io::stderr).init();
    let mut arguments = std::env::args().skip(1);
    let kubeconfig = Kubeconfig::read_from(arguments.next().ok_or("first argument: a kubeconfig")?)?;
    let root_ca = std::fs::read(arguments.next().ok_or("second argument: the bundle pods trust")?)?;
    let controllers: Vec<String> = arguments.collect();
    let mut config = Config { root_ca: Some(root_ca), ..Config::default() };
    if !controllers.is_empty() {
        config.controllers = controllers;
    }
    let connection = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = connect_with(connection.clone())?;
    let accounts = move |account: &'static str| {
        let mut connection = connection.clone();
        connection.auth_info.impersonate = Some(format!("system:serviceaccount:kube-system:{account}"));
        connect_with(connection).expect("differs only in a header from one that worked")
    };
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        stop.cancel();
    });
    run_as(client, Arc::new(accounts), config, shutdown).await?;
    Ok(())
}
