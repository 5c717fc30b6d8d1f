//! InitializerConfiguration: names that new objects of certain resources have to be finished by.

use std::collections::HashSet;

use ferry_api::FieldErrors;
use serde::Deserialize;

use super::super::checks::Path;
use super::rule::{self, Rule};
use super::webhook_configuration::full_name;
use crate::strategy::{Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<Configuration, InitializerConfigurationRules> =
    Typed::new(InitializerConfigurationRules);

pub struct InitializerConfigurationRules;

#[derive(Debug, Deserialize)]
pub struct Configuration {
    #[serde(default)]
    initializers: Vec<Initializer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Initializer {
    name: String,
    rules: Vec<Rule>,
}

impl Rules<Configuration> for InitializerConfigurationRules {
    fn validate(&self, configuration: &Configuration, errors: &mut FieldErrors) {
        let root = Path::root("initializers");
        let mut seen = HashSet::new();
        for (index, initializer) in configuration.initializers.iter().enumerate() {
            let path = root.index(index);
            full_name(&initializer.name, path.child("name"), errors);
            if !seen.insert(initializer.name.as_str()) {
                errors.duplicate(path.child("name"), initializer.name.as_str());
            }
            let rules = path.child("rules");
            for (index, one) in initializer.rules.iter().enumerate() {
                let path = rules.index(index);
                rule::validate_resources(one, path, errors);
                for (at, resource) in one.resources.iter().enumerate() {
                    // A subresource of an object that nobody sees cannot be waited for.
                    if resource.contains('/') {
                        let resources = path.child("resources");
                        errors.invalid(
                            resources.index(at),
                            resource.as_str(),
                            "must not specify subresources",
                        );
                    }
                }
            }
        }
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { unconditional_update: false, ..StrategyOptions::PLAIN }
    }
}
