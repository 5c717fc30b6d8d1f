//! What an expression may cost. The interpreter knows no limits, so the compiled expression is rewritten
//! to pay as it goes: a loop pays for its body times the size of what it walks before it starts, and
//! whatever makes larger values out of smaller ones pays for their size.
//!
//! Costs are near upstream's (one unit a step, a tenth a byte of text), not equal to them: a loop that
//! ends early has paid for all of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::common::types::{CelInt, CelString, DYN_TYPE, INT_TYPE, STRING_TYPE};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use crate::library::opaque;
use crate::values;

/// What one evaluation of one expression may cost: about a tenth of a second.
pub const PER_CALL_LIMIT: i64 = 1_000_000;

/// The variable that the rewritten expression pays from.
pub const METER: &str = "@meter";
const PAY: &str = "@pay";
const SIZED: &str = "@sized";
const REPLACE: &str = "@replace";

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
    pub(crate) fn settle(&mut self, meter: &Meter) {
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
    let replaced = vec![STRING_TYPE, STRING_TYPE, STRING_TYPE, INT_TYPE, meter.to_owned()];
    env.add_overload(REPLACE, "replace", replaced, replace)
}

fn meter_of<'b>(value: &'b CowVal<'_, '_>) -> Result<&'b Meter, ExecutionError> {
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

/// `text.replace(old, new, times)`, paid for before it is made: it is the one function that makes much
/// out of little.
fn replace<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let text = |at: usize| args[at].downcast_ref::<CelString>().map_or("", |text| text.inner());
    let (target, old, new) = (text(0), text(1), text(2));
    let times = args[3].downcast_ref::<CelInt>().map_or(-1, |times| *times.inner());
    let most = if times < 0 { usize::MAX } else { times as usize };
    let found = target.matches(old).take(most).count();
    let size = target.len().saturating_add(found.saturating_mul(new.len()));
    meter_of(&args[4])?.pay(i64::try_from(size / 10 + 1).unwrap_or(i64::MAX))?;
    Ok(CowVal::owned(CelString::from(target.replacen(old, new, most))))
}

/// Rewrites the expression to pay, and says what one walk through it costs.
pub fn meter(expression: &mut IdedExpr) -> i64 {
    let mut cost = 1;
    match &mut expression.expr {
        Expr::Call(call) => {
            if let Some(target) = &mut call.target {
                cost += meter(target);
            }
            cost += call.args.iter_mut().map(meter).sum::<i64>();
            if call.func_name == "replace" && call.target.is_some() && call.args.len() < 4 {
                pay_for_replace(call);
            } else if makes_more(call) {
                wrap(expression, SIZED, None);
            }
        }
        Expr::Comprehension(comprehension) => cost += meter_loop(comprehension),
        Expr::List(list) => {
            for element in &mut list.elements {
                cost += meter(element);
                keep(element);
            }
        }
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    cost += meter(&mut entry.key) + meter(&mut entry.value);
                    keep(&mut entry.value);
                }
            }
        }
        Expr::Struct(object) => {
            for entry in &mut object.entries {
                if let EntryExpr::StructField(field) = &mut entry.expr {
                    cost += meter(&mut field.value);
                    keep(&mut field.value);
                }
            }
        }
        Expr::Select(select) => cost += meter(&mut select.operand),
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
    cost
}

fn meter_loop(comprehension: &mut ComprehensionExpr) -> i64 {
    let around = meter(&mut comprehension.accu_init)
        + meter(&mut comprehension.iter_range)
        + meter(&mut comprehension.result);
    let body = meter(&mut comprehension.loop_cond) + meter(&mut comprehension.loop_step);
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
        "join" | "format" | "flatten" | "split" | "findAll" | "range" | "@entries" => true,
        _ => false,
    }
}

fn pay_for_replace(call: &mut CallExpr) {
    let Some(target) = call.target.take() else { return };
    let mut args = vec![*target];
    args.append(&mut call.args);
    if args.len() == 3 {
        args.push(literal(-1));
    }
    args.push(ident(METER));
    *call = CallExpr { func_name: REPLACE.into(), target: None, args };
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
