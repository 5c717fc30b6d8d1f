//! `/version`: reports the API version v1.36; the build metadata names Ferry.

pub use ferry_metrics::process::{GIT_VERSION, report_version as report};

/// Indented and in this order for everyone, as upstream writes it.
pub fn document() -> String {
    let fields = [
        ("major", "1"),
        ("minor", "36"),
        ("emulationMajor", "1"),
        ("emulationMinor", "36"),
        ("minCompatibilityMajor", "1"),
        ("minCompatibilityMinor", "35"),
        ("gitVersion", ferry_metrics::process::git_version()),
        ("gitCommit", ""),
        ("gitTreeState", "clean"),
        ("buildDate", "1970-01-01T00:00:00Z"),
        ("goVersion", ""),
        ("compiler", "rustc"),
        ("platform", "linux/amd64"),
    ];
    let lines = fields.map(|(name, value)| format!("  \"{name}\": \"{value}\""));
    format!("{{\n{}\n}}", lines.join(",\n"))
}
