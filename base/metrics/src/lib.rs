//! Metrics for Prometheus: families of counters, gauges and histograms, and the pages in Prometheus' text format 0.0.4
//! that components serve.
//!
//! - [`Counters`], [`Gauges`], [`Histograms`]: families with `N` labels, in constants or fields. A series consists of one or
//!   a few atomics; hot code keeps the series that [`Family::with`] returns.
//! - [`Registry`]: the families of one component. A process can have several (`ferry server`).
//! - [`Page`]: the text, also for values that are computed during the scrape.
//! - [`process`], [`slis`]: metrics of every component.
//!
//! This crate knows no component: names, labels and buckets are declared where the values are counted.

mod family;
mod page;
pub mod process;
mod registry;
pub mod slis;

pub use family::{Counter, Counters, Family, Gauge, Gauges, Histogram, Histograms, exponential};
pub use page::{CONTENT_TYPE, Page, number};
pub use registry::{Collect, Description, Kind, Registry};
