//! Arguments that are written out and can only be wrong: an expression with one is refused before it ever runs.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue};
use regex::RegexBuilder;

/// Patterns that take more memory than this are no patterns.
const LARGEST_PATTERN: usize = 1 << 20;

/// The argument of `duration`, `timestamp` or `matches` that the function will not take.
pub fn wrong_literal(call: &CallExpr) -> Option<&IdedExpr> {
    let argument = call.args.last()?;
    let Expr::Literal(LiteralValue::String(text)) = &argument.expr else { return None };
    let text = text.inner();
    let fits = match (call.func_name.as_str(), call.args.len()) {
        ("duration", 1) if call.target.is_none() => ferry_api::duration::parse(text).is_some(),
        ("timestamp", 1) if call.target.is_none() => text.parse::<jiff::Timestamp>().is_ok(),
        ("matches", 1 | 2) => RegexBuilder::new(text).size_limit(LARGEST_PATTERN).build().is_ok(),
        _ => true,
    };
    (!fits).then_some(argument)
}
