//! Command-line flags, read the way kubectl's users expect: anywhere on the line, `--name=value`
//! or `--name value`, short ones bundled (`-it`), and `--` ending them.

use std::collections::HashMap;
use std::time::Duration;

use crate::error::{Error, Result};

/// What a flag's value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Bool,
    Text,
    Int,
    Duration,
    /// Repeatable, and each value may hold several, separated by commas.
    List,
    /// Repeatable, each value taken whole.
    Array,
}

#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub name: &'static str,
    pub short: Option<char>,
    pub shape: Shape,
    pub default: &'static str,
    /// The value `--name` takes when it is written bare, for flags where that is allowed.
    pub bare: Option<&'static str>,
    pub help: &'static str,
    pub required: bool,
    /// The environment variable that must be `true` for the flag to be there: upstream's alpha features.
    pub gate: Option<&'static str>,
}

impl Flag {
    const fn new(name: &'static str, shape: Shape, default: &'static str, help: &'static str) -> Self {
        Flag { name, short: None, shape, default, bare: None, help, required: false, gate: None }
    }
    pub const fn bool(name: &'static str, help: &'static str) -> Self {
        Flag { bare: Some("true"), ..Flag::new(name, Shape::Bool, "false", help) }
    }
    pub const fn text(name: &'static str, help: &'static str) -> Self {
        Flag::new(name, Shape::Text, "", help)
    }
    pub const fn int(name: &'static str, help: &'static str) -> Self {
        Flag::new(name, Shape::Int, "0", help)
    }
    pub const fn duration(name: &'static str, help: &'static str) -> Self {
        Flag::new(name, Shape::Duration, "0s", help)
    }
    pub const fn list(name: &'static str, help: &'static str) -> Self {
        Flag::new(name, Shape::List, "", help)
    }
    pub const fn array(name: &'static str, help: &'static str) -> Self {
        Flag::new(name, Shape::Array, "", help)
    }
    pub const fn short(mut self, short: char) -> Self {
        self.short = Some(short);
        self
    }
    pub const fn default(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }
    pub const fn bare(mut self, value: &'static str) -> Self {
        self.bare = Some(value);
        self
    }
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    pub const fn gated(mut self, variable: &'static str) -> Self {
        self.gate = Some(variable);
        self
    }
    pub fn is_enabled(&self) -> bool {
        let is_true =
            |variable| std::env::var(variable).is_ok_and(|value| value.eq_ignore_ascii_case("true"));
        self.gate.is_none_or(is_true)
    }

    /// How messages name the flag: `-w, --watch` or `--watch`.
    fn display(&self) -> String {
        match self.short {
            Some(short) => format!("-{short}, --{}", self.name),
            None => format!("--{}", self.name),
        }
    }

    fn check(&self, value: &str) -> Result<()> {
        let problem = match self.shape {
            Shape::Bool if parse_bool(value).is_none() => {
                format!("strconv.ParseBool: parsing {value:?}: invalid syntax")
            }
            Shape::Int if value.parse::<i64>().is_err() => {
                format!("strconv.ParseInt: parsing {value:?}: invalid syntax")
            }
            Shape::Duration if parse_duration(value).is_none() => match value {
                "" => "time: invalid duration \"\"".to_owned(),
                _ if value.ends_with(|c: char| c.is_ascii_digit()) => {
                    format!("time: missing unit in duration {value:?}")
                }
                _ => format!("time: invalid duration {value:?}"),
            },
            _ => return Ok(()),
        };
        Err(Error::message(format!("invalid argument {value:?} for {:?} flag: {problem}", self.display())))
    }
}

/// Who somebody is, and how they prove it.
const CLASSIFIED: [&str; 8] =
    ["as", "as-group", "as-uid", "client-certificate", "client-key", "password", "token", "username"];

/// The parsed line: every flag's value, and what was not a flag.
#[derive(Debug, Default)]
pub struct Args {
    /// The command's full name (`kubectl set image`), for messages that point at its help.
    pub command: String,
    pub positional: Vec<String>,
    /// How many positional arguments stood before `--`.
    pub dash: Option<usize>,
    values: HashMap<&'static str, Vec<String>>,
    /// What was given, in order.
    given: Vec<(&'static str, String)>,
    defaults: HashMap<&'static str, &'static str>,
    /// Global flags whose name the command uses for something of its own (`create rolebinding
    /// --user`).
    pub shadowed: Vec<&'static str>,
}

impl Args {
    pub fn changed(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }
    /// Whether the command knows the flag at all.
    pub fn has(&self, name: &str) -> bool {
        self.defaults.contains_key(name)
    }
    /// The flag's value, or its default.
    pub fn text(&self, name: &str) -> &str {
        match self.values.get(name).and_then(|values| values.last()) {
            Some(value) => value,
            None => self.defaults.get(name).copied().unwrap_or(""),
        }
    }
    /// A global flag's value, unless the command has a flag of that name itself.
    pub fn global(&self, name: &str) -> &str {
        if self.shadowed.contains(&name) { "" } else { self.text(name) }
    }
    pub fn bool(&self, name: &str) -> bool {
        parse_bool(self.text(name)).unwrap_or(false)
    }
    pub fn int(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or(0)
    }
    pub fn duration(&self, name: &str) -> Duration {
        parse_duration(self.text(name)).unwrap_or_default()
    }
    /// Every value of a repeatable flag.
    pub fn list(&self, name: &str) -> Vec<&str> {
        match self.values.get(name) {
            Some(values) => values.iter().map(String::as_str).collect(),
            None => match self.defaults.get(name) {
                Some(default) if !default.is_empty() => default.split(',').collect(),
                _ => Vec::new(),
            },
        }
    }
    /// Whether `-f` or `-k` names what to work on.
    pub fn has_files(&self) -> bool {
        self.changed("filename") || !self.text("kustomize").is_empty()
    }
    pub fn first(&self) -> Option<&str> {
        self.positional.first().map(String::as_str)
    }
    /// A message that also points at the command's help.
    pub fn usage_error(&self, message: impl Into<String>) -> Error {
        Error::message(format!("{}\nSee '{} -h' for help and examples", message.into(), self.command))
    }
    pub fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.values.insert(name, vec![value.into()]);
    }
}

/// Reads `line` against the flags a command knows, the earlier of two with one name winning. A flag
/// nobody knows is an error, in pflag's words, because scripts compare them.
pub fn parse(known: &[&Flag], line: &[String]) -> Result<Args> {
    let mut args = Args::default();
    for flag in known {
        args.defaults.entry(flag.name).or_insert(flag.default);
    }
    let mut rest = line.iter();
    while let Some(word) = rest.next() {
        if word == "--" {
            args.dash = Some(args.positional.len());
            args.positional.extend(rest.cloned());
            break;
        }
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            let name = name.replace('_', "-");
            let Some(flag) = known.iter().find(|flag| flag.name == name) else {
                if name == "help" {
                    return Err(Error::Help);
                }
                return Err(Error::message(format!("unknown flag: --{name}")));
            };
            let value = match (value, flag.bare) {
                (Some(value), _) => value,
                (None, Some(bare)) => bare.to_owned(),
                (None, None) => rest
                    .next()
                    .cloned()
                    .ok_or_else(|| Error::message(format!("flag needs an argument: --{name}")))?,
            };
            args.store(flag, value)?;
        } else if word.len() > 1 && word.starts_with('-') {
            parse_bundle(known, &word[1..], &mut rest, &mut args)?;
        } else {
            args.positional.push(word.clone());
        }
    }
    Ok(args)
}

fn parse_bundle(
    known: &[&Flag],
    bundle: &str,
    rest: &mut std::slice::Iter<'_, String>,
    args: &mut Args,
) -> Result<()> {
    let mut tail = bundle;
    while let Some(short) = tail.chars().next() {
        tail = &tail[short.len_utf8()..];
        let Some(flag) = known.iter().find(|flag| flag.short == Some(short)) else {
            if short == 'h' {
                return Err(Error::Help);
            }
            return Err(Error::message(format!("unknown shorthand flag: '{short}' in -{short}{tail}")));
        };
        if let Some(value) = tail.strip_prefix('=') {
            return args.store(flag, value.to_owned());
        }
        if let Some(bare) = flag.bare {
            args.store(flag, bare.to_owned())?;
            continue;
        }
        if !tail.is_empty() {
            return args.store(flag, tail.to_owned());
        }
        let value = rest
            .next()
            .cloned()
            .ok_or_else(|| Error::message(format!("flag needs an argument: '{short}' in -{bundle}")))?;
        return args.store(flag, value);
    }
    Ok(())
}

impl Args {
    fn store(&mut self, flag: &Flag, value: String) -> Result<()> {
        flag.check(&value)?;
        self.given.push((flag.name, value.clone()));
        let values = self.values.entry(flag.name).or_default();
        match flag.shape {
            Shape::List => values.extend(value.split(',').map(str::to_owned)),
            Shape::Array => values.push(value),
            _ => *values = vec![value],
        }
        Ok(())
    }

    /// The command with its arguments and flags, as it is written down: long names, and no credential.
    pub fn line(&self) -> String {
        let mut line = self.command.clone();
        for word in &self.positional {
            line.push_str(&format!(" {word}"));
        }
        for (name, value) in &self.given {
            let value = if CLASSIFIED.contains(name) { "CLASSIFIED" } else { value };
            line.push_str(&format!(" --{name}={value}"));
        }
        line
    }

    /// The required flags that were not given, in pflag's sentence.
    pub fn check_required(&self, known: &[&Flag]) -> Result<()> {
        let mut missing: Vec<_> = known
            .iter()
            .filter(|flag| flag.required && !self.changed(flag.name))
            .map(|flag| format!("{:?}", flag.name))
            .collect();
        missing.sort();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::message(format!("required flag(s) {} not set", missing.join(", "))))
    }
}

pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Go's duration syntax: `1h2m3.5s`, `300ms`, `0`. A sign is accepted; what is negative counts
/// as zero, except where the caller looks at the text itself.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if unsigned == "0" {
        return Some(Duration::ZERO);
    }
    if unsigned.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    let mut rest = unsigned;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let amount: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        seconds += amount
            * match &rest[..unit] {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    if text.starts_with('-') {
        return Some(Duration::ZERO);
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: &[Flag] = &[
        Flag::bool("watch", "").short('w'),
        Flag::bool("stdin", "").short('i'),
        Flag::text("output", "").short('o'),
        Flag::list("filename", "").short('f'),
        Flag::int("replicas", "").default("1"),
        Flag::duration("timeout", ""),
        Flag::text("dry-run", "").default("none").bare("unchanged"),
    ];

    fn line(words: &str) -> Result<Args> {
        let known: Vec<&Flag> = FLAGS.iter().collect();
        parse(&known, &words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_may_stand_anywhere() {
        let args = line("pods -o yaml web --watch -f a,b -f=c -- --not-a-flag").unwrap();
        assert_eq!(args.positional, ["pods", "web", "--not-a-flag"]);
        assert_eq!(args.dash, Some(2));
        assert_eq!(args.text("output"), "yaml");
        assert!(args.bool("watch"));
        assert_eq!(args.list("filename"), ["a", "b", "c"]);
        assert_eq!(args.int("replicas"), 1);
        assert!(!args.changed("replicas"));
    }

    #[test]
    fn short_flags_bundle() {
        let args = line("-wiojson").unwrap();
        assert!(args.bool("watch") && args.bool("stdin"));
        assert_eq!(args.text("output"), "json");
    }

    #[test]
    fn bare_values_do_not_eat_the_next_word() {
        let args = line("--dry-run pods --watch=false").unwrap();
        assert_eq!(args.text("dry-run"), "unchanged");
        assert_eq!(args.positional, ["pods"]);
        assert!(args.changed("watch") && !args.bool("watch"));
    }

    #[test]
    fn refusals_use_the_words_scripts_know() {
        let refusal = |words| line(words).unwrap_err().to_string();
        assert_eq!(refusal("--nope"), "unknown flag: --nope");
        assert_eq!(refusal("-wx"), "unknown shorthand flag: 'x' in -x");
        assert_eq!(refusal("-o"), "flag needs an argument: 'o' in -o");
        assert_eq!(
            refusal("--watch=maybe"),
            "invalid argument \"maybe\" for \"-w, --watch\" flag: strconv.ParseBool: parsing \"maybe\": invalid syntax"
        );
        assert_eq!(
            refusal("--timeout=5"),
            "invalid argument \"5\" for \"--timeout\" flag: time: missing unit in duration \"5\""
        );
    }

    #[test]
    fn durations_are_gos() {
        let check = |text: &str, millis: u64| {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        };
        check("0", 0);
        check("1h2m3.5s", 3_723_500);
        check("300ms", 300);
        assert_eq!(parse_duration("5 s"), None);
    }
}
