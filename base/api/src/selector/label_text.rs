//! The text form of label selectors:
//!
//! ```text
//! selector    = [ requirement { "," requirement } ]
//! requirement = [ "!" ] KEY | KEY ( "=" | "==" | "!=" | ">" | "<" ) VALUE | KEY ( "in" | "notin" ) set
//! set         = "(" [ VALUE ] { "," [ VALUE ] } ")"
//! ```

use std::collections::BTreeSet;
use std::iter::Peekable;

use super::{BadSelector, LabelRequirement, Operator};
use crate::names;

pub fn parse(text: &str) -> Result<Vec<LabelRequirement>, BadSelector> {
    let mut tokens = tokens(text).into_iter().peekable();
    let mut requirements = Vec::new();
    loop {
        match tokens.peek() {
            None => return Ok(requirements),
            Some(Token::Word(_) | Token::Symbol("!")) => {
                let requirement = requirement(&mut tokens)
                    .map_err(|BadSelector(why)| BadSelector(format!("unable to parse requirement: {why}")))?;
                requirements.push(requirement);
            }
            other => return Err(found(other, ", expected: !, identifier, or 'end of string'")),
        }
        match tokens.next() {
            None => return Ok(requirements),
            Some(Token::Symbol(",")) => match tokens.peek() {
                Some(Token::Word(_) | Token::Symbol("!")) => {}
                other => return Err(found(other, ", expected: identifier after ','")),
            },
            other => return Err(found(other.as_ref(), ", expected: ',' or 'end of string'")),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    Word(&'t str),
    Symbol(&'static str),
    /// A sequence of symbols that means nothing.
    Unknown(&'t str),
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    // the longer symbol wins
    const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];
    let is_symbol = |c: char| "=!(),><".contains(c);
    let is_blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(is_blank);
    while let Some(first) = rest.chars().next() {
        let length = if is_symbol(first) {
            match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
                Some(symbol) => {
                    tokens.push(Token::Symbol(symbol));
                    symbol.len()
                }
                None => {
                    tokens.push(Token::Unknown(&rest[..1]));
                    1
                }
            }
        } else {
            let end = rest.find(|c| is_symbol(c) || is_blank(c)).unwrap_or(rest.len());
            tokens.push(Token::Word(&rest[..end]));
            end
        };
        rest = rest[length..].trim_start_matches(is_blank);
    }
    tokens
}

fn found(token: Option<&Token<'_>>, expected: &str) -> BadSelector {
    let literal = match token {
        None => "",
        Some(Token::Word(text) | Token::Unknown(text)) => text,
        Some(Token::Symbol(text)) => text,
    };
    BadSelector(format!("found '{literal}'{expected}"))
}

fn requirement<'t, I: Iterator<Item = Token<'t>>>(
    tokens: &mut Peekable<I>,
) -> Result<LabelRequirement, BadSelector> {
    let negated = tokens.next_if_eq(&Token::Symbol("!")).is_some();
    let key = match tokens.next() {
        Some(Token::Word(key)) => key.to_string(),
        other => return Err(found(other.as_ref(), ", expected: identifier")),
    };
    let wrong = names::qualified_name(&key);
    if !wrong.is_empty() {
        return Err(BadSelector(format!("<nil>: Invalid value: {key:?}: {}", wrong.join("; "))));
    }
    if matches!(tokens.peek(), None | Some(Token::Symbol(","))) {
        let operator = if negated { Operator::DoesNotExist } else { Operator::Exists };
        return LabelRequirement::new(key, operator, Vec::new());
    }
    if negated {
        return LabelRequirement::new(key, Operator::DoesNotExist, Vec::new());
    }
    let operator = match tokens.next() {
        Some(Token::Word("in")) => Operator::In,
        Some(Token::Word("notin")) => Operator::NotIn,
        Some(Token::Symbol("=")) => Operator::Equals,
        Some(Token::Symbol("==")) => Operator::DoubleEquals,
        Some(Token::Symbol("!=")) => Operator::NotEquals,
        Some(Token::Symbol(">")) => Operator::GreaterThan,
        Some(Token::Symbol("<")) => Operator::LessThan,
        other => return Err(found(other.as_ref(), ", expected: in, notin, =, ==, !=, gt, lt")),
    };
    let values = match operator {
        Operator::In | Operator::NotIn => set(tokens)?,
        _ => vec![value(tokens)?],
    };
    LabelRequirement::new(key, operator, values)
}

fn value<'t, I: Iterator<Item = Token<'t>>>(tokens: &mut Peekable<I>) -> Result<String, BadSelector> {
    if matches!(tokens.peek(), None | Some(Token::Symbol(","))) {
        return Ok(String::new());
    }
    match tokens.next() {
        Some(Token::Word(value)) => Ok(value.to_string()),
        other => Err(found(other.as_ref(), ", expected: identifier")),
    }
}

/// Values between parentheses; where nothing stands between two commas the empty value is meant.
fn set<'t, I: Iterator<Item = Token<'t>>>(tokens: &mut Peekable<I>) -> Result<Vec<String>, BadSelector> {
    match tokens.next() {
        Some(Token::Symbol("(")) => {}
        other => return Err(found(other.as_ref(), " expected: '('")),
    }
    let mut values = BTreeSet::new();
    loop {
        match tokens.next() {
            Some(Token::Word(value)) => {
                values.insert(value.to_string());
                match tokens.next() {
                    Some(Token::Symbol(",")) if tokens.peek() == Some(&Token::Symbol(")")) => {
                        values.insert(String::new());
                    }
                    Some(Token::Symbol(",")) => {}
                    Some(Token::Symbol(")")) => break,
                    other => return Err(found(other.as_ref(), ", expected: ',' or ')'")),
                }
            }
            Some(Token::Symbol(",")) => {
                values.insert(String::new());
            }
            Some(Token::Symbol(")")) => {
                values.insert(String::new());
                break;
            }
            other => return Err(found(other.as_ref(), ", expected: ',', or identifier")),
        }
    }
    Ok(values.into_iter().collect())
}
