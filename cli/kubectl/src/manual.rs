//! Manual pages of kubectl's commands, from the table that their flags are read with.

use crate::command::{Command, GLOBAL_FLAGS};
use crate::commands::ROOT;
use crate::flags::{Flag, Shape};

/// As which the pages are installed: `kubectl.1` may be there, of a kubectl beside this one.
const PROGRAM: &str = "ferry kubectl";

/// A page for each command, as file name and content: `ferry-kubectl.1`, `ferry-kubectl-set-image.1`.
pub fn pages() -> Vec<(String, String)> {
    let mut pages = vec![(file(PROGRAM), overview())];
    for command in shown(ROOT) {
        add(&mut pages, command, PROGRAM);
    }
    pages
}

fn file(full_name: &str) -> String {
    format!("{}.1", full_name.replace(' ', "-"))
}

fn shown(commands: &'static [&'static Command]) -> impl Iterator<Item = &'static Command> {
    commands.iter().copied().filter(|command| !command.name.starts_with("__"))
}

fn add(pages: &mut Vec<(String, String)>, command: &'static Command, parent: &str) {
    let full_name = format!("{parent} {}", command.name);
    pages.push((file(&full_name), page(command, &full_name)));
    for child in shown(command.children) {
        add(pages, child, &full_name);
    }
}

fn overview() -> String {
    let mut text = head(PROGRAM, "talk to a Kubernetes cluster", "[COMMAND] [OPTIONS]");
    text.push_str(".SH COMMANDS\n");
    shown(ROOT).for_each(|command| text.push_str(&item(command.name, command.short)));
    text.push_str(".SH OPTIONS\nEvery command takes these.\n");
    GLOBAL_FLAGS.iter().for_each(|flag| text.push_str(&option(flag)));
    text
}

fn page(command: &'static Command, full_name: &str) -> String {
    let mut text = head(full_name, command.short, command.usage);
    if !command.aliases.is_empty() {
        text.push_str(&format!(".SH ALIASES\n{}\n", escaped(&command.aliases.join(", "))));
    }
    if !command.children.is_empty() {
        text.push_str(".SH COMMANDS\n");
        shown(command.children).for_each(|child| text.push_str(&item(child.name, child.short)));
    }
    let mut flags: Vec<&Flag> = command.own_flags().collect();
    flags.sort_by_key(|flag| flag.name);
    if !flags.is_empty() {
        text.push_str(".SH OPTIONS\n");
        flags.iter().for_each(|flag| text.push_str(&option(flag)));
    }
    text.push_str(".SH SEE ALSO\n.BR ferry\\-kubectl (1)\n");
    text
}

fn head(full_name: &str, short: &str, usage: &str) -> String {
    let name = full_name.replace(' ', "-");
    format!(
        ".TH {} 1\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n\\fB{}\\fR {}\n",
        escaped(&name.to_uppercase()),
        escaped(&name),
        escaped(short),
        escaped(full_name),
        escaped(usage)
    )
}

fn item(name: &str, text: &str) -> String {
    format!(".TP\n\\fB{}\\fR\n{}\n", escaped(name), escaped(text))
}

fn option(flag: &Flag) -> String {
    let short = flag.short.map(|short| format!("-{short}, ")).unwrap_or_default();
    let value = match flag.shape {
        Shape::Bool => String::new(),
        _ => format!("={}", if flag.default.is_empty() { "VALUE" } else { flag.default }),
    };
    item(&format!("{short}--{}{value}", flag.name), flag.help)
}

/// Hyphens stay hyphens, and no line is taken for a request.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_flags() {
        let pages = pages();
        let page = |name: &str| &pages.iter().find(|(file, _)| file == name).expect(name).1;
        assert!(
            page("ferry-kubectl.1").contains("\\fB\\-n, \\-\\-namespace=VALUE\\fR\nNamespace to work in\n")
        );
        assert!(
            page("ferry-kubectl-set-image.1").starts_with(".TH FERRY\\-KUBECTL\\-SET\\-IMAGE 1\n.SH NAME\n")
        );
        assert!(page("ferry-kubectl-delete.1").contains("\n\\fB\\-\\-grace\\-period=\\-1\\fR\n"));
        assert!(!pages.iter().any(|(file, _)| file.contains("__")));
        for (file, text) in &pages {
            let odd = text.lines().find(|line| line.starts_with('\'') || line.is_empty());
            assert_eq!(odd, None, "{file}");
        }
    }
}
