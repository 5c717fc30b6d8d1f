//! What a command works on: files, standard input, names, `type/name` pairs, selectors. One
//! mechanism for all commands: words and files become targets, targets become objects.

mod files;
mod pattern;
mod words;

use files::built_documents;
pub use files::{Document, decode, read_documents};
pub use words::NOTHING_GIVEN;

use std::rc::Rc;

use serde_json::Value;

use crate::cli::Cli;
use crate::discovery::Resource;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::flags::Flag;
use crate::transport::{JSON, Query, Request};

pub const FILE_FLAGS: &[Flag] = &[
    Flag::list("filename", "File, directory or URL that holds the resource").short('f'),
    Flag::text("kustomize", "Directory of a kustomization that builds the resources").short('k'),
    Flag::bool("recursive", "Go through directories of -f recursively").short('R'),
];
/// The same, for commands that go through directories unless told otherwise.
pub const RECURSIVE_FILE_FLAGS: &[Flag] = &[
    FILE_FLAGS[0],
    FILE_FLAGS[1],
    Flag::bool("recursive", "Go through directories of -f recursively").short('R').default("true"),
];
pub const SELECTOR_FLAGS: &[Flag] = &[Flag::text("selector", "Label selector").short('l')];
pub const ALL_NAMESPACES_FLAGS: &[Flag] =
    &[Flag::bool("all-namespaces", "Look in all namespaces").short('A')];
pub const FIELD_SELECTOR_FLAGS: &[Flag] = &[Flag::text("field-selector", "Field selector")];
pub const CHUNK_FLAGS: &[Flag] =
    &[Flag::int("chunk-size", "Read large lists in pieces of this size; 0 reads them whole").default("500")];

/// One object a command works on.
#[derive(Debug, Clone)]
pub struct Info {
    pub resource: Rc<Resource>,
    /// Empty for what lives in no namespace.
    pub namespace: String,
    pub name: String,
    pub object: Value,
    /// The file it came from, or empty.
    pub source: String,
}

impl Info {
    pub fn path(&self) -> String {
        self.resource.object_path(&self.namespace, &self.name)
    }
    /// `pods "web"`, as messages say it.
    pub fn quoted(&self) -> String {
        format!("{} {:?}", self.resource.name, self.name)
    }
    /// Resource, kind, name and namespace, as messages about an apply say it.
    pub fn described(&self) -> String {
        let resource = &self.resource;
        let version = format!("{}/{}", resource.group, resource.version);
        format!(
            "Resource: \"{version}, Resource={}\", GroupVersionKind: \"{version}, Kind={}\"\nName: {:?}, Namespace: {:?}",
            resource.name, resource.kind, self.name, self.namespace
        )
    }
    /// `pod/web`.
    pub fn kind_slash_name(&self) -> String {
        format!("{}/{}", self.resource.kind_name(), self.name)
    }
}

/// What is pointed at, before anything is fetched.
#[derive(Debug, Clone)]
pub enum Target {
    /// An object from a file.
    Object(Info),
    Named {
        resource: Rc<Resource>,
        namespace: String,
        name: String,
    },
    List {
        resource: Rc<Resource>,
        namespace: String,
    },
    /// A document that cannot be used; those beside it can.
    Broken(Error),
}

#[derive(Debug, Clone)]
pub struct Selection {
    pub words: Vec<String>,
    pub files: Vec<String>,
    /// The directory of a kustomization, in the place of files.
    pub kustomize: String,
    pub recursive: bool,
    pub selector: String,
    pub field_selector: String,
    /// A type without name or selector means all of that type.
    pub types_mean_all: bool,
    /// `--all` was given.
    pub all: bool,
    /// `delete --all`, which takes no names.
    pub selects_all: bool,
    pub all_namespaces: bool,
    pub accept: &'static str,
    pub chunk: i64,
    pub subresource: String,
    /// Ask for whole objects inside a Table.
    pub include_object: bool,
    /// One word alone is a type (`get web`), or else a name of this type (`logs web`).
    pub default_type: Option<&'static str>,
    /// Files only say what to look up; their content is not wanted.
    pub live: bool,
    /// What is wrong with a manifest is found before the server sees it.
    pub validating: bool,
}

/// What was found, and what was not: a missing object does not hide the others.
#[derive(Debug, Default)]
pub struct Selected {
    pub infos: Vec<Info>,
    pub errors: Vec<Error>,
    /// The user named exactly one thing, so it is shown as itself and not as a list.
    pub single: bool,
}

impl Selected {
    /// All of them, or the first failure.
    pub fn all(self) -> Result<Vec<Info>> {
        Error::collect(self.errors)?;
        Ok(self.infos)
    }
}

impl Selection {
    /// Everything from the flags that are there.
    pub fn from_args(cli: &Cli, words: &[String]) -> Self {
        let args = &cli.args;
        Selection {
            words: words.to_vec(),
            files: args.list("filename").into_iter().map(str::to_owned).collect(),
            kustomize: args.text("kustomize").to_owned(),
            recursive: args.bool("recursive"),
            selector: args.text("selector").to_owned(),
            field_selector: args.text("field-selector").to_owned(),
            types_mean_all: false,
            all: args.bool("all"),
            selects_all: false,
            all_namespaces: args.bool("all-namespaces"),
            accept: JSON,
            chunk: args.int("chunk-size"),
            subresource: args.text("subresource").to_owned(),
            include_object: false,
            default_type: None,
            live: true,
            validating: validates(args),
        }
    }

    /// The objects of the files, and what is wrong with the rest.
    pub async fn objects(&self, cli: &Cli) -> Result<(Vec<Info>, Vec<Error>)> {
        let (mut infos, mut errors) = (Vec::new(), Vec::new());
        for target in self.targets(cli).await? {
            match target {
                Target::Object(info) => infos.push(info),
                Target::Broken(error) => errors.push(error),
                Target::Named { .. } | Target::List { .. } => {}
            }
        }
        Ok((infos, errors))
    }

    /// The targets, in the order given. Nothing is fetched but discovery.
    pub async fn targets(&self, cli: &Cli) -> Result<Vec<Target>> {
        if !self.kustomize.is_empty() {
            if !self.files.is_empty() {
                return Err(Error::message("only one of -f or -k can be specified"));
            }
            if self.recursive {
                return Err(Error::message("the -k flag can't be used with -f or -R"));
            }
        }
        if !self.files.is_empty() || !self.kustomize.is_empty() {
            if !self.words.is_empty() {
                return Err(Error::message(
                    "when paths, URLs, or stdin is provided as resource input, you may not specify resource arguments as well",
                ));
            }
            let mut targets = Vec::new();
            let documents = if self.kustomize.is_empty() {
                read_documents(&self.files, self.recursive, self.validating).await?
            } else {
                built_documents(&self.kustomize, self.validating)?
            };
            for document in documents {
                targets.push(match document {
                    Ok(document) => match self.file_info(cli, document).await {
                        Ok(info) => Target::Object(info),
                        Err(error @ Error::Plain(_)) => return Err(error),
                        Err(error) => Target::Broken(error),
                    },
                    Err(error) => Target::Broken(error),
                });
            }
            return Ok(targets);
        }
        self.word_targets(cli).await
    }

    pub async fn file_info(&self, cli: &Cli, document: Document) -> Result<Info> {
        let Document { mut object, source } = document;
        let resource = cli.resource_of(&object).await.map_err(|error| match error {
            Error::Message(reason) => Error::message(format!(
                "resource mapping not found for name: {:?} namespace: {:?} from {source:?}: {reason}\nensure CRDs are installed first",
                object.name(),
                object.namespace()
            )),
            other => other,
        })?;
        let namespace = if resource.namespaced {
            let current = cli.namespace()?;
            let own = object.namespace();
            if current.explicit && !own.is_empty() && own != current.name {
                return Err(Error::message(format!(
                    "the namespace from the provided object {own:?} does not match the namespace {:?}. You must pass '--namespace={own}' to perform this operation.",
                    current.name
                )));
            }
            if own.is_empty() { current.name } else { own.to_owned() }
        } else {
            String::new()
        };
        if resource.namespaced {
            fields::set(&mut object, "metadata.namespace", namespace.clone().into());
        } else {
            fields::remove(&mut object, "metadata.namespace");
        }
        Ok(Info { resource, namespace, name: object.name().to_owned(), object, source })
    }

    /// Fetches every target. Errors of single objects are collected, not fatal.
    pub async fn fetch(&self, cli: &Cli) -> Result<Selected> {
        let targets = self.targets(cli).await?;
        let mut selected = Selected {
            single: matches!(targets.as_slice(), [Target::Named { .. } | Target::Object(_)]) && !self.lists(),
            ..Selected::default()
        };
        for target in targets {
            match self.fetch_one(cli, target).await {
                Ok(infos) => selected.infos.extend(infos),
                Err(error) => {
                    // without a connection the others will not do better
                    let fatal = matches!(error, Error::Plain(_));
                    selected.errors.push(error);
                    if fatal {
                        break;
                    }
                }
            }
        }
        Ok(selected)
    }

    fn lists(&self) -> bool {
        !self.selector.is_empty() || !self.field_selector.is_empty()
    }

    pub async fn fetch_one(&self, cli: &Cli, target: Target) -> Result<Vec<Info>> {
        match target {
            Target::Object(info) if !self.live => Ok(vec![info]),
            Target::Object(info) => {
                let object = self.get(cli, &info.resource, &info.namespace, &info.name).await?;
                Ok(vec![Info { object, ..info }])
            }
            Target::Named { resource, namespace, name } => {
                let object = self.get(cli, &resource, &namespace, &name).await?;
                Ok(vec![Info { resource, namespace, name, object, source: String::new() }])
            }
            Target::List { resource, namespace } => self.list(cli, resource, &namespace).await,
            Target::Broken(error) => Err(error),
        }
    }

    async fn get(&self, cli: &Cli, resource: &Resource, namespace: &str, name: &str) -> Result<Value> {
        let mut path = resource.object_path(namespace, name);
        if !self.subresource.is_empty() {
            path = format!("{path}/{}", self.subresource);
        }
        if self.include_object {
            path.push_str("?includeObject=Object");
        }
        cli.client()?.json(Request::get(&path).accept(self.accept)).await
    }

    /// A list that cannot be had says what it was to be of.
    fn while_listing(&self, error: Error, resource: &Resource) -> Error {
        if !error.is_not_found() && !matches!(&error, Error::Status(status) if status.reason == "BadRequest")
        {
            return error;
        }
        let what = format!("\"{}/{}, Resource={}\"", resource.group, resource.version, resource.name);
        error.context(if self.lists() {
            format!(
                "Unable to find {what} that match label selector {:?}, field selector {:?}",
                self.selector, self.field_selector
            )
        } else {
            format!("Unable to list {what}")
        })
    }

    /// Reads a list piece by piece. A Table stays one object; everything else is taken apart.
    async fn list(&self, cli: &Cli, resource: Rc<Resource>, namespace: &str) -> Result<Vec<Info>> {
        let client = cli.client()?;
        let mut infos = Vec::new();
        let mut token = String::new();
        loop {
            let mut query = Query::new();
            if self.include_object {
                query.push("includeObject", "Object");
            }
            query = query
                .with("fieldSelector", &self.field_selector)
                .with("labelSelector", &self.selector)
                .with("limit", &if self.chunk > 0 { self.chunk.to_string() } else { String::new() })
                .with("continue", &token);
            let path = format!("{}{query}", resource.path(namespace));
            let list = client
                .json(Request::get(&path).accept(self.accept))
                .await
                .map_err(|error| self.while_listing(error, &resource))?;
            token = list.text("metadata.continue").to_owned();
            if list.kind() == "Table" {
                infos.push(Info {
                    resource: resource.clone(),
                    namespace: namespace.to_owned(),
                    name: String::new(),
                    object: list,
                    source: String::new(),
                });
            } else {
                infos.extend(items(list, &resource));
            }
            if token.is_empty() {
                return Ok(infos);
            }
        }
    }
}

/// All objects of a path, read in pieces of `--chunk-size`.
pub async fn list_all(cli: &Cli, path: &str, query: &Query) -> Result<Vec<Value>> {
    let limit = match cli.args.text("chunk-size") {
        "" => "500",
        "0" => "",
        size => size,
    };
    let mut objects = Vec::new();
    let mut token = String::new();
    loop {
        let query = query.clone().with("limit", limit).with("continue", &token);
        let mut list = cli.client()?.json(Request::get(&format!("{path}{query}"))).await?;
        token = list.text("metadata.continue").to_owned();
        if let Some(Value::Array(items)) = list.get_mut("items").map(Value::take) {
            objects.extend(items);
        }
        if token.is_empty() {
            return Ok(objects);
        }
    }
}

/// Whether the command checks manifests before it sends them.
fn validates(args: &crate::flags::Args) -> bool {
    !matches!(args.text("validate"), "" | "ignore" | "false")
}

/// The items of a list, each with the type it has on its own.
pub fn items(mut list: Value, resource: &Rc<Resource>) -> Vec<Info> {
    let list_kind = list.kind().to_owned();
    let api_version = list.text("apiVersion").to_owned();
    let Some(Value::Array(items)) = list.get_mut("items").map(Value::take) else { return Vec::new() };
    items
        .into_iter()
        .map(|mut object| {
            if object.kind().is_empty() {
                fields::set(
                    &mut object,
                    "kind",
                    list_kind.strip_suffix("List").unwrap_or(&resource.kind).into(),
                );
                fields::set(&mut object, "apiVersion", api_version.clone().into());
            }
            Info {
                resource: resource.clone(),
                namespace: object.namespace().to_owned(),
                name: object.name().to_owned(),
                object,
                source: String::new(),
            }
        })
        .collect()
}
