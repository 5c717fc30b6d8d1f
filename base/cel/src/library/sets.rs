//! `sets.contains([1, 2], [2])`: lists as sets. And `distinct`, which makes one of a list. Each element is compared with
//! each.

use cel::common::types::{CelBool, CelList};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use super::elements;
use crate::cost::{self, Meter, meter_of};
use crate::values;

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    cost::declare_metered(env, "sets.contains", 2, contains)?;
    cost::declare_metered(env, "sets.equivalent", 2, equivalent)?;
    cost::declare_metered(env, "sets.intersects", 2, intersects)?;
    cost::declare_metered(env, "distinct", 1, distinct)
}

/// Comparing all of `a` with all of `b` takes both as often as the other has elements.
fn pay(meter: &Meter, a: &[&dyn Val], b: &[&dyn Val]) -> Result<(), ExecutionError> {
    let weigh = |items: &[&dyn Val]| -> Result<i64, ExecutionError> {
        let mut total = 0i64;
        for item in items {
            total = total.saturating_add(values::weight(*item, meter.left().max(0)));
            if total > meter.left() {
                break;
            }
        }
        Ok(total)
    };
    let count = |items: &[&dyn Val]| i64::try_from(items.len()).unwrap_or(i64::MAX);
    let smaller = weigh(a)?.saturating_mul(count(b)).min(weigh(b)?.saturating_mul(count(a)));
    meter.pay(smaller.saturating_add(count(a)).saturating_add(count(b)))
}

fn has(list: &[&dyn Val], wanted: &dyn Val) -> bool {
    list.iter().any(|item| item.equals(wanted))
}

fn has_all(list: &[&dyn Val], wanted: &[&dyn Val]) -> bool {
    wanted.iter().all(|item| has(list, *item))
}

fn contains<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (a, b) = (elements(&args[0])?, elements(&args[1])?);
    pay(meter_of(&args[2])?, &a, &b)?;
    Ok(CowVal::owned(CelBool::from(has_all(&a, &b))))
}

fn equivalent<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (a, b) = (elements(&args[0])?, elements(&args[1])?);
    let meter = meter_of(&args[2])?;
    pay(meter, &a, &b)?;
    pay(meter, &a, &b)?;
    Ok(CowVal::owned(CelBool::from(has_all(&a, &b) && has_all(&b, &a))))
}

fn intersects<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (a, b) = (elements(&args[0])?, elements(&args[1])?);
    pay(meter_of(&args[2])?, &a, &b)?;
    Ok(CowVal::owned(CelBool::from(b.iter().any(|item| has(&a, *item)))))
}

fn distinct<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let items = elements(&args[0])?;
    pay(meter_of(&args[1])?, &items, &items)?;
    let mut distinct: Vec<&dyn Val> = Vec::new();
    for item in &items {
        if !has(&distinct, *item) {
            distinct.push(*item);
        }
    }
    let distinct: Vec<Box<dyn Val + 'v>> = distinct.into_iter().map(Val::clone_as_boxed).collect();
    Ok(CowVal::owned(CelList::from(distinct)))
}
