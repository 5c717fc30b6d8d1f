//! Go's text templates over JSON, as `-o go-template` takes them: the whole language, its own functions, and the two
//! that kubectl adds (`exists`, `base64decode`).

mod execute;
mod format;
mod functions;
mod parse;

use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    pub source: String,
    parsed: parse::Parsed,
}

impl Template {
    pub fn parse(source: &str) -> Result<Self, String> {
        Ok(Template { source: source.to_owned(), parsed: parse::parse(source)? })
    }

    /// What it makes of `object`; a failure comes with what was printed until then. A field that is missing is
    /// `<no value>`, or an error where `allow_missing` is false.
    pub fn execute(&self, object: &Value, allow_missing: bool) -> (String, Result<(), String>) {
        execute::execute(&self.source, &self.parsed, object, allow_missing)
    }
}

/// A value as the template's own `print` shows it.
pub fn shown(value: &Value) -> String {
    format::shown(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object() -> Value {
        json!({
            "metadata": {"name": "web", "labels": {"b": "2", "a": "1"}, "uid": null},
            "spec": {"replicas": 3, "share": 0.5, "paused": false, "huge": 1e21},
            "items": [{"name": "one", "ports": [80, 443]}, {"name": "two", "ports": []}],
            "kind": "Thing",
            "secret": "aGVsbG8=",
            "empty": [],
        })
    }

    fn check(template: &str, expected: &str) {
        let parsed = Template::parse(template).unwrap_or_else(|error| panic!("{template}: {error}"));
        let (text, result) = parsed.execute(&object(), true);
        assert_eq!(result, Ok(()), "{template}");
        assert_eq!(text, expected, "{template}");
    }

    #[test]
    fn fields_text_and_values() {
        check("plain", "plain");
        check("{{.metadata.name}}", "web");
        check("a {{- .metadata.name -}}  b", "awebb");
        check("{{/* nothing */}}x", "x");
        check("{{.metadata.nothing}}", "<no value>");
        check("{{.metadata.uid}} {{.nothing.more}}", "<no value> <no value>");
        check("{{.metadata}}", "map[labels:map[a:1 b:2] name:web uid:<nil>]");
        check("{{(index .items 0).ports}}", "[80 443]");
        check("{{.spec.replicas}} {{.spec.share}} {{.spec.paused}} {{.spec.huge}}", "3 0.5 false 1e+21");
        check("{{\"a\\n\"}}{{`b`}}{{'c'}}{{0x10}}{{1.5}}{{true}}", "a\nb99161.5true");
    }

    #[test]
    fn branches_loops_and_variables() {
        check("{{if .spec.paused}}a{{else if .spec.replicas}}b{{else}}c{{end}}", "b");
        check("{{with .metadata}}{{.name}}{{end}}{{with .nothing}}x{{else}}none{{end}}", "webnone");
        check(
            "{{range .items}}{{.name}}:{{range .ports}}{{.}},{{else}}-{{end}} {{end}}",
            "one:80,443, two:- ",
        );
        check("{{range $i, $item := .items}}{{$i}}={{$item.name}} {{end}}", "0=one 1=two ");
        check("{{range $key, $value := .metadata.labels}}{{$key}}{{$value}}{{end}}", "a1b2");
        check("{{range .empty}}x{{else}}none{{end}}", "none");
        check("{{range .items}}{{if eq .name \"two\"}}{{break}}{{end}}{{.name}}{{end}}", "one");
        check("{{range .items}}{{if eq .name \"one\"}}{{continue}}{{end}}{{.name}}{{end}}", "two");
        check("{{range 3}}{{.}}{{end}}", "012");
        check("{{$x := 1}}{{range .items}}{{$x = .name}}{{end}}{{$x}}", "two");
        check("{{range .items}}{{$.metadata.name}}{{end}}", "webweb");
        check("{{define \"t\"}}<{{.}}>{{end}}{{template \"t\" .metadata.name}}", "<web>");
        check("{{block \"b\" .metadata}}{{.name}}{{end}}", "web");
    }

    #[test]
    fn functions_are_those_of_go_and_kubectl() {
        check("{{len .items}} {{len .metadata.name}}", "2 3");
        check("{{index .items 1 \"name\"}}", "two");
        check("{{index .metadata.labels \"a\"}}{{index .metadata.labels \"z\"}}", "1<no value>");
        check("{{slice .metadata.name 1}} {{slice .metadata.name 0 2}}", "eb we");
        check("{{and 1 0}} {{or 0 \"x\"}} {{not 0}}", "0 x true");
        check(
            "{{eq .spec.replicas 3}} {{eq 1 2 1}} {{ne \"a\" \"b\"}} {{lt 1 2}} {{ge 2.5 2.5}}",
            "true true true true true",
        );
        check(
            "{{printf \"%s-%03d|%5s|%-5s|%q|%v|%.2f|%x|%t|%%\" \"x\" 7 \"r\" \"l\" \"q\" .items 1.5 255 true}}",
            "x-007|    r|l    |\"q\"|[map[name:one ports:[80 443]] map[name:two ports:[]]]|1.50|ff|true|%",
        );
        check("{{print 1 2 \"a\" \"b\" 3}} {{println \"x\"}}", "1 2ab3 x\n");
        check("{{.secret | base64decode}}", "hello");
        check("{{exists . \"metadata\" \"name\"}} {{exists . \"metadata\" \"x\"}}", "true false");
        check("{{html \"<a>\"}} {{js \"'\"}} {{urlquery \"a b\"}}", "&lt;a&gt; \\' a+b");
    }

    #[test]
    fn refusals_say_where() {
        fn parse(template: &str, expected: &str) {
            let error = Template::parse(template).expect_err(template);
            assert!(error.contains(expected), "{template}: {error}");
        }
        parse("{{.a", "template: output:1: unclosed action");
        parse("{{if .a}}", "unexpected EOF");
        parse("{{end}}", "unexpected {{end}}");
        parse("{{nothing}}", "function \"nothing\" not defined");
        parse("{{$x}}", "undefined variable \"$x\"");
        parse("\n{{}}", "output:2: missing value for command");
        fn run(template: &str, allow_missing: bool, expected: &str) {
            let parsed = Template::parse(template).expect("well formed");
            let error = parsed.execute(&object(), allow_missing).1.expect_err(template);
            assert!(error.contains(expected), "{template}: {error}");
        }
        run(
            "{{.kind.x}}",
            true,
            "output:1:7: executing \"output\" at <.kind.x>: can't evaluate field x in type interface {}",
        );
        run("{{.nothing}}", false, "map has no entry for key \"nothing\"");
        run("{{range .spec.paused}}{{end}}", true, "range can't iterate over false");
        run("{{index .items 5}}", true, "at <index .items 5>: error calling index: index out of range: 5");
        run("{{template \"t\"}}", true, "template \"t\" not defined");
    }
}
