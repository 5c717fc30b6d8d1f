//! Taints of devices: which of them a request for devices tolerates. The scheduler asks before it allocates, the eviction
//! controller as long as a pod runs.

/// A taint or a toleration by its words; what is not given is empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct Words<'a> {
    pub key: &'a str,
    pub value: &'a str,
    pub effect: &'a str,
}

/// `operator` is the toleration's: `Equal`, also where none is given, or `Exists`.
pub fn tolerates(toleration: Words<'_>, operator: &str, taint: Words<'_>) -> bool {
    let fits = |wanted: &str, have: &str| wanted.is_empty() || wanted == have;
    fits(toleration.effect, taint.effect)
        && fits(toleration.key, taint.key)
        && match operator {
            "" | "Equal" => toleration.value == taint.value,
            "Exists" => true,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_toleration_fields_match_everything() {
        let taint = Words { key: "example.com/broken", value: "yes", effect: "NoExecute" };
        let check = |key, operator, value, effect, expected| {
            assert_eq!(
                tolerates(Words { key, value, effect }, operator, taint),
                expected,
                "{key} {operator}"
            );
        };
        check("example.com/broken", "Equal", "yes", "NoExecute", true);
        check("example.com/broken", "", "yes", "", true);
        check("example.com/broken", "Equal", "no", "", false);
        check("example.com/broken", "Exists", "", "NoSchedule", false);
        check("", "Exists", "", "", true);
        check("example.com/other", "Exists", "", "", false);
        check("", "Unknown", "", "", false);
    }
}
