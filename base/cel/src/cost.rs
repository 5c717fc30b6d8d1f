//! What an expression may cost. The interpreter knows no limits, so the compiled expression is rewritten
//! to pay as it goes: a loop pays for its body times the size of what it walks before it starts, and
//! whatever makes larger values out of smaller ones pays for their size. A function that looks at all of
//! a value pays for that value first, and one whose work is more than that is called with the meter
//! ([`METERED`]) and pays by the sizes of its arguments before it begins.
//!
//! Costs are near upstream's (one unit a step, a tenth a byte of text), not equal to them: a loop that
//! ends early has paid for all of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::common::types::{CelInt, DYN_TYPE, INT_TYPE};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use crate::library::opaque;
use crate::library::regex::Patterns;
use crate::{library, values};

/// What one evaluation of one expression may cost: about a tenth of a second.
pub const PER_CALL_LIMIT: i64 = 1_000_000;

/// The variable that the rewritten expression pays from.
pub const METER: &str = "@meter";
const PAY: &str = "@pay";
const SIZED: &str = "@sized";
const TEXT: &str = "@text";

/// What several evaluations together may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    left: i64,
}

impl Budget {
    pub fn new(limit: i64) -> Budget {
        Budget { left: limit }
    }

    pub fn left(&self) -> i64 {
        self.left
    }

    pub fn is_exhausted(&self) -> bool {
        self.left < 0
    }

    /// For one evaluation: its own limit, or what is left if that is less.
    pub(crate) fn meter(&self) -> Meter {
        Meter(Arc::new(AtomicI64::new(self.left.min(PER_CALL_LIMIT))))
    }

    /// Takes off what the evaluation used.
    pub(crate) fn deduct(&mut self, meter: &Meter) {
        let given = self.left.min(PER_CALL_LIMIT);
        self.left -= given - meter.left();
    }
}

/// Runs down while an expression runs. Once below zero it stays there, whatever the expression makes of
/// the errors it gets.
#[derive(Debug, Clone)]
pub struct Meter(Arc<AtomicI64>);

impl Meter {
    pub fn pay(&self, cost: i64) -> Result<(), ExecutionError> {
        let before = self.0.fetch_sub(cost.max(0), Ordering::Relaxed);
        match before >= cost {
            true => Ok(()),
            false => {
                self.0.store(-1, Ordering::Relaxed);
                Err(ExecutionError::function_error("cost", "actual cost limit exceeded"))
            }
        }
    }

    pub fn left(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl PartialEq for Meter {
    fn eq(&self, other: &Meter) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

opaque!(Meter, "ferry.Meter");

/// The functions that rewritten expressions call; their names cannot be written in CEL.
pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    let meter = <Meter as Val>::cel_type();
    env.add_overload(PAY, "pay", vec![DYN_TYPE, meter.to_owned(), INT_TYPE], pay)?;
    env.add_overload(SIZED, "sized", vec![DYN_TYPE, meter.to_owned()], sized)?;
    env.add_overload(TEXT, "text", vec![DYN_TYPE, meter.to_owned()], text)
}

/// Declares what `name` is rewritten to: the same function with the meter as its last argument.
pub fn declare_metered(
    env: &mut Env,
    name: &str,
    arguments: usize,
    function: for<'b, 'v> fn(Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError>,
) -> Result<(), DeclarationError> {
    let mut types: Vec<_> = (0..arguments).map(|_| DYN_TYPE).collect();
    types.push(<Meter as Val>::cel_type().to_owned());
    env.add_overload(&format!("@{name}"), &format!("{name}_{arguments}_metered"), types, function)
}

pub fn meter_of<'b>(value: &'b CowVal<'_, '_>) -> Result<&'b Meter, ExecutionError> {
    value
        .as_any()
        .and_then(|any| any.downcast_ref::<Meter>())
        .ok_or_else(|| ExecutionError::function_error("cost", "no meter"))
}

/// `@pay(range, meter, body)`: the range, paid for.
fn pay<'b, 'v>(mut args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let body = args[2].downcast_ref::<CelInt>().map_or(1, |body| *body.inner());
    let size = args[0].as_sizer().map_or(1, |sizer| *sizer.size().inner());
    meter_of(&args[1])?.pay(size.saturating_mul(body))?;
    Ok(args.swap_remove(0))
}

/// `@sized(value, meter)`: the value, paid for by its size.
fn sized<'b, 'v>(mut args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let meter = meter_of(&args[1])?;
    meter.pay(values::weight(args[0].as_ref(), meter.left().max(0)))?;
    Ok(args.swap_remove(0))
}

/// `@text(value, meter)`: the value, paid for where it is text. Of a list or map only the number of elements is asked for.
fn text<'b, 'v>(mut args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    if args[0].as_iterable().is_none() {
        let meter = meter_of(&args[1])?;
        meter.pay(values::weight(args[0].as_ref(), meter.left().max(0)))?;
    }
    Ok(args.swap_remove(0))
}

/// What text of this size costs to look at.
pub fn of_text(bytes: usize) -> i64 {
    i64::try_from(bytes / 10 + 1).unwrap_or(i64::MAX)
}

/// Rewrites the expression to pay, and says what one walk through it costs. Patterns that are written out are compiled
/// here, once, and stand in the expression as variables.
pub fn meter(expression: &mut IdedExpr, patterns: &mut Patterns) -> i64 {
    let mut cost = 1;
    match &mut expression.expr {
        Expr::Call(call) => {
            if let Some(target) = &mut call.target {
                cost += meter(target, patterns);
            }
            cost += call.args.iter_mut().map(|argument| meter(argument, patterns)).sum::<i64>();
            if let Some(name) = metered(call) {
                take_meter(call, name, patterns);
            } else {
                pay_for_arguments(call);
            }
            if makes_more(call) {
                wrap(expression, SIZED, None);
            }
        }
        Expr::Comprehension(comprehension) => cost += meter_loop(comprehension, patterns),
        Expr::List(list) => {
            for element in &mut list.elements {
                cost += meter(element, patterns);
                keep(element);
            }
        }
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    cost += meter(&mut entry.key, patterns) + meter(&mut entry.value, patterns);
                    keep(&mut entry.value);
                }
            }
        }
        Expr::Struct(object) => {
            for entry in &mut object.entries {
                if let EntryExpr::StructField(field) = &mut entry.expr {
                    cost += meter(&mut field.value, patterns);
                    keep(&mut field.value);
                }
            }
        }
        Expr::Select(select) => cost += meter(&mut select.operand, patterns),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
    cost
}

fn meter_loop(comprehension: &mut ComprehensionExpr, patterns: &mut Patterns) -> i64 {
    let around = meter(&mut comprehension.accu_init, patterns)
        + meter(&mut comprehension.iter_range, patterns)
        + meter(&mut comprehension.result, patterns);
    let body = meter(&mut comprehension.loop_cond, patterns) + meter(&mut comprehension.loop_step, patterns);
    wrap(&mut comprehension.iter_range, PAY, Some(body));
    around
}

/// What is put into a list or map is copied there.
fn keep(value: &mut IdedExpr) {
    if !matches!(value.expr, Expr::Literal(_)) {
        wrap(value, SIZED, None);
    }
}

fn makes_more(call: &CallExpr) -> bool {
    match call.func_name.as_str() {
        // A loop's own accumulator pays for what is put into it.
        operators::ADD => !matches!(call.args.first().map(|left| &left.expr),
            Some(Expr::Ident(name)) if name.starts_with('@')),
        "format" | "flatten" | "split" | "@findAll" | "range" | "@entries" => true,
        _ => false,
    }
}

/// Functions that pay by themselves: where they belong (`.` for methods), their name, and how many arguments they have.
/// The work of the others is bounded by the size of their arguments.
const METERED: &[(&str, &str, &[usize])] = &[
    (".", "contains", &[1]),
    (".", "distinct", &[0]),
    (".", "find", &[1]),
    (".", "findAll", &[1, 2]),
    (".", "join", &[0, 1]),
    (".", "matches", &[1]),
    (".", "replace", &[2, 3]),
    ("", "matches", &[2]),
    ("sets", "contains", &[2]),
    ("sets", "equivalent", &[2]),
    ("sets", "intersects", &[2]),
];

/// The name that the function has with a meter.
fn metered(call: &CallExpr) -> Option<String> {
    let is = |(place, name, counts): &&(&str, &str, &[usize])| {
        let is_there = match (*place, call.target.as_deref().map(|target| &target.expr)) {
            (".", Some(_)) => true,
            ("", None) => true,
            (place, Some(Expr::Ident(name))) => name.trim_start_matches('.') == place,
            _ => false,
        };
        is_there && call.func_name == *name && counts.contains(&call.args.len())
    };
    METERED.iter().find(is).map(|(place, name, _)| match *place {
        "." | "" => format!("@{name}"),
        place => format!("@{place}.{name}"),
    })
}

fn take_meter(call: &mut CallExpr, name: String, patterns: &mut Patterns) {
    let is_namespace = name.contains('.');
    let mut args: Vec<IdedExpr> = call.target.take().into_iter().map(|target| *target).collect();
    if is_namespace {
        args.clear();
    }
    args.append(&mut call.args);
    if matches!(name.as_str(), "@matches" | "@find" | "@findAll")
        && let Some(IdedExpr { expr: Expr::Literal(LiteralValue::String(pattern)), .. }) = args.get(1)
        && let Some(variable) = patterns.add(pattern.inner())
    {
        args[1] = ident(&variable);
    }
    args.push(ident(METER));
    *call = CallExpr { func_name: name, target: None, args };
}

fn pay_for_arguments(call: &mut CallExpr) {
    let is_literal = |argument: Option<&IdedExpr>| {
        argument.is_some_and(|argument| matches!(argument.expr, Expr::Literal(_)))
    };
    let price = match call.func_name.as_str() {
        operators::EQUALS
        | operators::NOT_EQUALS
        | operators::LESS
        | operators::LESS_EQUALS
        | operators::GREATER
        | operators::GREATER_EQUALS => {
            // What is compared is as much as the smaller one has.
            if !is_literal(call.args.first()) && !is_literal(call.args.get(1)) {
                call.args.first_mut().into_iter().for_each(keep);
            }
            return;
        }
        operators::IN => return call.args.get_mut(1).into_iter().for_each(pay_for_items),
        "size" => TEXT,
        name if LINEAR.contains(&name) => SIZED,
        _ => return,
    };
    // `strings.quote(x)` is a function of that name, not a method of a variable.
    let is_namespace = matches!(call.target.as_deref(), Some(IdedExpr { expr: Expr::Ident(place), .. })
        if library::result_of(&format!("{place}.{}", call.func_name)).is_some());
    let target = call.target.as_deref_mut().filter(|_| !is_namespace).into_iter();
    for argument in target.chain(&mut call.args) {
        if !matches!(argument.expr, Expr::Literal(_)) {
            wrap(argument, price, None);
        }
    }
}

/// Functions that look at all that they are given.
const LINEAR: &[&str] = &[
    "startsWith",
    "endsWith",
    "charAt",
    "lowerAscii",
    "upperAscii",
    "trim",
    "substring",
    "split",
    "indexOf",
    "lastIndexOf",
    "reverse",
    "sort",
    "@sortByAssociatedKeys",
    "slice",
    "flatten",
    "isSorted",
    "sum",
    "min",
    "max",
    "quote",
    "format",
    "validate",
    "string",
    "bytes",
    "int",
    "uint",
    "double",
    "bool",
    "timestamp",
    "duration",
    "quantity",
    "isQuantity",
    "ip",
    "isIP",
    "cidr",
    "isCIDR",
    "containsIP",
    "containsCIDR",
    "url",
    "isURL",
    "semver",
    "isSemver",
    "escapeKey",
    "@entries",
    "@toMap",
];

/// `x in list` compares with each element; in a map it is looked up.
fn pay_for_items(list: &mut IdedExpr) {
    if !matches!(list.expr, Expr::List(_)) {
        wrap(list, PAY, Some(1));
    }
}

fn wrap(expression: &mut IdedExpr, function: &str, number: Option<i64>) {
    let inner = std::mem::take(expression);
    let id = inner.id;
    let mut args = vec![inner, ident(METER)];
    args.extend(number.map(literal));
    *expression =
        IdedExpr { id, expr: Expr::Call(CallExpr { func_name: function.into(), target: None, args }) };
}

fn ident(name: &str) -> IdedExpr {
    IdedExpr { id: 0, expr: Expr::Ident(name.into()) }
}

fn literal(number: i64) -> IdedExpr {
    IdedExpr { id: 0, expr: Expr::Literal(LiteralValue::Int(CelInt::from(number))) }
}
