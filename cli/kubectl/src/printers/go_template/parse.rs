//! From text to a tree. Positions are kept, since an error names the place it was made at.

use std::collections::BTreeMap;

use serde_json::{Number, Value};

use super::functions;

/// The main template, and those it defines by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    pub main: Vec<Node>,
    pub defined: BTreeMap<String, Vec<Node>>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    Text(String),
    Print(Pipeline),
    /// Sets variables, prints nothing.
    Set(Pipeline),
    If(Branch),
    With(Branch),
    Range(Branch),
    Template {
        name: String,
        argument: Option<Pipeline>,
        place: Place,
    },
    Break,
    Continue,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    pub pipeline: Pipeline,
    pub body: Vec<Node>,
    pub otherwise: Vec<Node>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Pipeline {
    /// `$x :=`, or with `range` `$i, $x :=`.
    pub variables: Vec<String>,
    /// `=` changes variables that are there, `:=` makes new ones.
    pub assigns: bool,
    pub commands: Vec<Vec<Operand>>,
    pub place: Place,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Operand {
    pub base: Base,
    /// `.a.b` after it.
    pub fields: Vec<String>,
    pub place: Place,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Base {
    Dot,
    Nil,
    Literal(Value),
    Variable(String),
    Function(String),
    Parenthesis(Box<Pipeline>),
}

/// Where something stands, and how it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    pub offset: usize,
    pub text: String,
}

pub fn parse(source: &str) -> Result<Parsed, String> {
    let pieces = pieces(source)?;
    let mut parser = Parser {
        source,
        pieces,
        next: 0,
        defined: BTreeMap::new(),
        variables: vec!["$".to_owned()],
        loops: 0,
    };
    let (main, end) = parser.nodes()?;
    match end {
        Stop::File => Ok(Parsed { main, defined: parser.defined }),
        Stop::End(offset) => Err(parser.error(offset, "unexpected {{end}}")),
        Stop::Else(offset, _) => Err(parser.error(offset, "unexpected {{else}}")),
    }
}

/// Text, or the inside of an action with its offset.
enum Piece<'a> {
    Text(&'a str),
    Action(usize, Vec<Token>),
}

#[derive(Debug, Clone, PartialEq)]
struct Token {
    kind: Kind,
    text: String,
    offset: usize,
    /// A space stands before it: then a field does not belong to what came before.
    spaced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Field,
    Dot,
    Variable,
    Word,
    Text,
    Character,
    Number,
    Sign,
}

fn at(source: &str, offset: usize, reason: &str) -> String {
    format!("template: output:{}: {reason}", 1 + source[..offset].matches('\n').count())
}

fn pieces(source: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut rest = 0;
    let mut trims = false;
    while let Some(found) = source[rest..].find("{{") {
        let open = rest + found;
        let mut text = &source[rest..open];
        if trims {
            text = text.trim_start();
        }
        let mut inside = open + 2;
        if source[inside..].starts_with('-') && source[inside + 1..].starts_with(char::is_whitespace) {
            text = text.trim_end();
            inside += 1;
        }
        pieces.push(Piece::Text(text));
        let lead = source[inside..].len() - source[inside..].trim_start().len();
        if source[inside + lead..].starts_with("/*") {
            let end = source[inside..].find("*/").ok_or_else(|| at(source, open, "unclosed comment"))?;
            let after = source[inside + end + 2..].trim_start();
            let (dash, after) = match after.strip_prefix('-') {
                Some(after) => (true, after),
                None => (false, after),
            };
            let after = after
                .strip_prefix("}}")
                .ok_or_else(|| at(source, open, "comment ends before closing delimiter"))?;
            trims = dash;
            rest = source.len() - after.len();
            continue;
        }
        let (tokens, end, dash) = tokens(source, inside)?;
        pieces.push(Piece::Action(inside, tokens));
        trims = dash;
        rest = end;
    }
    let last = &source[rest..];
    pieces.push(Piece::Text(if trims { last.trim_start() } else { last }));
    Ok(pieces)
}

/// The tokens of an action, the offset behind it, and whether it trims what follows.
fn tokens(source: &str, start: usize) -> Result<(Vec<Token>, usize, bool), String> {
    let mut tokens = Vec::new();
    let mut offset = start;
    let mut spaced = true;
    loop {
        let rest = &source[offset..];
        if rest.starts_with("}}") {
            return Ok((tokens, offset + 2, false));
        }
        if rest.starts_with(char::is_whitespace) && rest.trim_start().starts_with("-}}") {
            return Ok((tokens, source.len() - rest.trim_start().len() + 3, true));
        }
        let Some(first) = rest.chars().next() else { return Err(at(source, offset, "unclosed action")) };
        if first.is_whitespace() {
            offset += first.len_utf8();
            spaced = true;
            continue;
        }
        let word = |text: &str| text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
        let (kind, length) = match first {
            '"' => (
                Kind::Text,
                quoted(rest, '"').ok_or_else(|| at(source, offset, "unterminated quoted string"))?,
            ),
            '\'' => {
                let length = quoted(rest, '\'');
                (
                    Kind::Character,
                    length.ok_or_else(|| at(source, offset, "unterminated character constant"))?,
                )
            }
            '`' => {
                let end = rest[1..].find('`');
                (Kind::Text, 2 + end.ok_or_else(|| at(source, offset, "unterminated raw quoted string"))?)
            }
            '.' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => (Kind::Number, number(rest)),
            '.' => match word(&rest[1..]) {
                0 => (Kind::Dot, 1),
                length => (Kind::Field, 1 + length),
            },
            '$' => (Kind::Variable, 1 + word(&rest[1..])),
            '+' | '-' if rest[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
                (Kind::Number, 1 + number(&rest[1..]))
            }
            '0'..='9' => (Kind::Number, number(rest)),
            ':' if rest.starts_with(":=") => (Kind::Sign, 2),
            '(' | ')' | '|' | ',' | '=' => (Kind::Sign, 1),
            letter if letter.is_alphabetic() || letter == '_' => (Kind::Word, word(rest)),
            other => return Err(at(source, offset, &format!("unexpected {other:?} in command"))),
        };
        tokens.push(Token { kind, text: rest[..length].to_owned(), offset, spaced });
        offset += length;
        spaced = false;
    }
}

fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            '\n' => return None,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            other if other == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn number(text: &str) -> usize {
    let mut before = ' ';
    text.find(|c: char| {
        let sign = (c == '+' || c == '-') && matches!(before, 'e' | 'E');
        before = c;
        !(c.is_ascii_alphanumeric() || c == '.' || c == '_' || sign)
    })
    .unwrap_or(text.len())
}

/// What ended a list of nodes.
enum Stop {
    File,
    End(usize),
    /// With the tokens after `else`: `else if …`.
    Else(usize, Vec<Token>),
}

struct Parser<'a> {
    source: &'a str,
    pieces: Vec<Piece<'a>>,
    next: usize,
    defined: BTreeMap<String, Vec<Node>>,
    /// In scope, `$` first.
    variables: Vec<String>,
    loops: usize,
}

impl Parser<'_> {
    fn error(&self, offset: usize, reason: impl AsRef<str>) -> String {
        at(self.source, offset, reason.as_ref())
    }

    fn nodes(&mut self) -> Result<(Vec<Node>, Stop), String> {
        let mut nodes = Vec::new();
        while self.next < self.pieces.len() {
            self.next += 1;
            match &self.pieces[self.next - 1] {
                Piece::Text("") => {}
                Piece::Text(text) => nodes.push(Node::Text((*text).to_owned())),
                Piece::Action(offset, tokens) => {
                    let (offset, tokens) = (*offset, tokens.clone());
                    match tokens.first().filter(|token| token.kind == Kind::Word).map(|token| &*token.text) {
                        Some("end") => return Ok((nodes, Stop::End(offset))),
                        Some("else") => return Ok((nodes, Stop::Else(offset, tokens[1..].to_vec()))),
                        _ => nodes.extend(self.action(offset, &tokens)?),
                    }
                }
            }
        }
        Ok((nodes, Stop::File))
    }

    fn action(&mut self, offset: usize, tokens: &[Token]) -> Result<Option<Node>, String> {
        let word = tokens.first().filter(|token| token.kind == Kind::Word).map_or("", |token| &*token.text);
        Ok(Some(match word {
            "if" => Node::If(self.branch(offset, "if", &tokens[1..])?),
            "with" => Node::With(self.branch(offset, "with", &tokens[1..])?),
            "range" => Node::Range(self.branch(offset, "range", &tokens[1..])?),
            "break" | "continue" if self.loops == 0 => {
                return Err(self.error(offset, format!("{{{{{word}}}}} outside {{{{range}}}}")));
            }
            "break" => Node::Break,
            "continue" => Node::Continue,
            "define" => {
                let name = self.name(offset, "define clause", tokens.get(1))?;
                let body = self.body_of(offset, "define")?;
                self.defined.insert(name, body);
                return Ok(None);
            }
            "template" | "block" => {
                let name = self.name(offset, &format!("{word} clause"), tokens.get(1))?;
                let place = Place { offset, text: text_of(tokens) };
                let argument = match &tokens[2..] {
                    [] => None,
                    rest => Some(self.pipeline(offset, word, rest)?),
                };
                if word == "block" {
                    let body = self.body_of(offset, "block")?;
                    self.defined.insert(name.clone(), body);
                }
                Node::Template { name, argument, place }
            }
            _ => {
                let pipeline = self.pipeline(offset, "command", tokens)?;
                if pipeline.variables.is_empty() { Node::Print(pipeline) } else { Node::Set(pipeline) }
            }
        }))
    }

    /// The body of a template of its own, where only `$` is known.
    fn body_of(&mut self, offset: usize, clause: &str) -> Result<Vec<Node>, String> {
        let outer = std::mem::replace(&mut self.variables, vec!["$".to_owned()]);
        let (body, end) = self.nodes()?;
        self.variables = outer;
        match end {
            Stop::End(_) => Ok(body),
            Stop::File => Err(self.error(self.source.len(), "unexpected EOF")),
            Stop::Else(..) => Err(self.error(offset, format!("unexpected {{{{else}}}} in {clause} clause"))),
        }
    }

    fn name(&self, offset: usize, clause: &str, token: Option<&Token>) -> Result<String, String> {
        match token {
            Some(token) if token.kind == Kind::Text => {
                unquote(&token.text).ok_or_else(|| self.error(token.offset, "invalid syntax"))
            }
            Some(token) => Err(self.error(token.offset, format!("unexpected {:?} in {clause}", token.text))),
            None => Err(self.error(offset, format!("missing name in {clause}"))),
        }
    }

    fn branch(&mut self, offset: usize, word: &str, tokens: &[Token]) -> Result<Branch, String> {
        let known = self.variables.len();
        let pipeline = self.pipeline(offset, word, tokens)?;
        self.loops += usize::from(word == "range");
        let (body, end) = self.nodes()?;
        self.loops -= usize::from(word == "range");
        let otherwise = match end {
            Stop::End(_) => Vec::new(),
            Stop::File => return Err(self.error(self.source.len(), "unexpected EOF")),
            Stop::Else(offset, rest) => match rest.split_first() {
                None => {
                    let (otherwise, end) = self.nodes()?;
                    match end {
                        Stop::End(_) => otherwise,
                        Stop::File => return Err(self.error(self.source.len(), "unexpected EOF")),
                        Stop::Else(offset, _) => {
                            return Err(self.error(offset, "expected end; found {{else}}"));
                        }
                    }
                }
                // `else if` is an `if` of its own, which the same `end` closes.
                Some((token, rest)) if token.text == word && word != "range" => {
                    let inner = self.branch(offset, word, rest)?;
                    vec![if word == "if" { Node::If(inner) } else { Node::With(inner) }]
                }
                Some((token, _)) => {
                    return Err(self.error(offset, format!("unexpected <{}> in else", token.text)));
                }
            },
        };
        self.variables.truncate(known);
        Ok(Branch { pipeline, body, otherwise })
    }

    fn pipeline(&mut self, offset: usize, context: &str, tokens: &[Token]) -> Result<Pipeline, String> {
        let is = |token: Option<&Token>, text: &str| {
            token.is_some_and(|token| token.kind == Kind::Sign && token.text == text)
        };
        let mut variables = Vec::new();
        let mut assigns = false;
        let mut rest = tokens;
        if let [first, sign, ..] = tokens
            && first.kind == Kind::Variable
        {
            if is(Some(sign), ":=") || is(Some(sign), "=") {
                (variables, assigns, rest) = (vec![first.text.clone()], sign.text == "=", &tokens[2..]);
            } else if context == "range"
                && is(Some(sign), ",")
                && let [_, _, second, sign, ..] = tokens
                && second.kind == Kind::Variable
                && (is(Some(sign), ":=") || is(Some(sign), "="))
            {
                variables = vec![first.text.clone(), second.text.clone()];
                (assigns, rest) = (sign.text == "=", &tokens[4..]);
            }
        }
        let mut reader = Reader { parser: self, tokens: rest, next: 0 };
        let commands = reader.commands(offset, context, false)?;
        for variable in &variables {
            if assigns && !self.variables.contains(variable) {
                return Err(self.error(offset, format!("undefined variable {variable:?}")));
            }
        }
        if !assigns {
            self.variables.extend(variables.iter().cloned());
        }
        let offset = tokens.first().map_or(offset, |token| token.offset);
        Ok(Pipeline { variables, assigns, commands, place: Place { offset, text: text_of(rest) } })
    }
}

struct Reader<'p, 's, 't> {
    parser: &'p Parser<'s>,
    tokens: &'t [Token],
    next: usize,
}

impl Reader<'_, '_, '_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    /// Up to the end, or within parentheses up to the closing one.
    fn commands(&mut self, offset: usize, context: &str, closes: bool) -> Result<Vec<Vec<Operand>>, String> {
        let mut commands = Vec::new();
        let mut command: Vec<Operand> = Vec::new();
        loop {
            let token = self.peek().cloned();
            let ends = match &token {
                None if closes => return Err(self.parser.error(offset, "unclosed left paren")),
                None => true,
                Some(token) if token.text == ")" && token.kind == Kind::Sign => {
                    if !closes {
                        return Err(self.parser.error(token.offset, "unexpected right paren"));
                    }
                    true
                }
                Some(token) if token.text == "|" && token.kind == Kind::Sign => {
                    if command.is_empty() {
                        return Err(self.parser.error(token.offset, format!("missing value for {context}")));
                    }
                    self.next += 1;
                    commands.push(std::mem::take(&mut command));
                    continue;
                }
                Some(_) => false,
            };
            if ends {
                if command.is_empty() {
                    return Err(self.parser.error(offset, format!("missing value for {context}")));
                }
                self.next += 1;
                commands.push(command);
                return self.checked(commands);
            }
            command.push(self.operand()?);
        }
    }

    /// What is given to something must be a function.
    fn checked(&self, commands: Vec<Vec<Operand>>) -> Result<Vec<Vec<Operand>>, String> {
        let executable = |operand: &Operand| match operand.base {
            Base::Literal(_) | Base::Nil => false,
            Base::Dot => !operand.fields.is_empty(),
            Base::Variable(_) | Base::Function(_) | Base::Parenthesis(_) => true,
        };
        match commands.iter().enumerate().skip(1).find(|(_, command)| !executable(&command[0])) {
            Some((number, command)) => {
                let reason = format!("non executable command in pipeline stage {}", number + 1);
                Err(self.parser.error(command[0].place.offset, reason))
            }
            None => Ok(commands),
        }
    }

    fn operand(&mut self) -> Result<Operand, String> {
        let start = self.next;
        let Some(token) = self.peek().cloned() else {
            return Err(self.parser.error(self.parser.source.len(), "unexpected EOF"));
        };
        self.next += 1;
        // A field is one of the dot.
        let mut fields: Vec<String> =
            (token.kind == Kind::Field).then(|| token.text[1..].to_owned()).into_iter().collect();
        let base = self.base(&token)?;
        let mut offset = token.offset;
        while let Some(field) = self.peek().filter(|token| token.kind == Kind::Field && !token.spaced) {
            fields.push(field.text[1..].to_owned());
            offset = field.offset;
            self.next += 1;
        }
        // An error about a chain of fields is told at its last one.
        let place = Place { offset, text: text_of(&self.tokens[start..self.next]) };
        Ok(Operand { base, fields, place })
    }

    /// What a token at the beginning of an operand stands for.
    fn base(&mut self, token: &Token) -> Result<Base, String> {
        let error = |reason: String| self.parser.error(token.offset, reason);
        Ok(match token.kind {
            Kind::Dot | Kind::Field => Base::Dot,
            Kind::Variable if self.parser.variables.contains(&token.text) => {
                Base::Variable(token.text.clone())
            }
            Kind::Variable => return Err(error(format!("undefined variable {:?}", token.text))),
            Kind::Text => {
                Base::Literal(unquote(&token.text).ok_or_else(|| error("invalid syntax".to_owned()))?.into())
            }
            Kind::Character => {
                let text = unquote(&token.text).filter(|text| text.chars().count() == 1);
                let character = text.and_then(|text| text.chars().next());
                let character = character.ok_or_else(|| error("malformed character constant".to_owned()))?;
                Base::Literal(u32::from(character).into())
            }
            Kind::Number => {
                let value = read_number(&token.text);
                Base::Literal(value.ok_or_else(|| error(format!("bad number syntax: {:?}", token.text)))?)
            }
            Kind::Word => match &*token.text {
                "true" | "false" => Base::Literal((token.text == "true").into()),
                "nil" => Base::Nil,
                name if functions::is_known(name) => Base::Function(name.to_owned()),
                name => return Err(error(format!("function {name:?} not defined"))),
            },
            Kind::Sign if token.text == "(" => {
                let inner = self.next;
                let commands = self.commands(token.offset, "parenthesized pipeline", true)?;
                let place = Place { offset: token.offset, text: text_of(&self.tokens[inner..self.next - 1]) };
                Base::Parenthesis(Box::new(Pipeline {
                    variables: Vec::new(),
                    assigns: false,
                    commands,
                    place,
                }))
            }
            Kind::Sign => return Err(error(format!("unexpected {:?} in operand", token.text))),
        })
    }
}

fn text_of(tokens: &[Token]) -> String {
    let mut text = String::new();
    for token in tokens {
        if token.spaced && !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&token.text);
    }
    text
}

fn read_number(text: &str) -> Option<Value> {
    let plain = text.replace('_', "");
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, plain.strip_prefix('+').unwrap_or(&plain)),
    };
    let radix = [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2)];
    if let Some((digits, radix)) =
        radix.iter().find_map(|(mark, radix)| Some((digits.strip_prefix(mark)?, *radix)))
    {
        return i64::from_str_radix(digits, radix).ok().map(|number| (sign * number).into());
    }
    match plain.parse::<i64>() {
        Ok(number) => Some(number.into()),
        Err(_) => plain.parse::<f64>().ok().and_then(Number::from_f64).map(Value::Number),
    }
}

/// A literal as Go reads it.
fn unquote(text: &str) -> Option<String> {
    if let Some(raw) = text.strip_prefix('`') {
        return raw.strip_suffix('`').map(str::to_owned);
    }
    let inner = &text[1..text.len() - 1];
    let mut out = String::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        let hexadecimal = |characters: &mut std::str::Chars<'_>, count: usize| {
            let digits: String = characters.by_ref().take(count).collect();
            u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32)
        };
        out.push(match characters.next()? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            'x' => hexadecimal(&mut characters, 2)?,
            'u' => hexadecimal(&mut characters, 4)?,
            'U' => hexadecimal(&mut characters, 8)?,
            same @ ('\\' | '\'' | '"') => same,
            _ => return None,
        });
    }
    Some(out)
}
