//! Values as Go's `fmt` writes them.

use serde_json::{Number, Value};

/// What a template prints for a value: what is not there, has no value.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Null => "<no value>".to_owned(),
        other => nested(other),
    }
}

/// `%v`.
pub fn nested(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) => number_text(number),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(nested).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries: Vec<String> =
                entries.into_iter().map(|(key, value)| format!("{key}:{}", nested(value))).collect();
            format!("map[{}]", entries.join(" "))
        }
    }
}

pub fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => shortest(float),
        _ => number.to_string(),
    }
}

/// The shortest text that reads back as the same number, with an exponent from 1e+06 on and below 1e-04.
fn shortest(float: f64) -> String {
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        _ => float.to_string(),
    }
}

/// A space stands between two of which neither is text.
pub fn print(values: &[Value]) -> String {
    let mut out = String::new();
    for (at, value) in values.iter().enumerate() {
        if at > 0 && !value.is_string() && !values[at - 1].is_string() {
            out.push(' ');
        }
        out.push_str(&nested(value));
    }
    out
}

/// A verb of a pattern: `%-5.2f`.
struct Verb {
    letter: char,
    left: bool,
    zero: bool,
    plus: bool,
    width: usize,
    precision: Option<usize>,
}

pub fn printf(pattern: &str, values: &[Value]) -> String {
    let mut out = String::new();
    let mut rest = pattern.chars().peekable();
    let mut next = values.iter();
    while let Some(character) = rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut verb = Verb { letter: ' ', left: false, zero: false, plus: false, width: 0, precision: None };
        while let Some(flag) = rest.next_if(|flag| "-+# 0".contains(*flag)) {
            match flag {
                '-' => verb.left = true,
                '0' => verb.zero = true,
                '+' => verb.plus = true,
                _ => {}
            }
        }
        let digits = |rest: &mut std::iter::Peekable<std::str::Chars<'_>>| {
            let mut number = 0usize;
            while let Some(digit) = rest.next_if(char::is_ascii_digit) {
                number = (number * 10 + digit.to_digit(10).unwrap_or(0) as usize).min(10_000);
            }
            number
        };
        verb.width = digits(&mut rest);
        if rest.next_if_eq(&'.').is_some() {
            verb.precision = Some(digits(&mut rest));
        }
        let Some(letter) = rest.next() else {
            out.push_str("%!(NOVERB)");
            break;
        };
        if letter == '%' {
            out.push('%');
            continue;
        }
        verb.letter = letter;
        match next.next() {
            Some(value) => out.push_str(&verb.write(value)),
            None => out.push_str(&format!("%!{letter}(MISSING)")),
        }
    }
    let extra: Vec<String> = next.map(|value| format!("{}={}", type_of(value), nested(value))).collect();
    if !extra.is_empty() {
        out.push_str(&format!("%!(EXTRA {})", extra.join(", ")));
    }
    out
}

impl Verb {
    fn write(&self, value: &Value) -> String {
        let cut = |text: &str| match self.precision {
            Some(precision) => text.chars().take(precision).collect(),
            None => text.to_owned(),
        };
        let text = match (self.letter, value) {
            ('v', value) => nested(value),
            ('s', Value::String(text)) => cut(text),
            ('q', Value::String(text)) => format!("{text:?}"),
            ('x', Value::String(text)) => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
            ('X', Value::String(text)) => text.bytes().map(|byte| format!("{byte:02X}")).collect(),
            ('s' | 'q' | 'd', Value::Array(items)) => {
                let items: Vec<String> = items.iter().map(|item| self.bare().write(item)).collect();
                format!("[{}]", items.join(" "))
            }
            ('t', Value::Bool(truth)) => truth.to_string(),
            ('T', value) => type_of(value).to_owned(),
            (letter, Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => match letter {
                    'd' if self.plus => format!("{integer:+}"),
                    'd' => integer.to_string(),
                    'x' => format!("{integer:x}"),
                    'X' => format!("{integer:X}"),
                    'o' => format!("{integer:o}"),
                    'b' => format!("{integer:b}"),
                    'c' => u32::try_from(integer)
                        .ok()
                        .and_then(char::from_u32)
                        .map_or_else(String::new, String::from),
                    _ => self.bad(value),
                },
                (None, Some(float)) => match letter {
                    'f' | 'F' => format!("{float:.*}", self.precision.unwrap_or(6)),
                    'g' | 'G' => shortest(float),
                    _ => self.bad(value),
                },
                (None, None) => self.bad(value),
            },
            (_, value) => self.bad(value),
        };
        self.pad(text, value.is_number())
    }

    /// The same for an element.
    fn bare(&self) -> Verb {
        Verb { width: 0, ..*self }
    }

    fn bad(&self, value: &Value) -> String {
        match value {
            Value::Null => format!("%!{}(<nil>)", self.letter),
            value => format!("%!{}({}={})", self.letter, type_of(value), nested(value)),
        }
    }

    fn pad(&self, text: String, is_number: bool) -> String {
        let missing = self.width.saturating_sub(text.chars().count());
        if self.left {
            return text + &" ".repeat(missing);
        }
        if self.zero && is_number {
            let (sign, digits) = match text.strip_prefix(['-', '+']) {
                Some(digits) => (&text[..1], digits),
                None => ("", &*text),
            };
            return format!("{sign}{}{digits}", "0".repeat(missing));
        }
        " ".repeat(missing) + &text
    }
}
