//! Selectors of devices (resource.k8s.io): what they may name, and whether a device is one of those they select.
//!
//! `device.attributes["gpu.example.com"].model` looks an attribute up by the domain of its name and the rest of it. A name
//! without a domain is one of the driver's own. A domain that a device has nothing of is an empty map, so that a selector can
//! ask `has(…)` about any attribute.

use std::collections::HashMap;

use cel::ExecutionError;
use cel::common::traits::{Container, Indexer, Iterable, Iterator as Walk, Sizer};
use cel::common::types::{CelBool, CelInt, CelMap, CelMapKey, CelString, MAP_TYPE, Type as CelType};
use cel::common::value::{CowVal, Val};
use ferry_api::quantity::Quantity as Amount;

use crate::cost::Budget;
use crate::environment::{CompileError, Environment};
use crate::library::quantity::Quantity;
use crate::library::semver::Semver;
use crate::program::{Bindings, Program};
use crate::types::Type;

/// What one selector may cost for one device.
pub const SELECTOR_BUDGET: i64 = 1_000_000;

/// A device as a selector sees it; names are as the driver wrote them.
#[derive(Debug, Clone, Default)]
pub struct Device<'v> {
    pub driver: &'v str,
    pub allows_multiple_allocations: bool,
    pub attributes: Vec<(&'v str, Attribute<'v>)>,
    pub capacity: Vec<(&'v str, Amount)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Attribute<'v> {
    Int(i64),
    Bool(bool),
    Text(&'v str),
    Version(&'v str),
    /// A value of a sort that selectors cannot read, such as a list.
    Unknown,
}

/// Compiles a selector, or says why it is none in upstream's words.
pub fn compile(expression: &str) -> Result<Program, CompileError> {
    let program = environment().compile(expression, &[])?;
    match program.result() {
        Type::Bool | Type::Dyn => Ok(program),
        other => Err(CompileError(format!("must evaluate to bool or the unknown type, not {other}"))),
    }
}

fn environment() -> Environment {
    let quantity = Type::Opaque("kubernetes.Quantity");
    let fields = [
        ("driver", Type::String),
        ("allowMultipleAllocations", Type::Bool),
        ("attributes", Type::map(Type::map(Type::Dyn))),
        ("capacity", Type::map(Type::map(quantity))),
    ];
    Environment::for_devices([("device", Type::object("kubernetes.DRADevice", fields))])
}

/// Whether a selector selects the device, and takes what that cost off `left`.
pub fn selects(program: &Program, device: &Device<'_>, left: &mut i64) -> Result<bool, String> {
    let mut bindings = Bindings::new();
    bindings.set_value("device", value(device)?);
    let mut budget = Budget::new(SELECTOR_BUDGET);
    let outcome = program.evaluate(&bindings, &mut budget);
    *left = left.saturating_sub(SELECTOR_BUDGET.saturating_sub(budget.left().max(0)));
    let outcome = outcome.map_err(|why| why.to_string())?;
    let wrong = || format!("CEL result of type {} could not be converted to bool", outcome.type_name());
    outcome.as_bool().ok_or_else(wrong)
}

fn value<'v>(device: &Device<'v>) -> Result<Box<dyn Val + 'v>, String> {
    let mut attributes = Domains::default();
    for (name, attribute) in &device.attributes {
        let value: Box<dyn Val + 'v> = match attribute {
            Attribute::Int(int) => Box::new(CelInt::from(*int)),
            Attribute::Bool(bool) => Box::new(CelBool::from(*bool)),
            Attribute::Text(text) => Box::new(CelString::from(*text)),
            Attribute::Version(text) => match Semver::parse(text) {
                Ok(version) => Box::new(version),
                Err(why) => return Err(format!("attribute {name}: parse semantic version: {why}")),
            },
            Attribute::Unknown => return Err(format!("attribute {name}: unsupported attribute value")),
        };
        attributes.insert(name, device.driver, value);
    }
    let mut capacity = Domains::default();
    for (name, amount) in &device.capacity {
        capacity.insert(name, device.driver, Box::new(Quantity::from(*amount)));
    }
    let fields: [(&str, Box<dyn Val + 'v>); 4] = [
        ("driver", Box::new(CelString::from(device.driver))),
        ("allowMultipleAllocations", Box::new(CelBool::from(device.allows_multiple_allocations))),
        ("attributes", Box::new(attributes.map())),
        ("capacity", Box::new(capacity.map())),
    ];
    let fields: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> =
        fields.into_iter().map(|(name, value)| (CelMapKey::from(name), value)).collect();
    Ok(Box::new(CelMap::from(fields)))
}

type Map<'v> = HashMap<CelMapKey<'v>, Box<dyn Val + 'v>>;

/// Values by the domain of their name, then by the rest of it.
#[derive(Default)]
struct Domains<'v>(HashMap<&'v str, Map<'v>>);

impl<'v> Domains<'v> {
    fn insert(&mut self, name: &'v str, driver: &'v str, value: Box<dyn Val + 'v>) {
        let (domain, id) = name.split_once('/').unwrap_or((driver, name));
        self.0.entry(domain).or_default().insert(CelMapKey::from(id), value);
    }

    fn map(self) -> DefaultingMap<'v> {
        let domains = self.0.into_iter();
        let domains: Map<'v> = domains
            .map(|(domain, values)| -> (_, Box<dyn Val + 'v>) {
                (CelMapKey::from(domain), Box::new(CelMap::from(values)))
            })
            .collect();
        DefaultingMap(CelMap::from(domains))
    }
}

/// A map whose missing keys are empty maps.
#[derive(Debug, Clone)]
struct DefaultingMap<'v>(CelMap<'v>);

impl<'v> Val for DefaultingMap<'v> {
    fn get_type(&self) -> &CelType {
        <Self as Val>::cel_type()
    }

    fn cel_type() -> &'static CelType {
        &MAP_TYPE
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_indexer<'b, 'w>(&'b self) -> Option<&'b (dyn Indexer + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_iterable<'b, 'w>(&'b self) -> Option<&'b (dyn Iterable + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }

    fn equals(&self, other: &dyn Val) -> bool {
        self.0.equals(other)
    }

    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(self.clone())
    }
}

impl<'v> Indexer for DefaultingMap<'v> {
    fn get<'b, 'w>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        match Indexer::get(&self.0, key) {
            Err(ExecutionError::NoSuchKey(_)) => Ok(CowVal::owned(CelMap::default())),
            found => found,
        }
    }

    fn steal<'w>(self: Box<Self>, key: &dyn Val) -> Result<Box<dyn Val + 'w>, ExecutionError>
    where
        Self: 'w,
    {
        self.get(key).map(CowVal::into_owned)
    }
}

impl Container for DefaultingMap<'_> {
    fn contains(&self, key: &dyn Val) -> Result<bool, ExecutionError> {
        self.0.contains(key)
    }
}

impl<'v> Iterable for DefaultingMap<'v> {
    fn iter<'b, 'w>(&'b self) -> Box<dyn Walk<'b, 'w> + 'b>
    where
        Self: 'w,
    {
        Iterable::iter(&self.0)
    }
}

impl Sizer for DefaultingMap<'_> {
    fn size(&self) -> CelInt {
        self.0.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> Device<'static> {
        Device {
            driver: "gpu.example.com",
            allows_multiple_allocations: false,
            attributes: vec![
                ("model", Attribute::Text("a100")),
                ("other.example.com/numa", Attribute::Int(1)),
                ("healthy", Attribute::Bool(true)),
                ("driverVersion", Attribute::Version("1.2.3")),
            ],
            capacity: vec![("memory", Amount::parse("40Gi").unwrap())],
        }
    }

    fn selected(program: &Program, device: &Device<'_>) -> Result<bool, String> {
        let mut left = SELECTOR_BUDGET;
        let selected = selects(program, device, &mut left);
        assert!(left <= SELECTOR_BUDGET);
        selected
    }

    #[test]
    fn a_selector_looks_attributes_up_by_domain() {
        let check = |expression: &str, expected: Result<bool, &str>| {
            let program = compile(expression).unwrap();
            assert_eq!(
                selected(&program, &gpu()).as_ref().copied().map_err(String::as_str),
                expected,
                "{expression}"
            );
        };
        check("true", Ok(true));
        check("device.driver == 'gpu.example.com'", Ok(true));
        check("device.attributes['gpu.example.com'].model == 'a100'", Ok(true));
        check("device.attributes['other.example.com'].numa == 1", Ok(true));
        check("device.attributes['other.example.com'].model == 'a100'", Err("no such key: model"));
        check("has(device.attributes['nobody.example.com'].model)", Ok(false));
        check("'nobody.example.com' in device.attributes", Ok(false));
        check("device.attributes['gpu.example.com'].healthy", Ok(true));
        check("device.attributes['gpu.example.com'].driverVersion.isGreaterThan(semver('1.2.0'))", Ok(true));
        check("device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('32Gi'))", Ok(true));
        check("device.capacity['gpu.example.com'].memory.compareTo(quantity('80Gi')) >= 0", Ok(false));
        check("!device.allowMultipleAllocations", Ok(true));
        check(
            "cel.bind(gpu, device.attributes['gpu.example.com'], gpu.healthy && gpu.model == 'a100')",
            Ok(true),
        );
    }

    #[test]
    fn invalid_device_selectors_are_refused() {
        let check = |expression: &str, expected: &str| {
            let why = compile(expression).err().unwrap().to_string();
            assert!(why.contains(expected), "{expression}: {why}");
        };
        check("1 + 1", "must evaluate to bool or the unknown type, not int");
        check("device.nothing", "undefined field 'nothing'");
        check("devices.driver", "undeclared reference to 'devices'");
    }

    #[test]
    fn an_attribute_that_cannot_be_read_is_an_error() {
        let program = compile("true").unwrap();
        let check = |attribute, expected: &str| {
            let device = Device { driver: "d", attributes: vec![("a", attribute)], ..Device::default() };
            assert!(selected(&program, &device).is_err_and(|why| why.starts_with(expected)));
        };
        check(Attribute::Version("one"), "attribute a: parse semantic version: ");
        check(Attribute::Unknown, "attribute a: unsupported attribute value");
    }
}
