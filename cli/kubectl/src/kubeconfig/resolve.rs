//! From flags and kubeconfig to one cluster, one user, one namespace. Flags win over the file.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use serde_json::Value;

use super::{Entry, Kubeconfig, describe, exec_plugin, relative_to};
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Args;

/// Everything needed to open a connection and say who is calling.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    pub server: String,
    /// PEM; empty means the system's roots.
    pub certificate_authority: Vec<u8>,
    pub insecure: bool,
    pub server_name: String,
    pub client_certificate: Vec<u8>,
    pub client_key: Vec<u8>,
    pub credentials: Credentials,
    pub impersonate: Impersonate,
    pub timeout: Option<Duration>,
    pub proxy: String,
}

#[derive(Debug, Clone)]
pub enum Credentials {
    None,
    Token(String),
    Basic {
        username: String,
        password: String,
    },
    /// A program prints the credential when it is first needed.
    Exec {
        plugin: Value,
        directory: std::path::PathBuf,
        /// The command reads standard input itself, so the program cannot.
        stdin_taken: bool,
    },
    /// An OpenID Connect token that is renewed when it has expired.
    Oidc {
        config: Value,
        user: String,
        file: std::path::PathBuf,
    },
}

#[derive(Debug, Clone, Default)]
pub struct Impersonate {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: Vec<(String, String)>,
}

impl Impersonate {
    /// Groups and the like belong to somebody.
    fn checked(self, user: &str) -> Result<Self> {
        let alone =
            self.user.is_empty() && !(self.uid.is_empty() && self.groups.is_empty() && self.extra.is_empty());
        if alone {
            return Err(Error::message(format!(
                "requesting uid, groups or user-extra for {user} without impersonating a user"
            )));
        }
        Ok(self)
    }
}

/// The namespace to work in, and whether the user named it on the command line.
#[derive(Debug, Clone)]
pub struct Namespace {
    pub name: String,
    pub explicit: bool,
}

static NOTHING: Value = Value::Null;

impl Kubeconfig {
    pub fn context_name<'a>(&'a self, args: &'a Args) -> &'a str {
        match args.text("context") {
            "" => self.current_context(),
            name => name,
        }
    }

    fn context(&self, args: &Args) -> Result<Entry<'_>> {
        let name = self.context_name(args);
        match self.entry("contexts", name) {
            Some(entry) => Ok(entry),
            None if name.is_empty() => Ok(Entry { content: &NOTHING, path: Path::new("") }),
            None if !args.text("context").is_empty() => {
                Err(Error::message(format!("context {name:?} does not exist")))
            }
            None => Err(Error::Configuration(format!("context was not found for specified context: {name}"))),
        }
    }

    pub fn namespace(&self, args: &Args) -> Result<Namespace> {
        let flag = args.text("namespace");
        if !flag.is_empty() {
            return Ok(Namespace { name: flag.to_owned(), explicit: true });
        }
        if self.is_empty()
            && let Some(name) = in_cluster_namespace()
        {
            return Ok(Namespace { name, explicit: false });
        }
        let name = match self.context(args) {
            Ok(context) => context.content.text("namespace").to_owned(),
            Err(_) => String::new(),
        };
        Ok(Namespace { name: if name.is_empty() { "default".to_owned() } else { name }, explicit: false })
    }

    pub fn client_config(&self, args: &Args) -> Result<ClientConfig> {
        if self.is_empty()
            && args.text("server").is_empty()
            && let Some(config) = in_cluster(args)?
        {
            return Ok(config);
        }
        let (cluster, user) = self.cluster_and_user(args)?;
        let user_name = user.name;
        let server = match first_set(args.text("server"), cluster.entry.content.text("server")) {
            "" => "http://localhost:8080".to_owned(),
            server if server.contains("://") => server.to_owned(),
            server => format!("http://{server}"),
        };
        let insecure = args.bool("insecure-skip-tls-verify")
            || (!args.changed("insecure-skip-tls-verify")
                && cluster.entry.content.flag("insecure-skip-tls-verify"));
        let tls = TlsFiles::read(args, &cluster, &user, insecure)?;
        Ok(ClientConfig {
            server: server.trim_end_matches('/').to_owned(),
            certificate_authority: tls.certificate_authority,
            insecure,
            server_name: first_set(
                args.text("tls-server-name"),
                cluster.entry.content.text("tls-server-name"),
            )
            .to_owned(),
            client_certificate: tls.client_certificate,
            client_key: tls.client_key,
            credentials: credentials(args, user.entry, user_name)?,
            impersonate: impersonate(args, user.entry.content).checked(user_name)?,
            timeout: request_timeout(args)?,
            proxy: cluster.entry.content.text("proxy-url").to_owned(),
        })
    }

    /// The entries that flags or the context name; empty ones where there are none.
    fn cluster_and_user<'a>(&'a self, args: &'a Args) -> Result<(Named<'a>, Named<'a>)> {
        let context = self.context(args).map_err(|error| match error {
            Error::Message(_) => Error::Configuration(format!(
                "context was not found for specified context: {}",
                self.context_name(args)
            )),
            other => other,
        })?;
        let cluster_name = first_set(args.text("cluster"), context.content.text("cluster"));
        let user_name = first_set(args.global("user"), context.content.text("user"));
        let cluster = self.entry("clusters", cluster_name);
        let user = self.entry("users", user_name);
        if user.is_none() && !args.global("user").is_empty() {
            return Err(Error::message(format!("auth info {user_name:?} does not exist")));
        }
        if cluster.is_none() && !args.text("cluster").is_empty() && args.text("server").is_empty() {
            return Err(Error::message(format!("no server found for cluster {cluster_name:?}")));
        }
        let nothing = Entry { content: &NOTHING, path: Path::new("") };
        Ok((
            Named { name: cluster_name, entry: cluster.unwrap_or(nothing) },
            Named { name: user_name, entry: user.unwrap_or(nothing) },
        ))
    }
}

/// An entry of a kubeconfig and its name.
struct Named<'a> {
    name: &'a str,
    entry: Entry<'a>,
}

struct TlsFiles {
    certificate_authority: Vec<u8>,
    client_certificate: Vec<u8>,
    client_key: Vec<u8>,
}

impl TlsFiles {
    /// Fails with all files that cannot be read, not only with the first.
    fn read(args: &Args, cluster: &Named<'_>, user: &Named<'_>, insecure: bool) -> Result<TlsFiles> {
        let mut missing = Vec::new();
        let mut read = |key: &str, of: &Named<'_>| match pem(args.text(key), of.entry, key, of.name) {
            Err(Error::Configuration(reason)) => {
                missing.push(reason);
                Ok(Vec::new())
            }
            other => other,
        };
        let files = TlsFiles {
            client_certificate: read("client-certificate", user)?,
            client_key: read("client-key", user)?,
            certificate_authority: match insecure {
                true => Vec::new(),
                false => read("certificate-authority", cluster)?,
            },
        };
        match missing.as_slice() {
            [] => Ok(files),
            [only] => Err(Error::message(only)),
            many => {
                let lines: String = many.iter().map(|reason| format!("\n* {reason}")).collect();
                Err(Error::Configuration(lines))
            }
        }
    }
}

fn first_set<'a>(flag: &'a str, file: &'a str) -> &'a str {
    if flag.is_empty() { file } else { flag }
}

/// A file named by flag, data in the entry, or a file named by the entry, relative to its own.
fn pem(flag: &str, entry: Entry<'_>, key: &str, name: &str) -> Result<Vec<u8>> {
    if !flag.is_empty() {
        return read_file(Path::new(flag), key, name);
    }
    let data = entry.content.text(&format!("{key}-data"));
    if !data.is_empty() {
        let compact: String = data.split_whitespace().collect();
        return base64::engine::general_purpose::STANDARD
            .decode(compact)
            .map_err(|error| Error::message(format!("illegal base64 data in {key}-data: {error}")));
    }
    match entry.content.text(key) {
        "" => Ok(Vec::new()),
        file => read_file(&relative_to(entry.path, file), key, name),
    }
}

/// `name` is whose file it is: a cluster's or a user's.
fn read_file(path: &Path, key: &str, name: &str) -> Result<Vec<u8>> {
    let key = if key == "client-certificate" { "client-cert" } else { key };
    std::fs::read(path).map_err(|error| {
        let (path, reason) = (path.display(), describe(&error));
        Error::Configuration(format!("unable to read {key} {path} for {name} due to open {path}: {reason}"))
    })
}

fn credentials(args: &Args, user: Entry<'_>, name: &str) -> Result<Credentials> {
    if !args.text("token").is_empty() {
        return Ok(Credentials::Token(args.text("token").to_owned()));
    }
    if !args.text("username").is_empty() || !args.text("password").is_empty() {
        return Ok(Credentials::Basic {
            username: args.text("username").to_owned(),
            password: args.text("password").to_owned(),
        });
    }
    let content = user.content;
    if !content.text("tokenFile").is_empty() {
        let path = relative_to(user.path, content.text("tokenFile"));
        let token = std::fs::read_to_string(&path).map_err(|error| {
            Error::message(format!("unable to read token file {}: {}", path.display(), describe(&error)))
        })?;
        return Ok(Credentials::Token(token.trim().to_owned()));
    }
    if !content.text("token").is_empty() {
        return Ok(Credentials::Token(content.text("token").to_owned()));
    }
    if !content.text("username").is_empty() {
        return Ok(Credentials::Basic {
            username: content.text("username").to_owned(),
            password: content.text("password").to_owned(),
        });
    }
    let has_certificate = !args.text("client-certificate").is_empty()
        || !content.text("client-certificate").is_empty()
        || !content.text("client-certificate-data").is_empty();
    if content.has("exec") {
        let plugin = exec_plugin::checked(content.at("exec"), name)?;
        if has_certificate {
            // whoever shows a certificate needs no program to say who they are
            return Ok(Credentials::None);
        }
        let directory = user.path.parent().map(Path::to_owned).unwrap_or_default();
        let stdin_taken =
            args.list("filename").contains(&"-") || args.positional.iter().any(|word| word == "-");
        return Ok(Credentials::Exec { plugin, directory, stdin_taken });
    }
    match content.text("auth-provider.name") {
        "" => Ok(Credentials::None),
        "oidc" => Ok(Credentials::Oidc {
            config: content.at("auth-provider.config").clone(),
            user: name.to_owned(),
            file: user.path.to_owned(),
        }),
        other => Err(Error::message(format!("no Auth Provider found for name {other:?}"))),
    }
}

fn impersonate(args: &Args, user: &Value) -> Impersonate {
    let file_groups = user.list("as-groups").iter().filter_map(Value::as_str).map(str::to_owned);
    let groups: Vec<String> = match args.list("as-group") {
        flag if !flag.is_empty() => flag.into_iter().map(str::to_owned).collect(),
        _ => file_groups.collect(),
    };
    let mut extra: Vec<(String, String)> = Vec::new();
    for entry in args.list("as-user-extra") {
        if let Some((key, value)) = entry.split_once('=') {
            extra.push((key.to_owned(), value.to_owned()));
        }
    }
    if extra.is_empty() {
        for (key, values) in user.entries("as-user-extra") {
            let values = values.as_array().map_or(&[][..], Vec::as_slice);
            extra.extend(
                values.iter().filter_map(Value::as_str).map(|value| (key.to_owned(), value.to_owned())),
            );
        }
    }
    Impersonate {
        user: first_set(args.text("as"), user.text("as")).to_owned(),
        uid: first_set(args.text("as-uid"), user.text("as-uid")).to_owned(),
        groups,
        extra,
    }
}

fn request_timeout(args: &Args) -> Result<Option<Duration>> {
    let text = args.text("request-timeout");
    let timeout = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => crate::flags::parse_duration(text).ok_or_else(|| {
            Error::message("Invalid timeout value. Timeout must be a single integer in seconds, or an integer followed by a corresponding time unit (e.g. 1s | 2m | 3h)")
        })?,
    };
    Ok((!timeout.is_zero()).then_some(timeout))
}

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

fn in_cluster_namespace() -> Option<String> {
    std::env::var_os("KUBERNETES_SERVICE_HOST")?;
    let text = std::fs::read_to_string(format!("{SERVICE_ACCOUNT}/namespace")).ok()?;
    Some(text.trim().to_owned())
}

/// Inside a pod with no kubeconfig, its service account speaks.
fn in_cluster(args: &Args) -> Result<Option<ClientConfig>> {
    let (Ok(host), Ok(port)) =
        (std::env::var("KUBERNETES_SERVICE_HOST"), std::env::var("KUBERNETES_SERVICE_PORT"))
    else {
        return Ok(None);
    };
    let Ok(token) = std::fs::read_to_string(format!("{SERVICE_ACCOUNT}/token")) else {
        return Ok(None);
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let certificate_authority =
        read_file(Path::new(&format!("{SERVICE_ACCOUNT}/ca.crt")), "certificate-authority", "in-cluster")?;
    let token = first_set(args.text("token"), token.trim()).to_owned();
    Ok(Some(ClientConfig {
        server: format!("https://{host}:{port}"),
        certificate_authority,
        insecure: args.bool("insecure-skip-tls-verify"),
        server_name: args.text("tls-server-name").to_owned(),
        client_certificate: Vec::new(),
        client_key: Vec::new(),
        credentials: Credentials::Token(token),
        impersonate: impersonate(args, &NOTHING),
        timeout: request_timeout(args)?,
        proxy: String::new(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_only_impersonated_with_a_user() {
        let group = Impersonate { groups: vec!["g".to_owned()], ..Impersonate::default() };
        assert!(group.clone().checked("u").is_err());
        assert!(Impersonate { user: "bob".to_owned(), ..group }.checked("u").is_ok());
        assert!(Impersonate::default().checked("u").is_ok());
    }
}
