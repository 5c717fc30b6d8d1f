//! Protocol messages, as upstream's `generated.proto` files have them: fields in the order of Go's structs.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use super::rows::alias;
use crate::proto;

/// By the type's name in OpenAPI.
pub type Messages = BTreeMap<String, Vec<ProtoField>>;

#[derive(Clone, Debug, PartialEq)]
pub struct ProtoField {
    pub name: String,
    pub tag: String,
    pub is_repeated: bool,
    pub is_map: bool,
    /// Of a map, that of its values.
    scalar: String,
    /// The type that it is a message of, by its name in OpenAPI.
    pub message: Option<String>,
}

impl ProtoField {
    /// `kind` is a type as a protocol file of this package writes it.
    pub fn new(package: &str, name: &str, kind: &str, tag: &str, is_repeated: bool) -> ProtoField {
        let compact: String = kind.split_whitespace().collect();
        let values = compact.strip_prefix("map<").and_then(|rest| rest.strip_suffix('>'));
        let is_map = values.is_some();
        let kind = values.and_then(|pair| pair.split_once(',')).map_or(&*compact, |(_, value)| value);
        let is_message = kind.contains('.') || kind.starts_with(char::is_uppercase);
        let full = match kind.strip_prefix('.') {
            Some(absolute) => openapi_name(absolute),
            None => format!("{package}.{kind}"),
        };
        let scalar = match is_message {
            true => self::scalar(&full).unwrap_or_default().to_owned(),
            false => kind.to_owned(),
        };
        let message = (is_message && scalar.is_empty()).then_some(full);
        ProtoField { name: name.into(), tag: tag.into(), is_repeated, is_map, scalar, message }
    }

    /// As the table writes it, in this package.
    pub fn shape(&self, package: &str) -> String {
        let element = match &self.message {
            Some(message) => match message.rsplit_once('.') {
                Some((other, name)) if other != package => format!("{}.{name}", alias(other)),
                Some((_, name)) => name.to_owned(),
                None => message.clone(),
            },
            None => self.scalar.clone(),
        };
        match (self.is_repeated, self.is_map) {
            (true, _) => format!("[]{element}"),
            (_, true) => format!("map<{element}>"),
            (false, false) => element,
        }
    }
}

/// Messages that are one value in JSON, and the table's word for them.
pub fn scalar(name: &str) -> Option<&'static str> {
    Some(match name.strip_prefix("io.k8s.")? {
        "apimachinery.pkg.apis.meta.v1.Time" => "time",
        "apimachinery.pkg.apis.meta.v1.MicroTime" => "microtime",
        "apimachinery.pkg.apis.meta.v1.Duration" => "duration",
        "apimachinery.pkg.apis.meta.v1.FieldsV1" => "fieldsv1",
        "apimachinery.pkg.apis.meta.v1.Verbs" => "[]string",
        "apimachinery.pkg.apis.meta.v1.Patch" => "json",
        "apimachinery.pkg.api.resource.Quantity" => "quantity",
        "apimachinery.pkg.util.intstr.IntOrString" => "intorstring",
        "apimachinery.pkg.runtime.RawExtension" => "raw",
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON" => "json",
        other if other.ends_with(".ExtraValue") => "extravalue",
        _ => return None,
    })
}

/// `k8s.io.kube_aggregator.pkg…` is `io.k8s.kube-aggregator.pkg…` in OpenAPI.
pub fn openapi_name(protocol: &str) -> String {
    match protocol.strip_prefix("k8s.io.") {
        Some(rest) => {
            let end = rest.find('.').unwrap_or(rest.len());
            format!("io.k8s.{}{}", rest[..end].replace('_', "-"), &rest[end..])
        }
        None => protocol.to_owned(),
    }
}

pub fn read(directory: &Path) -> Result<Messages> {
    let mut messages = Messages::new();
    super::schemas::files(directory, "generated.proto", &mut |path, text| {
        parse(text, &mut messages).with_context(|| format!("read {}", path.display()))
    })?;
    Ok(messages)
}

pub fn parse(text: &str, messages: &mut Messages) -> Result<()> {
    let tokens = proto::tokens(text)?;
    let mut statements = Vec::new();
    let mut start = 0;
    for (at, token) in tokens.iter().enumerate() {
        if [";", "{", "}"].contains(token) {
            statements.push((&tokens[start..at], *token));
            start = at + 1;
        }
    }
    let mut package = String::new();
    let mut message = None;
    for (words, end) in statements {
        match (words, end) {
            (["package", name], ";") => package = openapi_name(name),
            (["message", name], "{") => {
                let name = format!("{package}.{name}");
                messages.entry(name.clone()).or_default();
                message = Some(name);
            }
            (_, "}") => message = None,
            ([kind @ .., name, "=", tag], ";") => {
                let Some(fields) = message.as_ref().and_then(|message| messages.get_mut(message)) else {
                    continue;
                };
                let (is_repeated, kind) = match kind {
                    ["repeated", kind @ ..] => (true, kind),
                    ["optional" | "required", kind @ ..] => (false, kind),
                    kind => (false, kind),
                };
                fields.push(ProtoField::new(&package, name, &kind.concat(), tag, is_repeated));
            }
            _ => {}
        }
    }
    Ok(())
}
