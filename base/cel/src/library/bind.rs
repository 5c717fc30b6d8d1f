//! `cel.bind(name, value, expression)`: a name for a value inside one expression. Kubernetes has it for selectors of
//! devices alone.

use cel::common::ast::{ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue};
use cel::parser::{Macro, MacroExprHelper, ParseError};
use cel::{DeclarationError, Env};

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_macro(Macro::receiver("bind", 3, expand))
}

/// A loop over nothing whose accumulator is the variable is how CEL binds a name.
fn expand(
    make: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
) -> Result<Option<IdedExpr>, ParseError> {
    let is_cel =
        target.as_ref().is_some_and(|target| matches!(&target.expr, Expr::Ident(name) if name == "cel"));
    if !is_cel {
        return Ok(None);
    }
    let (Some(result), Some(accu_init), Some(name)) = (args.pop(), args.pop(), args.pop()) else {
        return Ok(None);
    };
    let Expr::Ident(accu_var) = name.expr else {
        return Err(make.new_error(name.id, "cel.bind() variable names must be simple identifiers"));
    };
    target.take();
    let iter_range = make.next_expr(Expr::List(ListExpr::new(Vec::new())));
    let loop_cond = make.next_expr(Expr::Literal(LiteralValue::Boolean(false.into())));
    let loop_step = make.next_expr(Expr::Ident(accu_var.clone()));
    let (iter_var, iter_var2) = ("#unused".into(), None);
    Ok(Some(make.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range,
        iter_var,
        iter_var2,
        accu_var,
        accu_init,
        loop_cond,
        loop_step,
        result,
    })))))
}
