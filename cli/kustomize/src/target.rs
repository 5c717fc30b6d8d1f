//! One kustomization: its resources and those of its bases, generated ones, components, transformers.

use serde_json::Value;

use crate::Options;
use crate::configuration::{self, Configuration};
use crate::defaults;
use crate::error::{Error, Result, Within};
use crate::field_spec::{self, FieldSpec};
use crate::files::{FileTree, Root};
use crate::generate;
use crate::kustomization::{FILE_NAMES, GeneratorArgs, GeneratorOptions, Kustomization};
use crate::name_references;
use crate::origin::{ConfiguredBy, Origin};
use crate::plugins;
use crate::resource::{self, Resource};
use crate::resources::Resources;
use crate::schema::Schemas;
use crate::transform::{JsonPatch, PatchSet, Replacement, SubjectMode, Transformer, read_strategic};
use crate::variables::Variables;

/// What all kustomizations of a build share.
pub struct Build<'b> {
    pub files: &'b dyn FileTree,
    pub options: &'b Options,
    pub schemas: Schemas,
    pub warnings: Vec<String>,
}

/// What was gathered so far.
#[derive(Default)]
pub struct Gathered {
    pub resources: Resources,
    pub configuration: Configuration,
    pub variables: Variables,
}

impl Gathered {
    fn merge(&mut self, other: Gathered, schemas: &Schemas) -> Result<()> {
        self.resources.append_all(other.resources.0, schemas)?;
        self.configuration.merge(&other.configuration)?;
        self.variables.merge(other.variables)
    }
}

pub struct Target {
    root: Root,
    pub kustomization: Kustomization,
    file: String,
    /// Where in the build this is, if that is recorded.
    origin: Option<Origin>,
}

pub fn no_charts() -> Error {
    Error::new(
        "helmCharts are not rendered here; run `helm template` and list the file it writes under resources",
    )
}

impl Target {
    pub fn load(build: &mut Build<'_>, root: Root) -> Result<Target> {
        let mut found = Vec::new();
        for name in FILE_NAMES {
            if let Ok(text) = root.read_text(build.files, name) {
                found.push((name, text));
            }
        }
        let shown = root.path.display();
        let (file, text) = match found.len() {
            0 => {
                return Err(Error::new(format!(
                    "unable to find one of 'kustomization.yaml', 'kustomization.yml' or 'Kustomization' in directory '{shown}'"
                )));
            }
            1 => found.remove(0),
            _ => return Err(Error::new(format!("Found multiple kustomization files under: {shown}\n"))),
        };
        let (kustomization, warnings) = Kustomization::read(&text)?;
        build.warnings.extend(warnings);
        kustomization.check(&shown.to_string())?;
        Ok(Target { root, kustomization, file: file.to_owned(), origin: None })
    }

    /// The finished resources of the outermost kustomization.
    pub fn build(&mut self, build: &mut Build<'_>) -> Result<Resources> {
        if !self.kustomization.build_metadata.is_empty() {
            self.origin = Some(Origin::default());
        }
        self.use_schema(build, true)?;
        let mut gathered = self.gather(build, Gathered::default())?;
        // names change only now for the last time, so references and variables come after
        Transformer::Hash.apply(&mut gathered.resources, &build.schemas)?;
        name_references::fix(
            &mut gathered.resources,
            &gathered.configuration.name_reference,
            &build.schemas,
        )?;
        let unused =
            gathered.variables.resolve(&mut gathered.resources, &gathered.configuration.var_reference)?;
        if !unused.is_empty() {
            build.warnings.push(format!("well-defined vars that were never replaced: {}", unused.join(",")));
        }
        gathered.resources.0.retain(|resource| {
            let local = resource.annotations().remove("config.kubernetes.io/local-config");
            !resource.value.is_null() && local.is_none_or(|word| word == "false")
        });
        Ok(gathered.resources)
    }

    /// The `openapi` field of the first kustomization that has one holds for all.
    fn use_schema(&self, build: &mut Build<'_>, is_outermost: bool) -> Result<()> {
        if build.schemas.is_custom() && !is_outermost {
            return Ok(());
        }
        let openapi = &self.kustomization.openapi;
        if let Some(path) = openapi.get("path") {
            if openapi.contains_key("version") {
                return Err(Error::new("builtin version and custom schema provided, cannot use both"));
            }
            build.schemas = Schemas::of_document(&self.root.read_text(build.files, path)?)?;
        } else if openapi.get("version").is_some_and(|version| version != "v1.21.2") {
            return Err(Error::new("the specified OpenAPI version is not built in"));
        }
        Ok(())
    }

    fn gather(&mut self, build: &mut Build<'_>, mut gathered: Gathered) -> Result<Gathered> {
        let paths = self.kustomization.resources.clone();
        self.add_resources(build, &mut gathered, &paths).within("accumulating resources")?;

        let mut configuration = defaults::configuration();
        for path in &self.kustomization.configurations {
            configuration.merge(&Configuration::read(&self.root.read_text(build.files, path)?)?)?;
        }
        gathered.configuration.merge(&configuration)?;
        for path in &self.kustomization.crds {
            let text = self.root.read_text(build.files, path)?;
            let more = configuration::of_definitions(&text)
                .within(format!("unable to parse open API definition from '{path}'"))
                .within(format!("loading CRDs [{}]", self.kustomization.crds.join(" ")))?;
            gathered.configuration.merge(&more)?;
        }

        self.generate(build, &mut gathered)?;
        for path in self.kustomization.components.clone() {
            gathered = self.add_component(build, gathered, &path).within("accumulating components")?;
        }
        self.transform(build, &mut gathered)?;
        self.validate(build, &mut gathered)?;
        if let Some(vars) = &self.kustomization.vars {
            gathered.variables.add(vars, &mut gathered.resources, &build.schemas).within("merging vars")?;
        }
        Ok(gathered)
    }

    /// A path is a file, or else the directory of a base.
    fn add_resources(
        &mut self,
        build: &mut Build<'_>,
        gathered: &mut Gathered,
        paths: &[String],
    ) -> Result<()> {
        for path in paths {
            let Err(no_file) = self.add_file(build, gathered, path) else { continue };
            let context = format!("accumulation err='{no_file}'");
            let root = match self.root.enter(build.files, path) {
                Ok(root) => root,
                Err(_) if no_file.is_malformed() => return Err(no_file),
                Err(error) => return Err(error.within(context)),
            };
            let base = self.enter(build, root, path, false).and_then(|mut base| {
                let shown = base.root.path.display().to_string();
                let of_base = base
                    .gather(build, Gathered::default())
                    .within(format!("recursed accumulation of path '{shown}'"))?;
                gathered
                    .merge(of_base, &build.schemas)
                    .within(format!("recursed merging from path '{shown}'"))
            });
            base.within(context)?;
        }
        Ok(())
    }

    fn add_file(&self, build: &Build<'_>, gathered: &mut Gathered, path: &str) -> Result<()> {
        let read = self.root.read_text(build.files, path).and_then(|text| {
            resource::read(&text).map_err(|error| {
                if error.is_malformed() { Error::new(format!("{error} in File: {path}")) } else { error }
            })
        });
        let mut checked = Resources::default();
        let resources = read.and_then(|resources| {
            checked.append_all(resources, &build.schemas)?;
            Ok(checked.0)
        });
        let mut resources = resources.within(format!("accumulating resources from '{path}'"))?;
        if let Some(origin) = &self.origin {
            for resource in &mut resources {
                resource.origin = Some(origin.join(path));
            }
        }
        gathered
            .resources
            .append_all(resources, &build.schemas)
            .within(format!("merging resources from '{path}'"))
    }

    /// The kustomization of a base or component.
    fn enter(&self, build: &mut Build<'_>, root: Root, path: &str, is_component: bool) -> Result<Target> {
        let shown = root.path.display().to_string();
        let mut target =
            Target::load(build, root).within(format!("couldn't make target for path '{shown}'"))?;
        target.kustomization.build_metadata = self.kustomization.build_metadata.clone();
        target.origin = self.origin.as_ref().map(|origin| origin.join(path));
        target.use_schema(build, false)?;
        let kind = &target.kustomization.kind;
        if is_component && kind != "Component" {
            return Err(Error::new(format!("expected kind 'Component' for path '{shown}' but got '{kind}'")));
        }
        if !is_component && kind == "Component" {
            return Err(Error::new(format!("expected kind != 'Component' for path '{shown}'")));
        }
        Ok(target)
    }

    /// A component changes what was gathered so far.
    fn add_component(&self, build: &mut Build<'_>, gathered: Gathered, path: &str) -> Result<Gathered> {
        let root = self
            .root
            .enter(build.files, path)
            .map_err(|error| Error::new(format!("loader.New {:?}", error.to_string())))?;
        let component = self.enter(build, root, path, true).and_then(|mut component| {
            let shown = component.root.path.display().to_string();
            component.gather(build, gathered).within(format!("recursed accumulation of path '{shown}'"))
        });
        component.map_err(|error| Error::new(format!("accumulateDirectory: {:?}", error.to_string())))
    }

    fn generate(&mut self, build: &mut Build<'_>, gathered: &mut Gathered) -> Result<()> {
        let kustomization = &self.kustomization;
        let global = kustomization.generator_options.as_ref();
        type Make = fn(&dyn FileTree, &Root, &GeneratorArgs) -> Result<Resource>;
        let generators: [(&str, &[GeneratorArgs], Make); 2] = [
            ("ConfigMapGenerator", &kustomization.config_map_generator, generate::config_map),
            ("SecretGenerator", &kustomization.secret_generator, generate::secret),
        ];
        let mut made = Vec::new();
        for (kind, list, make) in generators {
            for args in list {
                let mut args = args.clone();
                args.options = GeneratorOptions::merged(args.options.as_ref(), global);
                let mut resource = make(build.files, &self.root, &args)?;
                resource.origin = self.origin.as_ref().map(|origin| origin.of_builtin(&self.file, kind));
                made.push((kind, resource));
            }
        }
        if !kustomization.helm_charts.is_empty() {
            return Err(no_charts());
        }
        let configs = self.plugin_configs(build, &kustomization.generators.clone())?;
        for config in configs.0 {
            let mut resource =
                plugins::generate(build.files, &self.root, &config).within("loading generator plugins")?;
            resource.origin = origin_of_plugin(&config);
            made.push(("plugin", resource));
        }
        for (kind, resource) in made {
            gathered
                .resources
                .absorb(resource, &build.schemas)
                .within(format!("merging from generator {kind}"))?;
        }
        Ok(())
    }

    /// Each entry is the configuration itself, or a path to some.
    fn plugin_configs(&mut self, build: &mut Build<'_>, entries: &[String]) -> Result<Resources> {
        let mut gathered = Gathered::default();
        let mut paths = Vec::new();
        for entry in entries {
            match resource::read(entry) {
                Ok(mut inline) => {
                    for resource in &mut inline {
                        resource.origin = self.origin.as_ref().map(|origin| origin.join(&self.file));
                    }
                    gathered.resources.append_all(inline, &build.schemas)?;
                }
                Err(_) => paths.push(entry.clone()),
            }
        }
        self.add_resources(build, &mut gathered, &paths)?;
        Ok(gathered.resources)
    }

    fn transform(&mut self, build: &mut Build<'_>, gathered: &mut Gathered) -> Result<()> {
        let mut transformers: Vec<(Transformer, Option<Origin>)> = self
            .builtin_transformers(build, &gathered.configuration)?
            .into_iter()
            .map(|transformer| {
                let origin =
                    self.origin.as_ref().map(|origin| origin.of_builtin(&self.file, transformer.kind()));
                (transformer, origin)
            })
            .collect();
        transformers.extend(self.plugin_transformers(build, &self.kustomization.transformers.clone())?);
        for (transformer, origin) in transformers {
            transformer.apply(&mut gathered.resources, &build.schemas)?;
            gathered.resources.0.retain(|resource| !resource.value.is_null());
            if let Some(origin) = origin {
                for resource in &mut gathered.resources.0 {
                    match resource.origin {
                        Some(_) => resource.transformations.push(origin.clone()),
                        None => resource.origin = Some(origin.clone()),
                    }
                }
            }
        }
        Ok(())
    }

    fn plugin_transformers(
        &mut self,
        build: &mut Build<'_>,
        entries: &[String],
    ) -> Result<Vec<(Transformer, Option<Origin>)>> {
        let configs = self.plugin_configs(build, entries)?;
        let mut transformers = Vec::new();
        for config in &configs.0 {
            let read = plugins::transformers(build.files, &self.root, config, &build.schemas)?;
            transformers.extend(read.into_iter().map(|transformer| (transformer, origin_of_plugin(config))));
        }
        Ok(transformers)
    }

    /// Validators are transformers that may change nothing but a label.
    fn validate(&mut self, build: &mut Build<'_>, gathered: &mut Gathered) -> Result<()> {
        for (validator, _) in self.plugin_transformers(build, &self.kustomization.validators.clone())? {
            let before: Vec<Value> =
                gathered.resources.0.iter().map(|resource| resource.value.clone()).collect();
            validator.apply(&mut gathered.resources, &build.schemas)?;
            let after: Vec<Value> = gathered
                .resources
                .0
                .iter()
                .map(|resource| {
                    let mut resource = resource.clone();
                    let mut labels = resource.labels();
                    if labels.remove("validated-by").is_some() {
                        resource.set_text_map("labels", labels);
                    }
                    resource.value
                })
                .collect();
            if before != after {
                return Err(Error::new("validator shouldn't modify the resource map"));
            }
        }
        Ok(())
    }

    fn builtin_transformers(
        &self,
        build: &Build<'_>,
        configuration: &Configuration,
    ) -> Result<Vec<Transformer>> {
        let Target { root, kustomization, .. } = self;
        let files = build.files;
        let configuring = |kind: &str| format!("trouble configuring builtin {kind} with config");
        let mut transformers = Vec::new();
        if let Some(entries) = kustomization.patches_strategic_merge.as_ref().filter(|list| !list.is_empty())
        {
            let patches =
                read_strategic(files, root, entries).within(configuring("PatchStrategicMergeTransformer"))?;
            transformers.push(Transformer::StrategicMerge(patches));
        }
        for patch in &kustomization.patches {
            let set = PatchSet::read(files, root, patch).within(configuring("PatchTransformer"))?;
            transformers.push(Transformer::Patch(set));
        }
        transformers.extend(self.name_transformers(configuration));
        transformers.extend(self.label_transformers(configuration)?);
        if !kustomization.common_annotations.is_empty() {
            transformers.push(Transformer::Annotations {
                annotations: kustomization.common_annotations.clone(),
                specs: configuration.common_annotations.clone(),
            });
        }
        for patch in kustomization.patches_json6902.iter().flatten() {
            let read = JsonPatch::read(files, root, patch.target.as_ref(), &patch.path, &patch.patch)
                .within(configuring("PatchJson6902Transformer"))?;
            transformers.push(Transformer::Json6902(read));
        }
        for replica in &kustomization.replicas {
            let specs = configuration.replicas.clone();
            transformers.push(Transformer::Replicas { replica: replica.clone(), specs });
        }
        for image in &kustomization.images {
            let specs = configuration.images.clone();
            transformers.push(Transformer::Image { image: image.clone(), specs });
        }
        if !kustomization.replacements.is_empty() {
            let replacements = Replacement::read(files, root, &kustomization.replacements)
                .within(configuring("ReplacementTransformer"))?;
            transformers.push(Transformer::Replacements(replacements));
        }
        Ok(transformers)
    }

    /// Namespace, name prefix and name suffix.
    fn name_transformers(&self, configuration: &Configuration) -> Vec<Transformer> {
        let kustomization = &self.kustomization;
        let mut transformers = Vec::new();
        if !kustomization.namespace.is_empty() {
            transformers.push(Transformer::Namespace {
                namespace: kustomization.namespace.clone(),
                specs: configuration.namespace.clone(),
                unset_only: false,
                subjects: SubjectMode::default(),
            });
        }
        if !kustomization.name_prefix.is_empty() {
            transformers.push(Transformer::Prefix {
                prefix: kustomization.name_prefix.clone(),
                specs: configuration.name_prefix.clone(),
            });
        }
        if !kustomization.name_suffix.is_empty() {
            transformers.push(Transformer::Suffix {
                suffix: kustomization.name_suffix.clone(),
                specs: configuration.name_suffix.clone(),
            });
        }
        transformers
    }

    fn label_transformers(&self, configuration: &Configuration) -> Result<Vec<Transformer>> {
        let common_labels = self.kustomization.common_labels.clone().unwrap_or_default();
        if self.kustomization.labels.is_empty() && common_labels.is_empty() {
            return Ok(Vec::new());
        }
        let mut transformers = Vec::new();
        for label in &self.kustomization.labels {
            let mut specs = label.fields.clone();
            let mut add =
                |more: &[FieldSpec]| field_spec::merge(&mut specs, more).within("failed to merge labels");
            add(&configuration.labels)?;
            if label.include_selectors {
                add(&configuration.common_labels)?;
            } else {
                if label.include_templates {
                    add(&configuration.template_labels)?;
                }
                add(&[FieldSpec::new("metadata/labels", true)])?;
            }
            transformers.push(Transformer::Labels { labels: label.pairs.clone(), specs });
        }
        let specs = configuration.common_labels.clone();
        transformers.push(Transformer::Labels { labels: common_labels, specs });
        Ok(transformers)
    }
}

fn origin_of_plugin(config: &Resource) -> Option<Origin> {
    let origin = config.origin.as_ref()?;
    Some(Origin {
        path: String::new(),
        configured_in: origin.path.clone(),
        configured_by: Some(ConfiguredBy {
            api_version: config.api_version().to_owned(),
            kind: config.kind().to_owned(),
            name: config.name(),
            namespace: config.namespace(),
        }),
    })
}
