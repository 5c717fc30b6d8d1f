//! The words of a line: `pods`, `pods web db`, `deploy,svc`, `pod/web svc/db`.

use std::rc::Rc;

use super::{Selection, Target};
use crate::cli::Cli;
use crate::discovery::Resource;
use crate::error::{Error, Result};

pub const NOTHING_GIVEN: &str = "You must provide one or more resources by argument or filename.
Example resource specifications include:
   '-f rsrc.yaml'
   '--filename=rsrc.json'
   '<resource> <name>'
   '<resource>'";

impl Selection {
    pub(super) async fn word_targets(&self, cli: &Cli) -> Result<Vec<Target>> {
        let slashed = self.words.iter().filter(|word| word.contains('/')).count();
        if slashed > 0 {
            return self.pairs(cli, slashed).await;
        }
        match self.words.as_slice() {
            [] if self.all || !self.selector.is_empty() || !self.field_selector.is_empty() => {
                Err(Error::message("at least one resource must be specified to use a selector"))
            }
            [] => Err(Error::message(NOTHING_GIVEN)),
            [name] if self.default_type.is_some() => {
                let resource = cli.resource(self.default_type.unwrap_or_default()).await?;
                Ok(vec![self.named(cli, resource, name)?])
            }
            [types] => self.lists_of(cli, types).await,
            [types, names @ ..] => self.named_of(cli, types, names).await,
        }
    }

    async fn pairs(&self, cli: &Cli, slashed: usize) -> Result<Vec<Target>> {
        if slashed != self.words.len() {
            return Err(Error::message(
                "there is no need to specify a resource type as a separate argument when passing arguments in resource/name form (e.g. 'kubectl get resource/<resource_name>' instead of 'kubectl get resource resource/<resource_name>'",
            ));
        }
        if self.selects() {
            return Err(Error::message(
                "selectors and the all flag cannot be used when passing resource/name arguments",
            ));
        }
        self.refuse_selectors()?;
        let mut targets = Vec::new();
        for word in &self.words {
            let parts: Vec<&str> = word.split('/').collect();
            let [types, name] = parts.as_slice() else {
                return Err(Error::message(
                    "arguments in resource/name form may not have more than one slash",
                ));
            };
            if types.is_empty() || name.is_empty() {
                return Err(Error::message(
                    "arguments in resource/name form must have a single resource and name",
                ));
            }
            let resource = cli.resource(types).await?;
            targets.push(self.named(cli, resource, name)?);
        }
        Ok(targets)
    }

    fn selects(&self) -> bool {
        self.selects_all || !self.selector.is_empty() || !self.field_selector.is_empty()
    }

    fn refuse_selectors(&self) -> Result<()> {
        if self.selects() {
            return Err(Error::message("name cannot be provided when a selector is specified"));
        }
        if self.all_namespaces {
            return Err(Error::message("a resource cannot be retrieved by name across all namespaces"));
        }
        Ok(())
    }

    async fn lists_of(&self, cli: &Cli, types: &str) -> Result<Vec<Target>> {
        let chosen =
            self.types_mean_all || self.all || !self.selector.is_empty() || !self.field_selector.is_empty();
        let resources = self.resources(cli, types).await?;
        if !chosen {
            return Err(Error::message("resource(s) were provided, but no name was specified"));
        }
        let namespace = if self.all_namespaces { String::new() } else { cli.namespace()?.name };
        if resources.iter().any(|resource| resource.namespaced) {
            check_segment("namespace", &namespace).map_err(Error::plain)?;
        }
        Ok(resources
            .into_iter()
            .map(|resource| {
                let namespace = if resource.namespaced { namespace.clone() } else { String::new() };
                Target::List { resource, namespace }
            })
            .collect())
    }

    async fn named_of(&self, cli: &Cli, types: &str, names: &[String]) -> Result<Vec<Target>> {
        let resources = self.resources(cli, types).await?;
        self.refuse_selectors()?;
        if names.iter().any(String::is_empty) {
            return Err(Error::message("resource name may not be empty"));
        }
        let mut targets = Vec::new();
        for resource in resources {
            for name in names {
                targets.push(self.named(cli, resource.clone(), name)?);
            }
        }
        Ok(targets)
    }

    fn named(&self, cli: &Cli, resource: Rc<Resource>, name: &str) -> Result<Target> {
        let namespace = if resource.namespaced { cli.namespace()?.name } else { String::new() };
        check_segment("resource name", name).map_err(Error::message)?;
        check_segment("namespace", &namespace).map_err(Error::message)?;
        Ok(Target::Named { resource, namespace, name: name.to_owned() })
    }

    /// Types separated by commas; each may be a category.
    async fn resources(&self, cli: &Cli, types: &str) -> Result<Vec<Rc<Resource>>> {
        let mut found: Vec<Rc<Resource>> = Vec::new();
        for word in types.split(',').filter(|word| !word.is_empty()) {
            let category: Vec<Rc<Resource>> =
                cli.discovery().await?.category(word).into_iter().cloned().map(Rc::new).collect();
            let resources = if category.is_empty() { vec![cli.resource(word).await?] } else { category };
            for resource in resources {
                if !found.contains(&resource) {
                    found.push(resource);
                }
            }
        }
        Ok(found)
    }
}

/// What cannot be a part of a path; upstream's client asks no server about it.
fn check_segment(what: &str, text: &str) -> std::result::Result<(), String> {
    let reason = match text {
        "." | ".." => format!("may not be '{text}'"),
        _ => match text.find(['/', '%']) {
            Some(at) => format!("may not contain '{}'", &text[at..=at]),
            None => return Ok(()),
        },
    };
    Err(format!("invalid {what} {text:?}: [{reason}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_invalid_in_a_path_are_refused() {
        let check = |text: &str, expected: &str| {
            assert_eq!(check_segment("namespace", text).err().unwrap_or_default(), expected, "{text}");
        };
        check("default", "");
        check("a.b", "");
        check("..", r#"invalid namespace "..": [may not be '..']"#);
        check("a/b", r#"invalid namespace "a/b": [may not contain '/']"#);
        check("a%2fb", r#"invalid namespace "a%2fb": [may not contain '%']"#);
    }
}
