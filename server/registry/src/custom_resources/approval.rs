//! The annotation that approves API groups of the Kubernetes project.

/// The annotation that groups of the Kubernetes project need.
pub const ANNOTATION: &str = "api-approved.kubernetes.io";

const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    Approved,
    /// The author says that it is not approved; it is served all the same.
    Bypassed,
    Missing,
    Invalid,
}

pub fn is_protected(group: &str) -> bool {
    let own = ["k8s.io", "kubernetes.io"];
    own.iter().any(|own| group.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

/// What the annotation says, and the reason in words.
pub fn approval(annotation: &str) -> (Approval, String) {
    let is_address = annotation
        .split_once("://")
        .is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/'));
    match annotation {
        "" => (
            Approval::Missing,
            format!("protected groups must have approval annotation {ANNOTATION:?}, {SEE}"),
        ),
        text if text.starts_with("unapproved") => (Approval::Bypassed, format!("not approved: {text:?}")),
        text if is_address => (Approval::Approved, format!("approved in {text}")),
        _ => (
            Approval::Invalid,
            format!(
                "protected groups must have approval annotation {ANNOTATION:?} with either a URL or a reason starting with \"unapproved\", {SEE}"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_the_kubernetes_project_are_protected() {
        for group in ["k8s.io", "gateway.networking.k8s.io", "kubernetes.io", "a.kubernetes.io"] {
            assert!(is_protected(group), "{group}");
        }
        for group in ["example.com", "myk8s.io", "k8s.io.example.com", "x-k8s.io"] {
            assert!(!is_protected(group), "{group}");
        }
    }

    #[test]
    fn an_address_approves_and_a_reason_bypasses() {
        let check = |annotation: &str, expected: Approval| assert_eq!(approval(annotation).0, expected);
        check("https://github.com/kubernetes-sigs/gateway-api/pull/2997", Approval::Approved);
        check("unapproved, for tests", Approval::Bypassed);
        check("because", Approval::Invalid);
        check("https:///path", Approval::Invalid);
        check("", Approval::Missing);
    }
}
