//! A compiled expression, and what it is evaluated over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cel::common::ast::IdedExpr;
use cel::common::types::CelBool;
use cel::common::value::Val;
use cel::{Context, Env, ExecutionError};
use ferry_api::depth::{MAX_DEPTH, TOO_DEEP};
use serde_json::Value;

use crate::access::{AccessReviews, Question};
use crate::cost::{self, Budget};
use crate::library::authorizer::{Authorizer, ResourceCheck};
use crate::library::regex::Patterns;
use crate::types::Type;
use crate::{nesting, values};

/// An expression that is well formed and may be evaluated any number of times.
#[derive(Clone)]
pub struct Program {
    pub(crate) env: Arc<Env>,
    /// Rewritten to pay for what it does.
    pub(crate) expression: Arc<IdedExpr>,
    pub(crate) levels: usize,
    /// What one walk through it costs, loops not counted.
    pub(crate) cost: i64,
    pub(crate) patterns: Patterns,
    /// The declared variables it names, `variables.x` with its second part.
    pub(crate) references: BTreeSet<String>,
    pub(crate) result: Type,
}

/// The values of an evaluation's variables. Only those that an expression names are made into CEL's.
#[derive(Default, Clone)]
pub struct Bindings<'v> {
    json: BTreeMap<String, &'v Value>,
    made: BTreeMap<String, Result<Outcome<'v>, Failure>>,
    answers: AccessReviews,
    request_resource: Option<Question>,
}

/// What an expression came to.
#[derive(Debug, Clone)]
pub struct Outcome<'v>(Box<dyn Val + 'v>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Evaluate again when these questions are answered.
    #[error("the authorizer has to be asked")]
    Asks(Vec<Question>),
    /// The expression cost more than it may.
    #[error("{}", if *.whole { "validation failed due to running out of cost budget, no further validation rules will be run" } else { "operation cancelled: actual cost limit exceeded" })]
    TooExpensive { whole: bool },
    #[error("{0}")]
    Error(String),
}

impl<'v> Bindings<'v> {
    pub fn new() -> Bindings<'v> {
        Bindings::default()
    }

    pub fn set(&mut self, name: &str, value: &'v Value) -> &mut Bindings<'v> {
        self.json.insert(name.to_string(), value);
        self
    }

    /// A variable that is an expression itself, `variables.NAME`; a failed one fails whoever names it.
    pub fn set_variable(&mut self, name: &str, outcome: Result<Outcome<'v>, Failure>) -> &mut Bindings<'v> {
        self.made.insert(format!("variables.{name}"), outcome);
        self
    }

    /// A variable that is CEL's already.
    pub fn set_value(&mut self, name: &str, value: Box<dyn Val + 'v>) -> &mut Bindings<'v> {
        self.made.insert(name.to_string(), Ok(Outcome(value)));
        self
    }

    /// What the authorizer said so far, and what `authorizer.requestResource` stands for.
    pub fn set_authorizer(
        &mut self,
        answers: AccessReviews,
        request_resource: Question,
    ) -> &mut Bindings<'v> {
        self.answers = answers;
        self.request_resource = Some(request_resource);
        self
    }
}

impl Program {
    /// The declared variables that the expression names.
    pub fn references(&self) -> &BTreeSet<String> {
        &self.references
    }

    /// The type that the expression was found to have.
    pub fn result(&self) -> &Type {
        &self.result
    }

    pub fn evaluate<'v>(&self, bindings: &Bindings<'v>, budget: &mut Budget) -> Result<Outcome<'v>, Failure> {
        let meter = budget.meter();
        let outcome = nesting::on_stack_for(self.levels, || self.run(bindings, &meter));
        budget.deduct(&meter);
        if budget.is_exhausted() {
            return Err(Failure::TooExpensive { whole: true });
        }
        if meter.left() < 0 {
            return Err(Failure::TooExpensive { whole: false });
        }
        if outcome.is_err() {
            let open = bindings.answers.open();
            if !open.is_empty() {
                return Err(Failure::Asks(open));
            }
        }
        outcome
    }

    fn run<'v>(&self, bindings: &Bindings<'v>, meter: &cost::Meter) -> Result<Outcome<'v>, Failure> {
        meter.pay(self.cost).map_err(failure)?;
        let mut context: Context<'_, 'v> = Context::with_env(self.env.clone());
        context.add_variable_as_val(cost::METER, Box::new(meter.clone()));
        for (name, pattern) in self.patterns.variables() {
            context.add_variable_as_val(&name, Box::new(pattern));
        }
        for name in &self.references {
            if let Some(value) = bindings.json.get(name.as_str()) {
                context.add_variable_as_val(name, values::from_json(value));
            } else if let Some(made) = bindings.made.get(name.as_str()) {
                match made {
                    Ok(outcome) => context.add_variable_as_val(name, outcome.0.clone()),
                    Err(Failure::Error(why)) => {
                        let variable = name.strip_prefix("variables.").unwrap_or(name);
                        return Err(Failure::Error(format!(
                            "composited variable {variable:?} fails to evaluate: {why}"
                        )));
                    }
                    Err(other) => return Err(other.clone()),
                }
            }
        }
        if let Some(request_resource) = &bindings.request_resource {
            let authorizer = Authorizer { answers: bindings.answers.clone(), service_account: None };
            let check =
                ResourceCheck { answers: bindings.answers.clone(), question: request_resource.clone() };
            context.add_variable_as_val("authorizer", Box::new(authorizer));
            context.add_variable_as_val("authorizer.requestResource", Box::new(check));
        }
        let value = cel::Value::resolve_val(&self.expression, &context).map_err(failure)?;
        let value = value.into_owned();
        // It may become a variable of others, and nest deeper with each.
        if !values::is_within(value.as_ref(), MAX_DEPTH) {
            return Err(Failure::Error(TOO_DEEP.to_string()));
        }
        Ok(Outcome(value))
    }
}

impl Outcome<'_> {
    pub fn as_bool(&self) -> Option<bool> {
        self.0.downcast_ref::<CelBool>().map(|bool| *bool.inner())
    }

    pub fn as_text(&self) -> Option<&str> {
        self.0.downcast_ref::<cel::common::types::CelString>().map(|text| text.inner())
    }

    /// As JSON; `None` for values that only the libraries know.
    pub fn to_json(&self) -> Option<Value> {
        values::to_json(self.0.as_ref())
    }

    pub fn type_name(&self) -> &str {
        self.0.get_type().name()
    }
}

/// The crate's errors in the words that clients know from upstream's interpreter.
fn failure(error: ExecutionError) -> Failure {
    Failure::Error(match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload(_)
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::ValuesNotComparable(..)
        | ExecutionError::UnexpectedType { .. } => "no such overload".to_string(),
        ExecutionError::UndeclaredReference(name) => format!("no such attribute(s): {name}"),
        ExecutionError::IndexOutOfBounds(index) => match index {
            cel::Value::Int(index) => format!("index out of bounds: {index}"),
            other => format!("index out of bounds: {other:?}"),
        },
        ExecutionError::DivisionByZero(_) => "division by zero".to_string(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_string(),
        ExecutionError::Overflow(..) => "integer overflow".to_string(),
        ExecutionError::FunctionError { message, .. } => message,
        other => other.to_string(),
    })
}
