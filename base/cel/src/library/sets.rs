//! `sets.contains([1, 2], [2])`: lists as sets.

use cel::common::types::{CelBool, LIST_TYPE};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use super::elements;

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    let lists = || vec![LIST_TYPE, LIST_TYPE];
    env.add_overload("sets.contains", "list_sets_contains_list", lists(), contains)?;
    env.add_overload("sets.equivalent", "list_sets_equivalent_list", lists(), equivalent)?;
    env.add_overload("sets.intersects", "list_sets_intersects_list", lists(), intersects)
}

fn has(list: &[&dyn Val], wanted: &dyn Val) -> bool {
    list.iter().any(|item| item.equals(wanted))
}

fn has_all(list: &[&dyn Val], wanted: &[&dyn Val]) -> bool {
    wanted.iter().all(|item| has(list, *item))
}

fn contains<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    Ok(CowVal::owned(CelBool::from(has_all(&elements(&args[0])?, &elements(&args[1])?))))
}

fn equivalent<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (a, b) = (elements(&args[0])?, elements(&args[1])?);
    Ok(CowVal::owned(CelBool::from(has_all(&a, &b) && has_all(&b, &a))))
}

fn intersects<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (a, b) = (elements(&args[0])?, elements(&args[1])?);
    Ok(CowVal::owned(CelBool::from(b.iter().any(|item| has(&a, *item)))))
}
