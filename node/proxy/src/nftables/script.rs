//! From one state of the table to another, as one script: one transaction of the kernel.

use std::fmt::Write;

use super::{
    Key, Map, Settings, Value,
    structure::{self, Objects},
};
use crate::ledger::Difference;

/// Elements go in lines of so many: a line is what an error message repeats.
const PER_LINE: usize = 500;

/// The script, empty if nothing differs. The order is what the kernel's references ask for: what is led
/// to comes before what leads there, and goes after it. A set's declaration never changes under its name.
pub(super) fn difference(
    settings: &Settings,
    before: &Objects,
    after: &Objects,
    elements: &[Difference<(Map, Key), Value>],
) -> String {
    let at = format!("{} {}", structure::ip(settings.family), settings.table);
    let mut script = String::new();
    let mut line = |text: std::fmt::Arguments| {
        script.write_fmt(text).expect("writing to a string does not fail");
        script.push('\n');
    };
    for (name, declaration) in after.sets.iter().filter(|(name, _)| !before.sets.contains_key(*name)) {
        line(format_args!("add {} {at} {name} {{ {} }}", declaration.kind, declaration.text));
    }
    for (name, body) in after.chains.iter().filter(|(name, _)| !before.chains.contains_key(*name)) {
        match &body.hook {
            Some(hook) => line(format_args!("add chain {at} {name} {{ {hook} }}")),
            None => line(format_args!("add chain {at} {name}")),
        }
    }
    for (name, body) in &after.chains {
        let old = before.chains.get(name);
        if old == Some(body) {
            continue;
        }
        if old.is_some() {
            line(format_args!("flush chain {at} {name}"));
        }
        for rule in &body.rules {
            line(format_args!("add rule {at} {name} {rule}"));
        }
    }
    let deleted = elements.iter().filter(|d| d.before.is_some()).map(|d| (d.key.0, d.key.1.to_string()));
    for_each_line(deleted, |map, list| line(format_args!("delete element {at} {map} {{ {list} }}")));
    let added = elements.iter().filter_map(|d| {
        let value = d.after.as_ref()?;
        Some((d.key.0, format!("{}{value}", d.key.1)))
    });
    for_each_line(added, |map, list| line(format_args!("add element {at} {map} {{ {list} }}")));

    let gone_chains: Vec<&String> =
        before.chains.keys().filter(|name| !after.chains.contains_key(*name)).collect();
    for name in &gone_chains {
        line(format_args!("flush chain {at} {name}"));
    }
    for name in &gone_chains {
        line(format_args!("delete chain {at} {name}"));
    }
    for (name, declaration) in before.sets.iter().filter(|(name, _)| !after.sets.contains_key(*name)) {
        line(format_args!("delete {} {at} {name}", declaration.kind));
    }
    script
}

fn for_each_line(elements: impl Iterator<Item = (Map, String)>, mut line: impl FnMut(Map, &str)) {
    let mut current: Option<(Map, String, usize)> = None;
    for (map, text) in elements {
        match &mut current {
            Some((of, list, count)) if *of == map && *count < PER_LINE => {
                list.push_str(", ");
                list.push_str(&text);
                *count += 1;
            }
            _ => {
                if let Some((map, list, _)) = current.replace((map, text, 1)) {
                    line(map, &list);
                }
            }
        }
    }
    if let Some((map, list, _)) = current {
        line(map, &list);
    }
}
