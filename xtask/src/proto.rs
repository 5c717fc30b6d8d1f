//! `cargo xtask proto PUBLISHED CHECKED_IN`: a protocol file as upstream publishes it becomes the one that is checked in and
//! that Rust is generated from (`tests/protocols`). Comments and options go: the options are for Go's generators and for
//! gateways, and their imports would have to be here too.

use anyhow::{Context, Result, bail};

pub fn run(words: &[&str]) -> Result<()> {
    let [published, checked_in] = words else {
        bail!("usage: cargo xtask proto PUBLISHED CHECKED_IN");
    };
    let text = std::fs::read_to_string(published).with_context(|| format!("read {published}"))?;
    let text = declarations(&text).with_context(|| format!("read {published}"))?;
    std::fs::write(checked_in, text).with_context(|| format!("write {checked_in}"))
}

/// Imports that bring nothing but options.
const OF_OPTIONS: &[&str] = &[
    "\"gogoproto/",
    "\"etcd/api/versionpb/",
    "\"google/api/",
    "\"google/protobuf/descriptor.proto",
    "\"protoc-gen-",
];

/// The declarations of a protocol file, one a line.
fn declarations(text: &str) -> Result<String> {
    let mut written = String::new();
    let mut depth = 0;
    let mut tokens = tokens(text)?.into_iter();
    let mut statement: Vec<&str> = Vec::new();
    while let Some(token) = tokens.next() {
        match token {
            "option" if statement.is_empty() => skip_option(&mut tokens)?,
            // of the messages of options: declares more of them
            "extend" if statement.is_empty() => {
                tokens.find(|token| *token == "}").context("an extension does not end")?;
            }
            "[" => {
                tokens.find(|token| *token == "]").context("a list of options does not end")?;
            }
            // What is left where an rpc, or an import of options, had a body of options.
            ";" if statement.is_empty() => {}
            ";" => {
                if !(statement[0] == "import" && OF_OPTIONS.iter().any(|of| statement[1].starts_with(of))) {
                    line(&mut written, depth, &statement, ";");
                }
                statement.clear();
            }
            "{" => {
                line(&mut written, depth, &statement, " {");
                statement.clear();
                depth += 1;
            }
            "}" => {
                depth = depth.checked_sub(1).context("a brace closes nothing")?;
                line(&mut written, depth, &[], "}");
            }
            word => statement.push(word),
        }
    }
    match depth == 0 && statement.is_empty() {
        true => Ok(written),
        false => bail!("the file ends within a declaration"),
    }
}

/// An option's value may be a message in braces, with semicolons of its own.
fn skip_option<'a>(tokens: &mut impl Iterator<Item = &'a str>) -> Result<()> {
    let mut depth = 0;
    for token in tokens {
        match token {
            "{" => depth += 1,
            "}" => depth -= 1,
            ";" if depth == 0 => return Ok(()),
            _ => {}
        }
    }
    bail!("an option does not end")
}

fn line(written: &mut String, depth: usize, words: &[&str], end: &str) {
    written.push_str(&"  ".repeat(depth));
    let mut before = "(";
    for word in words {
        if !matches!(before, "(" | "<") && !matches!(*word, "(" | ")" | "<" | ">" | ",") {
            written.push(' ');
        }
        written.push_str(word);
        before = word;
    }
    written.push_str(end);
    written.push('\n');
}

/// Words, strings and signs; comments and white space stand between them.
pub fn tokens(text: &str) -> Result<Vec<&str>> {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '+');
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").context("a comment does not end")? + 2
        } else {
            let end = match first {
                '"' => rest[1..].find('"').context("a string does not end")? + 2,
                first if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                first => first.len_utf8(),
            };
            tokens.push(&rest[..end]);
            end
        };
        rest = rest[end..].trim_start();
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_options_go_and_declarations_stay() {
        let published = r#"
            /* A licence. */
            syntax = "proto3";
            package a.v1;
            import "gogoproto/gogo.proto";
            import "a/b.proto"; // kept
            option (gogoproto.all) = true;
            extend google.protobuf.FieldOptions {
              bool secret = 1059;
            }
            service S {
              // Get gets.
              rpc Get(GetRequest) returns (stream GetResponse) {
                option (google.api.http) = { post: "/v1/get" body: "*" };
              }
            }
            message GetRequest {
              reserved 2, 4 to 6;
              map<string, int64> sizes = 1 [deprecated=true, (gogoproto.nullable) = false];
              enum E { option (versionpb.v) = "3.6"; A = 0; B = -1; }
            }
        "#;
        let expected = "syntax = \"proto3\";\npackage a.v1;\nimport \"a/b.proto\";\nservice S {\n  \
             rpc Get(GetRequest) returns(stream GetResponse) {\n  }\n}\nmessage GetRequest {\n  \
             reserved 2, 4 to 6;\n  map<string, int64> sizes = 1;\n  enum E {\n    A = 0;\n    B = -1;\n  }\n}\n";
        assert_eq!(declarations(published).expect("a protocol file"), expected);
        assert!(declarations("message A {").is_err());
        assert!(declarations("option a = \"").is_err());
    }
}
