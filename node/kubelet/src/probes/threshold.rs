//! When a run of probe results becomes a verdict.

use crate::plan::Verdict;

/// Counts results of one kind in a row. The verdict changes when a run is
/// long enough.
///
/// ```text
///            failures ≥ failureThreshold
///   Success ─────────────────────────────▶ Failure
///           ◀─────────────────────────────
///            successes ≥ successThreshold
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threshold {
    success: u32,
    failure: u32,
    verdict: Verdict,
    run: Option<(bool, u32)>,
}

impl Threshold {
    pub fn new(initial: Verdict, success: Option<i32>, failure: Option<i32>) -> Self {
        let positive = |value: Option<i32>, default: u32| {
            value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default).max(1)
        };
        Self { success: positive(success, 1), failure: positive(failure, 3), verdict: initial, run: None }
    }

    /// Takes a result; says the verdict after it.
    pub fn take(&mut self, succeeded: bool) -> Verdict {
        let length = match self.run {
            Some((same, length)) if same == succeeded => length + 1,
            _ => 1,
        };
        self.run = Some((succeeded, length));
        if succeeded && length >= self.success {
            self.verdict = Verdict::Success;
        } else if !succeeded && length >= self.failure {
            self.verdict = Verdict::Failure;
        }
        self.verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `+` and `-` are results; the answer spells the verdicts after each.
    #[track_caller]
    fn check(initial: Verdict, success: i32, failure: i32, results: &str, expected: &str) {
        let mut threshold = Threshold::new(initial, Some(success), Some(failure));
        let verdicts: String = results
            .chars()
            .map(|result| match threshold.take(result == '+') {
                Verdict::Success => 'S',
                Verdict::Failure => 'F',
                Verdict::Unknown => '?',
            })
            .collect();
        assert_eq!(verdicts, expected, "{results}");
    }

    #[test]
    fn verdicts_change_after_runs_of_the_threshold() {
        check(Verdict::Success, 1, 3, "--+---+", "SSSSSFS");
        check(Verdict::Failure, 2, 1, "+-++-", "FFFSF");
        check(Verdict::Unknown, 1, 3, "--+", "??S");
        check(Verdict::Unknown, 1, 2, "--", "?F");
        check(Verdict::Success, 0, 0, "-+", "FS");
    }
}
