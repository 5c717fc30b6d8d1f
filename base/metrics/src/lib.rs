//! Metrics as Prometheus scrapes them: counters, gauges and histograms in families, and the pages of
//! Prometheus' text format 0.0.4 that components serve.
//!
//! - [`Counters`], [`Gauges`], [`Histograms`]: families of `N` labels, made in constants or fields. A series is an atomic
//!   or a few; who counts often keeps the series that [`Family::with`] returned.
//! - [`Registry`]: what one component serves. One process may have several (`ferry server`).
//! - [`Page`]: the text, also for values that are read when they are asked for.
//! - [`process`], [`slis`]: what every component has.
//!
//! This room knows no component: names, labels and buckets stand where the values are counted.

mod family;
mod page;
pub mod process;
mod registry;
pub mod slis;

pub use family::{Counter, Counters, Family, Gauge, Gauges, Histogram, Histograms, exponential};
pub use page::{CONTENT_TYPE, Page, number};
pub use registry::{Collect, Description, Kind, Registry};
