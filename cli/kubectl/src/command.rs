//! The shape of a command, and how a line finds its own.

use std::ffi::OsString;
use std::process::ExitCode;

use futures::future::LocalBoxFuture;

use crate::cli::Cli;
use crate::commands;
use crate::error::{Error, Result};
use crate::flags::{self, Flag, Shape};
use crate::kuberc;
use crate::own_trace;
use crate::plugins;
use crate::translations;

/// A row of the command table. The flags feed parsing, help and completion.
pub struct Command {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    /// Words of other programs' for the same, that this command is suggested for.
    pub suggested_for: &'static [&'static str],
    pub group: &'static str,
    pub short: &'static str,
    /// What follows the command's name.
    pub usage: &'static str,
    pub flags: &'static [&'static [Flag]],
    pub children: &'static [&'static Command],
    pub run: Option<Run>,
}

pub type Run = for<'a> fn(&'a Cli) -> LocalBoxFuture<'a, Result<()>>;

impl Command {
    pub const NONE: Command = Command {
        name: "",
        aliases: &[],
        suggested_for: &[],
        group: "",
        short: "",
        usage: "[flags]",
        flags: &[],
        children: &[],
        run: None,
    };

    fn answers_to(&self, word: &str) -> bool {
        self.name == word || self.aliases.contains(&word)
    }

    pub fn own_flags(&self) -> impl Iterator<Item = &'static Flag> {
        self.flags.iter().flat_map(|group| group.iter()).filter(|flag| flag.is_enabled())
    }
}

/// Flags every command takes.
pub const GLOBAL_FLAGS: &[Flag] = &[
    Flag::text("as", "User to impersonate"),
    Flag::array("as-group", "Group to impersonate; may be repeated"),
    Flag::text("as-uid", "UID to impersonate"),
    Flag::array("as-user-extra", "Extra attribute (key=value) to impersonate; may be repeated"),
    Flag::text("cache-dir", "Where discovery is cached"),
    Flag::text("certificate-authority", "File with the certificate authority"),
    Flag::text("client-certificate", "File with the client certificate"),
    Flag::text("client-key", "File with the client's key"),
    Flag::text("cluster", "Cluster of the kubeconfig to use"),
    Flag::text("context", "Context of the kubeconfig to use"),
    Flag::bool("disable-compression", "Ask for uncompressed answers"),
    Flag::bool("insecure-skip-tls-verify", "Do not check the server's certificate"),
    Flag::text("kubeconfig", "Kubeconfig file to use"),
    Flag::text("kuberc", "Preferences file to use; KUBERC=off turns preferences off"),
    Flag::duration("log-flush-frequency", "Accepted for compatibility").default("5s"),
    Flag::bool("match-server-version", "Fail unless the server has the client's version"),
    Flag::text("namespace", "Namespace to work in").short('n'),
    Flag::text("password", "Password for basic authentication"),
    Flag::text("profile", "Accepted for compatibility").default("none"),
    Flag::text("profile-output", "Accepted for compatibility").default("profile.pprof"),
    Flag::text("request-timeout", "How long to wait for one request; 0 is forever").default("0"),
    Flag::text("server", "Address of the API server").short('s'),
    Flag::text("tls-server-name", "Name to expect in the server's certificate"),
    Flag::text("token", "Bearer token"),
    Flag::text("user", "User of the kubeconfig to use"),
    Flag::text("username", "User name for basic authentication"),
    Flag::int("v", "Verbosity; 6 to 9 show requests").short('v'),
    Flag::text("vmodule", "Accepted for compatibility"),
    Flag::bool("warnings-as-errors", "Treat the server's warnings as errors"),
];

/// Runs one command line.
pub fn execute(line: impl Iterator<Item = OsString>) -> ExitCode {
    let line: Vec<String> = line.map(|word| word.to_string_lossy().into_owned()).collect();
    match run(&line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let (message, code) = error.render();
            if !message.is_empty() {
                eprintln!("{}", message.trim_end_matches('\n'));
            }
            ExitCode::from(code)
        }
    }
}

fn run(line: &[String]) -> Result<()> {
    let (line, preferences, takes_defaults) = kuberc::apply(line)?;
    let (path, mut words) = match find(&line) {
        Ok(found) => found,
        Err(unknown) => return plugins::run(&line, 1).and(Err(unknown)),
    };
    let Some(command) = path.last().copied() else { return run_root(&words) };
    // Plugins can be subcommands of create only.
    if command.name == "create" && path.len() == 1 && words.first().is_some_and(|word| !word.starts_with('-'))
    {
        plugins::run(&line, line.len() - words.len() + 1)?;
    }
    if takes_defaults {
        words.splice(0..0, preferences.defaults_of(command, &line)?);
    }
    let full_name =
        path.iter().fold("kubectl".to_owned(), |name, command| format!("{name} {}", command.name));
    let known: Vec<&Flag> = command.own_flags().chain(GLOBAL_FLAGS).collect();
    let mut args = match flags::parse(&known, &words) {
        Ok(args) => args,
        Err(Error::Help) => return help(command, &full_name),
        Err(error) => return Err(see_help(&error, &full_name)),
    };
    args.command = full_name.clone();
    args.shadowed = command
        .own_flags()
        .map(|flag| flag.name)
        .filter(|name| GLOBAL_FLAGS.iter().any(|flag| flag.name == *name))
        .collect();
    let Some(run) = command.run else {
        if let Some(word) = args.first() {
            return Err(Error::message(format!(
                "unknown command {word:?}\nSee '{full_name} -h' for help and examples"
            )));
        }
        // A group of commands prints its help and fails.
        return Err(Error::Exit { code: 1, message: help_text(command, &full_name) });
    };
    args.check_required(&known)?;
    let cli = Cli::new(args, preferences);
    block_on(traced(&cli, &full_name, run))??;
    check_warnings(&cli)
}

/// `kubectl` without a command.
fn run_root(words: &[String]) -> Result<()> {
    let known: Vec<&Flag> = GLOBAL_FLAGS.iter().collect();
    match flags::parse(&known, words) {
        Err(error) if !matches!(error, Error::Help) => Err(see_help(&error, "kubectl")),
        _ => help_root(),
    }
}

fn see_help(error: &Error, full_name: &str) -> Error {
    Error::message(format!("{error}\nSee '{full_name} --help' for usage."))
}

/// Runs the command in a span of its own, and hands the spans to a server that keeps them.
async fn traced(cli: &Cli, full_name: &str, run: Run) -> Result<()> {
    let mut span = ferry_trace::Span::root("kubectl.command", own_trace::of_caller());
    span.set("command", full_name);
    let outcome = span.in_scope(run(cli)).await;
    // Kubectl's own sentences quote the command line, which may hold a secret.
    match &outcome {
        Err(Error::Status(status)) => {
            span.fail(&status.message);
        }
        Err(_) => {
            span.fail(&"the command failed");
        }
        Ok(()) => {}
    }
    let trace = span.context().trace;
    drop(span);
    let flushed = cli.flush();
    if let Some(client) = cli.client_if_made().filter(|client| client.is_traced()) {
        own_trace::hand_in(client, trace).await;
    }
    flushed.and(outcome)
}

fn check_warnings(cli: &Cli) -> Result<()> {
    let warnings = cli.client_if_made().map_or(0, |client| client.warnings());
    if warnings > 0 && cli.args.bool("warnings-as-errors") {
        let plural = if warnings == 1 { "warning" } else { "warnings" };
        return Err(Error::message(format!("{warnings} {plural} received")));
    }
    Ok(())
}

/// A command is short: one thread and no pool.
fn block_on<T>(future: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    let outcome = local.block_on(&runtime, future);
    // a thread may still sit in a read of standard input; nobody waits for it
    runtime.shutdown_background();
    Ok(outcome)
}

/// Walks the table along the line's words, over global flags that stand before the command, and
/// gives back the words that are not part of its name.
pub fn find(line: &[String]) -> Result<(Vec<&'static Command>, Vec<String>)> {
    let mut path: Vec<&'static Command> = Vec::new();
    let mut children = commands::ROOT;
    let mut words = line.to_vec();
    let mut position = 0;
    while position < words.len() {
        let word = &words[position];
        if word == "--" || children.is_empty() {
            break;
        }
        if word.starts_with('-') {
            position += if takes_next_word(word, &path) { 2 } else { 1 };
            continue;
        }
        let Some(found) = children.iter().find(|command| command.answers_to(word)) else {
            if path.is_empty() {
                return Err(Error::message(format!(
                    "unknown command {word:?} for \"kubectl\"{}",
                    suggestions(word, children)
                )));
            }
            break;
        };
        path.push(found);
        children = found.children;
        words.remove(position);
    }
    Ok((path, words))
}

fn takes_next_word(word: &str, path: &[&'static Command]) -> bool {
    if word.contains('=') {
        return false;
    }
    let own = path.last().into_iter().flat_map(|command| command.own_flags());
    let mut known = own.chain(GLOBAL_FLAGS);
    let flag = match word.strip_prefix("--") {
        Some(name) => known.find(|flag| flag.name == name),
        None if word.len() == 2 => known.find(|flag| flag.short == word.chars().nth(1)),
        None => None,
    };
    flag.is_some_and(|flag| flag.bare.is_none())
}

/// Commands whose name is close to what was typed.
fn suggestions(word: &str, commands: &[&Command]) -> String {
    let mut close: Vec<&str> = commands
        .iter()
        .filter(|command| !command.name.starts_with("__"))
        .filter(|command| {
            let name = command.name;
            distance(word, name) <= 2
                || name.to_lowercase().starts_with(&word.to_lowercase())
                || command.suggested_for.iter().any(|wrong| wrong.eq_ignore_ascii_case(word))
        })
        .map(|command| command.name)
        .collect();
    close.sort_unstable();
    if close.is_empty() {
        return String::new();
    }
    let lines: String = close.iter().map(|name| format!("\t{name}\n")).collect();
    format!("\n\nDid you mean this?\n{lines}")
}

/// Edits between two words, ignoring case.
pub fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.to_lowercase().chars().collect(), b.to_lowercase().chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let cost = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

/// Writes to stdout; a reader that went away is no failure.
fn say(text: &str) -> Result<()> {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

pub fn help_root() -> Result<()> {
    say(&root_help())
}

/// All commands, by their groups.
pub fn root_help() -> String {
    let language = translations::language();
    let mut text = "kubectl talks to a Kubernetes cluster.\n".to_owned();
    let mut groups: Vec<&str> = Vec::new();
    for command in commands::ROOT.iter().filter(|command| !command.group.is_empty()) {
        if !groups.contains(&command.group) {
            groups.push(command.group);
        }
    }
    for group in groups {
        text.push_str(&format!("\n{group}:\n"));
        for command in commands::ROOT.iter().filter(|command| command.group == group) {
            let short = translations::translated(command.short, language.as_deref());
            text.push_str(&format!("  {:<15} {short}\n", command.name));
        }
    }
    text.push_str("\nUsage:\n  kubectl [flags] [options]\n\nUse \"kubectl <command> --help\" for more information about a given command.\nUse \"kubectl options\" for a list of global command-line options (applies to all commands).\n");
    text
}

/// The help of the command at the end of a path.
pub fn help_for(path: &[&'static Command]) -> Result<()> {
    let full_name =
        path.iter().fold("kubectl".to_owned(), |name, command| format!("{name} {}", command.name));
    match path.last() {
        Some(command) => help(command, &full_name),
        None => help_root(),
    }
}

fn help(command: &Command, full_name: &str) -> Result<()> {
    say(&help_text(command, full_name))
}

fn help_text(command: &Command, full_name: &str) -> String {
    let language = translations::language();
    let mut text = format!("{}\n", translations::sentence(command.short, language.as_deref()));
    if !command.aliases.is_empty() {
        text.push_str(&format!("\nAliases:\n{}, {}\n", command.name, command.aliases.join(", ")));
    }
    if !command.children.is_empty() {
        text.push_str("\nAvailable Commands:\n");
        for child in command.children {
            let short = translations::translated(child.short, language.as_deref());
            text.push_str(&format!("  {:<20} {short}\n", child.name));
        }
    }
    let flags: Vec<&Flag> = command.own_flags().collect();
    if !flags.is_empty() {
        text.push_str("\nOptions:\n");
        text.push_str(&flag_lines(&flags));
    }
    let usage =
        if command.children.is_empty() || command.run.is_some() { command.usage } else { "SUBCOMMAND" };
    let more = if command.children.is_empty() {
        String::new()
    } else {
        format!("Use \"{full_name} <command> --help\" for more information about a given command.\n")
    };
    text.push_str(&format!(
        "\nUsage:\n  {full_name} {usage}\n\n{more}Use \"kubectl options\" for a list of global command-line options (applies to all commands).\n"
    ));
    text
}

pub fn flag_lines(flags: &[&Flag]) -> String {
    let mut flags = flags.to_vec();
    flags.sort_by_key(|flag| flag.name);
    flags
        .iter()
        .map(|flag| {
            let short = flag.short.map(|short| format!("-{short}, ")).unwrap_or_default();
            let default = match flag.shape {
                Shape::Text => format!("'{}'", flag.default),
                Shape::List | Shape::Array => format!("[{}]", flag.default),
                _ => flag.default.to_owned(),
            };
            format!("    {short}--{}={default}:\n\t{}\n\n", flag.name, flag.help)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_of(line: &str) -> (String, Vec<String>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let (path, rest) = find(&words).unwrap();
        (path.iter().map(|command| command.name).collect::<Vec<_>>().join(" "), rest)
    }

    #[test]
    fn global_flags_may_stand_before_the_command() {
        assert_eq!(
            path_of("-n kube-system get pods"),
            ("get".to_owned(), vec!["-n".into(), "kube-system".into(), "pods".into()])
        );
        assert_eq!(
            path_of("--context=x create deployment web"),
            ("create deployment".to_owned(), vec!["--context=x".into(), "web".into()])
        );
        assert_eq!(path_of("create -f file"), ("create".to_owned(), vec!["-f".into(), "file".into()]));
    }

    #[test]
    fn close_names_are_suggested() {
        assert_eq!(suggestions("gets", commands::ROOT), "\n\nDid you mean this?\n\tget\n\tset\n");
        assert_eq!(suggestions("zzzzzz", commands::ROOT), "");
    }

    #[test]
    fn every_flag_of_a_command_has_its_own_name_and_letter() {
        fn check(command: &Command) {
            let own: Vec<&Flag> = command.own_flags().collect();
            for (position, flag) in own.iter().enumerate() {
                for other in &own[position + 1..] {
                    assert_ne!(flag.name, other.name, "{}", command.name);
                }
            }
            let flags: Vec<&Flag> = own.into_iter().chain(GLOBAL_FLAGS).collect();
            for (position, flag) in flags.iter().enumerate() {
                for other in &flags[position + 1..] {
                    assert!(
                        flag.name == other.name || flag.short.is_none() || flag.short != other.short,
                        "{}: -{:?}",
                        command.name,
                        flag.short
                    );
                }
            }
            command.children.iter().for_each(|child| check(child));
        }
        commands::ROOT.iter().for_each(|command| check(command));
    }
}
