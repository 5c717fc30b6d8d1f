//! The expressions of one policy over one request.

use ferry_cel::{Bindings, Budget, Failure, Outcome};

use super::policies::{Expression, Policy};
use crate::chain::Request;
use crate::expressions::Context;

/// Each variable is evaluated once, when first needed.
pub struct Evaluation<'a, 'v> {
    policy: &'a Policy,
    context: &'a Context<'a>,
    request: &'a Request<'a>,
    bindings: Bindings<'v>,
    done: Vec<&'a str>,
}

impl<'a, 'v> Evaluation<'a, 'v> {
    pub fn new(
        policy: &'a Policy,
        context: &'a Context<'a>,
        request: &'a Request<'a>,
        bindings: Bindings<'v>,
    ) -> Evaluation<'a, 'v> {
        Evaluation { policy, context, request, bindings, done: Vec::new() }
    }

    pub async fn run(&mut self, expression: &Expression, budget: &mut Budget) -> Result<Outcome<'v>, String> {
        let said =
            |why: String| format!("expression '{}' resulted in error: {why}", expression.source.trim());
        let program = expression.program.as_ref().map_err(Clone::clone)?;
        for variable in self.policy.needed(program) {
            if self.done.contains(&variable.name.as_str()) {
                continue;
            }
            let outcome = match &variable.expression.program {
                Ok(program) => {
                    self.context.evaluate(program, &self.bindings, budget, self.request.call.user).await
                }
                Err(why) => Err(Failure::Error(why.clone())),
            };
            self.bindings.set_variable(&variable.name, outcome);
            self.done.push(&variable.name);
        }
        let outcome = self.context.evaluate(program, &self.bindings, budget, self.request.call.user).await;
        outcome.map_err(|failure| said(failure.to_string()))
    }
}
