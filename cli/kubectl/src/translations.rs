//! Help in the language of the environment, for the languages that upstream's kubectl has. Only what help prints is
//! translated, and the catalogue is looked at only where help is printed.

use std::borrow::Cow;

const CATALOGUE: &str = include_str!("translations.txt");

/// The language that help is printed in; None is English.
pub fn language() -> Option<String> {
    language_of(|name| std::env::var(name).ok())
}

/// The first of these that is set says it, as in `de_DE.UTF-8`.
fn language_of(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let names = ["LC_ALL", "LC_MESSAGES", "LANG"];
    let set = names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))?;
    let language = set.split('.').next().unwrap_or("");
    let known = CATALOGUE.lines().any(|line| {
        line.strip_prefix("  ").and_then(|line| line.split(' ').next()).is_some_and(|name| name == language)
    });
    known.then(|| language.to_owned())
}

/// The text in a language, or as it is where the catalogue has nothing.
pub fn translated<'t>(text: &'t str, language: Option<&str>) -> &'t str {
    let Some(language) = language else { return text };
    let mut lines = CATALOGUE.lines().skip_while(|line| *line != text).skip(1);
    let mut entry = lines.by_ref().map_while(|line| line.strip_prefix("  "));
    let found = entry.find_map(|line| line.strip_prefix(language)?.strip_prefix(' '));
    found.unwrap_or(text)
}

/// The text as a sentence. Some writings have a full stop of their own.
pub fn sentence<'t>(text: &'t str, language: Option<&str>) -> Cow<'t, str> {
    let text = translated(text, language);
    if text.ends_with('。') { text.into() } else { format!("{text}.").into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_the_language() {
        let check = |set: &[(&str, &str)], expected: Option<&str>| {
            let variable =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            assert_eq!(language_of(variable).as_deref(), expected, "{set:?}");
        };
        check(&[], None);
        check(&[("LANG", "C")], None);
        check(&[("LANG", "en_US.UTF-8")], None);
        check(&[("LANG", "de_DE.UTF8")], Some("de_DE"));
        check(&[("LANG", "de_DE"), ("LC_ALL", "C")], None);
        check(&[("LANG", "C"), ("LC_MESSAGES", "zh_TW.UTF-8"), ("LC_ALL", "")], Some("zh_TW"));
        check(&[("LANG", "xx_YY")], None);
    }

    #[test]
    fn missing_translations_fall_back_to_english() {
        let config = "Modify kubeconfig files";
        assert_eq!(translated(config, None), config);
        assert_eq!(translated(config, Some("de_DE")), "Verändere kubeconfig Dateien");
        assert_eq!(translated("Mark node as schedulable", Some("fr_FR")), "Mark node as schedulable");
        assert_eq!(translated("no such text", Some("de_DE")), "no such text");
        assert_eq!(sentence("Mark node as schedulable", Some("zh_CN")), "标记节点为可调度。");
        assert_eq!(sentence(config, Some("it_IT")), "Modifica i file kubeconfig.");
    }

    #[test]
    fn every_entry_is_what_some_command_says() {
        let entries = CATALOGUE.lines().filter(|line| !line.is_empty() && !line.starts_with([' ', '#']));
        for entry in entries {
            let known = crate::commands::ROOT.iter().any(|command| command.short == entry);
            assert!(known, "no command says {entry:?}");
        }
    }
}
