//! Finds what is wrong with an expression before it ever runs: names that nobody declared, fields that
//! do not exist, operators between types that have none. Types are inferred as far as they are known;
//! what could be anything is left to the evaluation.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, SourceInfo, StructExpr,
    operators,
};

use ferry_api::excerpt;

use crate::types::Type;
use crate::{arguments, library, literals, overloads};

pub struct Checked {
    pub result: Type,
    /// The declared variables that are named.
    pub references: BTreeSet<String>,
    /// The type of each part of the expression, by its id.
    pub types: HashMap<u64, Type>,
}

/// What an expression may name.
pub struct Names<'a> {
    pub variables: &'a BTreeMap<String, Type>,
    pub object_literals: bool,
}

pub fn check(
    expression: &IdedExpr,
    names: Names<'_>,
    source: &str,
    places: &SourceInfo,
) -> Result<Checked, Vec<String>> {
    let mut checker = Checker {
        variables: names.variables,
        object_literals: names.object_literals,
        scopes: Vec::new(),
        references: BTreeSet::new(),
        types: HashMap::new(),
        faults: Vec::new(),
        source,
        places,
    };
    let result = checker.type_of(expression);
    match checker.faults.is_empty() {
        true => Ok(Checked { result, references: checker.references, types: checker.types }),
        false => Err(checker.faults),
    }
}

/// Of the line that a fault is in; a longer one is not shown.
const LONGEST_LINE: usize = 1024;
/// Faults beyond this number are not told.
const MAX_FAULTS: usize = 20;

/// A fault with its place, as compilers show it.
pub fn report(source: &str, (line, column): (isize, isize), message: &str) -> String {
    let shown = source.lines().nth(usize::try_from(line - 1).unwrap_or(0)).unwrap_or("");
    let message = format!("ERROR: <input>:{line}:{column}: {}", excerpt::of(message, LONGEST_LINE));
    if shown.len() > LONGEST_LINE {
        return message;
    }
    let dots = ".".repeat(usize::try_from(column - 1).unwrap_or(0).min(LONGEST_LINE));
    format!("{message}\n | {shown}\n | {dots}^")
}

struct Checker<'a> {
    variables: &'a BTreeMap<String, Type>,
    object_literals: bool,
    /// Variables of the loops around, innermost last.
    scopes: Vec<(String, Type)>,
    references: BTreeSet<String>,
    types: HashMap<u64, Type>,
    faults: Vec<String>,
    source: &'a str,
    places: &'a SourceInfo,
}

impl Checker<'_> {
    fn fault(&mut self, at: &IdedExpr, message: impl AsRef<str>) -> Type {
        if self.faults.len() >= MAX_FAULTS {
            return Type::Dyn;
        }
        let start = self.places.offset_for(at.id).map_or(0, |(start, _)| start as usize);
        let before = &self.source[..floor(self.source, start)];
        let line = before.matches('\n').count() as isize + 1;
        let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) as isize + 1;
        let report = report(self.source, (line, column), message.as_ref());
        if !self.faults.contains(&report) {
            self.faults.push(report);
        }
        Type::Dyn
    }

    fn type_of(&mut self, expression: &IdedExpr) -> Type {
        let found = self.infer(expression);
        self.types.insert(expression.id, found.clone());
        found
    }

    fn infer(&mut self, expression: &IdedExpr) -> Type {
        match &expression.expr {
            Expr::Literal(literal) => type_of_literal(literal),
            Expr::Ident(name) => self.named(expression, name),
            Expr::Select(select) => self.selected(expression, select),
            Expr::Call(call) => self.called(expression, call),
            Expr::List(list) => {
                let types: Vec<Type> = list.elements.iter().map(|element| self.type_of(element)).collect();
                if list.optional_indices.is_empty() {
                    self.require_one_type(list.elements.iter().zip(&types));
                }
                Type::list(common(types))
            }
            Expr::Map(map) => {
                let mut types = Vec::new();
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.type_of(&entry.key);
                        types.push(self.type_of(&entry.value));
                    }
                }
                Type::map(common(types))
            }
            Expr::Struct(object) => self.written_out(expression, object),
            Expr::Comprehension(comprehension) => self.looped(comprehension),
            Expr::Unspecified => Type::Dyn,
        }
    }

    /// What is written out as a list holds one type.
    fn require_one_type<'e>(&mut self, mut all: impl Iterator<Item = (&'e IdedExpr, &'e Type)>) {
        let Some((_, first)) = all.next() else { return };
        for (element, kind) in all {
            if !first.agrees_with(kind) {
                self.fault(element, format!("expected type '{first}' but found '{kind}'"));
            }
        }
    }

    fn written_out(&mut self, at: &IdedExpr, object: &StructExpr) -> Type {
        let name = object.type_name.trim_start_matches('.');
        if !self.object_literals || !literals::is_known(name) {
            return self.fault(at, format!("undeclared reference to '{name}' (in container '')"));
        }
        for entry in &object.entries {
            let EntryExpr::StructField(field) = &entry.expr else { continue };
            let kind = self.type_of(&field.value);
            if let Err(why) = literals::check(name, &field.field, &kind) {
                self.fault(&field.value, why);
            }
        }
        Type::literal(name)
    }

    fn named(&mut self, at: &IdedExpr, name: &str) -> Type {
        if let Some((_, kind)) = self.scopes.iter().rev().find(|(have, _)| have == name) {
            return kind.clone();
        }
        if let Some(kind) = self.variables.get(name) {
            self.references.insert(name.to_string());
            return kind.clone();
        }
        if library::TYPE_NAMES.contains(&name) {
            return Type::Type;
        }
        self.fault(at, format!("undeclared reference to '{name}' (in container '')"))
    }

    fn selected(&mut self, at: &IdedExpr, select: &SelectExpr) -> Type {
        // A variable may have a dotted name of its own.
        if let Some(name) = dotted(&at.expr)
            && let Some(kind) = self.variables.get(&name)
            && !self.is_local(&name)
        {
            self.references.insert(name);
            return if select.test { Type::Bool } else { kind.clone() };
        }
        if let Some(name) = dotted(&at.expr)
            && library::TYPE_NAMES.contains(&name.as_str())
            && !self.is_local(&name)
        {
            return Type::Type;
        }
        let operand = self.type_of(&select.operand);
        let found = match &operand {
            Type::Dyn | Type::Literal(_) => Type::Dyn,
            Type::Map(value) => (**value).clone(),
            Type::Optional(_) => Type::optional(Type::Dyn),
            Type::Struct(object) => match object.fields.iter().find(|(field, _)| *field == select.field) {
                Some((_, kind)) => kind.clone(),
                None => self.fault(at, format!("undefined field '{}'", select.field)),
            },
            other => self.fault(at, format!("type '{other}' does not support field selection")),
        };
        if select.test { Type::Bool } else { found }
    }

    fn is_local(&self, dotted: &str) -> bool {
        let root = dotted.split('.').next().unwrap_or(dotted);
        self.scopes.iter().any(|(name, _)| name == root)
    }

    fn called(&mut self, at: &IdedExpr, call: &CallExpr) -> Type {
        if let Some(argument) = arguments::wrong_literal(call) {
            self.fault(argument, format!("invalid {} argument", call.func_name));
        }
        // `sets.contains(a, b)` is a function of that name, not a method of a variable.
        if let Some(target) = &call.target
            && let Some(prefix) = dotted(&target.expr)
            && !self.is_local(&prefix)
            // Patches are written by admission policies alone.
            && (prefix != "jsonpatch" || self.object_literals)
            && let Some(result) = library::result_of(&format!("{prefix}.{}", call.func_name))
        {
            let arguments = self.arguments(call);
            return match overloads::call(&format!("{prefix}.{}", call.func_name), None, &arguments) {
                overloads::Call::Fits(Some(result)) => result,
                overloads::Call::Fits(None) => {
                    self.no_overload(at, &format!("{prefix}.{}", call.func_name), None, &arguments)
                }
                overloads::Call::Unlisted => result,
            };
        }
        let target = call.target.as_ref().map(|target| self.type_of(target));
        let arguments = self.arguments(call);
        if let Some(result) = self.operated(at, call, &arguments) {
            return result;
        }
        // What a loop of two variables goes over.
        if call.func_name == "@entries"
            && let ([range], [kind]) = (&call.args[..], &arguments[..])
            && !matches!(kind, Type::List(_) | Type::Map(_) | Type::Dyn)
        {
            return self.no_range(range, kind);
        }
        match overloads::call(&call.func_name, target.as_ref(), &arguments) {
            overloads::Call::Fits(Some(result)) => return result,
            overloads::Call::Fits(None) => {
                return self.no_overload(at, &call.func_name, target.as_ref(), &arguments);
            }
            overloads::Call::Unlisted => {}
        }
        match library::result_of(&call.func_name) {
            Some(result) => result,
            None => self.fault(at, format!("undeclared reference to '{}' (in container '')", call.func_name)),
        }
    }

    fn no_overload(&mut self, at: &IdedExpr, name: &str, target: Option<&Type>, arguments: &[Type]) -> Type {
        let types = arguments.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let applied = match target {
            Some(target) => format!("{target}.({types})"),
            None => format!("({types})"),
        };
        self.fault(at, format!("found no matching overload for '{name}' applied to '{applied}'"))
    }

    fn arguments(&mut self, call: &CallExpr) -> Vec<Type> {
        let each = call.args.iter().map(|argument| match &argument.expr {
            // What is formatted may be of any types.
            Expr::List(list) if call.func_name == "format" => {
                list.elements.iter().for_each(|element| {
                    self.type_of(element);
                });
                let kind = Type::list(Type::Dyn);
                self.types.insert(argument.id, kind.clone());
                kind
            }
            _ => self.type_of(argument),
        });
        each.collect()
    }

    /// Operators; `None` for anything else.
    fn operated(&mut self, at: &IdedExpr, call: &CallExpr, types: &[Type]) -> Option<Type> {
        let name = call.func_name.as_str();
        let result = match (name, types) {
            (operators::LOGICAL_AND | operators::LOGICAL_OR, [a, b]) => {
                (Type::Bool.agrees_with(a) && Type::Bool.agrees_with(b)).then_some(Type::Bool)
            }
            (operators::LOGICAL_NOT, [a]) => Type::Bool.agrees_with(a).then_some(Type::Bool),
            (operators::NOT_STRICTLY_FALSE, _) => Some(Type::Bool),
            (operators::NEGATE, [a]) => matches!(a, Type::Dyn | Type::Int | Type::Double).then(|| a.clone()),
            (operators::EQUALS | operators::NOT_EQUALS, [a, b]) => {
                let fits = match (a, b) {
                    (Type::Null, other) | (other, Type::Null) => other.may_be_null(),
                    _ => a.agrees_with(b),
                };
                fits.then_some(Type::Bool)
            }
            (
                operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS,
                [a, b],
            ) => is_compared(a, b).then_some(Type::Bool),
            (operators::IN, [a, b]) => match b {
                Type::Dyn => true,
                Type::List(element) => element.agrees_with(a) || (*a == Type::Null && element.may_be_null()),
                Type::Map(_) => true,
                _ => false,
            }
            .then_some(Type::Bool),
            (operators::CONDITIONAL, [condition, a, b]) => {
                let is_one = a.agrees_with(b) || is_null_beside(a, b);
                (Type::Bool.agrees_with(condition) && is_one).then(|| match (a, b) {
                    (Type::Null, other) | (other, Type::Null) => other.clone(),
                    _ => common(vec![a.clone(), b.clone()]),
                })
            }
            (operators::INDEX, [a, at]) => match a {
                Type::List(element) => Type::Int.agrees_with(at).then(|| (**element).clone()),
                // Those that are written out may have keys of any type.
                Type::Map(value) => Some((**value).clone()),
                Type::Optional(_) => Some(Type::optional(Type::Dyn)),
                Type::Dyn | Type::Struct(_) | Type::Null => Some(Type::Dyn),
                _ => None,
            },
            (operators::OPT_SELECT, [Type::Struct(object), _]) => {
                match call.args.get(1).map(|argument| &argument.expr) {
                    Some(Expr::Literal(LiteralValue::String(field))) => {
                        let field: &str = field;
                        match object.fields.iter().find(|(name, _)| name == field) {
                            Some((_, kind)) => Some(Type::optional(kind.clone())),
                            None => return Some(self.fault(at, format!("undefined field '{field}'"))),
                        }
                    }
                    _ => Some(Type::optional(Type::Dyn)),
                }
            }
            (operators::OPT_INDEX | operators::OPT_SELECT, [_, _]) => Some(Type::optional(Type::Dyn)),
            (name, [a, b]) if ARITHMETIC.contains(&name) => arithmetic(name, a, b),
            _ => return None,
        };
        Some(result.unwrap_or_else(|| {
            let types = types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            self.fault(at, format!("found no matching overload for '{name}' applied to '({types})'"))
        }))
    }

    fn no_range(&mut self, at: &IdedExpr, kind: &Type) -> Type {
        self.fault(
            at,
            format!(
                "expression of type '{kind}' cannot be range of a comprehension (must be list, map, or dynamic)"
            ),
        )
    }

    fn looped(&mut self, comprehension: &ComprehensionExpr) -> Type {
        let item = match self.type_of(&comprehension.iter_range) {
            Type::List(element) => (*element).clone(),
            Type::Map(_) => Type::String,
            Type::Dyn => Type::Dyn,
            other => self.no_range(&comprehension.iter_range, &other),
        };
        let start = self.type_of(&comprehension.accu_init);
        let depth = self.scopes.len();
        self.scopes.push((comprehension.accu_var.clone(), start.clone()));
        self.scopes.push((comprehension.iter_var.clone(), item.clone()));
        if let Some(second) = &comprehension.iter_var2 {
            self.scopes.push((second.clone(), Type::Dyn));
        }
        self.type_of(&comprehension.loop_cond);
        let step = self.type_of(&comprehension.loop_step);
        self.scopes.truncate(depth);
        let grown = if start.agrees_with(&step) { narrower(&start, &step) } else { Type::Dyn };
        self.scopes.push((comprehension.accu_var.clone(), grown));
        let result = self.type_of(&comprehension.result);
        self.scopes.truncate(depth);
        result
    }
}

fn type_of_literal(literal: &LiteralValue) -> Type {
    match literal {
        LiteralValue::Boolean(_) => Type::Bool,
        LiteralValue::Bytes(_) => Type::Bytes,
        LiteralValue::Double(_) => Type::Double,
        LiteralValue::Int(_) => Type::Int,
        LiteralValue::Null => Type::Null,
        LiteralValue::String(_) => Type::String,
        LiteralValue::UInt(_) => Type::Uint,
    }
}

/// The type all of them have, or anything.
fn common(types: Vec<Type>) -> Type {
    let mut types = types.into_iter();
    let Some(first) = types.next() else { return Type::Dyn };
    types.fold(first, |a, b| if a.agrees_with(&b) { narrower(&a, &b) } else { Type::Dyn })
}

/// Whether one of them can be less than the other.
fn is_compared(a: &Type, b: &Type) -> bool {
    let either = |kind: &Type| *kind == Type::Dyn || kind.is_ordered();
    match (a, b) {
        (Type::Null, other) | (other, Type::Null) => {
            matches!(other, Type::Null | Type::Dyn | Type::Timestamp | Type::Duration)
        }
        _ => either(a) && either(b) && (a.agrees_with(b) || (a.is_number() && b.is_number())),
    }
}

fn is_null_beside(a: &Type, b: &Type) -> bool {
    matches!((a, b), (Type::Null, other) | (other, Type::Null) if other.may_be_null())
}

const ARITHMETIC: [&str; 5] =
    [operators::ADD, operators::SUBSTRACT, operators::MULTIPLY, operators::DIVIDE, operators::MODULO];

/// Sums, differences, products and quotients; `None` where the operands have none.
fn arithmetic(operator: &str, a: &Type, b: &Type) -> Option<Type> {
    let is_time = |kind: &Type| matches!(kind, Type::Timestamp | Type::Duration | Type::Null);
    let is_sum = operator == operators::ADD;
    if (is_sum || operator == operators::SUBSTRACT) && (is_time(a) || is_time(b)) {
        return time_arithmetic(is_sum, a, b);
    }
    let fits = |kind: &Type| match kind {
        Type::Dyn | Type::Int | Type::Uint => true,
        Type::Double => operator != operators::MODULO,
        Type::String | Type::Bytes | Type::List(_) => is_sum,
        _ => false,
    };
    (fits(a) && fits(b) && a.agrees_with(b)).then(|| narrower(a, b))
}

/// Null stands for a time as well as for a duration.
fn time_arithmetic(is_sum: bool, a: &Type, b: &Type) -> Option<Type> {
    let either = |kind: &Type| matches!(kind, Type::Timestamp | Type::Duration | Type::Null | Type::Dyn);
    if !either(a) || !either(b) {
        return None;
    }
    match (is_sum, a, b) {
        (true, Type::Timestamp, Type::Timestamp) | (false, Type::Duration, Type::Timestamp) => None,
        (true, Type::Timestamp, _)
        | (true, _, Type::Timestamp)
        | (false, Type::Timestamp, Type::Duration) => Some(Type::Timestamp),
        (_, Type::Duration, Type::Duration) | (false, Type::Duration, _) | (false, _, Type::Timestamp) => {
            Some(Type::Duration)
        }
        _ => Some(Type::Dyn),
    }
}

fn narrower(a: &Type, b: &Type) -> Type {
    match (a, b) {
        (Type::Dyn, other) => other.clone(),
        (Type::List(a), Type::List(b)) => Type::list(narrower(a, b)),
        (Type::Map(a), Type::Map(b)) => Type::map(narrower(a, b)),
        (a, _) => a.clone(),
    }
}

/// `a.b.c`, where the expression is nothing but names.
fn dotted(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) => Some(format!("{}.{}", dotted(&select.operand.expr)?, select.field)),
        _ => None,
    }
}

fn floor(source: &str, mut at: usize) -> usize {
    at = at.min(source.len());
    while !source.is_char_boundary(at) {
        at -= 1;
    }
    at
}
