//! What a span costs: `cargo run --release -p ferry-trace --example span_cost`.

use std::time::Instant;

fn main() {
    const SPANS: u32 = 2_000_000;
    measure("bare child span", SPANS, || drop(ferry_trace::span("bench.step")));
    measure("with object, two facts and a commit", SPANS, || {
        let mut span = ferry_trace::span("bench.step");
        span.object("pods", "default", "nginx-7d8b49557c-abcde")
            .set("verdict", "allowed")
            .set("bytes", 812)
            .committed(7);
    });
    let quiet = ferry_trace::span("bench.read").unsampled();
    quiet.enter(|| measure("under an unsampled span", SPANS, || drop(ferry_trace::span("bench.step"))));
    println!("{} records kept in {} KiB", ferry_trace::ring().all().len(), ferry_trace::ring().bytes() >> 10);
}

fn measure(what: &str, spans: u32, mut step: impl FnMut()) {
    let parent = ferry_trace::span("bench.parent");
    let start = Instant::now();
    if ferry_trace::current().is_some() {
        (0..spans).for_each(|_| step());
    } else {
        parent.enter(|| (0..spans).for_each(|_| step()));
    }
    println!("{what}: {:.0} ns", start.elapsed().as_nanos() as f64 / f64::from(spans));
}
