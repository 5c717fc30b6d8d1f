//! `ferry token`: tokens with which new nodes join. A token contains the certificate of the cluster's authority, so
//! that the node can verify the server before it sends the secret.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::{Args, Subcommand};
use ferry_client::{Api, Client, Kubeconfig};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, PostParams};
use rand::RngExt;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;

use super::layout::{DEFAULT_DATA_DIR, Layout};
use super::output::{self, Lines};
use super::rights::BOOTSTRAPPERS;
use super::status::Output;

const TYPE: &str = "bootstrap.kubernetes.io/token";
const ALPHABET: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

#[derive(Args)]
pub struct Flags {
    /// Data directory of the cluster
    #[arg(long, default_value = DEFAULT_DATA_DIR, global = true)]
    data_dir: PathBuf,
    /// Kubeconfig to use instead of the data directory's administrator
    #[arg(long, global = true)]
    kubeconfig: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Create a token and print it
    Create {
        /// Lifetime in hours
        #[arg(long, default_value_t = 24)]
        hours: u32,
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<Output>,
    },
    /// List the tokens without their secrets
    #[command(alias = "ls")]
    List {
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<Output>,
    },
    /// Revoke a token
    Delete {
        /// ID of the token, as `ferry token list` prints it
        id: String,
    },
}

/// `ID.SECRET.CA`: Kubernetes' bootstrap token, and the authority's certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub id: String,
    pub secret: String,
    pub ca: CertificateDer<'static>,
}

impl Token {
    /// What Kubernetes knows of it.
    pub fn bearer(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }

    pub fn ca_pem(&self) -> String {
        let text = base64::engine::general_purpose::STANDARD.encode(&self.ca);
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap_or("")).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.id, self.secret, URL_SAFE_NO_PAD.encode(&self.ca))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}.…)", self.id)
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || "a token reads ID.SECRET.CA, as `ferry token create` prints it".to_owned();
        let mut parts = text.trim().splitn(3, '.');
        let mut next = || parts.next().filter(|part| !part.is_empty()).ok_or_else(bad);
        let (id, secret, ca) = (next()?, next()?, next()?);
        let plain =
            |part: &str, length| part.len() == length && part.bytes().all(|sign| ALPHABET.contains(&sign));
        if !plain(id, 6) || !plain(secret, 16) {
            return Err(bad());
        }
        let ca = URL_SAFE_NO_PAD.decode(ca).map_err(|_| bad())?;
        Ok(Token { id: id.into(), secret: secret.into(), ca: ca.into() })
    }
}

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    executor.block_on(async {
        let layout = Layout::of(&flags.data_dir)?;
        let path = flags.kubeconfig.clone().unwrap_or_else(|| layout.admin_kubeconfig());
        if !path.exists() {
            bail!("there is no {}; does the cluster run?", path.display());
        }
        let kubeconfig = Kubeconfig { path: Some(path.clone()), ..Kubeconfig::default() };
        let client = ferry_client::connect(&kubeconfig).await.context("reach the API server")?;
        match &flags.action {
            Action::Create { hours, output } => {
                let token = create(&client, authority(&path)?, *hours).await?;
                match output {
                    Some(Output::Json) => println!("{}", json!({"token": token.to_string(), "id": token.id})),
                    None => println!("{token}"),
                }
            }
            Action::List { output } => list(&client, *output).await?,
            Action::Delete { id } => {
                let secrets: Api<Secret> = Api::namespaced(client, "kube-system");
                let name = format!("bootstrap-token-{id}");
                secrets
                    .delete(&name, &DeleteParams::default())
                    .await
                    .with_context(|| format!("delete {id}"))?;
                println!("token {id} deleted");
            }
        }
        Ok(())
    })
}

async fn create(client: &Client, ca: CertificateDer<'static>, hours: u32) -> anyhow::Result<Token> {
    let mut random = rand::rng();
    let mut word = |length: usize| -> String {
        (0..length).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())])).collect()
    };
    let token = Token { id: word(6), secret: word(16), ca };
    let life = jiff::SignedDuration::from_hours(i64::from(hours));
    let end = jiff::Timestamp::now().checked_add(life).context("a token cannot live for so many hours")?;
    let secret: Secret = serde_json::from_value(json!({
        "metadata": { "name": format!("bootstrap-token-{}", token.id), "namespace": "kube-system" },
        "type": TYPE,
        "stringData": {
            "token-id": token.id,
            "token-secret": token.secret,
            "expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": BOOTSTRAPPERS,
            "description": "lets nodes join, made by ferry token create",
        },
    }))
    .context("write the token's Secret")?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "kube-system");
    secrets.create(&PostParams::default(), &secret).await.context("write the token's Secret")?;
    Ok(token)
}

async fn list(client: &Client, output: Option<Output>) -> anyhow::Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "kube-system");
    let tokens = secrets.list(&ListParams::default().fields(&format!("type={TYPE}"))).await;
    let tokens = tokens.context("list the tokens")?;
    let rows: Vec<(String, String)> = tokens
        .iter()
        .map(|secret| {
            let value = |key: &str| {
                let bytes = secret.data.as_ref().and_then(|data| data.get(key));
                bytes.map_or_else(|| "-".into(), |bytes| String::from_utf8_lossy(&bytes.0).into_owned())
            };
            (value("token-id"), value("expiration"))
        })
        .collect();
    match output {
        Some(Output::Json) => {
            let rows: Vec<_> =
                rows.iter().map(|(id, expires)| json!({"id": id, "expires": expires})).collect();
            output::print_json(&rows)
        }
        None => {
            let mut lines = Lines::default();
            lines.add(format!("{:<10} EXPIRES", "ID"));
            for (id, expires) in rows {
                lines.add(format!("{id:<10} {expires}"));
            }
            lines.print()
        }
    }
}

/// The authority that a kubeconfig believes.
fn authority(kubeconfig: &std::path::Path) -> anyhow::Result<CertificateDer<'static>> {
    let config = kube::config::Kubeconfig::read_from(kubeconfig).context("read the kubeconfig")?;
    let data = config
        .clusters
        .first()
        .and_then(|named| named.cluster.as_ref()?.certificate_authority_data.clone())
        .context("the kubeconfig names no authority")?;
    let pem =
        base64::engine::general_purpose::STANDARD.decode(data).context("the authority's certificate")?;
    CertificateDer::from_pem_slice(&pem).context("the authority's certificate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_being_written_down_and_shows_no_secret_in_logs() {
        let token =
            Token { id: "abc123".into(), secret: "0123456789abcdef".into(), ca: vec![1, 2, 3, 255].into() };
        assert_eq!(token.to_string().parse::<Token>().unwrap(), token);
        assert!(!format!("{token:?}").contains("0123456789abcdef"));
        assert!(CertificateDer::from_pem_slice(token.ca_pem().as_bytes()).is_ok_and(|ca| ca == token.ca));
        for bad in
            ["", "abc123", "abc123.0123456789abcdef", "abc.0123456789abcdef.AQ", "ABC123.0123456789abcdef.AQ"]
        {
            bad.parse::<Token>().unwrap_err();
        }
    }
}
