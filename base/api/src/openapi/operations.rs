//! The paths of the kinds and what can be done at them, in no version of OpenAPI yet.

use serde_json::{Value, json};

use super::schemas::{Version, reference};
use crate::kinds::{GroupVersionKind, Kind, Subresource};
use crate::types::{Schema, Shape, Types};

use super::{base_path, capitalized, group_identifier, tag};

pub const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

#[derive(Debug)]
pub struct Path {
    pub path: String,
    pub operations: Vec<Operation>,
}

#[derive(Debug)]
pub struct Operation {
    pub method: &'static str,
    pub id: String,
    pub tag: String,
    /// `x-kubernetes-action`, with the kind it is about.
    pub action: Option<(&'static str, GroupVersionKind)>,
    /// In the path and the query, ordered by name.
    pub parameters: Vec<Parameter>,
    pub body: Option<Body>,
    pub consumes: &'static [&'static str],
    pub produces: &'static [&'static str],
    /// Codes with what they answer.
    pub responses: Vec<(u16, ResponseBody)>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Parameter {
    pub name: String,
    pub place: &'static str,
    pub kind: &'static str,
}

#[derive(Debug)]
pub struct Body {
    pub schema: String,
    pub required: bool,
}

#[derive(Debug, Clone)]
pub enum ResponseBody {
    /// A definition, by its name.
    Definition(String),
    Text,
}

pub const ANYTHING: &[&str] = &["*/*"];
pub const FORMATS: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const TEXT_FORMATS: &[&str] = &["application/json", "application/yaml"];
const STREAMS: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const LOG_FORMATS: &[&str] =
    &["text/plain", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

const CUSTOM_PATCHES: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

const LIST_PARAMETERS: &[(&str, &str)] = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("shardSelector", "string"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const DELETE_PARAMETERS: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];
const WRITE_PARAMETERS: &[(&str, &str)] =
    &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const PATCH_PARAMETERS: &[(&str, &str)] =
    &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string"), ("force", "boolean")];

impl Operation {
    /// What both versions say about an operation beyond OpenAPI.
    pub fn extend(&self, out: &mut Value) {
        if let Some((action, gvk)) = &self.action {
            out["x-kubernetes-action"] = (*action).into();
            out["x-kubernetes-group-version-kind"] =
                json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind});
        }
    }
}

impl ResponseBody {
    pub fn schema(&self, version: Version) -> Value {
        match self {
            ResponseBody::Definition(name) => reference(name, version),
            ResponseBody::Text => json!({"type": "string"}),
        }
    }
}

/// All paths of a kind.
pub fn of_kind(kind: &Kind) -> Vec<Path> {
    let builder = Builder::new(kind);
    let mut paths = builder.resource();
    for subresource in &kind.subresources {
        paths.extend(builder.subresource(subresource));
    }
    // Custom resources are not watched by path.
    if kind.codec.has_protobuf() {
        paths.extend(builder.watches());
    }
    paths.retain(|path| !path.operations.is_empty());
    paths
}

/// A document about the API itself: discovery of groups, of a group, of a version.
pub fn discovery(path: String, id: String, tag: String, answer: &str) -> Path {
    Path {
        path,
        operations: vec![Operation {
            method: "get",
            id,
            tag,
            action: None,
            parameters: Vec::new(),
            body: None,
            consumes: FORMATS,
            produces: FORMATS,
            responses: vec![(200, ResponseBody::Definition(format!("{META}.{answer}")))],
        }],
    }
}

pub fn version() -> Path {
    let mut path = discovery("/version/".into(), "getCodeVersion".into(), "version".into(), "APIVersions");
    let operation = &mut path.operations[0];
    operation.consumes = &["application/json"];
    operation.produces = &["application/json"];
    operation.responses =
        vec![(200, ResponseBody::Definition("io.k8s.apimachinery.pkg.version.Info".into()))];
    path
}

/// The service account issuer's own documents.
pub fn issuer() -> [Path; 2] {
    let document = |path: &str, id: &str, tag: &str, produces: &'static [&'static str]| {
        let mut path = discovery(path.into(), id.into(), tag.into(), "APIVersions");
        let operation = &mut path.operations[0];
        operation.consumes = &[];
        operation.produces = produces;
        operation.responses = vec![(200, ResponseBody::Text)];
        path
    };
    [
        document(
            "/.well-known/openid-configuration/",
            "getServiceAccountIssuerOpenIDConfiguration",
            "WellKnown",
            &["application/json"],
        ),
        document(
            "/openid/v1/jwks/",
            "getServiceAccountIssuerOpenIDKeyset",
            "openid",
            &["application/jwk-set+json"],
        ),
    ]
}

/// Parameters that all operations of a path share, and those that each has alone.
pub fn split_parameters(path: &Path) -> (Vec<Parameter>, Vec<Vec<Parameter>>) {
    let all = |parameter: &Parameter| path.operations.iter().all(|op| op.parameters.contains(parameter));
    let mut shared: Vec<Parameter> =
        path.operations.first().map_or_else(Vec::new, |op| op.parameters.clone());
    shared.retain(all);
    let own = path.operations.iter().map(|operation| {
        operation.parameters.iter().filter(|parameter| !shared.contains(parameter)).cloned().collect()
    });
    let own = own.collect();
    (shared, own)
}

struct Builder<'k> {
    kind: &'k Kind,
    /// `CoreV1`
    identifier: String,
    /// `NamespacedPod` or `Node`
    noun: String,
}

impl<'k> Builder<'k> {
    fn new(kind: &'k Kind) -> Builder<'k> {
        let scope = if kind.is_namespaced() { "Namespaced" } else { "" };
        Builder {
            kind,
            identifier: format!("{}{}", group_identifier(&kind.group), capitalized(&kind.version)),
            noun: format!("{scope}{}", kind.kind),
        }
    }

    fn id(&self, verb: &str, rest: &str) -> String {
        format!("{verb}{}{rest}", self.identifier)
    }

    fn collection_path(&self, below: &str) -> String {
        let base = base_path(&self.kind.group, &self.kind.version);
        let namespace = if self.kind.is_namespaced() { "/namespaces/{namespace}" } else { "" };
        format!("{base}{below}{namespace}/{}", self.kind.plural)
    }

    fn operation(&self, method: &'static str, action: &'static str, id: String) -> Operation {
        Operation {
            method,
            id,
            tag: tag(&self.kind.group, Some(&self.kind.version)),
            action: Some((action, self.kind.gvk())),
            parameters: Vec::new(),
            body: None,
            consumes: ANYTHING,
            produces: self.formats(),
            responses: Vec::new(),
        }
    }

    /// Query parameters, with those of the path and `pretty`.
    fn parameters(&self, query: &[(&str, &'static str)], in_path: &[&str]) -> Vec<Parameter> {
        let mut parameters: Vec<Parameter> =
            query.iter().map(|(name, kind)| parameter(name, "query", kind)).collect();
        parameters.push(parameter("pretty", "query", "string"));
        if self.kind.is_namespaced() {
            parameters.push(parameter("namespace", "path", "string"));
        }
        parameters.extend(in_path.iter().map(|name| parameter(name, "path", "string")));
        parameters.sort();
        parameters
    }

    fn definition(&self, gvk: &GroupVersionKind) -> String {
        match Types::builtin().by_kind(gvk) {
            Some(id) => Types::builtin().get(id).name.to_string(),
            None => self.kind.definition_name().into_owned(),
        }
    }

    fn formats(&self) -> &'static [&'static str] {
        if self.kind.codec.has_protobuf() { FORMATS } else { TEXT_FORMATS }
    }

    fn streams(&self) -> &'static [&'static str] {
        if self.kind.codec.has_protobuf() { STREAMS } else { TEXT_FORMATS }
    }

    fn patches(&self) -> &'static [&'static str] {
        if self.kind.codec.has_protobuf() { PATCHES } else { CUSTOM_PATCHES }
    }

    fn own(&self) -> ResponseBody {
        ResponseBody::Definition(self.kind.definition_name().into_owned())
    }

    fn list(&self) -> ResponseBody {
        ResponseBody::Definition(self.kind.list_definition_name())
    }

    /// The collection and the single object.
    fn resource(&self) -> Vec<Path> {
        let kind = self.kind;
        let mut collection = Path { path: self.collection_path(""), operations: Vec::new() };
        if kind.has_verb("list") {
            let mut list = self.operation("get", "list", self.id("list", &self.noun));
            list.parameters = self.parameters(LIST_PARAMETERS, &[]);
            list.produces = self.streams();
            list.responses = vec![(200, self.list())];
            collection.operations.push(list);
        }
        if kind.has_verb("create") {
            let create = self.create(self.id("create", &self.noun), &kind.gvk(), &[]);
            collection.operations.push(create);
        }
        if kind.has_verb("deletecollection") {
            let id = self.id("delete", &format!("Collection{}", self.noun));
            let mut delete = self.operation("delete", "deletecollection", id);
            let query = [LIST_PARAMETERS, DELETE_PARAMETERS].concat();
            let query: Vec<_> = query
                .into_iter()
                .filter(|(name, _)| !matches!(*name, "allowWatchBookmarks" | "watch"))
                .collect();
            delete.parameters = self.parameters(&query, &[]);
            delete.body = Some(Body { schema: format!("{META}.DeleteOptions"), required: false });
            delete.responses = vec![(200, ResponseBody::Definition(format!("{META}.Status")))];
            collection.operations.push(delete);
        }
        let item = Path {
            path: format!("{}/{{name}}", collection.path),
            operations: self.item_operations(&kind.verbs, &kind.gvk(), ""),
        };
        let mut paths = vec![collection, item];
        if kind.is_namespaced() && kind.has_verb("list") {
            let id = self.id("list", &format!("{}ForAllNamespaces", kind.kind));
            let mut list = self.operation("get", "list", id);
            list.parameters = self.parameters(LIST_PARAMETERS, &[]);
            list.parameters.retain(|parameter| parameter.name != "namespace");
            list.produces = self.streams();
            list.responses = vec![(200, self.list())];
            let path = format!("{}/{}", base_path(&kind.group, &kind.version), kind.plural);
            paths.push(Path { path, operations: vec![list] });
        }
        paths
    }

    fn create(&self, id: String, gvk: &GroupVersionKind, in_path: &[&str]) -> Operation {
        let mut create = self.operation("post", "post", id);
        let answer = ResponseBody::Definition(self.definition(gvk));
        create.action = Some(("post", gvk.clone()));
        create.parameters = self.parameters(WRITE_PARAMETERS, in_path);
        create.body = Some(Body { schema: self.definition(gvk), required: true });
        create.responses = vec![(200, answer.clone()), (201, answer.clone()), (202, answer)];
        create
    }

    /// get, update, patch and delete of an object or of its subresource.
    fn item_operations(
        &self,
        verbs: &[std::borrow::Cow<'static, str>],
        gvk: &GroupVersionKind,
        suffix: &str,
    ) -> Vec<Operation> {
        let answer = ResponseBody::Definition(self.definition(gvk));
        let noun = format!("{}{suffix}", self.noun);
        let mut operations = Vec::new();
        for verb in verbs {
            let operation = match verb.as_ref() {
                "get" => {
                    let mut get = self.operation("get", "get", self.id("read", &noun));
                    get.parameters = self.parameters(&[], &["name"]);
                    get.responses = vec![(200, answer.clone())];
                    get
                }
                "update" => {
                    let mut put = self.operation("put", "put", self.id("replace", &noun));
                    put.parameters = self.parameters(WRITE_PARAMETERS, &["name"]);
                    put.body = Some(Body { schema: self.definition(gvk), required: true });
                    put.responses = vec![(200, answer.clone()), (201, answer.clone())];
                    put
                }
                "patch" => {
                    let mut patch = self.operation("patch", "patch", self.id("patch", &noun));
                    patch.parameters = self.parameters(PATCH_PARAMETERS, &["name"]);
                    patch.body = Some(Body { schema: format!("{META}.Patch"), required: true });
                    patch.consumes = self.patches();
                    patch.responses = vec![(200, answer.clone()), (201, answer.clone())];
                    patch
                }
                "delete" => {
                    let mut delete = self.operation("delete", "delete", self.id("delete", &noun));
                    let status = ResponseBody::Definition(format!("{META}.Status"));
                    let answer = if self.kind.returns_deleted { self.own() } else { status };
                    delete.parameters = self.parameters(DELETE_PARAMETERS, &["name"]);
                    delete.body = Some(Body { schema: format!("{META}.DeleteOptions"), required: false });
                    delete.responses = vec![(200, answer.clone()), (202, answer)];
                    delete
                }
                _ => continue,
            };
            operations
                .push(Operation { action: operation.action.map(|(a, _)| (a, gvk.clone())), ..operation });
        }
        operations
    }

    fn subresource(&self, subresource: &Subresource) -> Vec<Path> {
        let path = format!("{}/{{name}}/{}", self.collection_path(""), subresource.name);
        let suffix = capitalized(&subresource.name);
        if subresource.kind.kind.ends_with("Options") {
            return self.connect(subresource, path, &suffix);
        }
        let mut operations = self.item_operations(&subresource.verbs, &subresource.kind, &suffix);
        if subresource.name == "log" {
            for operation in &mut operations {
                operation.produces = LOG_FORMATS;
                operation.responses = vec![(200, ResponseBody::Text)];
                let options = GroupVersionKind::new("", "v1", "PodLogOptions");
                operation.parameters.extend(options_parameters(&options));
                operation.parameters.sort();
            }
        }
        if subresource.verbs.iter().any(|verb| verb == "create") {
            let id = self.id("create", &format!("{}{suffix}", self.noun));
            operations.push(self.create(id, &subresource.kind, &["name"]));
        }
        vec![Path { path, operations }]
    }

    /// Subresources that hand the connection on: attach, exec, port forward, proxy.
    fn connect(&self, subresource: &Subresource, path: String, suffix: &str) -> Vec<Path> {
        let is_proxy = subresource.name == "proxy";
        let methods: &[&str] = if is_proxy {
            &["delete", "get", "head", "options", "patch", "post", "put"]
        } else {
            &["get", "post"]
        };
        let connect = |path: String, tail: &str, in_path: &[&str]| {
            let operations = methods.iter().map(|method| {
                let noun = format!("{}{}{suffix}{tail}", capitalized(method), self.noun);
                let mut connect = self.operation(method, "connect", self.id("connect", &noun));
                connect.action = Some(("connect", subresource.kind.clone()));
                connect.parameters = self.parameters(&[], in_path);
                connect.parameters.retain(|parameter| parameter.name != "pretty");
                connect.parameters.extend(options_parameters(&subresource.kind));
                connect.parameters.sort();
                connect.produces = ANYTHING;
                connect.responses = vec![(200, ResponseBody::Text)];
                connect
            });
            Path { operations: operations.collect(), path }
        };
        let mut paths = vec![connect(path.clone(), "", &["name"])];
        if is_proxy {
            paths.push(connect(format!("{path}/{{path}}"), "WithPath", &["name", "path"]));
        }
        paths
    }

    /// The old way to watch, by path.
    fn watches(&self) -> Vec<Path> {
        if !self.kind.has_verb("watch") {
            return Vec::new();
        }
        let watch = |path: String, action: &'static str, rest: String, in_path: &[&str]| {
            let mut watch = self.operation("get", action, self.id("watch", &rest));
            watch.parameters = self.parameters(LIST_PARAMETERS, in_path);
            if !path.contains("{namespace}") {
                watch.parameters.retain(|parameter| parameter.name != "namespace");
            }
            watch.produces = self.streams();
            watch.responses = vec![(200, ResponseBody::Definition(format!("{META}.WatchEvent")))];
            Path { path, operations: vec![watch] }
        };
        let collection = self.collection_path("/watch");
        let mut paths = vec![
            watch(collection.clone(), "watchlist", format!("{}List", self.noun), &[]),
            watch(format!("{collection}/{{name}}"), "watch", self.noun.clone(), &["name"]),
        ];
        if self.kind.is_namespaced() {
            let base = base_path(&self.kind.group, &self.kind.version);
            let rest = format!("{}ListForAllNamespaces", self.kind.kind);
            paths.push(watch(format!("{base}/watch/{}", self.kind.plural), "watchlist", rest, &[]));
        }
        paths
    }
}

fn parameter(name: &str, place: &'static str, kind: &'static str) -> Parameter {
    Parameter { name: name.into(), place, kind }
}

/// The query parameters that an options type has fields for.
fn options_parameters(gvk: &GroupVersionKind) -> Vec<Parameter> {
    let Some(schema) = Schema::builtin(gvk) else { return Vec::new() };
    let fields = schema.root().fields.iter().filter(|f| !matches!(f.name.as_ref(), "kind" | "apiVersion"));
    fields
        .filter_map(|field| {
            let shape = match &field.shape {
                Shape::List(element) => element.as_ref(),
                shape => shape,
            };
            let kind = match shape {
                Shape::Bool => "boolean",
                Shape::Int32 | Shape::Int64 => "integer",
                Shape::String => "string",
                // a time is given as seconds in another parameter
                _ => return None,
            };
            Some(parameter(&field.name, "query", kind))
        })
        .collect()
}
