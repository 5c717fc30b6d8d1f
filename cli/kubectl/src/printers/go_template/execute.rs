//! From a tree and an object to text.

use serde_json::Value;

use super::parse::{Base, Branch, Node, Operand, Parsed, Pipeline, Place};
use super::{format, functions};

/// Templates may call themselves; not for ever.
const DEPTH: usize = 1_000;

pub fn execute(
    source: &str,
    parsed: &Parsed,
    object: &Value,
    allow_missing: bool,
) -> (String, Result<(), String>) {
    let mut state = State {
        source,
        parsed,
        allow_missing,
        out: String::new(),
        variables: vec![("$".to_owned(), object.clone())],
        depth: 0,
    };
    let result = state.walk(&parsed.main, object).map(|_| ());
    (state.out, result)
}

struct State<'t> {
    source: &'t str,
    parsed: &'t Parsed,
    allow_missing: bool,
    out: String,
    /// The innermost last.
    variables: Vec<(String, Value)>,
    depth: usize,
}

/// How a list of nodes ended.
#[derive(PartialEq)]
enum Flow {
    On,
    Break,
    Continue,
}

impl State<'_> {
    fn error(&self, place: &Place, reason: impl AsRef<str>) -> String {
        let before = &self.source[..place.offset];
        let line = 1 + before.matches('\n').count();
        let column = before.rfind('\n').map_or(place.offset, |newline| place.offset - newline);
        format!(
            "template: output:{line}:{column}: executing \"output\" at <{}>: {}",
            place.text,
            reason.as_ref()
        )
    }

    fn walk(&mut self, nodes: &[Node], dot: &Value) -> Result<Flow, String> {
        for node in nodes {
            match node {
                Node::Text(text) => self.out.push_str(text),
                Node::Print(pipeline) => {
                    let value = self.pipeline(pipeline, dot)?;
                    self.out.push_str(&format::shown(&value));
                }
                Node::Set(pipeline) => {
                    let value = self.pipeline(pipeline, dot)?;
                    self.set(pipeline, &[value]);
                }
                Node::If(branch) => {
                    let flow = self.scoped(|state| {
                        let chosen = functions::truth(&state.condition(branch, dot)?);
                        state.walk(if chosen { &branch.body } else { &branch.otherwise }, dot)
                    })?;
                    if flow != Flow::On {
                        return Ok(flow);
                    }
                }
                Node::With(branch) => {
                    let flow = self.scoped(|state| {
                        let value = state.condition(branch, dot)?;
                        match functions::truth(&value) {
                            true => state.walk(&branch.body, &value),
                            false => state.walk(&branch.otherwise, dot),
                        }
                    })?;
                    if flow != Flow::On {
                        return Ok(flow);
                    }
                }
                Node::Range(branch) => self.scoped(|state| state.range(branch, dot))?,
                Node::Template { name, argument, place } => self.call(name, argument.as_ref(), place, dot)?,
                Node::Break => return Ok(Flow::Break),
                Node::Continue => return Ok(Flow::Continue),
            }
        }
        Ok(Flow::On)
    }

    /// Variables made within are gone after it.
    fn scoped<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, String>) -> Result<T, String> {
        let known = self.variables.len();
        let result = work(self);
        self.variables.truncate(known);
        result
    }

    fn condition(&mut self, branch: &Branch, dot: &Value) -> Result<Value, String> {
        let value = self.pipeline(&branch.pipeline, dot)?;
        self.set(&branch.pipeline, std::slice::from_ref(&value));
        Ok(value)
    }

    fn set(&mut self, pipeline: &Pipeline, values: &[Value]) {
        for (name, value) in pipeline.variables.iter().zip(values) {
            match self.variables.iter_mut().rev().find(|(known, _)| pipeline.assigns && known == name) {
                Some((_, known)) => *known = value.clone(),
                None => self.variables.push((name.clone(), value.clone())),
            }
        }
    }

    fn range(&mut self, branch: &Branch, dot: &Value) -> Result<(), String> {
        let over = self.pipeline(&branch.pipeline, dot)?;
        let entries: Vec<(Value, Value)> = match &over {
            Value::Array(items) => {
                items.iter().enumerate().map(|(at, item)| (at.into(), item.clone())).collect()
            }
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_by_key(|(key, _)| *key);
                entries.into_iter().map(|(key, value)| (key.as_str().into(), value.clone())).collect()
            }
            Value::Number(number) if number.is_i64() || number.is_u64() => {
                let end = number.as_i64().unwrap_or(i64::MAX);
                (0..end).map(|at| (at.into(), at.into())).collect()
            }
            Value::Null => Vec::new(),
            other => {
                let reason = format!("range can't iterate over {}", format::shown(other));
                return Err(self.error(&branch.pipeline.place, reason));
            }
        };
        if entries.is_empty() {
            self.walk(&branch.otherwise, dot)?;
            return Ok(());
        }
        for (key, value) in entries {
            let flow = self.scoped(|state| {
                match branch.pipeline.variables.len() {
                    2 => state.set(&branch.pipeline, &[key, value.clone()]),
                    _ => state.set(&branch.pipeline, std::slice::from_ref(&value)),
                }
                state.walk(&branch.body, &value)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    fn call(
        &mut self,
        name: &str,
        argument: Option<&Pipeline>,
        place: &Place,
        dot: &Value,
    ) -> Result<(), String> {
        let argument = match argument {
            Some(argument) => self.pipeline(argument, dot)?,
            None => Value::Null,
        };
        let parsed = self.parsed;
        let body = parsed.defined.get(name);
        let body = body.ok_or_else(|| self.error(place, format!("template {name:?} not defined")))?;
        if self.depth == DEPTH {
            return Err(self.error(place, format!("exceeded maximum template depth ({DEPTH})")));
        }
        self.depth += 1;
        let outer = std::mem::replace(&mut self.variables, vec![("$".to_owned(), argument.clone())]);
        let result = self.walk(body, &argument);
        self.variables = outer;
        self.depth -= 1;
        result.map(|_| ())
    }

    fn pipeline(&mut self, pipeline: &Pipeline, dot: &Value) -> Result<Value, String> {
        let mut last = None;
        for command in &pipeline.commands {
            last = Some(self.command(command, last, dot)?);
        }
        Ok(last.unwrap_or(Value::Null))
    }

    /// The first operand is called with the others, and with what the command before gave.
    fn command(&mut self, command: &[Operand], last: Option<Value>, dot: &Value) -> Result<Value, String> {
        let (first, operands) = command.split_first().expect("the parser lets no empty command pass");
        let Base::Function(name) = &first.base else {
            if !operands.is_empty() || last.is_some() {
                let reason = format!("can't give argument to non-function {}", first.place.text);
                return Err(self.error(&first.place, reason));
            }
            return self.operand(first, dot);
        };
        let mut arguments = Vec::new();
        for operand in operands {
            arguments.push(self.operand(operand, dot)?);
            // These do not look further than they must.
            let decided = |value: &Value| functions::truth(value) == (name == "or");
            if matches!(&**name, "and" | "or") && arguments.last().is_some_and(decided) {
                return Ok(arguments.pop().expect("just pushed"));
            }
        }
        arguments.extend(last);
        let value = functions::call(name, &arguments).map_err(|failure| {
            let reason = match failure {
                functions::Failure::Arguments(reason) => reason,
                functions::Failure::Call(reason) => format!("error calling {name}: {reason}"),
            };
            let words: Vec<&str> = command.iter().map(|operand| &*operand.place.text).collect();
            self.error(&Place { offset: first.place.offset, text: words.join(" ") }, reason)
        })?;
        self.fields(value, first)
    }

    fn operand(&mut self, operand: &Operand, dot: &Value) -> Result<Value, String> {
        let base = match &operand.base {
            Base::Dot => dot.clone(),
            Base::Nil => Value::Null,
            Base::Literal(value) => value.clone(),
            Base::Variable(name) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name);
                known.map_or(Value::Null, |(_, value)| value.clone())
            }
            Base::Function(_) => return self.command(std::slice::from_ref(operand), None, dot),
            Base::Parenthesis(pipeline) => self.pipeline(pipeline, dot)?,
        };
        self.fields(base, operand)
    }

    fn fields(&self, mut value: Value, operand: &Operand) -> Result<Value, String> {
        for field in &operand.fields {
            value = match value {
                Value::Object(mut map) => match map.remove(field) {
                    Some(value) => value,
                    None if self.allow_missing => Value::Null,
                    None => {
                        return Err(self.error(&operand.place, format!("map has no entry for key {field:?}")));
                    }
                },
                Value::Null if self.allow_missing => Value::Null,
                Value::Null => {
                    return Err(self.error(&operand.place, format!("nil data; no entry for key {field:?}")));
                }
                _ => {
                    let reason = format!("can't evaluate field {field} in type interface {{}}");
                    return Err(self.error(&operand.place, reason));
                }
            };
        }
        Ok(value)
    }
}
