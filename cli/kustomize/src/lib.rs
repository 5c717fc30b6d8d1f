//! kustomize: builds resources from the directory of a kustomization.
//!
//! Resources are read, generated and collected from bases and components, and changed by transformers. At the end names
//! get their hashes and references to them are updated. The output equals that of kustomize v5.8.1, including the
//! order of resources and list elements.
//!
//! This crate does not read the disk itself (see [`FileTree`]), fetch remote bases, render Helm charts or run plugins. It
//! knows no cluster.
//!
//! Start reading at [`build`], then `target` (one kustomization), then `transform`.

mod configuration;
mod defaults;
mod error;
mod field_spec;
mod files;
mod generate;
mod id;
mod kustomization;
mod merge;
mod name_references;
mod order;
mod origin;
mod plugins;
mod resource;
mod resources;
mod schema;
mod target;
mod transform;
mod variables;

use serde_json::Value;

pub use error::Error;
pub use files::FileTree;

use error::Result;
use files::Root;
use kustomization::SortOptions;
use schema::Schemas;
use target::{Build, Target};

/// The version of kustomize this does as.
pub const VERSION: &str = "v5.8.1";

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Files may lie outside of their kustomization's directory.
    pub unrestricted: bool,
    /// Print in the order of reading, or sort; a kustomization's `sortOptions` win.
    pub reorder: Option<bool>,
    /// Label everything as managed by kustomize.
    pub managed_by_label: bool,
}

#[derive(Debug, Default)]
pub struct Built {
    pub resources: Vec<Value>,
    /// Fields that have successors, variables that stand nowhere.
    pub warnings: Vec<String>,
}

impl Built {
    /// The resources as documents of one file.
    pub fn yaml(&self) -> String {
        let documents: Vec<String> = self.resources.iter().map(ferry_api::yaml::encode_value).collect();
        documents.join("---\n")
    }

    /// The resources as files, each with its name. Where there are several namespaces, names begin with them.
    pub fn files(&self) -> Vec<(String, String)> {
        let schemas = Schemas::default();
        let ids: Vec<id::Id> =
            self.resources.iter().map(|value| resource::Resource::new(value.clone()).id(&schemas)).collect();
        let namespaces: std::collections::BTreeSet<&str> =
            ids.iter().filter(|id| !id.cluster).map(id::Id::effective_namespace).collect();
        let name = |id: &id::Id| {
            let namespace = Some(id.effective_namespace()).filter(|_| !id.cluster && namespaces.len() > 1);
            let gvk = [id.gvk.group.as_str(), &id.gvk.version, &id.gvk.kind];
            let parts = namespace.into_iter().chain(gvk.into_iter().filter(|part| !part.is_empty()));
            let parts: Vec<&str> = parts.chain([id.name.as_str()]).collect();
            format!("{}.yaml", parts.join("_").to_lowercase())
        };
        let texts = self.resources.iter().map(ferry_api::yaml::encode_value);
        ids.iter().map(name).zip(texts).collect()
    }
}

/// Annotations that kustomize itself leaves nowhere.
const INTERNAL: [&str; 18] = [
    "internal.config.kubernetes.io/previousKinds",
    "internal.config.kubernetes.io/previousNames",
    "internal.config.kubernetes.io/prefixes",
    "internal.config.kubernetes.io/suffixes",
    "internal.config.kubernetes.io/previousNamespaces",
    "internal.config.kubernetes.io/allowNameChange",
    "internal.config.kubernetes.io/allowKindChange",
    "internal.config.kubernetes.io/refBy",
    "internal.config.kubernetes.io/generatorBehavior",
    "internal.config.kubernetes.io/needsHashSuffix",
    "internal.config.kubernetes.io/path",
    "internal.config.kubernetes.io/index",
    "internal.config.kubernetes.io/seqindent",
    "internal.config.kubernetes.io/id",
    "internal.config.kubernetes.io/annotations-migration-resource-id",
    "config.kubernetes.io/path",
    "config.kubernetes.io/index",
    "config.k8s.io/id",
];

/// Builds the kustomization in a directory. The warnings of a build that failed come with its error.
pub fn build(
    files: &dyn FileTree,
    path: &str,
    options: &Options,
) -> std::result::Result<Built, (Error, Vec<String>)> {
    let mut build = Build { files, options, schemas: Schemas::default(), warnings: Vec::new() };
    match run(&mut build, path) {
        Ok(resources) => Ok(Built { resources, warnings: build.warnings }),
        Err(error) => Err((error, build.warnings)),
    }
}

fn run(build: &mut Build<'_>, path: &str) -> Result<Vec<Value>> {
    let root = Root::new(build.files, path, build.options.unrestricted)?;
    let mut target = Target::load(build, root)?;
    let mut resources = target.build(build)?;
    let kustomization = &target.kustomization;
    let unsorted = SortOptions { order: "fifo".into(), legacy_sort_options: None };
    let sorting = match (&kustomization.sort_options, build.options.reorder) {
        (Some(own), _) => Some(own),
        (None, Some(false)) => Some(&unsorted),
        (None, _) => None,
    };
    order::sort(&mut resources, sorting, &build.schemas)?;
    let managed = build.options.managed_by_label || kustomization.records("managedByLabel");
    Ok(resources
        .0
        .into_iter()
        .map(|mut resource| {
            if managed {
                let mut labels = resource.labels();
                labels.insert("app.kubernetes.io/managed-by".into(), format!("kustomize-{VERSION}"));
                resource.set_text_map("labels", labels);
            }
            let mut annotations = resource.annotations();
            INTERNAL.iter().for_each(|name| drop(annotations.remove(*name)));
            for (word, name, text) in [
                (
                    "originAnnotations",
                    "config.kubernetes.io/origin",
                    resource.origin.as_ref().map(origin::Origin::text),
                ),
                (
                    "transformerAnnotations",
                    "alpha.config.kubernetes.io/transformations",
                    (!resource.transformations.is_empty())
                        .then(|| origin::list_text(&resource.transformations)),
                ),
            ] {
                if !kustomization.records(word) {
                    annotations.remove(name);
                } else if let Some(text) = text {
                    annotations.insert(name.into(), text);
                }
            }
            resource.set_text_map("annotations", annotations);
            resource.value
        })
        .collect())
}
