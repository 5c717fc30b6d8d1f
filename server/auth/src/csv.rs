//! The comma-separated files of tokens and passwords (RFC 4180).

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct CsvError {
    pub line: usize,
    pub problem: &'static str,
}

/// Every record with the line it began on. Quoted fields may hold commas, quotes and line breaks.
pub(crate) fn records(text: &str) -> Result<Vec<(usize, Vec<String>)>, CsvError> {
    let mut records = Vec::new();
    let mut characters = text.chars().peekable();
    let mut line = 1;
    while characters.peek().is_some() {
        let started = line;
        let mut record = Vec::new();
        loop {
            let (field, end) = field(&mut characters, &mut line)?;
            record.push(field);
            if end == End::Record {
                break;
            }
        }
        // An empty line is no record.
        if record != [""] {
            records.push((started, record));
        }
    }
    Ok(records)
}

#[derive(PartialEq)]
enum End {
    Field,
    Record,
}

fn field(
    characters: &mut std::iter::Peekable<std::str::Chars<'_>>,
    line: &mut usize,
) -> Result<(String, End), CsvError> {
    let mut field = String::new();
    if characters.next_if_eq(&'"').is_some() {
        loop {
            match characters.next() {
                Some('"') if characters.next_if_eq(&'"').is_some() => field.push('"'),
                Some('"') => break,
                Some(character) => {
                    *line += usize::from(character == '\n');
                    field.push(character);
                }
                None => return Err(CsvError { line: *line, problem: "a quoted field does not end" }),
            }
        }
        characters.next_if_eq(&'\r');
        return match characters.next() {
            Some(',') => Ok((field, End::Field)),
            Some('\n') => {
                *line += 1;
                Ok((field, End::Record))
            }
            None => Ok((field, End::Record)),
            Some(_) => Err(CsvError { line: *line, problem: "something follows a quoted field" }),
        };
    }
    loop {
        match characters.next() {
            Some(',') => return Ok((field, End::Field)),
            None => return Ok((field, End::Record)),
            Some('\n') => {
                *line += 1;
                if field.ends_with('\r') {
                    field.pop();
                }
                return Ok((field, End::Record));
            }
            Some('"') => {
                return Err(CsvError {
                    line: *line,
                    problem: "a quote inside of a field that is not quoted",
                });
            }
            Some(character) => field.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&[&str]]) {
        let found: Vec<Vec<String>> = records(text).unwrap().into_iter().map(|(_, record)| record).collect();
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn fields_records_and_quotes() {
        check("", &[]);
        check("a,b,c", &[&["a", "b", "c"]]);
        check("a,b\r\n\nc,\n", &[&["a", "b"], &["c", ""]]);
        check("t,u,1,\"g1,g2\"\n", &[&["t", "u", "1", "g1,g2"]]);
        check("\"a \"\"b\"\"\nc\",d\r\ne", &[&["a \"b\"\nc", "d"], &["e"]]);
    }

    #[test]
    fn csv_errors_name_the_line() {
        assert_eq!(records("a\n\"b").unwrap_err().line, 2);
        assert_eq!(records("a\"b").unwrap_err().problem, "a quote inside of a field that is not quoted");
        assert_eq!(
            records("x\ny\n\"b\"c").unwrap_err(),
            CsvError { line: 3, problem: "something follows a quoted field" }
        );
    }
}
