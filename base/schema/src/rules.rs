//! The compiled `x-kubernetes-validations` of a schema, and how they judge an object.
//!
//! A rule stands at a node and sees the value there as `self`, and the one before as `oldSelf`. One budget
//! holds for all rules of a request; what runs out of it ends the judging.

mod estimate;
mod value;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cel::common::value::Val;
use ferry_api::FieldErrors;
use ferry_api::field_error::Reason;
use ferry_cel::{Bindings, Budget, Environment, Failure, Program, Type};
use serde_json::{Map, Value};

use crate::Structural;
use crate::decl::{Decl, Decls, MAX_REQUEST_SIZE};
use crate::field_path;
use crate::path::Path;
use crate::structural::{EMBEDDED, Kind, Node, Ref, Rule};
use crate::validate::correlate::Elements;

/// What the rules of one request may cost together: about a second.
const BUDGET: i64 = 10_000_000;
/// Longer messages of `messageExpression` are not told.
const LONGEST_MESSAGE: usize = 5 << 10;

/// The rules of a schema, ready to run.
#[derive(Default)]
pub struct Rules {
    /// The schema that the rules stand in: nodes are told by their addresses, so it has to live.
    root: Option<Ref>,
    /// By the node that they stand at.
    at: HashMap<usize, Vec<Compiled>>,
    /// Nodes that have rules, or have them below.
    leads: HashSet<usize>,
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rules").field("nodes", &self.at.len()).finish()
    }
}

/// A rule that compiles.
pub(crate) struct Compiled {
    rule: Rule,
    program: Program,
    message: Option<Program>,
    pub uses_old_self: bool,
    /// Where errors are told, below the node.
    field_path: Option<String>,
    /// What it can cost at most, once.
    pub cost: u64,
    pub message_cost: u64,
}

/// Why a rule is none.
#[derive(Debug)]
pub(crate) enum Fault {
    Rule(String),
    Message(String, Box<FaultyMessage>),
}

/// What is known of a rule whose message does not compile.
#[derive(Debug)]
pub(crate) struct FaultyMessage {
    pub cost: u64,
    pub uses_old_self: bool,
}

impl Rules {
    /// Compiles what stands in the schema. Definitions are checked before they are stored, so errors are those of
    /// definitions of another version of the language.
    pub fn compile(schema: &Structural) -> Result<Rules, String> {
        let mut rules = Rules::default();
        let mut decls = Decls::default();
        rules.add(&schema.root, true, &mut decls, &mut HashSet::new())?;
        if !rules.at.is_empty() {
            rules.root = Some(schema.root.clone());
        }
        Ok(rules)
    }

    pub fn none() -> Rules {
        Rules::default()
    }

    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Whether there are rules at the node or below it.
    fn add(
        &mut self,
        node: &Ref,
        resource: bool,
        decls: &mut Decls,
        seen: &mut HashSet<usize>,
    ) -> Result<bool, String> {
        if !seen.insert(node.address()) {
            return Ok(self.leads.contains(&node.address()));
        }
        let mut leads = false;
        if !node.rules().is_empty() {
            let decl =
                decls.of(node, resource).ok_or("rules stand at a value that no expression can name")?;
            let mut compiled = Vec::with_capacity(node.rules().len());
            for rule in node.rules() {
                match compile(rule, node, &decl) {
                    Ok(rule) => compiled.push(rule),
                    Err(Fault::Rule(why) | Fault::Message(why, _)) => {
                        return Err(format!("{}: {why}", rule.rule));
                    }
                }
            }
            self.at.insert(node.address(), compiled);
            leads = true;
        }
        for inner in node.properties.iter().map(|(_, property)| property).chain(&node.inner) {
            leads |= self.add(inner, inner.is(EMBEDDED), decls, seen)?;
        }
        if leads {
            self.leads.insert(node.address());
        }
        Ok(leads)
    }

    /// What rules find wrong in parts that did not change is no error; it is handed back.
    pub(crate) fn judge(
        &self,
        new: &Map<String, Value>,
        old: Option<&Map<String, Value>>,
        errors: &mut FieldErrors,
    ) -> FieldErrors {
        let Some(root) = &self.root else { return FieldErrors::default() };
        let kept = FieldErrors::default();
        let mut walk = Walk { rules: self, path: Path::root(), budget: Budget::new(BUDGET), errors, kept };
        let pair = old.map(|old| Pair::Objects(new, old));
        walk.object(new, old, root, true, Unchanged { here: pair, around: None });
        walk.kept
    }

    /// Judges a value of a node alone, as [`crate::check`] does a default: as one that was there before, and as a new
    /// one.
    pub(crate) fn judge_value(&self, value: &Value, node: &Ref, path: &str, errors: &mut FieldErrors) {
        let before = errors.0.len();
        for old in [Some(value), None] {
            if errors.0.len() == before {
                let kept = FieldErrors::default();
                let mut walk =
                    Walk { rules: self, path: Path::at(path), budget: Budget::new(BUDGET), errors, kept };
                let _ = walk.inside(value, old, node, node.is(EMBEDDED), Unchanged::default());
            }
        }
    }
}

/// Compiles one rule for the values of a node, and estimates its cost.
pub(crate) fn compile(rule: &Rule, node: &Ref, decl: &Arc<Decl>) -> Result<Compiled, Fault> {
    let old = match rule.optional_old_self {
        Some(true) => Type::optional(decl.ty.clone()),
        _ => decl.ty.clone(),
    };
    let environment = Environment::new([("self", decl.ty.clone()), ("oldSelf", old)]);
    let mut cost = 0;
    let program = environment
        .compile_examined(&rule.rule, &[Type::Bool], |expression, types| {
            cost = estimate::highest(expression, types, decl);
        })
        .map_err(|error| Fault::Rule(told(&error.0, "cel expression must evaluate to a bool")))?;
    let uses_old_self = program.references().contains("oldSelf");
    let mut message_cost = 0;
    let message = match &rule.message_expression {
        None => None,
        Some(expression) => {
            let compiled = environment.compile_examined(expression, &[Type::String], |expression, types| {
                message_cost = estimate::highest(expression, types, decl);
            });
            Some(compiled.map_err(|error| {
                let why = match told(&error.0, "messageExpression must evaluate to a string") {
                    why if why.starts_with("compilation failed") => format!("messageExpression {why}"),
                    why => why,
                };
                Fault::Message(why, Box::new(FaultyMessage { cost, uses_old_self }))
            })?)
        }
    };
    let field_path = rule.field_path.as_ref().and_then(|path| field_path::resolve(path, node, true).ok());
    Ok(Compiled {
        rule: rule.clone(),
        program,
        message,
        uses_old_self,
        field_path: field_path.map(|(path, _)| path),
        cost,
        message_cost,
    })
}

fn told(error: &str, wrong_type: &str) -> String {
    if error.starts_with("must evaluate to") { wrong_type.to_string() } else { error.to_string() }
}

/// How often a value of this node can stand in one request.
pub(crate) fn cardinality(decl: &Decl) -> u64 {
    u64::try_from(MAX_REQUEST_SIZE / (decl.min_size + 1)).unwrap_or(u64::MAX)
}

/// A value and the one before it.
#[derive(Clone, Copy)]
enum Pair<'v> {
    Values(&'v Value, &'v Value),
    Objects(&'v Map<String, Value>, &'v Map<String, Value>),
}

impl<'v> Pair<'v> {
    fn is_same(self) -> bool {
        match self {
            Pair::Values(new, old) => new == old,
            Pair::Objects(new, old) => new == old,
        }
    }

    fn key(self, name: &str, node: &Node) -> Option<Pair<'v>> {
        let (new, old) = match self {
            Pair::Values(new, old) => (new.as_object()?, old.as_object()?),
            Pair::Objects(new, old) => (new, old),
        };
        node.field(name)?;
        Some(Pair::Values(new.get(name)?, old.get(name)?))
    }
}

/// What an update left as it was keeps the errors of rules out, unless they are about the change itself.
#[derive(Clone, Copy, Default)]
struct Unchanged<'v> {
    here: Option<Pair<'v>>,
    /// The nearest around it that has a value before.
    around: Option<Pair<'v>>,
}

impl<'v> Unchanged<'v> {
    fn holds(self) -> bool {
        self.here.or(self.around).is_some_and(Pair::is_same)
    }

    fn key(self, name: &str, node: &Node) -> Unchanged<'v> {
        match self.here {
            None => self,
            Some(_) if self.around.is_none() && (name == "apiVersion" || name == "kind") => {
                Unchanged::default()
            }
            Some(here) => Unchanged { here: here.key(name, node), around: Some(here) },
        }
    }

    fn element(self, new: &'v Value, old: Option<&'v Value>) -> Unchanged<'v> {
        match self.here {
            None => self,
            Some(here) => Unchanged { here: old.map(|old| Pair::Values(new, old)), around: Some(here) },
        }
    }
}

/// Ends the judging.
struct Exhausted;

struct Walk<'r, 'e> {
    rules: &'r Rules,
    path: Path,
    budget: Budget,
    errors: &'e mut FieldErrors,
    /// What is wrong where nothing changed.
    kept: FieldErrors,
}

impl Walk<'_, '_> {
    fn object(
        &mut self,
        new: &Map<String, Value>,
        old: Option<&Map<String, Value>>,
        node: &Ref,
        resource: bool,
        unchanged: Unchanged<'_>,
    ) {
        let value = || value::object(new, node, resource);
        let before = || old.map(|old| value::object(old, node, resource));
        if self.at(node, value, before, None, unchanged).is_ok() {
            let _ = self.fields(new, old, node, unchanged);
        }
    }

    fn inside(
        &mut self,
        new: &Value,
        old: Option<&Value>,
        node: &Ref,
        resource: bool,
        unchanged: Unchanged<'_>,
    ) -> Result<(), Exhausted> {
        if new.is_null() || !self.rules.leads.contains(&node.address()) {
            return Ok(());
        }
        let old = old.filter(|old| !old.is_null());
        let value = || value::typed(new, node, resource);
        let before = || old.map(|old| value::typed(old, node, resource));
        self.at(node, value, before, Some(new), unchanged)?;
        match new {
            Value::Object(fields) => self.fields(fields, old.and_then(Value::as_object), node, unchanged),
            Value::Array(items) => {
                let Some(inner) = node.items() else { return Ok(()) };
                let elements = Elements::of(old, node);
                for (index, item) in items.iter().enumerate() {
                    let before = elements.get(item, node);
                    let length = self.path.index(index);
                    self.inside(item, before, inner, inner.is(EMBEDDED), unchanged.element(item, before))?;
                    self.path.truncate(length);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn fields(
        &mut self,
        new: &Map<String, Value>,
        old: Option<&Map<String, Value>>,
        node: &Ref,
        unchanged: Unchanged<'_>,
    ) -> Result<(), Exhausted> {
        for (name, value) in new {
            let property = node.property(name);
            let Some(inner) = property.or_else(|| node.values()) else { continue };
            let before = old.and_then(|old| old.get(name));
            let length = if property.is_some() { self.path.child(name) } else { self.path.key(name) };
            self.inside(value, before, inner, inner.is(EMBEDDED), unchanged.key(name, node))?;
            self.path.truncate(length);
        }
        Ok(())
    }

    /// Runs the rules that stand at a node. Values are made once for all of them.
    fn at<'v>(
        &mut self,
        node: &Ref,
        value: impl FnOnce() -> Box<dyn Val + 'v>,
        before: impl FnOnce() -> Option<Box<dyn Val + 'v>>,
        shown: Option<&Value>,
        unchanged: Unchanged<'_>,
    ) -> Result<(), Exhausted> {
        let Some(compiled) = self.rules.at.get(&node.address()) else { return Ok(()) };
        let before = if compiled.iter().any(|rule| rule.uses_old_self) { before() } else { None };
        let mut bindings = Bindings::new();
        bindings.set_value("self", value());
        let mut optional = bindings.clone();
        if let Some(before) = &before {
            bindings.set_value("oldSelf", before.clone());
        }
        optional.set_value("oldSelf", value::optional(before.clone()));
        for rule in compiled {
            let is_optional = rule.rule.optional_old_self == Some(true);
            if rule.uses_old_self && before.is_none() && !is_optional {
                continue;
            }
            let bindings = if is_optional { &optional } else { &bindings };
            self.run(rule, bindings, node, shown, unchanged)?;
        }
        Ok(())
    }

    fn run(
        &mut self,
        rule: &Compiled,
        bindings: &Bindings<'_>,
        node: &Ref,
        shown: Option<&Value>,
        unchanged: Unchanged<'_>,
    ) -> Result<(), Exhausted> {
        match rule.program.evaluate(bindings, &mut self.budget) {
            Ok(outcome) if outcome.as_bool() == Some(true) => return Ok(()),
            Ok(_) => {}
            Err(failure) => return self.failed(rule, failure, node),
        }
        let path = match &rule.field_path {
            Some(below) if self.path.as_str().is_empty() => below.clone(),
            Some(below) => format!("{}.{below}", self.path.as_str()),
            None => self.path.told(),
        };
        let silent = !rule.uses_old_self && unchanged.holds();
        let message = match self.message(rule, bindings) {
            Ok(message) => message,
            Err(why) => {
                if !silent {
                    self.errors.invalid(path, node.kind.name(), &why);
                }
                return Err(Exhausted);
            }
        };
        let detail = match (message, &rule.rule.message) {
            (Some(message), _) => message,
            (None, Some(message)) => message.trim().to_string(),
            (None, None) => format!("failed rule: {}", rule.rule.rule.trim()),
        };
        let shown = shown.filter(|_| !matches!(node.kind, Kind::Object | Kind::Array));
        let errors = if silent { &mut self.kept } else { &mut *self.errors };
        match (rule.rule.reason.as_deref(), shown) {
            (Some("FieldValueForbidden"), _) => errors.forbidden(path, &detail),
            (Some("FieldValueRequired"), _) => errors.required(path, &detail),
            (Some("FieldValueDuplicate"), Some(value)) => errors.duplicate(path, value.clone()),
            (Some("FieldValueDuplicate"), None) => errors.push(path, Reason::Duplicate, String::new()),
            (_, Some(value)) => errors.invalid(path, value.clone(), &detail),
            (_, None) => errors.push(path, Reason::Invalid, detail),
        }
        Ok(())
    }

    /// A rule that could not be evaluated to its end.
    fn failed(&mut self, rule: &Compiled, failure: Failure, node: &Ref) -> Result<(), Exhausted> {
        let name = rule.rule.message.as_ref().unwrap_or(&rule.rule.rule).trim();
        let text = failure.to_string();
        let why = match &failure {
            Failure::TooExpensive { whole: true } => text,
            Failure::TooExpensive { whole: false } => format!(
                "'{text}': no further validation rules will be run due to call cost exceeds limit for rule: {name}"
            ),
            _ if text.starts_with("no such overload") => format!(
                "'{text}': call arguments did not match a supported operator, function or macro signature for rule: {name}"
            ),
            _ => format!("{text} evaluating rule: {name}"),
        };
        self.errors.invalid(self.path.told(), node.kind.name(), &why);
        match failure {
            Failure::TooExpensive { .. } => Err(Exhausted),
            _ => Ok(()),
        }
    }

    /// What the rule's `messageExpression` says, where it says something usable; an error where it costs too much.
    fn message(&mut self, rule: &Compiled, bindings: &Bindings<'_>) -> Result<Option<String>, String> {
        let Some(message) = &rule.message else { return Ok(None) };
        match message.evaluate(bindings, &mut self.budget) {
            Ok(outcome) => Ok(outcome.as_text().map(str::trim).and_then(usable).map(str::to_string)),
            Err(Failure::TooExpensive { whole: true }) => Err(
                "messageExpression evaluation failed due to running out of cost budget, no further validation rules \
                 will be run"
                    .to_string(),
            ),
            Err(Failure::TooExpensive { whole: false }) => {
                let source = rule.rule.message_expression.as_deref().unwrap_or_default();
                Err(format!(
                    "no further validation rules will be run due to call cost exceeds limit for messageExpression: {source:?}"
                ))
            }
            Err(_) => Ok(None),
        }
    }
}

/// Messages are one line, and not too long.
fn usable(message: &str) -> Option<&str> {
    (!message.is_empty() && message.len() <= LONGEST_MESSAGE && !message.contains('\n')).then_some(message)
}

#[cfg(test)]
mod tests;
