//! Where a resource came from and what changed it, as `buildMetadata` asks to write it down.

use std::path::{Component, Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// From where the build began.
    pub path: String,
    /// The file that configures the generator or transformer, and which it is.
    pub configured_in: String,
    pub configured_by: Option<ConfiguredBy>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfiguredBy {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub namespace: String,
}

impl Origin {
    /// Something below this.
    pub fn join(&self, path: &str) -> Origin {
        Origin { path: clean(&Path::new(&self.path).join(path)), ..self.clone() }
    }

    /// A built-in generator or transformer of the kustomization file in this directory.
    pub fn of_builtin(&self, file: &str, kind: &str) -> Origin {
        Origin {
            path: String::new(),
            configured_in: clean(&Path::new(&self.path).join(file)),
            configured_by: Some(ConfiguredBy {
                api_version: "builtin".into(),
                kind: kind.into(),
                ..ConfiguredBy::default()
            }),
        }
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut put = |indent: &str, field: &str, value: &str| {
            if !value.is_empty() {
                lines.push(format!("{indent}{field}: {value}"));
            }
        };
        put("", "path", &self.path);
        put("", "configuredIn", &self.configured_in);
        if let Some(by) = &self.configured_by {
            lines.push("configuredBy:".into());
            let mut put = |field: &str, value: &str| {
                if !value.is_empty() {
                    lines.push(format!("  {field}: {value}"));
                }
            };
            put("apiVersion", &by.api_version);
            put("kind", &by.kind);
            put("name", &by.name);
            put("namespace", &by.namespace);
        }
        lines
    }

    pub fn text(&self) -> String {
        self.lines().into_iter().map(|line| line + "\n").collect()
    }
}

/// The list that the annotation of transformations holds.
pub fn list_text(origins: &[Origin]) -> String {
    let mut text = String::new();
    for origin in origins {
        for (position, line) in origin.lines().into_iter().enumerate() {
            let lead = if position == 0 { "- " } else { "  " };
            text.push_str(&format!("{lead}{line}\n"));
        }
    }
    text
}

/// Without `.` and, where it can be, without `..`.
pub fn clean(path: &Path) -> String {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => match parts.components().next_back() {
                Some(Component::Normal(_)) => {
                    parts.pop();
                }
                Some(Component::RootDir) => {}
                _ => parts.push(".."),
            },
            part => parts.push(part),
        }
    }
    parts.to_string_lossy().into_owned()
}
