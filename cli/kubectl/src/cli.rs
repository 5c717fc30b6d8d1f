//! One invocation: its flags, and what is set up from them when first needed. `version --client`
//! must not read a kubeconfig, `config view` must not open a connection.

use std::cell::{OnceCell, RefCell};
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;

use serde_json::Value;

use crate::discovery::{self, Cache, Discovery, Resource};
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Args;
use crate::kubeconfig::resolve::{Credentials, Namespace};
use crate::kubeconfig::{self, Kubeconfig};
use crate::kuberc::Preferences;
use crate::transport::Client;

pub struct Cli {
    pub args: Args,
    preferences: Preferences,
    kubeconfig: OnceCell<Kubeconfig>,
    client: OnceCell<Rc<Client>>,
    discovery: RefCell<Option<Loaded>>,
    warned: RefCell<Vec<String>>,
    out: RefCell<std::io::BufWriter<std::io::Stdout>>,
}

#[derive(Clone)]
struct Loaded {
    discovery: Rc<Discovery>,
    /// Asked in this very invocation: nothing is gained by asking again.
    fresh: bool,
}

/// The version of the API this kubectl speaks.
pub const VERSION: &str = "v1.36.4";

impl Cli {
    pub fn new(args: Args, preferences: Preferences) -> Self {
        Cli {
            args,
            preferences,
            kubeconfig: OnceCell::new(),
            client: OnceCell::new(),
            discovery: RefCell::new(None),
            warned: RefCell::new(Vec::new()),
            out: RefCell::new(std::io::BufWriter::new(std::io::stdout())),
        }
    }

    pub fn kubeconfig(&self) -> Result<&Kubeconfig> {
        if let Some(known) = self.kubeconfig.get() {
            return Ok(known);
        }
        let loaded = Kubeconfig::load(self.args.text("kubeconfig"))?;
        Ok(self.kubeconfig.get_or_init(|| loaded))
    }

    pub fn client(&self) -> Result<&Rc<Client>> {
        if let Some(known) = self.client.get() {
            return Ok(known);
        }
        let config = self.kubeconfig()?.client_config(&self.args)?;
        if let Credentials::Exec { plugin, directory, .. } = &config.credentials {
            self.preferences.check_plugin(plugin.text("command"), directory)?;
        }
        let user_agent = format!("kubectl/{VERSION} ({}/{}) ferry", std::env::consts::OS, go_arch());
        let client = Rc::new(Client::new(config, self.args.int("v"), &user_agent)?);
        if self.args.bool("match-server-version") {
            client.require_version();
        }
        Ok(self.client.get_or_init(|| client))
    }

    /// The connection, if one was made.
    pub fn client_if_made(&self) -> Option<&Rc<Client>> {
        self.client.get()
    }

    pub fn namespace(&self) -> Result<Namespace> {
        self.kubeconfig()?.namespace(&self.args)
    }

    pub fn cache_dir(&self) -> PathBuf {
        match self.args.text("cache-dir") {
            "" => std::env::var_os("KUBECACHEDIR")
                .map_or_else(|| kubeconfig::home().join(".kube/cache"), PathBuf::from),
            path => PathBuf::from(path),
        }
    }

    fn cache(&self) -> Result<Cache> {
        let client = self.client()?;
        Ok(Cache::new(&self.cache_dir(), client.authority(), client.server()))
    }

    pub async fn discovery(&self) -> Result<Rc<Discovery>> {
        if let Some(loaded) = self.discovery.borrow().as_ref() {
            return Ok(loaded.discovery.clone());
        }
        if let Some(known) = self.cache()?.load() {
            let discovery = Rc::new(known);
            *self.discovery.borrow_mut() = Some(Loaded { discovery: discovery.clone(), fresh: false });
            return Ok(discovery);
        }
        self.refresh_discovery().await
    }

    pub async fn refresh_discovery(&self) -> Result<Rc<Discovery>> {
        let discovery = Rc::new(discovery::fetch(self.client()?).await?);
        self.cache()?.store(&discovery);
        *self.discovery.borrow_mut() = Some(Loaded { discovery: discovery.clone(), fresh: true });
        Ok(discovery)
    }

    /// Looks something up, and once more in a fresh discovery if the cached one lacks it.
    pub async fn look_up<T>(&self, find: impl Fn(&Discovery) -> Result<T>) -> Result<T> {
        let discovery = self.discovery().await?;
        match find(&discovery) {
            Err(_) if !self.discovery.borrow().as_ref().is_some_and(|loaded| loaded.fresh) => {
                find(&*self.refresh_discovery().await?)
            }
            outcome => outcome,
        }
    }

    pub async fn resource(&self, word: &str) -> Result<Rc<Resource>> {
        let (found, others) = self
            .look_up(|discovery| {
                let found = Rc::new(discovery.find(word)?.clone());
                Ok((found, discovery.also_matching(word)))
            })
            .await?;
        for other in others {
            self.warn(&format!("short name {word:?} could also match lower priority resource {other}"));
        }
        Ok(found)
    }

    /// The resource of an object, by its apiVersion and kind.
    pub async fn resource_of(&self, object: &Value) -> Result<Rc<Resource>> {
        let (api_version, kind) = (object.text("apiVersion"), object.kind());
        self.look_up(|discovery| {
            discovery.for_kind(api_version, kind).map(|found| Rc::new(found.clone())).ok_or_else(|| {
                Error::message(format!("no matches for kind {kind:?} in version {api_version:?}"))
            })
        })
        .await
    }

    /// A warning, once however often there is a reason for it.
    pub fn warn(&self, text: &str) {
        let mut warned = self.warned.borrow_mut();
        if !warned.iter().any(|known| known == text) {
            eprintln!("Warning: {text}");
            warned.push(text.to_owned());
        }
    }

    pub fn print(&self, text: &str) -> Result<()> {
        match self.out.borrow_mut().write_all(text.as_bytes()) {
            // whoever reads us has seen enough: `kubectl get … | head`
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Error::exit(141)),
            outcome => Ok(outcome?),
        }
    }

    pub fn print_bytes(&self, bytes: &[u8]) -> Result<()> {
        match self.out.borrow_mut().write_all(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Error::exit(141)),
            outcome => Ok(outcome?),
        }
    }

    pub fn line(&self, text: impl AsRef<str>) -> Result<()> {
        self.print(text.as_ref())?;
        self.print("\n")
    }

    /// Makes what was printed visible before the command goes on waiting.
    pub fn flush(&self) -> Result<()> {
        match self.out.borrow_mut().flush() {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Error::exit(141)),
            outcome => Ok(outcome?),
        }
    }
}

pub fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
