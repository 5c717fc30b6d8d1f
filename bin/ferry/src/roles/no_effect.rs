//! Flags of upstream's programs that have no effect in Ferry. Ferry accepts them, so that existing command lines work,
//! and logs each one that was given.

use std::marker::PhantomData;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

pub const HEADING: &str = "Accepted for compatibility; no effect";

/// Values of `--kube-api-content-type`. Ferry's components always send and accept JSON, which every API server supports.
pub const CONTENT_TYPES: &[&str] =
    &["", "application/json", "application/vnd.kubernetes.protobuf", "application/cbor"];

pub enum Row {
    /// `--name` or `--name=false`.
    Switch(&'static str),
    /// `--name=value` or `--name value`.
    Value(&'static str),
    /// `--name=value` with one of these values; any other value would have an effect and is refused.
    Only(&'static str, &'static [&'static str]),
    /// `--name` or `--name=value` with this value; the other would have an effect and is refused.
    OnlySwitch(&'static str, &'static str),
}

/// The flags of one program.
pub trait Table {
    const ROWS: &'static [Row];
    /// Those it has in common with other programs.
    const SHARED: &'static [Row] = &[];
}

/// Flags of every component of upstream's that is a client of the API server: for its client, for the delegated
/// authentication of its port (Ferry takes both from the kubeconfig), and for its log.
pub const COMPONENT: &[Row] = &[
    Row::Value("authentication-kubeconfig"),
    Row::Value("authorization-kubeconfig"),
    Row::Value("cert-dir"),
    Row::Value("kube-api-burst"),
    Row::Only("kube-api-content-type", CONTENT_TYPES),
    Row::Value("kube-api-qps"),
    Row::Value("authentication-token-webhook-cache-ttl"),
    Row::Value("authorization-webhook-cache-authorized-ttl"),
    Row::Value("authorization-webhook-cache-unauthorized-ttl"),
    Row::Switch("authentication-skip-lookup"),
    Row::Switch("authentication-tolerate-lookup-failure"),
    Row::Value("requestheader-allowed-names"),
    Row::Value("requestheader-client-ca-file"),
    Row::Value("requestheader-extra-headers-prefix"),
    Row::Value("requestheader-group-headers"),
    Row::Value("requestheader-uid-headers"),
    Row::Value("requestheader-username-headers"),
    Row::Value("show-hidden-metrics-for-version"),
    Row::Value("tls-cipher-suites"),
    Row::Only("tls-min-version", &["VersionTLS10", "VersionTLS11", "VersionTLS12"]),
    Row::Value("log-flush-frequency"),
    Row::Switch("profiling"),
    Row::Value("v"),
    Row::Value("vmodule"),
    Row::Value("logging-format"),
];

fn rows<T: Table>() -> impl Iterator<Item = &'static Row> {
    T::SHARED.iter().chain(T::ROWS)
}

/// Which of a table's flags were given.
pub struct NoEffect<T> {
    given: Vec<&'static str>,
    table: PhantomData<T>,
}

impl<T> Clone for NoEffect<T> {
    fn clone(&self) -> Self {
        NoEffect { given: self.given.clone(), table: PhantomData }
    }
}

impl<T> Default for NoEffect<T> {
    fn default() -> Self {
        NoEffect { given: Vec::new(), table: PhantomData }
    }
}

impl<T> NoEffect<T> {
    /// One line for each flag.
    pub fn log(&self) {
        for name in &self.given {
            tracing::info!("--{name} has no effect here");
        }
    }
}

impl Row {
    fn name(&self) -> &'static str {
        let (Row::Switch(name) | Row::Value(name) | Row::Only(name, _) | Row::OnlySwitch(name, _)) = self;
        name
    }

    fn argument(&self) -> Arg {
        let help = match self {
            Row::Switch(_) | Row::Value(_) => "Has no effect",
            Row::Only(..) | Row::OnlySwitch(..) => "Has no effect; other values are refused",
        };
        let argument = Arg::new(self.name()).long(self.name()).help(help).help_heading(HEADING);
        let argument = argument.action(ArgAction::Append);
        match self {
            Row::Switch(_) => argument
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(clap::value_parser!(bool)),
            Row::OnlySwitch(_, value) => argument
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(clap::builder::PossibleValuesParser::new([*value])),
            Row::Value(_) => argument.num_args(1).allow_hyphen_values(true),
            Row::Only(_, values) => {
                argument.num_args(1).value_parser(clap::builder::PossibleValuesParser::new(*values))
            }
        }
    }
}

impl<T: Table> Args for NoEffect<T> {
    fn augment_args(command: Command) -> Command {
        command.args(rows::<T>().map(Row::argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Table> FromArgMatches for NoEffect<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |name: &&'static str| matches.value_source(name) == Some(ValueSource::CommandLine);
        Ok(NoEffect { given: rows::<T>().map(Row::name).filter(given).collect(), table: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
