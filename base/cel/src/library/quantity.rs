//! `quantity('100Mi').isLessThan(quantity('1Gi'))`: amounts of resources.

use cel::common::types::{CelBool, CelDouble, CelInt, CelString};
use cel::common::value::{StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};
use ferry_api::quantity::{Format, Quantity as Amount};

use super::{opaque, wrong};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantity(Amount);

opaque!(Quantity, "kubernetes.Quantity");

impl From<Amount> for Quantity {
    fn from(amount: Amount) -> Quantity {
        Quantity(amount)
    }
}

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    add_overload!(env, fn quantity: (CelString) -> Result<Quantity>)?;
    add_overload!(env, fn is_quantity: (CelString) -> CelBool)?;
    add_member_overload!(env, fn is_integer: (Quantity) -> CelBool)?;
    add_member_overload!(env, fn as_integer: (Quantity) -> Result<CelInt>)?;
    add_member_overload!(env, fn as_approximate_float: (Quantity) -> CelDouble)?;
    add_member_overload!(env, fn sign: (Quantity) -> CelInt)?;
    add_member_overload!(env, fn add: (Quantity, Quantity) -> Quantity)?;
    add_member_overload!(env, fn add_int: (Quantity, CelInt) -> Quantity, name = "add")?;
    add_member_overload!(env, fn sub: (Quantity, Quantity) -> Quantity)?;
    add_member_overload!(env, fn sub_int: (Quantity, CelInt) -> Quantity, name = "sub")?;
    add_member_overload!(env, fn is_less_than: (Quantity, Quantity) -> CelBool)?;
    add_member_overload!(env, fn is_greater_than: (Quantity, Quantity) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (Quantity, Quantity) -> CelInt)
}

fn quantity(text: &CelString<'_>) -> Result<Quantity, ExecutionError> {
    Amount::parse(text.inner()).map(Quantity).map_err(|error| wrong("quantity", error))
}

fn is_quantity(text: &CelString<'_>) -> CelBool {
    Amount::parse(text.inner()).is_ok().into()
}

/// The value as a whole number, if it is one.
fn whole(quantity: &Quantity) -> Option<i64> {
    let value = quantity.0.value();
    let back = Amount::from_value(value, Format::DecimalSi);
    (back == quantity.0).then_some(value)
}

fn is_integer(this: &Quantity) -> CelBool {
    whole(this).is_some().into()
}

fn as_integer(this: &Quantity) -> Result<CelInt, ExecutionError> {
    whole(this).map(CelInt::from).ok_or_else(|| wrong("asInteger", "cannot convert value to integer"))
}

fn as_approximate_float(this: &Quantity) -> CelDouble {
    let approximate = match whole(this) {
        Some(value) => value as f64,
        None => this.0.milli() as f64 / 1000.0,
    };
    CelDouble::from(approximate)
}

fn sign(this: &Quantity) -> CelInt {
    CelInt::from(match (this.0.is_negative(), this.0.is_zero()) {
        (true, _) => -1,
        (_, true) => 0,
        _ => 1,
    })
}

fn add(this: &Quantity, other: &Quantity) -> Quantity {
    Quantity(this.0 + other.0)
}

fn add_int(this: &Quantity, other: &CelInt) -> Quantity {
    Quantity(this.0 + Amount::from_value(*other.inner(), this.0.format()))
}

fn sub(this: &Quantity, other: &Quantity) -> Quantity {
    Quantity(this.0 - other.0)
}

fn sub_int(this: &Quantity, other: &CelInt) -> Quantity {
    Quantity(this.0 - Amount::from_value(*other.inner(), this.0.format()))
}

fn is_less_than(this: &Quantity, other: &Quantity) -> CelBool {
    (this.0 < other.0).into()
}

fn is_greater_than(this: &Quantity, other: &Quantity) -> CelBool {
    (this.0 > other.0).into()
}

fn compare_to(this: &Quantity, other: &Quantity) -> CelInt {
    CelInt::from(this.0.cmp(&other.0) as i64)
}
