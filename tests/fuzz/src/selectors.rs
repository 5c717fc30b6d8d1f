//! Short texts with a grammar: selectors, JSONPath, quantities, durations, times, continue tokens of names. What is printed
//! of one that was read is read as the same.

use ferry_api::json_path::Template;
use ferry_api::{FieldSelector, LabelSelector, Quantity, duration, names, time};
use serde_json::json;

use crate::parts;

pub fn run(data: &[u8]) {
    let Some(parts) = parts(data) else { return };
    for text in parts.take(4) {
        one(text);
    }
}

fn one(text: &str) {
    if let Ok(selector) = LabelSelector::parse(text) {
        let printed = selector.to_string();
        let again = LabelSelector::parse(&printed).unwrap_or_else(|why| panic!("{why}: {printed:?}"));
        assert_eq!(again.to_string(), printed);
        selector.matches(|label| (label == "app").then_some("a"));
    }
    if let Ok(selector) = FieldSelector::parse(text) {
        let printed = selector.to_string();
        let again = FieldSelector::parse(&printed).unwrap_or_else(|why| panic!("{why}: {printed:?}"));
        assert_eq!(again.to_string(), printed);
        selector.matches(|field| (field == "metadata.name").then_some("a"));
    }
    if let Ok(value) = ferry_api::read::document(text.as_bytes()) {
        let _ = LabelSelector::from_structured(Some(&value));
    }
    let object = json!({"a": [{"b": 1, "c": "d"}, {"b": 2.5}], "e": {"f": [1, 2, 3], "g.h": null}});
    for template in [Template::parse(text), Template::parse_relaxed(text)].into_iter().flatten() {
        let _ = template.evaluate(&object, true).map(|found| (found.text(), found.as_json()));
        let _ = object.as_object().map(|object| template.first(object).is_some());
    }
    if let Ok(quantity) = Quantity::parse(text) {
        let printed = quantity.to_string();
        let again = Quantity::parse(&printed).unwrap_or_else(|why| panic!("{why}: {printed:?}"));
        assert_eq!(again.to_string(), printed, "{text:?}");
        let _ = (quantity.value(), quantity.milli(), quantity.is_zero());
    }
    if let Some(nanoseconds) = duration::parse(text) {
        assert_eq!(duration::parse(&duration::format(nanoseconds)), Some(nanoseconds), "{text:?}");
    }
    for precision in [time::Precision::Seconds, time::Precision::Micros] {
        let _ = time::canonical(text, precision);
    }
    let _ = names::is_dns1123_subdomain(text);
}

pub fn seeds() -> Vec<Vec<u8>> {
    const TEXTS: &[&str] = &[
        "a=b,c!=d,e in (f, g),h notin (i),j,!k,l>1,m<2,example.com/n==o",
        "metadata.name=a,spec.nodeName!=b\\,c,d==\\=e",
        r#"{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"c","operator":"In","values":["d"]},{"key":"e","operator":"Exists"}]}"#,
        r#"{range .a[*]}{.b}{"\t"}{end}{.a[?(@.b>1)].c}{..f[0:2:1]}{.e['g\.h']}{.a[-1:]}{$.e.f[0,2]}"#,
        ".spec.a[0].b",
        "1536Mi\n---\n0.5e3\n---\n-12345678901234567890n\n---\n1.5Ki",
        "1h2m3.5s\n---\n-1ns\n---\n9223372036854775807ns\n---\n1.1µs",
        "2026-01-02T03:04:05.123456789+05:30\n---\n0001-01-01T00:00:00Z",
    ];
    TEXTS.iter().map(|text| text.as_bytes().to_vec()).collect()
}
