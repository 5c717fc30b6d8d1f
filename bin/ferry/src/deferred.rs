//! Flags of a subcommand that are described only when it is the one that is called, or all are shown. There are a thousand
//! flags, and describing them takes longer than most commands.

use clap::builder::Resettable;
use clap::{ArgMatches, Args, Command, FromArgMatches};

pub struct Deferred<T>(pub T);

/// What the subcommand says of itself stays; words that the flags have of their own are for whoever reads the code.
fn describe<T: Args>(command: Command) -> Command {
    let about = Resettable::from(command.get_about().cloned());
    let long_about = Resettable::from(command.get_long_about().cloned());
    let after_help = Resettable::from(command.get_after_help().cloned());
    T::augment_args(command).about(about).long_about(long_about).after_help(after_help)
}

impl<T: Args> Args for Deferred<T> {
    fn augment_args(command: Command) -> Command {
        command.defer(describe::<T>)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}

impl<T: FromArgMatches> FromArgMatches for Deferred<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        T::from_arg_matches(matches).map(Deferred)
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        T::from_arg_matches_mut(matches).map(Deferred)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}
