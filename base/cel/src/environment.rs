//! Which variables an expression may name, and how it becomes a program.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use cel::Env;
use cel::common::ast::{IdedExpr, SourceInfo};
use ferry_api::excerpt;

use crate::library::regex::Patterns;
use crate::nesting::{self, MAX_LEVELS, MAX_LINKS};
use crate::program::Program;
use crate::types::Type;
use crate::{check, cost, library, literals};

/// Longer expressions are refused before they are parsed, as upstream's parser does.
const MAX_CODE_POINTS: usize = 100_000;
/// Errors of the parser beyond this number are not told.
const MAX_TOLD: usize = 20;

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

    /// The same with `cel.bind`, which selectors of devices have besides.
    pub fn for_devices<'n>(variables: impl IntoIterator<Item = (&'n str, Type)>) -> Environment {
        Environment { env: libraries_for_devices(), ..Environment::new(variables) }
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
        nesting::on_parser_stack(|| self.compile_here(source, returns, examine))
    }

    fn compile_here(
        &self,
        source: &str,
        returns: &[Type],
        examine: impl FnOnce(&IdedExpr, &HashMap<u64, Type>),
    ) -> Result<Program, CompileError> {
        let (mut expression, places) = self.parse(source).map_err(|why| {
            // The faults' places quote the source.
            CompileError(format!("compilation failed: {}", excerpt::of(&why, excerpt::LONGEST_VALUE * 4)))
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
        let mut patterns = Patterns::default();
        let cost = cost::meter(&mut expression, &mut patterns);
        Ok(Program {
            env: self.env.clone(),
            levels: nesting::levels(&expression),
            expression: Arc::new(expression),
            cost,
            patterns,
            references: checked.references,
            result: checked.result,
        })
    }
}

impl Environment {
    fn parse(&self, source: &str) -> Result<(IdedExpr, SourceInfo), String> {
        let size = source.chars().count();
        if size > MAX_CODE_POINTS {
            return Err(fault(&format!(
                "expression code point size exceeds limit: size: {size}, limit {MAX_CODE_POINTS}"
            )));
        }
        let too_deep = || fault(&format!("expression recursion limit exceeded: {MAX_LINKS}"));
        if nesting::links(source) > MAX_LINKS {
            return Err(too_deep());
        }
        let parser = self.env.parser().enable_ident_escape_syntax(true);
        match parser.parse_with_source_info(source) {
            Ok((expression, _)) if nesting::levels(&expression) > MAX_LEVELS => Err(too_deep()),
            Ok(parsed) => Ok(parsed),
            Err(errors) => {
                let told = errors.errors.iter().take(MAX_TOLD);
                let told: Vec<String> =
                    told.map(|error| check::report(source, (error.pos.0, error.pos.1), &error.msg)).collect();
                Err(told.join("\n"))
            }
        }
    }
}

/// A fault of the whole expression.
fn fault(why: &str) -> String {
    format!("ERROR: <input>:-1:0: {why}")
}

/// One set of libraries for the process; they hold no state.
fn libraries() -> Arc<Env> {
    static LIBRARIES: OnceLock<Arc<Env>> = OnceLock::new();
    LIBRARIES.get_or_init(|| Arc::new(declared())).clone()
}

fn libraries_for_devices() -> Arc<Env> {
    static LIBRARIES: OnceLock<Arc<Env>> = OnceLock::new();
    LIBRARIES
        .get_or_init(|| {
            let mut env = declared();
            library::bind::declare(&mut env).expect("no other library has cel.bind");
            Arc::new(env)
        })
        .clone()
}

fn declared() -> Env {
    let mut env = Env::stdlib();
    env.set_error_on_duplicate_map_keys(true);
    library::declare(&mut env).expect("no two libraries declare the same function");
    env
}
