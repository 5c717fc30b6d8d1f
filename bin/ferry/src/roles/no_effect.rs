//! Flags that upstream's programs take and that change nothing here. They are accepted, so that whoever starts the
//! program need not know which one it is, and named in the log.

use std::marker::PhantomData;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

const HEADING: &str = "Taken for the sake of those who pass them; without effect here";

/// Values of `--kube-api-content-type`. Ferry's components speak JSON with every API server, and every one speaks that.
pub const CONTENT_TYPES: &[&str] =
    &["", "application/json", "application/vnd.kubernetes.protobuf", "application/cbor"];

pub enum Row {
    /// `--name` or `--name=false`.
    Switch(&'static str),
    /// `--name=value` or `--name value`.
    Value(&'static str),
    /// One that would have an effect with any other value than these: such a one is refused.
    Only(&'static str, &'static [&'static str]),
}

/// The flags of one program.
pub trait Table {
    const ROWS: &'static [Row];
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
        let (Row::Switch(name) | Row::Value(name) | Row::Only(name, _)) = self;
        name
    }

    fn argument(&self) -> Arg {
        let argument =
            Arg::new(self.name()).long(self.name()).help_heading(HEADING).action(ArgAction::Append);
        match self {
            Row::Switch(_) => argument
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(clap::value_parser!(bool)),
            Row::Value(_) => argument.num_args(1).allow_hyphen_values(true),
            Row::Only(_, values) => {
                argument.num_args(1).value_parser(clap::builder::PossibleValuesParser::new(*values))
            }
        }
    }
}

impl<T: Table> Args for NoEffect<T> {
    fn augment_args(command: Command) -> Command {
        command.args(T::ROWS.iter().map(Row::argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Table> FromArgMatches for NoEffect<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |name: &&'static str| matches.value_source(name) == Some(ValueSource::CommandLine);
        Ok(NoEffect { given: T::ROWS.iter().map(Row::name).filter(given).collect(), table: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
