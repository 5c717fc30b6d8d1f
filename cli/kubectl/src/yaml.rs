//! Streams of manifests: documents separated by `---`, each YAML or JSON.

use serde_json::Value;

use crate::error::{Error, Result};

/// Every document of a stream, empty ones left out.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    each_document(text).into_iter().collect()
}

/// As `documents`, with what cannot be read standing among what can.
pub fn each_document(text: &str) -> Vec<Result<Value>> {
    let mut values = Vec::new();
    for document in split(text) {
        if document.trim_start().starts_with('{')
            && let Ok(stream) = serde_json::Deserializer::from_str(document)
                .into_iter::<Value>()
                .collect::<std::result::Result<Vec<_>, _>>()
        {
            values.extend(stream.into_iter().map(Ok));
            continue;
        }
        match ferry_api::yaml::documents(document) {
            Ok(read) => values.extend(read.into_iter().map(Ok)),
            Err(error) => values.push(Err(Error::message(format!("error converting YAML to JSON: {error}")))),
        }
    }
    values
}

/// One document; an empty one is null.
pub fn document(text: &str) -> Result<Value> {
    Ok(documents(text)?.into_iter().next().unwrap_or(Value::Null))
}

/// Splits at lines that start with `---`, as kubectl's reader does.
fn split(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let mut start = 0;
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        if let Some(rest) = line.strip_prefix("---")
            && (rest.trim().is_empty() || rest.starts_with([' ', '\t']))
        {
            documents.push(&text[start..offset]);
            // what follows the marker on its own line belongs to the next document
            start = offset + 3;
        }
        offset += line.len();
    }
    documents.push(&text[start..]);
    documents.retain(|document| !document.trim().is_empty());
    documents
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_stream_holds_many_documents() {
        let stream = "# comment\n---\na: 1\n---\n\n--- # next\nb: yes\n---\n{\"c\": 3}\n{\"d\": 4}\n";
        assert_eq!(
            documents(stream).unwrap(),
            [json!({"a": 1}), json!({"b": true}), json!({"c": 3}), json!({"d": 4})]
        );
    }

    #[test]
    fn one_malformed_document_does_not_hide_the_others() {
        let read = each_document("a: 1\n---\nb: [1\nc: 2\n---\n{\"d\": [}\n---\ne: 5\n");
        assert_eq!(read.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false, true]);
    }
}
