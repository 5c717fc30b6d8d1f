//! `--feature-gates`: names and values are checked as upstream's programs check them. Ferry has each feature as it is by
//! default and switches none, so a gate that is set otherwise is named in the log.

use clap::Args;

/// Each row: name, default, stage, `locked`.
const TABLE: &str = include_str!("feature_gates.txt");
/// Gates that stand for all of a stage.
const STAGES: [&str; 2] = ["AllAlpha", "AllBeta"];
/// The component that a gate without one is of.
const KUBE: &str = "kube";

#[derive(Args, Clone)]
pub struct FeatureGateFlags {
    /// Feature gates as NAME=true|false or kube:NAME=true|false, separated by commas. Unknown names are refused. Gates have no
    /// effect: every feature keeps its default, and the log names each gate that differs from it
    #[arg(long, value_parser = parse, allow_hyphen_values = true)]
    feature_gates: Vec<Gates>,
}

/// The gates of one flag.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gates(Vec<Gate>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Gate {
    name: String,
    value: bool,
}

struct Known {
    name: &'static str,
    default: bool,
    stage: &'static str,
    is_locked: bool,
}

impl FeatureGateFlags {
    /// One line for each gate that says something else than the default, and for those that will go.
    pub fn log(&self) {
        for gate in self.feature_gates.iter().flat_map(|gates| &gates.0) {
            for line in notes(gate) {
                tracing::warn!("{line}");
            }
        }
    }
}

fn notes(gate: &Gate) -> Vec<String> {
    let Gate { name, value } = gate;
    let Some(known) = find(name) else {
        return vec![format!("feature gate {name}={value} has no effect: Ferry switches no features")];
    };
    let mut notes = Vec::new();
    if matches!(known.stage, "GA" | "Deprecated") {
        let stage = if known.stage == "GA" { "GA" } else { "deprecated" };
        notes.push(format!(
            "setting {stage} feature gate {name}={value}: it will be removed in a future release"
        ));
    }
    if known.default != *value {
        let default = known.default;
        notes.push(format!(
            "feature gate {name}={value} has no effect: Ferry has it as by default, {default}"
        ));
    }
    notes
}

fn parse(text: &str) -> Result<Gates, String> {
    let mut gates = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let word = match word.split_once(':') {
            Some((KUBE, gate)) => gate,
            Some((component, _)) => return Err(format!("component not registered: {component}")),
            None => word,
        };
        let Some((name, value)) = word.split_once('=') else {
            return Err(format!("missing bool value for {word}"));
        };
        let (name, value) = (name.trim(), value.trim());
        let is_on = boolean(value).ok_or_else(|| {
            format!(
                "invalid value of {name}={value}, err: strconv.ParseBool: parsing {value:?}: invalid syntax"
            )
        })?;
        gates.push(check(name, is_on)?);
    }
    Ok(Gates(gates))
}

fn check(name: &str, value: bool) -> Result<Gate, String> {
    let gate = Gate { name: name.to_owned(), value };
    if STAGES.contains(&name) {
        return Ok(gate);
    }
    let known = find(name).ok_or_else(|| format!("unrecognized feature gate: {name}"))?;
    if known.is_locked && known.default != value {
        let default = known.default;
        return Err(format!("cannot set feature gate {name} to {value}, feature is locked to {default}"));
    }
    Ok(gate)
}

/// What Go's `strconv.ParseBool` takes.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn find(name: &str) -> Option<Known> {
    TABLE.lines().find_map(|line| row(line).filter(|known| known.name == name))
}

fn row(line: &'static str) -> Option<Known> {
    let mut words = line.split(' ');
    let (name, default, stage) = (words.next()?, words.next()?, words.next()?);
    (name != "#").then(|| Known { name, default: default == "on", stage, is_locked: words.next().is_some() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_read_and_names_stand_once() {
        let rows: Vec<&str> = TABLE.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(rows.len() > 200, "{}", rows.len());
        let mut names: Vec<&str> = rows.iter().map(|line| row(line).expect("a row").name).collect();
        for line in &rows {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(matches!(words[1], "on" | "off"), "{line}");
            assert!(matches!(words[2], "Alpha" | "Beta" | "GA" | "Deprecated"), "{line}");
            assert!(matches!(words[3..], [] | ["locked"]), "{line}");
        }
        names.dedup();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn gates_are_refused_in_upstreams_words() {
        let check = |text: &str, words: &str| assert_eq!(parse(text), Err(words.to_owned()), "{text}");
        check("Nothing=true", "unrecognized feature gate: Nothing");
        check("ContextualLogging=true,Nothing=true", "unrecognized feature gate: Nothing");
        check("ContextualLogging", "missing bool value for ContextualLogging");
        check(
            "ContextualLogging=maybe",
            "invalid value of ContextualLogging=maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax",
        );
        check(
            "APIServerTracing=false",
            "cannot set feature gate APIServerTracing to false, feature is locked to true",
        );
        check("wardle:BanFlunder=true", "component not registered: wardle");
    }

    #[test]
    fn a_gate_that_asks_for_something_else_is_told_once() {
        let check = |text: &str, expected: &[&str]| {
            let told: Vec<String> = parse(text).expect(text).0.iter().flat_map(notes).collect();
            assert_eq!(told, expected, "{text}");
        };
        check("", &[]);
        check(" kube:ContextualLogging=T ,LoggingAlphaOptions=false", &[]);
        check(
            "ContextualLogging=false",
            &["feature gate ContextualLogging=false has no effect: Ferry has it as by default, true"],
        );
        check(
            "APIServerTracing=true",
            &["setting GA feature gate APIServerTracing=true: it will be removed in a future release"],
        );
        check("AllAlpha=true", &["feature gate AllAlpha=true has no effect: Ferry switches no features"]);
    }
}
