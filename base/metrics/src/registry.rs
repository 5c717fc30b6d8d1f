//! What one component serves.

use crate::page::Page;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A family of series, without its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Description {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    /// Upper bounds of a histogram's buckets, without the infinite one.
    pub buckets: &'static [f64],
}

impl Description {
    pub const fn counter(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Description { name, help, kind: Kind::Counter, labels, buckets: &[] }
    }

    pub const fn gauge(name: &'static str, help: &'static str, labels: &'static [&'static str]) -> Self {
        Description { name, help, kind: Kind::Gauge, labels, buckets: &[] }
    }
}

/// Something that has values.
pub trait Collect: Send + Sync {
    /// The families it may write.
    fn describe(&self) -> Vec<Description>;

    fn collect(&self, page: &mut Page);
}

#[derive(Default)]
pub struct Registry {
    sources: Vec<&'static dyn Collect>,
}

impl Registry {
    /// Families that live as long as the process.
    pub fn add(&mut self, sources: &[&'static dyn Collect]) {
        self.sources.extend(sources);
    }

    pub fn describe(&self) -> Vec<Description> {
        self.sources.iter().flat_map(|source| source.describe()).collect()
    }

    pub fn collect(&self, page: &mut Page) {
        for source in &self.sources {
            source.collect(page);
        }
    }

    pub fn text(&self) -> String {
        let mut page = Page::default();
        self.collect(&mut page);
        page.finish()
    }
}
