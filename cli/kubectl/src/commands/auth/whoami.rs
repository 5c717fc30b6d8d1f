//! `kubectl auth whoami`.

use http::Method;
use serde_json::{Value, json};

use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::printers::columns::{TABLE, align};
use crate::printers::{self, Format, OBJECT_FORMATS};
use crate::transport::{JSON, Request};

pub const COMMAND: Command = Command {
    name: "whoami",
    short: "Show who the server thinks you are",
    usage: "",
    flags: &[printers::FLAGS],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let format = Format::from_args(&cli.args, OBJECT_FORMATS)?;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = cli.client()?.json(Request::with_body(Method::POST, path, JSON, review.to_string())).await;
    let answer = answer.map_err(|error| match error.status_code() {
        Some(404) => Error::message("the selfsubjectreviews API is not enabled in the cluster\nenable APISelfSubjectReview feature gate and authentication.k8s.io/v1alpha1 or authentication.k8s.io/v1beta1 API"),
        Some(403) => Error::message("the selfsubjectreviews API is not enabled in the cluster or you do not have permission to call it"),
        _ => error,
    })?;
    if !format.is_human() {
        return cli.print(&format.print(&answer, &cli.args)?);
    }
    let user = answer.at("status.userInfo");
    let mut text = "ATTRIBUTE\tVALUE\n".to_owned();
    for (label, field) in [("Username", "username"), ("UID", "uid")] {
        if !user.text(field).is_empty() {
            text.push_str(&format!("{label}\t{}\n", user.text(field)));
        }
    }
    if !user.list("groups").is_empty() {
        text.push_str(&format!("Groups\t{}\n", bracketed(user.list("groups"))));
    }
    for (key, values) in user.entries("extra") {
        text.push_str(&format!(
            "Extra: {key}\t{}\n",
            bracketed(values.as_array().map_or(&[], Vec::as_slice))
        ));
    }
    cli.print(&align(&text, TABLE))
}

/// `[a b]`, Go's way to show a list.
pub fn bracketed(values: &[Value]) -> String {
    let words: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
    format!("[{}]", words.join(" "))
}
