//! What a rule can cost at most, from the sizes that the schema allows: upstream's estimate (cel-go's
//! `checker.Cost` with Kubernetes' functions), so that both take the same definitions.
//!
//! A part of an expression that names a place of the schema has the sizes of that place; lists and maps that
//! the expression makes have those of their parts.

use std::collections::HashMap;
use std::sync::Arc;

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, MapExpr, operators,
};
use ferry_cel::Type;

use crate::decl::{Decl, DeclKind};

mod functions;

/// The highest cost of the expression. `types` are those of its parts, by their ids.
pub fn highest(expression: &IdedExpr, types: &HashMap<u64, Type>, root: &Arc<Decl>) -> u64 {
    let mut estimate = Estimate {
        types,
        root,
        locals: Vec::new(),
        places: HashMap::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
    };
    estimate.cost(expression).max
}

/// Of a size or of a cost.
#[derive(Debug, Clone, Copy, PartialEq)]
struct MinMax {
    min: u64,
    max: u64,
}

const UNKNOWN: MinMax = MinMax { min: 0, max: u64::MAX };
const TRAVERSE: f64 = 0.1;
const REGEX: f64 = 0.25;
const LIST: MinMax = MinMax { min: 10, max: 10 };
const MAP: MinMax = MinMax { min: 30, max: 30 };
const STRUCT: MinMax = MinMax { min: 40, max: 40 };

impl MinMax {
    const fn of(value: u64) -> MinMax {
        MinMax { min: value, max: value }
    }

    fn and(self, other: MinMax) -> MinMax {
        MinMax { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    fn times(self, other: MinMax) -> MinMax {
        MinMax { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    fn by(self, factor: f64) -> MinMax {
        // A float becomes the nearest integer there is.
        let scaled = |value: u64| (value as f64 * factor).ceil() as u64;
        MinMax { min: scaled(self.min), max: scaled(self.max) }
    }

    fn or(self, other: MinMax) -> MinMax {
        MinMax { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// The sizes of what is in a list or map.
#[derive(Debug, Clone, Copy)]
struct ElementSizes {
    is_list: bool,
    key: MinMax,
    value: MinMax,
}

impl ElementSizes {
    fn or(self, other: ElementSizes) -> ElementSizes {
        ElementSizes { key: self.key.or(other.key), value: self.value.or(other.value), ..self }
    }
}

/// A variable of a loop, or one that is bound.
struct Local {
    name: String,
    place: Option<Arc<Decl>>,
    size: Option<MinMax>,
    entry: Option<ElementSizes>,
    /// `[key, value]` of a loop with two variables.
    pair: Option<Box<[Local; 2]>>,
}

/// What an operator or a function costs, and the size of its result where that is known.
type Estimated = (MinMax, Option<MinMax>);

struct Estimate<'a> {
    types: &'a HashMap<u64, Type>,
    root: &'a Arc<Decl>,
    locals: Vec<Local>,
    places: HashMap<u64, Arc<Decl>>,
    sizes: HashMap<u64, MinMax>,
    entries: HashMap<u64, ElementSizes>,
}

impl Estimate<'_> {
    fn cost(&mut self, expression: &IdedExpr) -> MinMax {
        match &expression.expr {
            Expr::Literal(_) | Expr::Unspecified => MinMax::of(0),
            Expr::Ident(name) => {
                let place = match self.local(name) {
                    Some(local) => local.place.clone(),
                    None => ["self", "oldSelf"].contains(&name.as_str()).then(|| self.root.clone()),
                };
                self.place(expression, place);
                MinMax::of(1)
            }
            Expr::Select(select) => {
                let operand = self.cost(&select.operand);
                if select.test {
                    return operand;
                }
                let place = self.places.get(&select.operand.id).and_then(|decl| field(decl, &select.field));
                self.place(expression, place);
                match self.type_of(&select.operand) {
                    Type::Map(_) | Type::Struct(_) => operand.and(MinMax::of(1)),
                    _ => operand,
                }
            }
            Expr::Call(call) => self.call(expression, call),
            Expr::List(list) => self.list(expression, list),
            Expr::Map(map) => self.map(expression, map),
            Expr::Struct(object) => {
                let mut cost = STRUCT;
                for entry in &object.entries {
                    if let EntryExpr::StructField(field) = &entry.expr {
                        cost = cost.and(self.cost(&field.value));
                    }
                }
                cost
            }
            Expr::Comprehension(looped) if is_bind(looped) => self.bound(expression, looped),
            Expr::Comprehension(looped) => self.looped(expression, looped),
        }
    }

    fn list(&mut self, expression: &IdedExpr, list: &ListExpr) -> MinMax {
        let mut cost = LIST;
        let mut size = if list.elements.is_empty() { MinMax::of(0) } else { NOTHING };
        for element in &list.elements {
            cost = cost.and(self.cost(element));
            size = size.or(self.size_or_unknown(element));
        }
        self.entries.insert(expression.id, ElementSizes { is_list: true, key: MinMax::of(1), value: size });
        cost
    }

    fn map(&mut self, expression: &IdedExpr, map: &MapExpr) -> MinMax {
        let mut cost = MAP;
        let start = if map.entries.is_empty() { MinMax::of(0) } else { NOTHING };
        let (mut key, mut value) = (start, start);
        for entry in &map.entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else { continue };
            cost = cost.and(self.cost(&entry.key)).and(self.cost(&entry.value));
            key = key.or(self.size_or_unknown(&entry.key));
            value = value.or(self.size_or_unknown(&entry.value));
        }
        self.entries.insert(expression.id, ElementSizes { is_list: false, key, value });
        cost
    }

    /// A name for a value.
    fn bound(&mut self, expression: &IdedExpr, looped: &ComprehensionExpr) -> MinMax {
        let cost = self.cost(&looped.iter_range).and(self.cost(&looped.accu_init));
        let local = self.local_of(&looped.accu_var, &looped.accu_init);
        self.locals.push(local);
        let cost = cost.and(self.cost(&looped.result));
        self.locals.pop();
        self.copy(expression, &looped.result);
        cost
    }

    fn looped(&mut self, expression: &IdedExpr, looped: &ComprehensionExpr) -> MinMax {
        // A loop with two variables walks a list of pairs; it costs what the walk of the range itself does.
        let (range, paired) = match &looped.iter_range.expr {
            Expr::Call(call) if call.func_name == "@entries" && call.args.len() == 1 => (&call.args[0], true),
            _ => (&looped.iter_range, false),
        };
        let mut cost = self.cost(range).and(self.cost(&looped.accu_init));
        let accumulator = self.local_of(&looped.accu_var, &looped.accu_init);
        self.locals.push(accumulator);
        let item = self.item(&looped.iter_var, range, paired);
        self.locals.push(item);
        let body = self.cost(&looped.loop_cond).and(self.cost(&looped.loop_step));
        self.locals.pop();
        cost = cost.and(self.cost(&looped.result));
        self.locals.pop();
        let count = self.size_or_unknown(range);
        match &looped.accu_init.expr {
            Expr::Literal(_) => {
                let size = self.size(&looped.accu_init);
                self.set_size(expression, size);
            }
            Expr::List(_) | Expr::Map(_) => {
                self.set_size(expression, Some(count));
                if let Some(entry) = self.entry(&looped.loop_step) {
                    self.entries.insert(expression.id, entry);
                }
            }
            _ => {}
        }
        cost.and(count.times(body))
    }

    /// The variable of a loop: elements of a list, keys of a map, or both parts of an entry.
    fn item(&self, name: &str, range: &IdedExpr, paired: bool) -> Local {
        let entry = self.entry(range);
        let is_list =
            entry.map_or_else(|| matches!(self.type_of(range), Type::List(_)), |entry| entry.is_list);
        let place = self.places.get(&range.id);
        let value = Local {
            name: String::new(),
            place: place.and_then(|decl| inner(decl)),
            size: entry.map(|entry| entry.value),
            entry: None,
            pair: None,
        };
        let key = Local {
            name: String::new(),
            place: None,
            // Upstream takes the keys of a map that the schema declares for empty.
            size: match (is_list, entry, place) {
                (true, ..) => Some(MinMax::of(1)),
                (false, Some(entry), _) => Some(entry.key),
                (false, None, place) => place.map(|_| MinMax::of(0)),
            },
            entry: None,
            pair: None,
        };
        match (paired, is_list) {
            (true, _) => Local {
                name: name.to_string(),
                place: None,
                size: Some(MinMax::of(2)),
                entry: None,
                pair: Some(Box::new([key, value])),
            },
            (false, true) => Local { name: name.to_string(), ..value },
            (false, false) => Local { name: name.to_string(), ..key },
        }
    }

    fn local_of(&self, name: &str, value: &IdedExpr) -> Local {
        Local {
            name: name.to_string(),
            place: self.places.get(&value.id).cloned(),
            size: self.size(value),
            entry: self.entry(value),
            pair: None,
        }
    }

    fn call(&mut self, expression: &IdedExpr, call: &CallExpr) -> MinMax {
        if call.func_name == "dyn" && call.args.len() == 1 {
            let cost = self.cost(&call.args[0]);
            self.copy(expression, &call.args[0]);
            return cost.and(MinMax::of(1));
        }
        // `sets.contains(a, b)`: the target is part of the function's name.
        let (function, target) = match &call.target {
            Some(target) => match qualified(target) {
                Some(prefix) if self.local(prefix).is_none() && NAMESPACES.contains(&prefix) => {
                    (format!("{prefix}.{}", call.func_name), None)
                }
                _ => (call.func_name.clone(), Some(&**target)),
            },
            None => (call.func_name.clone(), None),
        };
        let target_cost = target.map_or(MinMax::of(0), |target| self.cost(target));
        let costs: Vec<MinMax> = call.args.iter().map(|argument| self.cost(argument)).collect();
        let (cost, size) = match self.operated(expression, call, &costs) {
            Some(found) => found,
            None => {
                let (cost, size) = self.function(&function, target, &call.args);
                (costs.iter().fold(cost, |sum, cost| sum.and(*cost)), size)
            }
        };
        let size = size.or_else(|| self.size(expression));
        self.set_size(expression, size);
        target_cost.and(cost)
    }

    /// Operators: their cost with that of their operands. None for functions.
    fn operated(&mut self, at: &IdedExpr, call: &CallExpr, costs: &[MinMax]) -> Option<Estimated> {
        let args = &call.args;
        let sum = || costs.iter().fold(MinMax::of(0), |sum, cost| sum.and(*cost));
        Some(match (call.func_name.as_str(), args.as_slice()) {
            (operators::LOGICAL_AND | operators::LOGICAL_OR, [_, _]) => {
                (MinMax { min: costs[0].min, max: costs[0].and(costs[1]).max }, None)
            }
            (operators::CONDITIONAL, [_, a, b]) => {
                let size = self.size_or_unknown(a).or(self.size_or_unknown(b));
                self.set_either_entry(at, a, b);
                (costs[0].and(costs[1].or(costs[2])), Some(size))
            }
            (operators::ADD, [a, b]) => {
                let size = self.size_or_unknown(a).and(self.size_or_unknown(b));
                self.set_either_entry(at, a, b);
                match (self.type_of(a), self.type_of(b)) {
                    (Type::String | Type::Bytes, _) | (_, Type::String | Type::Bytes) => {
                        (sum().and(size.by(TRAVERSE)), Some(size))
                    }
                    (Type::List(_), _) | (_, Type::List(_)) => (sum().and(MinMax::of(1)), Some(size)),
                    _ => (sum().and(MinMax::of(1)), None),
                }
            }
            (operators::EQUALS | operators::NOT_EQUALS, [a, b]) => {
                let opaque = |node| matches!(self.type_of(node), Type::Opaque(_) | Type::Type);
                match opaque(a) && opaque(b) {
                    true => (sum().and(MinMax::of(1)), None),
                    false => (sum().and(self.compared(a, b)), None),
                }
            }
            (
                operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS,
                [a, b],
            ) => {
                let text = |node| matches!(self.type_of(node), Type::String | Type::Bytes);
                let cost = if text(a) || text(b) { self.compared(a, b) } else { MinMax::of(1) };
                (sum().and(cost), None)
            }
            (operators::IN, [_, b]) => match self.type_of(b) {
                Type::List(_) => (sum().and(self.size_or_unknown(b)), None),
                _ => (sum().and(MinMax::of(1)), None),
            },
            (operators::INDEX, [a, b]) => {
                let (place, size) = match self.part_of_pair(a, b) {
                    Some(part) => (part.place.clone(), part.size),
                    None => (
                        self.places.get(&a.id).and_then(|decl| inner(decl)),
                        self.entry(a).map(|entry| entry.value),
                    ),
                };
                self.place(at, place);
                (sum().and(MinMax::of(1)), size)
            }
            _ => return None,
        })
    }

    /// The elements of the one or of the other.
    fn set_either_entry(&mut self, at: &IdedExpr, a: &IdedExpr, b: &IdedExpr) {
        if let (Some(a), Some(b)) = (self.entry(a), self.entry(b)) {
            self.entries.insert(at.id, a.or(b));
        }
    }

    /// Two values, as far as the shorter goes.
    fn compared(&self, a: &IdedExpr, b: &IdedExpr) -> MinMax {
        let most = self.size_or_unknown(a).max.min(self.size_or_unknown(b).max);
        MinMax { min: u64::from(most > 0), max: most }.by(TRAVERSE)
    }

    fn type_of(&self, expression: &IdedExpr) -> &Type {
        self.types.get(&expression.id).unwrap_or(&Type::Dyn)
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| local.name == name)
    }

    /// `@entry[0]` and `@entry[1]` of a loop with two variables.
    fn part_of_pair(&self, pair: &IdedExpr, index: &IdedExpr) -> Option<&Local> {
        let Expr::Ident(name) = &pair.expr else { return None };
        let parts = self.local(name)?.pair.as_ref()?;
        parts.get(usize::try_from(number(index)?).ok()?)
    }

    fn place(&mut self, expression: &IdedExpr, place: Option<Arc<Decl>>) {
        match place {
            Some(place) => self.places.insert(expression.id, place),
            None => self.places.remove(&expression.id),
        };
    }

    fn set_size(&mut self, expression: &IdedExpr, size: Option<MinMax>) {
        if let Some(size) = size {
            self.sizes.insert(expression.id, size);
        }
    }

    fn copy(&mut self, to: &IdedExpr, from: &IdedExpr) {
        let (size, entry) = (self.size(from), self.entry(from));
        self.set_size(to, size);
        if let Some(entry) = entry {
            self.entries.insert(to.id, entry);
        }
    }

    fn size_or_unknown(&self, expression: &IdedExpr) -> MinMax {
        self.size(expression).unwrap_or(UNKNOWN)
    }

    fn size(&self, expression: &IdedExpr) -> Option<MinMax> {
        if let Some(size) = self.sizes.get(&expression.id) {
            return Some(*size);
        }
        match &expression.expr {
            Expr::Literal(literal) => return Some(MinMax::of(literal_size(literal))),
            Expr::List(list) => return Some(MinMax::of(list.elements.len() as u64)),
            Expr::Map(map) => return Some(MinMax::of(map.entries.len() as u64)),
            _ => {}
        }
        if let Some(decl) = self.places.get(&expression.id) {
            return Some(decl_size(decl));
        }
        if is_scalar(self.type_of(expression)) {
            return Some(MinMax::of(1));
        }
        match &expression.expr {
            Expr::Ident(name) => self.local(name)?.size,
            _ => None,
        }
    }

    fn entry(&self, expression: &IdedExpr) -> Option<ElementSizes> {
        if let Some(entry) = self.entries.get(&expression.id) {
            return Some(*entry);
        }
        match &expression.expr {
            Expr::Ident(name) => self.local(name)?.entry,
            _ => None,
        }
    }
}

/// What nothing was put into yet.
const NOTHING: MinMax = MinMax { min: u64::MAX, max: 0 };

/// Functions that have a name before theirs.
const NAMESPACES: &[&str] =
    &["sets", "lists", "strings", "ip", "format", "jsonpatch", "optional", "math", "cel"];

fn qualified(expression: &IdedExpr) -> Option<&str> {
    match &expression.expr {
        Expr::Ident(name) => Some(name),
        _ => None,
    }
}

fn is_bind(looped: &ComprehensionExpr) -> bool {
    matches!(&looped.iter_range.expr, Expr::List(list) if list.elements.is_empty())
        && matches!(&looped.loop_cond.expr, Expr::Literal(LiteralValue::Boolean(never)) if !*never.inner())
}

fn field(decl: &Decl, name: &str) -> Option<Arc<Decl>> {
    match &decl.kind {
        DeclKind::Object(fields) => fields.get(name).cloned(),
        _ => None,
    }
}

fn inner(decl: &Decl) -> Option<Arc<Decl>> {
    match &decl.kind {
        DeclKind::List(inner) | DeclKind::Map(inner) => Some(inner.clone()),
        _ => None,
    }
}

fn decl_size(decl: &Decl) -> MinMax {
    MinMax { min: 0, max: u64::try_from(decl.max_elements).unwrap_or(0) }
}

fn is_scalar(ty: &Type) -> bool {
    match ty {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
        Type::Optional(value) => is_scalar(value),
        _ => false,
    }
}

fn literal_size(literal: &LiteralValue) -> u64 {
    match literal {
        LiteralValue::String(text) => text.inner().chars().count() as u64,
        LiteralValue::Bytes(bytes) => bytes.inner().len() as u64,
        _ => 1,
    }
}

fn number(expression: &IdedExpr) -> Option<u64> {
    match &expression.expr {
        Expr::Literal(LiteralValue::Int(number)) => u64::try_from(*number.inner()).ok(),
        _ => None,
    }
}
