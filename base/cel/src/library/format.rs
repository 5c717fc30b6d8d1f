//! `format.dns1123Label().validate(name)`: the formats that the API's own names keep to. The answer is
//! an optional list of faults: none when there are none.

use base64::Engine;
use cel::common::types::{CelList, CelOptional, CelString};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};
use ferry_api::names;

use super::opaque;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFormat(&'static str);

opaque!(NamedFormat, "kubernetes.NamedFormat");

type Faults = fn(&str) -> Vec<String>;

static FORMATS: &[(&str, Faults)] = &[
    ("dns1123Label", names::dns1123_label),
    ("dns1123Subdomain", names::dns1123_subdomain),
    ("dns1035Label", names::dns1035_label),
    ("qualifiedName", names::qualified_name),
    ("dns1123LabelPrefix", |text| names::dns1123_label(&completed(text))),
    ("dns1123SubdomainPrefix", |text| names::dns1123_subdomain(&completed(text))),
    ("dns1035LabelPrefix", |text| names::dns1035_label(&completed(text))),
    ("labelValue", names::label_value),
    ("uri", uri),
    ("uuid", |text| fault(uuid::Uuid::parse_str(text).is_err(), "does not match the UUID format")),
    ("byte", |text| {
        let standard = base64::engine::general_purpose::STANDARD;
        fault(standard.decode(text).is_err(), "invalid base64")
    }),
    ("date", |text| fault(text.parse::<jiff::civil::Date>().is_err() || text.len() != 10, "invalid date")),
    ("datetime", |text| fault(text.parse::<jiff::Timestamp>().is_err(), "invalid datetime")),
];

fn fault(is: bool, what: &str) -> Vec<String> {
    if is { vec![what.to_string()] } else { Vec::new() }
}

/// A name made from a prefix ends in a letter.
fn completed(prefix: &str) -> String {
    prefix.strip_suffix('-').map_or(prefix.to_string(), |rest| format!("{rest}a"))
}

fn uri(text: &str) -> Vec<String> {
    let absolute = text.split_once("://").is_some_and(|(scheme, rest)| {
        !rest.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    });
    fault(!absolute && !text.starts_with('/'), "invalid URI for request")
}

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    add_overload!(env, fn named: (CelString) -> CelOptional, name = "format.named")?;
    add_member_overload!(env, fn validate: (NamedFormat, CelString) -> CelOptional)?;
    // A function for each, since overloads are plain functions and hold no data.
    macro_rules! short {
        ($($at:literal => $name:literal),* $(,)?) => {
            $({
                fn make<'b, 'v>(_: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
                    Ok(CowVal::owned(NamedFormat($name)))
                }
                env.add_overload(concat!("format.", $name), concat!("format-", $name), vec![], make)?;
            })*
        };
    }
    short!(
        0 => "dns1123Label", 1 => "dns1123Subdomain", 2 => "dns1035Label", 3 => "qualifiedName",
        4 => "dns1123LabelPrefix", 5 => "dns1123SubdomainPrefix", 6 => "dns1035LabelPrefix",
        7 => "labelValue", 8 => "uri", 9 => "uuid", 10 => "byte", 11 => "date", 12 => "datetime",
    );
    Ok(())
}

fn named(name: &CelString<'_>) -> CelOptional<'static> {
    match FORMATS.iter().find(|(have, _)| *have == name.inner()) {
        Some((name, _)) => CelOptional::of(Box::new(NamedFormat(name))),
        None => CelOptional::none(),
    }
}

fn validate(this: &NamedFormat, text: &CelString<'_>) -> CelOptional<'static> {
    let faults = FORMATS.iter().find(|(name, _)| *name == this.0).map(|(_, check)| check(text.inner()));
    match faults {
        Some(faults) if !faults.is_empty() => {
            let faults: Vec<Box<dyn Val>> =
                faults.into_iter().map(|fault| Box::new(CelString::from(fault)) as Box<dyn Val>).collect();
            CelOptional::of(Box::new(CelList::from(faults)))
        }
        _ => CelOptional::none(),
    }
}
