//! Loops with two variables: `map.all(key, value, …)`, `list.exists(index, item, …)`, `existsOne`,
//! `transformList`, `transformMap` and `transformMapEntry`. The interpreter binds one variable a loop, so these walk a list of
//! pairs and bind both parts of the pair.

use std::collections::HashMap;

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue, operators};
use cel::common::types::{CelInt, CelList, CelMap, CelMapKey, DYN_TYPE, LIST_TYPE};
use cel::common::value::{CowVal, Val};
use cel::parser::{Macro, MacroExprHelper, ParseError};
use cel::{DeclarationError, Env, ExecutionError};

use super::{elements, wrong};

const ENTRIES: &str = "@entries";
const TO_MAP: &str = "@toMap";
const MERGED: &str = "@merged";
const ENTRY: &str = "@entry";
const RESULT: &str = "@result";

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_overload(ENTRIES, "entries", vec![DYN_TYPE], entries)?;
    env.add_overload(TO_MAP, "to_map", vec![LIST_TYPE], to_map)?;
    env.add_overload(MERGED, "merged", vec![LIST_TYPE], merged)?;
    env.add_macro(Macro::receiver("all", 3, |make, target, args| fold(make, target, args, Fold::All)))?;
    env.add_macro(Macro::receiver("exists", 3, |make, target, args| fold(make, target, args, Fold::Exists)))?;
    env.add_macro(Macro::receiver("existsOne", 3, |make, target, args| fold(make, target, args, Fold::One)))?;
    for count in [3, 4] {
        env.add_macro(Macro::receiver("transformList", count, |make, target, args| {
            transform(make, target, args, ResultType::List)
        }))?;
        env.add_macro(Macro::receiver("transformMap", count, |make, target, args| {
            transform(make, target, args, ResultType::Map)
        }))?;
        env.add_macro(Macro::receiver("transformMapEntry", count, |make, target, args| {
            transform(make, target, args, ResultType::Entries)
        }))?;
    }
    Ok(())
}

/// `[key, value]` of each entry of a map, `[index, item]` of each item of a list.
fn entries<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let pair = |key: Box<dyn Val + 'v>, value: Box<dyn Val + 'v>| -> Box<dyn Val + 'v> {
        Box::new(CelList::from(vec![key, value]))
    };
    let pairs: Vec<Box<dyn Val + 'v>> = match args[0].downcast_ref::<CelMap>() {
        Some(map) => {
            map.inner().iter().map(|(key, value)| pair(key.inner().clone_as_boxed(), value.clone())).collect()
        }
        None => elements(&args[0])?
            .into_iter()
            .enumerate()
            .map(|(index, item)| pair(Box::new(CelInt::from(index as i64)), item.clone_as_boxed()))
            .collect(),
    };
    Ok(CowVal::owned(CelList::from(pairs)))
}

fn to_map<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let mut map: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> = HashMap::new();
    for pair in elements(&args[0])? {
        let pair = CowVal::Borrowed(pair);
        let parts = elements(&pair)?;
        let [key, value] = parts.as_slice() else { return Err(wrong("transformMap", "no such overload")) };
        map.insert(key.clone_as_boxed().try_into()?, value.clone_as_boxed());
    }
    Ok(CowVal::owned(CelMap::from(map)))
}

/// The entries of all maps of a list, of which no two have the same key.
fn merged<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let mut map: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> = HashMap::new();
    for part in elements(&args[0])? {
        let part =
            part.downcast_ref::<CelMap>().ok_or_else(|| wrong("transformMapEntry", "no such overload"))?;
        for (key, value) in part.inner() {
            if map.insert(key.clone(), value.clone()).is_some() {
                return Err(wrong(
                    "transformMapEntry",
                    format!("insert failed: key {:?} already exists", key.inner()),
                ));
            }
        }
    }
    Ok(CowVal::owned(CelMap::from(map)))
}

/// The type that a transformation results in.
#[derive(Clone, Copy, PartialEq)]
enum ResultType {
    List,
    /// Under the same keys.
    Map,
    /// Of the maps that the transformation makes.
    Entries,
}

#[derive(Clone, Copy)]
enum Fold {
    All,
    Exists,
    One,
}

type Expanded = Result<Option<IdedExpr>, ParseError>;

fn fold(
    make: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
    fold: Fold,
) -> Expanded {
    let names = names(make, args)?;
    let Some(predicate) = args.pop() else { return Ok(None) };
    let Some(range) = target.take() else { return Ok(None) };
    let predicate = bound(make, &names, predicate);
    let mut accumulator = || make.next_expr(Expr::Ident(RESULT.into()));
    let (a, b, c) = (accumulator(), accumulator(), accumulator());
    let (init, condition, step, result) = match fold {
        Fold::All => {
            let condition = call(make, operators::NOT_STRICTLY_FALSE, vec![a]);
            let step = call(make, operators::LOGICAL_AND, vec![b, predicate]);
            (literal(make, true), condition, step, c)
        }
        Fold::Exists => {
            let negated = call(make, operators::LOGICAL_NOT, vec![a]);
            let condition = call(make, operators::NOT_STRICTLY_FALSE, vec![negated]);
            let step = call(make, operators::LOGICAL_OR, vec![b, predicate]);
            (literal(make, false), condition, step, c)
        }
        Fold::One => {
            let one = number(make, 1);
            let more = call(make, operators::ADD, vec![a, one]);
            let step = call(make, operators::CONDITIONAL, vec![predicate, more, b]);
            let one = number(make, 1);
            let result = call(make, operators::EQUALS, vec![c, one]);
            (number(make, 0), literal(make, true), step, result)
        }
    };
    Ok(Some(over_entries(make, range, init, condition, step, result)))
}

/// `transformList(k, v, [filter,] transform)`, and the same into a map.
fn transform(
    make: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
    made: ResultType,
) -> Expanded {
    let names = names(make, args)?;
    let Some(transform) = args.pop() else { return Ok(None) };
    let filter = args.pop();
    let Some(range) = target.take() else { return Ok(None) };
    let value = bound(make, &names, transform);
    let item = match made {
        ResultType::List | ResultType::Entries => value,
        ResultType::Map => {
            let key = part(make, 0);
            make.next_expr(Expr::List(ListExpr::new(vec![key, value])))
        }
    };
    let item = make.next_expr(Expr::List(ListExpr::new(vec![item])));
    let accumulator = make.next_expr(Expr::Ident(RESULT.into()));
    let mut step = call(make, operators::ADD, vec![accumulator, item]);
    if let Some(filter) = filter {
        let filter = bound(make, &names, filter);
        let accumulator = make.next_expr(Expr::Ident(RESULT.into()));
        step = call(make, operators::CONDITIONAL, vec![filter, step, accumulator]);
    }
    let init = make.next_expr(Expr::List(ListExpr::new(Vec::new())));
    let condition = literal(make, true);
    let result = make.next_expr(Expr::Ident(RESULT.into()));
    let looped = over_entries(make, range, init, condition, step, result);
    Ok(Some(match made {
        ResultType::List => looped,
        ResultType::Map => call(make, TO_MAP, vec![looped]),
        ResultType::Entries => call(make, MERGED, vec![looped]),
    }))
}

fn over_entries(
    make: &mut MacroExprHelper<'_>,
    range: IdedExpr,
    accu_init: IdedExpr,
    loop_cond: IdedExpr,
    loop_step: IdedExpr,
    result: IdedExpr,
) -> IdedExpr {
    let iter_range = call(make, ENTRIES, vec![range]);
    make.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range,
        iter_var: ENTRY.into(),
        iter_var2: None,
        accu_var: RESULT.into(),
        accu_init,
        loop_cond,
        loop_step,
        result,
    })))
}

/// The two variables' names, taken off the arguments.
fn names(make: &MacroExprHelper<'_>, args: &mut Vec<IdedExpr>) -> Result<[String; 2], ParseError> {
    let mut name = || {
        let argument = args.remove(0);
        match argument.expr {
            Expr::Ident(name) => Ok(name),
            _ => Err(make.new_error(argument.id, "argument must be a simple name")),
        }
    };
    Ok([name()?, name()?])
}

/// `body` with both variables bound to the parts of the pair. A loop over nothing whose accumulator is
/// the variable is how CEL binds a name.
fn bound(make: &mut MacroExprHelper<'_>, names: &[String; 2], body: IdedExpr) -> IdedExpr {
    let mut body = body;
    for (index, name) in names.iter().enumerate() {
        let (value, nothing) =
            (part(make, index as i64), make.next_expr(Expr::List(ListExpr::new(Vec::new()))));
        let (never, itself) = (literal(make, false), make.next_expr(Expr::Ident(name.clone())));
        body = make.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
            iter_range: nothing,
            iter_var: "#unused".into(),
            iter_var2: None,
            accu_var: name.clone(),
            accu_init: value,
            loop_cond: never,
            loop_step: itself,
            result: body,
        })));
    }
    body
}

fn part(make: &mut MacroExprHelper<'_>, index: i64) -> IdedExpr {
    let entry = make.next_expr(Expr::Ident(ENTRY.into()));
    let index = number(make, index);
    call(make, operators::INDEX, vec![entry, index])
}

fn call(make: &mut MacroExprHelper<'_>, function: &str, args: Vec<IdedExpr>) -> IdedExpr {
    make.next_expr(Expr::Call(CallExpr { func_name: function.into(), target: None, args }))
}

fn literal(make: &mut MacroExprHelper<'_>, bool: bool) -> IdedExpr {
    make.next_expr(Expr::Literal(LiteralValue::Boolean(bool.into())))
}

fn number(make: &mut MacroExprHelper<'_>, number: i64) -> IdedExpr {
    make.next_expr(Expr::Literal(LiteralValue::Int(number.into())))
}
