//! Prometheus' text format 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::family::Histogram;
use crate::registry::Description;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Families in the order of their names. Several sources may write series of one family.
#[derive(Default)]
pub struct Page {
    families: BTreeMap<&'static str, (Description, String)>,
}

impl Page {
    pub fn sample(&mut self, description: &Description, labels: &[&str], value: f64) {
        let text = self.text_of(description);
        text.push_str(description.name);
        write_labels(text, description.labels, labels, None);
        end(text, &number(value));
    }

    /// A family that has no series now is announced all the same.
    pub fn announce(&mut self, description: &Description) {
        self.text_of(description);
    }

    pub fn histogram(&mut self, description: &Description, labels: &[&str], histogram: &Histogram) {
        let text = self.text_of(description);
        let mut below = 0;
        let bounds = description.buckets.iter().copied().chain([f64::INFINITY]);
        for (bound, count) in bounds.zip(histogram.counts()) {
            below += count;
            text.push_str(description.name);
            text.push_str("_bucket");
            write_labels(text, description.labels, labels, Some(&number(bound)));
            end(text, &number(below as f64));
        }
        for (suffix, value) in [("_sum", histogram.sum()), ("_count", below as f64)] {
            text.push_str(description.name);
            text.push_str(suffix);
            write_labels(text, description.labels, labels, None);
            end(text, &number(value));
        }
    }

    fn text_of(&mut self, description: &Description) -> &mut String {
        let (_, text) =
            self.families.entry(description.name).or_insert_with(|| (*description, String::new()));
        text
    }

    pub fn finish(self) -> String {
        let mut page = String::new();
        for (name, (description, series)) in self.families {
            let help = description.help.replace('\\', "\\\\").replace('\n', "\\n");
            // writing to a string cannot fail
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {}", description.kind.as_str());
            page.push_str(&series);
        }
        page
    }
}

fn end(text: &mut String, value: &str) {
    text.push(' ');
    text.push_str(value);
    text.push('\n');
}

fn write_labels(text: &mut String, names: &[&str], values: &[&str], bound: Option<&str>) {
    debug_assert_eq!(names.len(), values.len(), "{names:?}");
    let labels = names.iter().copied().zip(values.iter().copied());
    let mut separator = '{';
    for (name, value) in labels.chain(bound.map(|bound| ("le", bound))) {
        text.push(separator);
        text.push_str(name);
        text.push_str("=\"");
        for character in value.chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
        separator = ',';
    }
    if separator == ',' {
        text.push('}');
    }
}

/// A number as Go prints it (`%g`), since queries name buckets by it: `0.005`, `1`, `1e+06`, `9.999999999999999e-06`.
pub fn number(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    let scientific = format!("{value:e}");
    let parts =
        scientific.split_once('e').and_then(|(digits, exponent)| Some((digits, exponent.parse().ok()?)));
    match parts {
        Some((digits, exponent)) if !(-4..6).contains(&exponent) => {
            let (sign, exponent) = (if exponent < 0 { '-' } else { '+' }, i32::unsigned_abs(exponent));
            format!("{digits}e{sign}{exponent:02}")
        }
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counters, Gauges, Histograms, Registry};

    #[test]
    fn numbers_are_written_as_go_writes_them() {
        for (value, expected) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.005, "0.005"),
            (0.0001, "0.0001"),
            (0.00005, "5e-05"),
            (9.999999999999999e-06, "9.999999999999999e-06"),
            (100_000.0, "100000"),
            (1_000_000.0, "1e+06"),
            (1_234_567.0, "1.234567e+06"),
            (2.5, "2.5"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(number(value), expected);
        }
    }

    #[test]
    fn a_page_has_families_by_name_with_their_series_by_labels() {
        static REQUESTS: Counters<2> = Counters::new("b_total", "Requests,\nall", &["code", "verb"]);
        static SIZE: Gauges<0> = Gauges::new("a", "A size", &[]);
        static SECONDS: Histograms<1> = Histograms::new("c_seconds", "Time", &["verb"], &[0.5, 1.0]);
        static NEVER: Counters<1> = Counters::new("d_total", "Nothing yet", &["x"]);
        let mut registry = Registry::default();
        registry.add(&[&REQUESTS, &SIZE, &SECONDS, &NEVER]);
        REQUESTS.with(["404", "q\"\\"]).inc();
        REQUESTS.with(["200", "GET"]).add(2);
        for seconds in [0.1, 0.75, 3.0] {
            SECONDS.with(["GET"]).observe(seconds);
        }
        let expected = "\
# HELP a A size
# TYPE a gauge
a 0
# HELP b_total Requests,\\nall
# TYPE b_total counter
b_total{code=\"200\",verb=\"GET\"} 2
b_total{code=\"404\",verb=\"q\\\"\\\\\"} 1
# HELP c_seconds Time
# TYPE c_seconds histogram
c_seconds_bucket{verb=\"GET\",le=\"0.5\"} 1
c_seconds_bucket{verb=\"GET\",le=\"1\"} 2
c_seconds_bucket{verb=\"GET\",le=\"+Inf\"} 3
c_seconds_sum{verb=\"GET\"} 3.85
c_seconds_count{verb=\"GET\"} 3
";
        assert_eq!(registry.text(), expected);
        assert_eq!(registry.describe().len(), 4);
    }
}
