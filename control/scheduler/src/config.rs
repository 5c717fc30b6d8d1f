//! What an operator may choose.

use ferry_client::leader::Election;

use crate::extender;
use crate::profile::Profile;
use crate::queue::Backoff;

/// Settings of the scheduler, named after upstream's flags and KubeSchedulerConfiguration.
#[derive(Clone, Debug)]
pub struct Config {
    /// One for each `schedulerName` that is ours; pods of others are left alone.
    pub profiles: Vec<Profile>,
    /// Told apart in events and leases: the host's name.
    pub instance: String,
    /// Without it every instance works, which is right only for a single one.
    pub leader_election: Option<Election>,
    /// For profiles that do not say.
    pub percentage_of_nodes_to_score: Option<u32>,
    /// How many bindings and status writes may be under way at a time. The search itself is one
    /// thread's work.
    pub parallelism: usize,
    pub backoff: Backoff,
    /// Asked in this order.
    pub extenders: Vec<extender::Settings>,
    /// Decides between equal nodes.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            profiles: vec![Profile::default()],
            instance: "ferry".into(),
            leader_election: None,
            percentage_of_nodes_to_score: None,
            parallelism: 128,
            backoff: Backoff::default(),
            extenders: Vec::new(),
            seed: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error("at least one profile is needed")]
    NoProfile,
    #[error("two profiles are named {0:?}")]
    TwoProfiles(String),
    #[error("parallelism must be greater than 0")]
    Parallelism,
    #[error("podInitialBackoffSeconds must be greater than 0 and podMaxBackoffSeconds no less than it")]
    Backoff,
    #[error("extenders[{0}].weight: must have a positive weight applied to it")]
    ExtenderWeight(usize),
    #[error("extenders: found {0} extenders implementing bind, of which only one can")]
    Binders(usize),
    #[error("extenders[{0}].managedResources: duplicate resource name {1:?}")]
    ManagedTwice(usize, String),
    #[error("extenders[{0}].urlPrefix: {1:?} is no http or https address")]
    ExtenderAddress(usize, String),
    #[error("percentageOfNodesToScore {0} is not in the range [0-100]")]
    Percentage(u32),
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.profiles.is_empty() {
            return Err(ConfigError::NoProfile);
        }
        for (at, profile) in self.profiles.iter().enumerate() {
            if self.profiles[..at].iter().any(|other| other.name == profile.name) {
                return Err(ConfigError::TwoProfiles(profile.name.into()));
            }
        }
        if self.parallelism == 0 {
            return Err(ConfigError::Parallelism);
        }
        if self.backoff.initial.is_zero() || self.backoff.max < self.backoff.initial {
            return Err(ConfigError::Backoff);
        }
        self.check_extenders()?;
        let percentages = self.profiles.iter().filter_map(|profile| profile.percentage_of_nodes_to_score);
        match percentages.chain(self.percentage_of_nodes_to_score).find(|percentage| *percentage > 100) {
            Some(percentage) => Err(ConfigError::Percentage(percentage)),
            None => Ok(()),
        }
    }

    fn check_extenders(&self) -> Result<(), ConfigError> {
        let mut managed: Vec<&String> = Vec::new();
        for (at, extender) in self.extenders.iter().enumerate() {
            let url = &extender.url_prefix;
            if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
                return Err(ConfigError::ExtenderAddress(at, url.clone()));
            }
            if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
                return Err(ConfigError::ExtenderWeight(at));
            }
            for name in &extender.managed_resources {
                if managed.contains(&name) {
                    return Err(ConfigError::ManagedTwice(at, name.clone()));
                }
                managed.push(name);
            }
        }
        let binders = self.extenders.iter().filter(|extender| !extender.bind_verb.is_empty()).count();
        if binders > 1 { Err(ConfigError::Binders(binders)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_malformed_configuration_is_refused() {
        let check = |config: Config, expected: Result<(), ConfigError>| assert_eq!(config.check(), expected);
        let good = Config::default();
        check(good.clone(), Ok(()));
        check(Config { profiles: vec![], ..good.clone() }, Err(ConfigError::NoProfile));
        check(
            Config { profiles: vec![Profile::named("a"), Profile::named("a")], ..good.clone() },
            Err(ConfigError::TwoProfiles("a".into())),
        );
        check(Config { parallelism: 0, ..good.clone() }, Err(ConfigError::Parallelism));
        check(
            Config { backoff: Backoff { max: Duration::ZERO, ..good.backoff }, ..good.clone() },
            Err(ConfigError::Backoff),
        );
        let extender = extender::Settings { url_prefix: "http://e".into(), ..Default::default() };
        let with = |extenders: Vec<extender::Settings>| Config { extenders, ..good.clone() };
        check(with(vec![extender.clone(), extender.clone()]), Ok(()));
        let weightless = extender::Settings { prioritize_verb: "p".into(), ..extender.clone() };
        check(with(vec![weightless]), Err(ConfigError::ExtenderWeight(0)));
        let binder = extender::Settings { bind_verb: "b".into(), ..extender.clone() };
        check(with(vec![binder.clone(), binder]), Err(ConfigError::Binders(2)));
        let manager = extender::Settings { managed_resources: vec!["a/b".into()], ..extender };
        check(with(vec![manager.clone(), manager]), Err(ConfigError::ManagedTwice(1, "a/b".into())));
        let nowhere = extender::Settings { url_prefix: "e:80".into(), ..Default::default() };
        check(with(vec![nowhere]), Err(ConfigError::ExtenderAddress(0, "e:80".into())));
        check(Config { percentage_of_nodes_to_score: Some(101), ..good }, Err(ConfigError::Percentage(101)));
    }
}
