//! `/metrics`: upstream's names for the main series, so that existing dashboards work.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;

use crate::api::Api;
use crate::request::Request;
use crate::request_info::RequestInfo;
use crate::served::Served;

/// Upper bounds of the latency histogram, in seconds.
const BUCKETS: [f64; 12] = [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 5.0, 30.0];

#[derive(Default)]
pub struct Metrics {
    requests: Mutex<HashMap<Series, Sample>>,
}

#[derive(PartialEq, Eq, Hash, PartialOrd, Ord, Clone)]
struct Series {
    verb: &'static str,
    group: Box<str>,
    version: Box<str>,
    resource: Box<str>,
    subresource: Box<str>,
    code: u16,
    dry_run: bool,
}

#[derive(Default, Clone)]
struct Sample {
    count: u64,
    seconds: f64,
    buckets: [u64; BUCKETS.len()],
}

/// What a series is named after: only what is served.
struct Names<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    subresource: &'a str,
}

impl Metrics {
    pub fn finished(&self, served: &Served, request: &Request, status: StatusCode, took: Duration) {
        let info = &request.info;
        // Names that no row has would be a way to fill the memory, for anybody who can send a path.
        let row =
            if info.is_resource { served.kind(&info.group, &info.version, &info.resource) } else { None };
        let subresource = row.filter(|row| row.subresource(&info.subresource).is_some());
        let names = Names {
            group: row.map_or("", |row| row.group.as_ref()),
            version: row.map_or("", |row| row.version.as_ref()),
            resource: row.map_or("", |row| row.plural.as_ref()),
            subresource: subresource.map_or("", |_| info.subresource.as_str()),
        };
        self.count(info, names, request.query.get("dryRun").is_some(), status, took);
    }

    /// Another API server answered. Which resources it has is not known here, so they are not told apart.
    pub fn passed_on(&self, info: &RequestInfo, status: StatusCode, took: Duration) {
        let names = Names { group: &info.group, version: &info.version, resource: "", subresource: "" };
        self.count(info, names, false, status, took);
    }

    fn count(&self, info: &RequestInfo, names: Names<'_>, dry_run: bool, status: StatusCode, took: Duration) {
        let series = Series {
            verb: if info.is_resource { info.verb } else { "get" },
            group: names.group.into(),
            version: names.version.into(),
            resource: names.resource.into(),
            subresource: names.subresource.into(),
            code: status.as_u16(),
            dry_run,
        };
        let seconds = took.as_secs_f64();
        let mut requests = self.requests.lock();
        let sample = requests.entry(series).or_default();
        sample.count += 1;
        sample.seconds += seconds;
        if let Some(bucket) = BUCKETS.iter().position(|bound| seconds <= *bound) {
            sample.buckets[bucket] += 1;
        }
    }

    pub fn text(&self, api: &Api) -> String {
        let mut series: Vec<(Series, Sample)> =
            self.requests.lock().iter().map(|(series, sample)| (series.clone(), sample.clone())).collect();
        series.sort_by(|a, b| a.0.cmp(&b.0));
        let mut out = String::new();
        let head = |name: &str, kind: &str| format!("# TYPE {name} {kind}\n");
        out += &head("apiserver_request_total", "counter");
        for (series, sample) in &series {
            let _ = writeln!(
                out,
                "apiserver_request_total{{code=\"{}\",component=\"apiserver\",dry_run=\"{}\",{}}} {}",
                series.code,
                if series.dry_run { "All" } else { "" },
                labels(series),
                sample.count
            );
        }
        out += &head("apiserver_request_duration_seconds", "histogram");
        for (series, sample) in &series {
            let mut sum = 0;
            for (bound, count) in BUCKETS.iter().zip(sample.buckets) {
                sum += count;
                let _ = writeln!(
                    out,
                    "apiserver_request_duration_seconds_bucket{{{},le=\"{bound}\"}} {sum}",
                    labels(series)
                );
            }
            let labels = labels(series);
            let _ = writeln!(
                out,
                "apiserver_request_duration_seconds_bucket{{{labels},le=\"+Inf\"}} {}",
                sample.count
            );
            let _ = writeln!(out, "apiserver_request_duration_seconds_sum{{{labels}}} {}", sample.seconds);
            let _ = writeln!(out, "apiserver_request_duration_seconds_count{{{labels}}} {}", sample.count);
        }
        out += &head("apiserver_storage_objects", "gauge");
        let mut resources = api.registry.resources();
        resources.sort_by(|a, b| a.prefix.cmp(&b.prefix));
        for resource in resources {
            let name = resource.stored.group_resource();
            let _ =
                writeln!(out, "apiserver_storage_objects{{resource=\"{name}\"}} {}", resource.cache.len());
        }
        if let Some(fairness) = api.flow_control.fairness() {
            fairness.metrics_text(&mut out);
        }
        out += &head("process_resident_memory_bytes", "gauge");
        let _ = writeln!(out, "process_resident_memory_bytes {}", resident_bytes());
        out
    }
}

fn labels(series: &Series) -> String {
    format!(
        "group=\"{}\",resource=\"{}\",subresource=\"{}\",verb=\"{}\",version=\"{}\"",
        series.group,
        series.resource,
        series.subresource,
        series.verb.to_uppercase(),
        series.version
    )
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_else(|_| String::new());
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
