//! Which variables an expression may name, and how it becomes a program.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use cel::Env;
use cel::common::ast::IdedExpr;

use crate::program::Program;
use crate::types::Type;
use crate::{check, cost, library, literals};

/// Longer expressions are refused before they are parsed.
const LONGEST: usize = 1 << 20;

/// The variables of one sort of expression, over all of Kubernetes' libraries.
#[derive(Clone)]
pub struct Environment {
    env: Arc<Env>,
    variables: BTreeMap<String, Type>,
    object_literals: bool,
}

/// Why an expression is no program, in the words of the compiler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CompileError(pub String);

impl Environment {
    pub fn new<'n>(variables: impl IntoIterator<Item = (&'n str, Type)>) -> Environment {
        let variables = variables.into_iter().map(|(name, kind)| (name.to_string(), kind)).collect();
        Environment { env: libraries(), variables, object_literals: false }
    }

    /// Expressions may write out objects and patches of them ([`crate::literals`]).
    pub fn with_object_literals(mut self) -> Environment {
        self.object_literals = true;
        self
    }

    /// The same with one more variable; `variables.x` is a name like any other.
    pub fn with(mut self, name: &str, kind: Type) -> Environment {
        self.variables.insert(name.to_string(), kind);
        self
    }

    /// Compiles an expression that must come to one of `returns`; any value will do where that is empty.
    pub fn compile(&self, source: &str, returns: &[Type]) -> Result<Program, CompileError> {
        self.compile_examined(source, returns, |_, _| ())
    }

    /// The same; `examine` sees the expression as it was written, with the type of each part by its id.
    pub fn compile_examined(
        &self,
        source: &str,
        returns: &[Type],
        examine: impl FnOnce(&IdedExpr, &HashMap<u64, Type>),
    ) -> Result<Program, CompileError> {
        if source.len() > LONGEST {
            return Err(CompileError(format!(
                "expression size {} exceeds the limit {LONGEST}",
                source.len()
            )));
        }
        let parser = self.env.parser().enable_ident_escape_syntax(true);
        let (mut expression, places) = parser.parse_with_source_info(source).map_err(|errors| {
            let told = errors.errors.iter();
            let told: Vec<String> =
                told.map(|error| check::report(source, (error.pos.0, error.pos.1), &error.msg)).collect();
            CompileError(format!("compilation failed: {}", told.join("\n")))
        })?;
        let names = check::Names { variables: &self.variables, object_literals: self.object_literals };
        let checked = check::check(&expression, names, source, &places)
            .map_err(|faults| CompileError(format!("compilation failed: {}", faults.join("\n"))))?;
        if !returns.is_empty() && !returns.iter().any(|wanted| wanted.agrees_with(&checked.result)) {
            let wanted: Vec<String> = returns.iter().map(ToString::to_string).collect();
            return Err(CompileError(match wanted.as_slice() {
                [one] => format!("must evaluate to {one} but got {}", checked.result),
                many => format!("must evaluate to one of [{}] but got {}", many.join(" "), checked.result),
            }));
        }
        examine(&expression, &checked.types);
        literals::as_maps(&mut expression);
        let cost = cost::meter(&mut expression);
        Ok(Program {
            env: self.env.clone(),
            expression: Arc::new(expression),
            cost,
            references: checked.references,
            result: checked.result,
        })
    }
}

/// One set of libraries for the process; they hold no state.
fn libraries() -> Arc<Env> {
    static LIBRARIES: OnceLock<Arc<Env>> = OnceLock::new();
    LIBRARIES
        .get_or_init(|| {
            let mut env = Env::stdlib();
            env.set_error_on_duplicate_map_keys(true);
            library::declare(&mut env).expect("no two libraries declare the same function");
            Arc::new(env)
        })
        .clone()
}
