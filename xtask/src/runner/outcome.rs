//! What became of tests, and what of a whole run.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::process::End;

/// Of a test binary, or one test of it.
pub struct Outcome {
    passed: usize,
    failures: Vec<String>,
    /// Tests that checked nothing, and why.
    skipped: Vec<(String, String)>,
    /// What tests did not check of all they might.
    unchecked: Vec<(String, String)>,
    took: Duration,
    pub output: String,
    /// The tests that failed first and passed when they were run once more.
    second: Vec<String>,
}

impl Outcome {
    /// From what the test harness printed, how its process ended, and what tests wrote about their gaps.
    pub fn read(output: &str, end: End, gaps: &str, took: Duration) -> Outcome {
        let mut failures: Vec<String> = output
            .lines()
            .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
            .map(str::to_owned)
            .collect();
        let results: Vec<&str> =
            output.lines().filter_map(|line| line.strip_prefix("test result: ")).collect();
        let sum = |of: &str| results.iter().filter_map(|result| count(result, of)).sum::<usize>();
        let (mut passed, failed) = (sum("passed"), sum("failed"));
        // Without words of its own about them, a failure still is one.
        while failures.len() < failed {
            failures.push("a test".into());
        }
        match end {
            End::Expired(limit) => failures.push(format!("not done within {} s", limit.as_secs())),
            End::Exited(status) if !status.success() && failures.is_empty() => {
                failures.push(format!("ended with {status}"));
            }
            End::Exited(status) if status.success() && results.is_empty() => passed = 1,
            End::Exited(_) => {}
        }
        let kind = |wanted: &str| -> Vec<(String, String)> {
            let lines = gaps.lines().filter_map(|line| {
                let (test, rest) = line.split_once('\t')?;
                let (kind, why) = rest.split_once('\t')?;
                (kind == wanted).then(|| (test.to_owned(), why.to_owned()))
            });
            lines.collect::<BTreeSet<_>>().into_iter().collect()
        };
        let (mut skipped, unchecked) = (kind("skipped"), kind("unchecked"));
        // One that fails for what is missing counts as that.
        skipped.retain(|(test, _)| !failures.contains(test));
        skipped.dedup_by(|one, other| one.0 == other.0);
        Outcome {
            passed: passed.saturating_sub(skipped.len()),
            failures,
            skipped,
            unchecked,
            took,
            output: output.to_owned(),
            second: Vec::new(),
        }
    }

    pub fn is_success(&self) -> bool {
        self.failures.is_empty()
    }

    /// The tests that failed, and whatever else went wrong.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Of a test that failed before.
    #[must_use]
    pub fn second_time(mut self, test: &str) -> Outcome {
        if self.is_success() {
            self.second.push(test.into());
        }
        self
    }

    /// Takes in what became of one failed test when it was run once more.
    pub fn replace(&mut self, test: &str, again: Outcome) {
        self.took += again.took;
        if again.is_success() {
            self.failures.retain(|failure| failure != test);
            self.passed += again.passed;
            self.skipped.extend(again.skipped);
            self.second.extend(again.second);
        }
    }

    pub fn line(&self, name: &str) -> String {
        let sign = if self.is_success() { "ok    " } else { "FAILED" };
        let counts = counts(self.passed, self.failures.len(), self.skipped.len());
        format!("{sign} {name}: {counts} ({:.1} s)", self.took.as_secs_f64())
    }
}

/// Of `ok. 3 passed; 0 failed; …` the number of those.
fn count(result: &str, of: &str) -> Option<usize> {
    let part = result.split(['.', ';']).map(str::trim).find(|part| part.ends_with(of))?;
    part.split(' ').next()?.parse().ok()
}

fn counts(passed: usize, failed: usize, skipped: usize) -> String {
    let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
    format!("{passed} passed, {failed} failed{skipped}")
}

/// Of all of them; it is printed last.
#[derive(Default)]
pub struct Report {
    passed: usize,
    skipped: usize,
    failures: Vec<String>,
    second: Vec<String>,
    gaps: Vec<String>,
}

impl Report {
    pub fn add(&mut self, name: &str, outcome: Outcome) {
        self.passed += outcome.passed;
        self.skipped += outcome.skipped.len();
        // A test that has a process of its own has its name there.
        let full = |test: &String| if name.ends_with(test) { name.into() } else { format!("{name} {test}") };
        self.second.extend(outcome.second.iter().map(full));
        self.failures.extend(outcome.failures.iter().map(|failure| format!("{name}: {failure}")));
        let gaps = outcome.skipped.iter().chain(&outcome.unchecked);
        self.gaps.extend(gaps.map(|(test, why)| format!("{name}: {test}: {why}")));
    }

    pub fn failed(&self) -> usize {
        self.failures.len()
    }

    pub fn is_empty(&self) -> bool {
        self.passed + self.skipped + self.failures.len() == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [
            ("passed only when run once more", &self.second),
            ("not checked", &self.gaps),
            ("failed", &self.failures),
        ];
        for (title, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            writeln!(out, "\n{title}:")?;
            list.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
        }
        writeln!(out, "\n{}", counts(self.passed, self.failures.len(), self.skipped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn outcome(output: &str, code: i32, gaps: &str) -> Outcome {
        Outcome::read(output, End::Exited(ExitStatus::from_raw(code << 8)), gaps, Duration::ZERO)
    }

    fn result(words: &str) -> String {
        format!("running 3 tests\ntest a ... ok\n{words}; 0 measured; 0 filtered out; finished in 0.01s\n")
    }

    #[test]
    fn the_harnesss_words_are_counted() {
        let well = outcome(&result("test result: ok. 12 passed; 0 failed; 1 ignored"), 0, "");
        assert!(well.is_success());
        assert_eq!(well.passed, 12);
        let bad = outcome(
            &result("test b::c ... FAILED\ntest result: FAILED. 2 passed; 1 failed; 0 ignored"),
            101,
            "",
        );
        assert_eq!((bad.passed, bad.failures), (2, vec!["b::c".to_owned()]));
    }

    #[test]
    fn a_test_binary_that_dies_silently_counts_as_failed() {
        assert_eq!(outcome("running 3 tests\n", 134, "").failures.len(), 1);
        let expired = Outcome::read("", End::Expired(Duration::from_secs(9)), "", Duration::ZERO);
        assert_eq!(expired.failures, ["not done within 9 s"]);
        // a program without the harness
        assert_eq!(outcome("", 0, "").passed, 1);
    }

    #[test]
    fn skipped_checks_do_not_count_as_passed() {
        let gaps = "a\tskipped\tno etcd\na\tskipped\tno etcd\nb\tunchecked\told kubectl\n";
        let some = outcome(&result("test result: ok. 3 passed; 0 failed; 0 ignored"), 0, gaps);
        assert_eq!((some.passed, some.skipped.len(), some.unchecked.len()), (2, 1, 1));
        let mut report = Report::default();
        report.add("room", some);
        let shown = report.to_string();
        assert!(shown.contains("room: a: no etcd") && shown.contains("room: b: old kubectl"), "{shown}");
        assert!(shown.ends_with("\n2 passed, 0 failed, 1 skipped\n"), "{shown}");
    }

    #[test]
    fn the_last_line_stands_alone() {
        let mut report = Report::default();
        report.add("room", outcome("", 101, ""));
        let shown = report.to_string();
        assert_eq!(shown.lines().last(), Some("0 passed, 1 failed"));
        assert_eq!(report.failed(), 1);
    }

    #[test]
    fn a_test_that_passes_when_run_once_more_is_named() {
        let failed =
            "test b ... FAILED\ntest c ... FAILED\ntest result: FAILED. 1 passed; 2 failed; 0 ignored";
        let mut both = outcome(&result(failed), 101, "");
        let well = || outcome(&result("test result: ok. 1 passed; 0 failed; 0 ignored"), 0, "");
        let badly = outcome(
            &result("test c ... FAILED\ntest result: FAILED. 0 passed; 1 failed; 0 ignored"),
            101,
            "",
        );
        both.replace("b", well().second_time("b"));
        both.replace("c", badly.second_time("c"));
        let mut report = Report::default();
        report.add("verbs", both);
        report.add("cluster life::x", well().second_time("life::x"));
        let shown = report.to_string();
        assert!(shown.contains("passed only when run once more:\n  verbs b\n  cluster life::x\n"), "{shown}");
        assert!(shown.ends_with("failed:\n  verbs: c\n\n3 passed, 1 failed\n"), "{shown}");
    }
}
