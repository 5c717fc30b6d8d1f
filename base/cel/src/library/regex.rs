//! `'abc 123'.matches('[0-9]+')`, `find` and `findAll`. The engine takes time linear in the text for each state of the
//! pattern, and compiling a pattern takes far more than its few characters say.

use std::sync::Arc;

use cel::common::types::{CelBool, CelInt, CelList, CelString};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use regex::{Regex, RegexBuilder};

use super::{opaque, text_at, wrong};
use crate::cost::{self, Meter, meter_of};

/// A compiled pattern of this size is made in a fraction of a millisecond, as nearly all are.
const SMALL: usize = 64 << 10;
const LARGE: usize = 1 << 20;
/// What it costs to compile one while the expression runs.
const SMALL_COST: i64 = 1_000;
const LARGE_COST: i64 = 20_000;

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    cost::declare_metered(env, "matches", 2, matches)?;
    cost::declare_metered(env, "find", 2, find)?;
    cost::declare_metered(env, "findAll", 2, find_all)?;
    cost::declare_metered(env, "findAll", 3, find_all)
}

/// The patterns that an expression writes out, compiled with it.
#[derive(Clone, Default)]
pub struct Patterns(Vec<Pattern>);

impl Patterns {
    /// The variable that stands for the pattern; none if it is no pattern, which is said when it is used.
    pub fn add(&mut self, pattern: &str) -> Option<String> {
        let compiled = compile(pattern, LARGE).ok()?;
        self.0.push(Pattern { compiled: Arc::new(compiled), length: pattern.len() });
        Some(format!("@pattern{}", self.0.len() - 1))
    }

    pub fn variables(&self) -> impl Iterator<Item = (String, Pattern)> {
        self.0.iter().enumerate().map(|(index, pattern)| (format!("@pattern{index}"), pattern.clone()))
    }
}

#[derive(Debug, Clone)]
pub struct Pattern {
    compiled: Arc<Regex>,
    length: usize,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        Arc::ptr_eq(&self.compiled, &other.compiled)
    }
}

opaque!(Pattern, "ferry.Pattern");

fn compile(pattern: &str, size: usize) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).size_limit(size).build()
}

/// The pattern, paid for together with the text that it is to be looked for in.
fn pattern(argument: &CowVal<'_, '_>, text: &str, meter: &Meter) -> Result<Pattern, ExecutionError> {
    let given = argument.as_any().and_then(|any| any.downcast_ref::<Pattern>());
    let found = match given {
        Some(pattern) => pattern.clone(),
        None => {
            let source = text_at(argument)?;
            meter.pay(SMALL_COST.saturating_add(cost::of_text(source.len())))?;
            let compiled = match compile(source, SMALL) {
                Err(regex::Error::CompiledTooBig(_)) => {
                    meter.pay(LARGE_COST)?;
                    compile(source, LARGE)
                }
                other => other,
            };
            let compiled = compiled.map_err(|error| wrong("matches", format!("illegal regex: {error}")))?;
            Pattern { compiled: Arc::new(compiled), length: source.len() }
        }
    };
    let states = i64::try_from(found.length / 4 + 1).unwrap_or(i64::MAX);
    meter.pay(cost::of_text(text.len()).saturating_mul(states))?;
    Ok(found)
}

fn matches<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let text = text_at(&args[0])?;
    let pattern = pattern(&args[1], text, meter_of(&args[2])?)?;
    Ok(CowVal::owned(CelBool::from(pattern.compiled.is_match(text))))
}

fn find<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let text = text_at(&args[0])?;
    let pattern = pattern(&args[1], text, meter_of(&args[2])?)?;
    let found = pattern.compiled.find(text).map_or("", |found| found.as_str());
    Ok(CowVal::owned(CelString::from(found.to_string())))
}

fn find_all<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let text = text_at(&args[0])?;
    let meter = args.last().ok_or_else(|| wrong("findAll", "no such overload"))?;
    let pattern = pattern(&args[1], text, meter_of(meter)?)?;
    let most = match args.as_slice() {
        [_, _, most, _] => {
            let most = most.downcast_ref::<CelInt>().ok_or_else(|| wrong("findAll", "no such overload"))?;
            usize::try_from(*most.inner()).unwrap_or(usize::MAX)
        }
        _ => usize::MAX,
    };
    let found = pattern.compiled.find_iter(text).take(most);
    let found: Vec<Box<dyn Val>> =
        found.map(|found| Box::new(CelString::from(found.as_str().to_string())) as Box<dyn Val>).collect();
    Ok(CowVal::owned(CelList::from(found)))
}
