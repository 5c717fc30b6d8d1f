//! `contains`, `join` and `replace`, paid for before they begin: their work, or what they make, is more than they are
//! given.

use cel::common::types::{CelBool, CelInt, CelString};
use cel::common::value::CowVal;
use cel::{DeclarationError, Env, ExecutionError};

use super::{elements, text_at, wrong};
use crate::cost::{self, meter_of};

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    cost::declare_metered(env, "contains", 2, contains)?;
    cost::declare_metered(env, "join", 1, join)?;
    cost::declare_metered(env, "join", 2, join)?;
    cost::declare_metered(env, "replace", 3, replace)?;
    cost::declare_metered(env, "replace", 4, replace)
}

fn contains<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (text, part) = (text_at(&args[0])?, text_at(&args[1])?);
    meter_of(&args[2])?.pay(cost::of_text(text.len()).saturating_mul(cost::of_text(part.len())))?;
    Ok(CowVal::owned(CelBool::from(text.contains(part))))
}

fn join<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (separator, meter) = match args.as_slice() {
        [_, meter] => ("", meter),
        [_, separator, meter] => (text_at(separator)?, meter),
        _ => return Err(wrong("join", "no such overload")),
    };
    let mut parts = Vec::new();
    for item in elements(&args[0])? {
        let text = item.downcast_ref::<CelString>().ok_or_else(|| wrong("join", "no such overload"))?;
        parts.push(text.inner());
    }
    let size = parts.iter().map(|part| part.len()).sum::<usize>();
    let size = size.saturating_add(parts.len().saturating_mul(separator.len() + 1));
    meter_of(meter)?.pay(cost::of_text(size))?;
    Ok(CowVal::owned(CelString::from(parts.join(separator))))
}

fn replace<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let (target, old, new) = (text_at(&args[0])?, text_at(&args[1])?, text_at(&args[2])?);
    let (times, meter) = match args.as_slice() {
        [_, _, _, meter] => (-1, meter),
        [_, _, _, times, meter] => {
            let times = times.downcast_ref::<CelInt>().ok_or_else(|| wrong("replace", "no such overload"))?;
            (*times.inner(), meter)
        }
        _ => return Err(wrong("replace", "no such overload")),
    };
    let most = usize::try_from(times).unwrap_or(usize::MAX);
    let meter = meter_of(meter)?;
    meter.pay(cost::of_text(target.len()))?;
    let found = target.matches(old).take(most).count();
    meter.pay(cost::of_text(target.len().saturating_add(found.saturating_mul(new.len()))))?;
    Ok(CowVal::owned(CelString::from(target.replacen(old, new, most))))
}
