//! The path of a field while a walk goes down and up again.

use std::fmt::Write;

/// `spec.rules[0].hosts[a.b]`. A step returns the length to go back to.
#[derive(Debug, Clone, Default)]
pub struct Path(String);

impl Path {
    pub fn root() -> Path {
        Path::default()
    }

    pub fn at(path: &str) -> Path {
        Path(path.to_string())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn truncate(&mut self, length: usize) {
        self.0.truncate(length);
    }

    pub fn child(&mut self, name: &str) -> usize {
        let length = self.0.len();
        if length > 0 {
            self.0.push('.');
        }
        self.0.push_str(name);
        length
    }

    /// The value of a map.
    pub fn key(&mut self, key: &str) -> usize {
        let length = self.0.len();
        let _ = write!(self.0, "[{key}]");
        length
    }

    pub fn index(&mut self, index: usize) -> usize {
        let length = self.0.len();
        let _ = write!(self.0, "[{index}]");
        length
    }

    /// The path of a child.
    pub fn with(&self, name: &str) -> String {
        if self.0.is_empty() { name.to_string() } else { format!("{}.{name}", self.0) }
    }

    /// As errors name it: the root has no name.
    pub fn told(&self) -> String {
        if self.0.is_empty() { "<nil>".to_string() } else { self.0.clone() }
    }

    /// Goes to a child for as long as `walk` takes.
    pub fn below<T>(&mut self, name: &str, walk: impl FnOnce(&mut Path) -> T) -> T {
        let length = self.child(name);
        let result = walk(self);
        self.truncate(length);
        result
    }

    /// `properties[name]`
    pub fn property<T>(&mut self, name: &str, walk: impl FnOnce(&mut Path) -> T) -> T {
        let length = self.child("properties");
        self.key(name);
        let result = walk(self);
        self.truncate(length);
        result
    }

    /// `allOf[0]`
    pub fn element<T>(&mut self, name: &str, index: usize, walk: impl FnOnce(&mut Path) -> T) -> T {
        let length = self.child(name);
        self.index(index);
        let result = walk(self);
        self.truncate(length);
        result
    }
}
