//! Series that are counted where things happen, and their families.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::RwLock;

use crate::page::Page;
use crate::registry::{Collect, Description, Kind};

/// Of one family. What comes after is counted in nobody's sight: labels are of few values, and this bounds the memory where
/// one turns out not to be.
const MAX_SERIES: usize = 20_000;

pub type Counters<const N: usize> = Family<Counter, N>;
pub type Gauges<const N: usize> = Family<Gauge, N>;
pub type Histograms<const N: usize> = Family<Histogram, N>;

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn inc(&self) {
        self.add(1);
    }

    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The bits of an `f64`.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }

    pub fn add(&self, more: f64) {
        add(&self.0, more);
    }

    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }
}

#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// How many values each bound is the lowest for; the last counts what is beyond all of them.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, sum: AtomicU64::new(0) }
    }

    pub fn observe(&self, value: f64) {
        let slot = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        self.counts[slot].fetch_add(1, Relaxed);
        add(&self.sum, value);
    }

    pub fn observe_time(&self, took: Duration) {
        self.observe(took.as_secs_f64());
    }

    pub fn counts(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().map(|count| count.load(Relaxed))
    }

    pub fn count(&self) -> u64 {
        self.counts().sum()
    }

    pub fn sum(&self) -> f64 {
        f64::from_bits(self.sum.load(Relaxed))
    }
}

fn add(bits: &AtomicU64, more: f64) {
    // the closure always has a next value, so this cannot fail
    let _ = bits.fetch_update(Relaxed, Relaxed, |old| Some((f64::from_bits(old) + more).to_bits()));
}

/// What a family consists of.
pub trait Series: Send + Sync + Sized {
    const KIND: Kind;

    fn new(buckets: &'static [f64]) -> Self;

    fn write(&self, description: &Description, labels: &[&str], page: &mut Page);
}

impl Series for Counter {
    const KIND: Kind = Kind::Counter;

    fn new(_: &'static [f64]) -> Counter {
        Counter::default()
    }

    fn write(&self, description: &Description, labels: &[&str], page: &mut Page) {
        page.sample(description, labels, self.get() as f64);
    }
}

impl Series for Gauge {
    const KIND: Kind = Kind::Gauge;

    fn new(_: &'static [f64]) -> Gauge {
        Gauge::default()
    }

    fn write(&self, description: &Description, labels: &[&str], page: &mut Page) {
        page.sample(description, labels, self.get());
    }
}

impl Series for Histogram {
    const KIND: Kind = Kind::Histogram;

    fn new(buckets: &'static [f64]) -> Histogram {
        Histogram::new(buckets)
    }

    fn write(&self, description: &Description, labels: &[&str], page: &mut Page) {
        page.histogram(description, labels, self);
    }
}

/// Series of one name. One without labels is there from the start, one with labels from its first value on.
pub struct Family<S, const N: usize> {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str; N],
    buckets: &'static [f64],
    /// In the order of the labels' values.
    series: RwLock<Vec<Labelled<S, N>>>,
}

/// A series behind the values of its labels.
type Labelled<S, const N: usize> = ([Box<str>; N], Arc<S>);

impl<S: Series, const N: usize> Family<S, N> {
    const fn of(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str; N],
        buckets: &'static [f64],
    ) -> Self {
        Family { name, help, labels, buckets, series: RwLock::new(Vec::new()) }
    }

    /// The series of these values of the labels. It may be kept.
    pub fn with(&self, values: [&str; N]) -> Arc<S> {
        let find = |all: &[([Box<str>; N], Arc<S>)]| {
            all.binary_search_by(|(own, _)| own.iter().map(|value| &**value).cmp(values.iter().copied()))
        };
        let series = self.series.read();
        if let Ok(at) = find(&series) {
            return series[at].1.clone();
        }
        drop(series);
        let mut series = self.series.write();
        match find(&series) {
            Ok(at) => series[at].1.clone(),
            Err(at) => {
                let new = Arc::new(S::new(self.buckets));
                if series.len() < MAX_SERIES {
                    series.insert(at, (values.map(Box::from), new.clone()));
                }
                new
            }
        }
    }

    /// Forgets series, those of objects that are gone say.
    pub fn retain(&self, keep: impl Fn([&str; N]) -> bool) {
        self.series.write().retain(|(values, _)| keep(std::array::from_fn(|at| &*values[at])));
    }

    fn description(&self) -> Description {
        Description {
            name: self.name,
            help: self.help,
            kind: S::KIND,
            labels: self.labels,
            buckets: self.buckets,
        }
    }
}

impl<const N: usize> Counters<N> {
    pub const fn new(name: &'static str, help: &'static str, labels: &'static [&'static str; N]) -> Self {
        Family::of(name, help, labels, &[])
    }
}

impl<const N: usize> Gauges<N> {
    pub const fn new(name: &'static str, help: &'static str, labels: &'static [&'static str; N]) -> Self {
        Family::of(name, help, labels, &[])
    }
}

impl<const N: usize> Histograms<N> {
    pub const fn new(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str; N],
        buckets: &'static [f64],
    ) -> Self {
        Family::of(name, help, labels, buckets)
    }
}

impl<S: Series, const N: usize> Collect for Family<S, N> {
    fn describe(&self) -> Vec<Description> {
        vec![self.description()]
    }

    fn collect(&self, page: &mut Page) {
        if N == 0 {
            self.with([""; N]);
        }
        let description = self.description();
        for (values, series) in &*self.series.read() {
            let values: Vec<&str> = values.iter().map(|value| &**value).collect();
            series.write(&description, &values, page);
        }
    }
}

/// Buckets that grow by a factor, as upstream makes them: each bound is the last one multiplied.
pub const fn exponential<const N: usize>(start: f64, factor: f64) -> [f64; N] {
    let mut bounds = [start; N];
    let mut at = 1;
    while at < N {
        bounds[at] = bounds[at - 1] * factor;
        at += 1;
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_found_again_and_forgotten_when_told() {
        let family: Counters<2> = Counters::new("x_total", "", &["a", "b"]);
        family.with(["1", "2"]).inc();
        family.with(["0", "2"]).inc();
        family.with(["1", "2"]).add(2);
        assert_eq!(family.with(["1", "2"]).get(), 3);
        family.retain(|[first, _]| first != "1");
        assert_eq!((family.with(["1", "2"]).get(), family.with(["0", "2"]).get()), (0, 1));
    }

    #[test]
    fn series_beyond_the_limit_are_not_kept() {
        let family: Gauges<1> = Gauges::new("x", "", &["a"]);
        for index in 0..MAX_SERIES + 10 {
            family.with([&index.to_string()]).set(1.0);
        }
        assert_eq!(family.series.read().len(), MAX_SERIES);
    }

    #[test]
    fn bounds_are_upstreams() {
        assert_eq!(exponential::<10>(10e-9, 10.0)[3..5], [9.999999999999999e-06, 9.999999999999999e-05]);
        assert_eq!(exponential::<4>(0.0001, 2.0), [0.0001, 0.0002, 0.0004, 0.0008]);
    }

    #[test]
    fn values_on_a_bound_are_below_it() {
        let histogram = Histogram::new(&[1.0, 2.0]);
        for value in [1.0, 1.5, 2.0, 2.5] {
            histogram.observe(value);
        }
        assert_eq!(histogram.counts().collect::<Vec<_>>(), [1, 2, 1]);
        assert_eq!((histogram.count(), histogram.sum()), (4, 7.0));
    }
}
