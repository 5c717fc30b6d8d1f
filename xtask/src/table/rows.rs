//! The table as text: its head says what each line is.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};

#[derive(Default)]
pub struct Table {
    /// The comment at its head.
    pub header: Vec<String>,
    /// By full name.
    pub types: BTreeMap<String, Type>,
}

#[derive(Clone, Default, PartialEq, Debug)]
pub struct Type {
    pub flags: Vec<String>,
    /// `gvk`, `typemeta`, `assume` and `union`, as they are written.
    pub statements: Vec<String>,
    pub rows: Vec<Row>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    pub is_inline: bool,
    pub name: String,
    pub shape: String,
    pub tag: String,
    pub flags: Vec<String>,
}

impl Type {
    pub fn is_published(&self) -> bool {
        self.flags.iter().any(|flag| flag == "published")
    }

    pub fn is_either(&self) -> bool {
        self.flags.iter().any(|flag| flag.starts_with("either="))
    }
}

impl Row {
    /// Names on the wire are Go's, with other cases and without signs: `xKubernetesListType` is `x-kubernetes-list-type`.
    pub fn is_named(&self, wire: &str) -> bool {
        letters(&self.name).eq(letters(wire))
    }
}

pub fn letters(name: &str) -> impl Iterator<Item = char> {
    name.chars().filter(|c| c.is_alphanumeric()).map(|c| c.to_ascii_lowercase())
}

/// Flags in the order they are written.
const FLAGS: [&str; 12] = [
    "ptr",
    "keep",
    "required",
    "list",
    "map",
    "patch",
    "key",
    "enum",
    "default",
    "assume",
    "milli",
    "unpublished",
];

pub fn order(flag: &str) -> usize {
    let name = flag.split('=').next().unwrap_or(flag);
    FLAGS.iter().position(|known| *known == name).unwrap_or(FLAGS.len())
}

/// Whether a flag says what stands in Go's types alone.
pub fn is_of_go(flag: &str) -> bool {
    ["ptr", "keep", "assume", "milli", "unpublished"].contains(&flag.split('=').next().unwrap_or(flag))
}

/// What other packages call this one: its last two parts.
pub fn alias(package: &str) -> &str {
    package.rmatch_indices('.').nth(1).map_or(package, |(at, _)| &package[at + 1..])
}

pub fn parse(text: &str) -> Result<Table> {
    let mut table = Table::default();
    let mut package = String::new();
    let mut name = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        match (line.starts_with(' '), words.as_slice()) {
            (_, []) => {}
            (false, [first, ..]) if first.starts_with('#') => table.header.push(line.to_owned()),
            (false, ["package", _, full]) => package = (*full).to_owned(),
            (false, ["type", short, flags @ ..]) => {
                name = format!("{package}.{short}");
                let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
                table.types.insert(name.clone(), Type { flags, ..Type::default() });
            }
            (true, words) => {
                let of = table.types.get_mut(&name).with_context(|| format!("{line:?} is of no type"))?;
                of.read(line, words)?;
            }
            (false, _) => bail!("{line:?} is neither a package nor a type"),
        }
    }
    Ok(table)
}

impl Type {
    fn read(&mut self, line: &str, words: &[&str]) -> Result<()> {
        let is_tag = |word: &str| word == "-" || word.parse::<u32>().is_ok();
        let row = |is_inline, name: &str, shape: &str, tag: &str, flags: &[&str]| Row {
            is_inline,
            name: name.into(),
            shape: shape.into(),
            tag: tag.into(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        };
        match words {
            ["inline", name, shape, tag] => self.rows.push(row(true, name, shape, tag, &[])),
            [name, shape, tag, flags @ ..] if is_tag(tag) => {
                self.rows.push(row(false, name, shape, tag, flags))
            }
            ["gvk" | "assume" | "union", ..] | ["typemeta"] => self.statements.push(line.trim().to_owned()),
            _ => bail!("{line:?} is not a field"),
        }
        Ok(())
    }
}

pub fn print(table: &Table) -> String {
    let mut lines = table.header.clone();
    let packages: BTreeSet<&str> = table.types.keys().map(|name| split(name).0).collect();
    for package in packages {
        lines.push(String::new());
        lines.push(format!("package {} {package}", alias(package)));
        for (full, of) in &table.types {
            let (in_package, name) = split(full);
            if in_package != package {
                continue;
            }
            lines.push([&["type", name][..], &strings(&of.flags)].concat().join(" "));
            lines.extend(of.statements.iter().map(|statement| format!("  {statement}")));
            for row in &of.rows {
                let inline: &[&str] = if row.is_inline { &["inline"] } else { &[] };
                let words = [inline, &[&row.name, &row.shape, &row.tag], &strings(&row.flags)].concat();
                lines.push(format!("  {}", words.join(" ")));
            }
        }
    }
    lines.join("\n") + "\n"
}

fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

fn strings(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}
