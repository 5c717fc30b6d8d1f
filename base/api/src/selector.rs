//! Selectors: which objects of a list or watch are wanted, by labels and by fields.

mod label_text;

use std::fmt::{self, Display};

use serde_json::Value;

use crate::names;
use crate::status::Status;

/// Requirements on labels, all of which must hold; none at all select everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    requirements: Vec<LabelRequirement>,
    /// Selects nothing, whatever the requirements (an absent structured selector).
    nothing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelRequirement {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    Equals,
    DoubleEquals,
    NotEquals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// Why text, or a structured selector, is no selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadSelector(String);

impl LabelSelector {
    /// `a=b,c in (d,e),!f`
    pub fn parse(text: &str) -> Result<LabelSelector, BadSelector> {
        let mut requirements = label_text::parse(text)?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(LabelSelector { requirements, nothing: false })
    }

    pub fn everything() -> LabelSelector {
        LabelSelector::default()
    }

    pub fn nothing() -> LabelSelector {
        LabelSelector { requirements: Vec::new(), nothing: true }
    }

    /// From the structured form (`matchLabels`, `matchExpressions`). Absent selects nothing, empty
    /// selects everything.
    pub fn from_structured(selector: Option<&Value>) -> Result<LabelSelector, BadSelector> {
        let Some(selector) = selector.filter(|selector| !selector.is_null()) else {
            return Ok(LabelSelector::nothing());
        };
        let mut requirements = Vec::new();
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            let value = value.as_str().unwrap_or("").to_string();
            requirements.push(LabelRequirement::new(key.clone(), Operator::Equals, vec![value])?);
        }
        for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let text = |field: &str| expression.get(field).and_then(Value::as_str).unwrap_or("");
            let operator = match text("operator") {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    return Err(BadSelector(format!("{other:?} is not a valid label selector operator")));
                }
            };
            let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
            let values = values.filter_map(|value| value.as_str().map(Into::into)).collect();
            requirements.push(LabelRequirement::new(text("key").to_string(), operator, values)?);
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(LabelSelector { requirements, nothing: false })
    }

    pub fn matches<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        !self.nothing && self.requirements.iter().all(|requirement| requirement.matches(&label))
    }

    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    pub fn is_nothing(&self) -> bool {
        self.nothing
    }

    pub fn requirements(&self) -> impl Iterator<Item = &LabelRequirement> {
        self.requirements.iter()
    }

    /// Both this and the other must hold.
    pub fn and(mut self, other: LabelSelector) -> LabelSelector {
        self.nothing |= other.nothing;
        self.requirements.extend(other.requirements);
        self.requirements.sort_by(|a, b| a.key.cmp(&b.key));
        self
    }
}

impl LabelRequirement {
    pub fn new(
        key: String,
        operator: Operator,
        values: Vec<String>,
    ) -> Result<LabelRequirement, BadSelector> {
        let mut wrong = Vec::new();
        let bad_key = names::qualified_name(&key);
        if !bad_key.is_empty() {
            wrong.push(format!("key: Invalid value: {key:?}: {}", bad_key.join("; ")));
        }
        let list = || Value::from(values.clone()).to_string();
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => wrong.push(
                "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty".into(),
            ),
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => wrong
                .push(format!(
                    "values: Invalid value: {}: exact-match compatibility requires one single value",
                    list()
                )),
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => wrong.push(format!(
                "values: Invalid value: {}: values set must be empty for exists and does not exist",
                list()
            )),
            Operator::GreaterThan | Operator::LessThan => {
                if values.len() != 1 {
                    wrong.push(format!(
                        "values: Invalid value: {}: for 'Gt', 'Lt' operators, exactly one value is required",
                        list()
                    ));
                }
                for (index, value) in values.iter().enumerate() {
                    if value.parse::<i64>().is_err() {
                        wrong.push(format!(
                            "values[{index}]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value \
                             must be an integer"
                        ));
                    }
                }
            }
            _ => {}
        }
        for (index, value) in values.iter().enumerate() {
            let bad_value = names::label_value(value);
            if !bad_value.is_empty() {
                wrong.push(format!(
                    "values[{index}][{key}]: Invalid value: {value:?}: {}",
                    bad_value.join("; ")
                ));
            }
        }
        match wrong.as_slice() {
            [] => Ok(LabelRequirement { key, operator, values }),
            [one] => Err(BadSelector(one.clone())),
            many => Err(BadSelector(format!("[{}]", many.join(", ")))),
        }
    }

    fn matches<'l>(&self, label: &impl Fn(&str) -> Option<&'l str>) -> bool {
        let value = label(&self.key);
        let listed = |value: &str| self.values.iter().any(|wanted| wanted == value);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => value.is_some_and(listed),
            Operator::NotIn | Operator::NotEquals => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan | Operator::LessThan => {
                let number = |text: &str| text.parse::<i64>().ok();
                match (value.and_then(number), self.values.first().and_then(|bound| number(bound))) {
                    (Some(value), Some(bound)) if self.operator == Operator::GreaterThan => value > bound,
                    (Some(value), Some(bound)) => value < bound,
                    _ => false,
                }
            }
        }
    }
}

/// Requirements on fields (`metadata.name=a,spec.nodeName!=b`), all of which must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRequirement {
    pub field: String,
    /// Whether the field must have the value, or must not.
    pub equal: bool,
    pub value: String,
}

impl FieldSelector {
    pub fn parse(text: &str) -> Result<FieldSelector, BadSelector> {
        let mut terms = split_terms(text);
        terms.sort_unstable();
        let mut requirements = Vec::new();
        for term in terms.into_iter().filter(|term| !term.is_empty()) {
            let at = term.find(['=', '!']).and_then(|_| first_operator(term)).ok_or_else(|| {
                BadSelector(format!("invalid selector: '{text}'; can't understand '{term}'"))
            })?;
            let (field, rest) = term.split_at(at);
            let (equal, value) = match rest.as_bytes() {
                [b'!', ..] => (false, &rest[2..]),
                [b'=', b'=', ..] => (true, &rest[2..]),
                _ => (true, &rest[1..]),
            };
            let value = unescape(value)?;
            if !field.is_empty() || !value.is_empty() {
                requirements.push(FieldRequirement { field: field.to_string(), equal, value });
            }
        }
        // By how they are written, not by how they were: `==` is written as `=`.
        requirements.sort_by_cached_key(ToString::to_string);
        Ok(FieldSelector { requirements })
    }

    pub fn everything() -> FieldSelector {
        FieldSelector::default()
    }

    /// A field without a value counts as empty.
    pub fn matches<'f>(&self, field: impl Fn(&str) -> Option<&'f str>) -> bool {
        self.requirements.iter().all(|requirement| {
            requirement.equal == (field(&requirement.field).unwrap_or("") == requirement.value)
        })
    }

    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn requirements(&self) -> impl Iterator<Item = &FieldRequirement> {
        self.requirements.iter()
    }

    /// The one value that the selector lets the field have, where it names one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.requirements
            .iter()
            .find(|requirement| requirement.equal && requirement.field == field)
            .map(|requirement| requirement.value.as_str())
    }
}

fn first_operator(term: &str) -> Option<usize> {
    term.char_indices().map(|(at, _)| at).find(|at| {
        let rest = &term[*at..];
        rest.starts_with("!=") || rest.starts_with('=')
    })
}

/// At commas, but for those behind a backslash.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn unescape(value: &str) -> Result<String, BadSelector> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(next @ ('\\' | ',' | '=')) => plain.push(next),
                next => {
                    let sequence: String = std::iter::once('\\').chain(next).collect();
                    return Err(BadSelector(format!(
                        "invalid field selector: invalid escape sequence: {sequence}"
                    )));
                }
            },
            ',' | '=' => {
                return Err(BadSelector(format!(
                    "invalid field selector: unescaped character in value: {}",
                    u32::from(c)
                )));
            }
            c => plain.push(c),
        }
    }
    Ok(plain)
}

impl Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{requirement}")?;
        }
        Ok(())
    }
}

impl Display for LabelRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        match self.operator {
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

impl Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{requirement}")?;
        }
        Ok(())
    }
}

impl Display for FieldRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operator = if self.equal { "=" } else { "!=" };
        let value = self.value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
        write!(f, "{}{operator}{value}", self.field)
    }
}

impl Display for BadSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadSelector {}

impl From<BadSelector> for Status {
    fn from(error: BadSelector) -> Status {
        Status::bad_request(error.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matches(selector: &str, labels: &[(&str, &'static str)]) -> bool {
        let find = |key: &str| labels.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        LabelSelector::parse(selector).expect(selector).matches(find)
    }

    #[test]
    fn label_selectors_match_as_users_expect() {
        let labels = [("app", "web"), ("tier", "front"), ("n", "5"), ("empty", "")];
        for selector in [
            "",
            "app",
            "app=web",
            "app==web",
            "app!=db",
            "app in (web,db)",
            "app notin (db)",
            "!other",
            "other!=x",
            "other notin (x)",
            "n>4",
            "n<6",
            "app=web,tier=front",
            "empty=",
            "empty in ()",
            "empty in (,a)",
            " app = web , tier ",
            "in notin (x)",
            "app in (in, web)",
        ] {
            assert!(matches(selector, &labels), "{selector}");
        }
        for selector in
            ["app=db", "other", "!app", "app notin (web)", "n>5", "n<5", "app>1", "other=", "app=web,x"]
        {
            assert!(!matches(selector, &labels), "{selector}");
        }
    }

    #[test]
    fn label_selectors_read_back_as_they_were() {
        for (text, expected) in [
            ("b=1,a", "a,b=1"),
            ("x in (c,a,b)", "x in (a,b,c)"),
            ("x notin ( a )", "x notin (a)"),
            ("!x", "!x"),
            ("x==y", "x==y"),
            ("x>1,y<2", "x>1,y<2"),
            ("", ""),
        ] {
            let selector = LabelSelector::parse(text).expect(text);
            assert_eq!(selector.to_string(), expected);
            assert_eq!(LabelSelector::parse(expected), Ok(selector));
        }
    }

    #[test]
    fn broken_label_selectors_say_what_is_wrong() {
        let check = |text: &str, expected: &str| {
            let error = LabelSelector::parse(text).expect_err(text).to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        };
        check("a=b,", "found '', expected: identifier after ','");
        check("a=b c", "found 'c', expected: ',' or 'end of string'");
        check("=a", "found '=', expected: !, identifier, or 'end of string'");
        check("a in b", "unable to parse requirement: found 'b' expected: '('");
        check("a in (b", "unable to parse requirement: found '', expected: ',' or ')'");
        check("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt");
        check("!", "unable to parse requirement: found '', expected: identifier");
        check("-a=b", "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of");
        check(
            "a=-",
            "unable to parse requirement: values[0][a]: Invalid value: \"-\": a valid label must be",
        );
        check(
            "a>x",
            "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators",
        );
    }

    #[test]
    fn structured_selectors_mean_the_same() {
        let selector = json!({"matchLabels": {"a": "1"}, "matchExpressions": [
            {"key": "b", "operator": "In", "values": ["2", "3"]}, {"key": "c", "operator": "DoesNotExist"}]});
        let selector = LabelSelector::from_structured(Some(&selector)).expect("a selector");
        assert_eq!(selector.to_string(), "a=1,b in (2,3),!c");
        assert!(LabelSelector::from_structured(None).expect("nothing").is_nothing());
        assert!(LabelSelector::from_structured(Some(&json!({}))).expect("everything").is_everything());
        let bad = json!({"matchExpressions": [{"key": "b", "operator": "Is"}]});
        assert_eq!(
            LabelSelector::from_structured(Some(&bad)).expect_err("bad").to_string(),
            r#""Is" is not a valid label selector operator"#
        );
        assert!(!LabelSelector::nothing().matches(|_| None));
    }

    #[test]
    fn field_selectors_match_escape_and_read_back() {
        let selector =
            FieldSelector::parse(r"metadata.name=a\,b\=c,status.phase!=Failed,spec.x==1").expect("ok");
        assert_eq!(selector.exact("metadata.name"), Some("a,b=c"));
        assert_eq!(selector.exact("status.phase"), None);
        assert_eq!(selector.to_string(), r"metadata.name=a\,b\=c,spec.x=1,status.phase!=Failed");
        assert!(selector.matches(|field| match field {
            "metadata.name" => Some("a,b=c"),
            "spec.x" => Some("1"),
            _ => None,
        }));
        assert!(!selector.matches(|_| None));
        assert!(FieldSelector::parse("").expect("everything").is_everything());
        let selector = FieldSelector::parse("a==b,a=a,a!=c").expect("both operators");
        assert_eq!(selector.to_string(), "a!=c,a=a,a=b");
        assert_eq!(FieldSelector::parse("a!=c,a=a,a=b"), Ok(selector));
        let check = |text: &str, expected: &str| {
            assert_eq!(FieldSelector::parse(text).expect_err(text).to_string(), expected);
        };
        check("a", "invalid selector: 'a'; can't understand 'a'");
        check(r"a=b\c", r"invalid field selector: invalid escape sequence: \c");
        check("a=b=c", "invalid field selector: unescaped character in value: 61");
    }
}
