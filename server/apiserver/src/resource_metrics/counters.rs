//! Parses a kubelet's `/metrics/resource`, and computes the usage between two samples. Pure.

use std::collections::HashMap;

use jiff::Timestamp;

/// One look at a node's counters.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    at: Timestamp,
    node: Counters,
    containers: HashMap<Container, Counters>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Container {
    namespace: String,
    pod: String,
    name: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counters {
    /// When they were read, where the page says so itself.
    at: Option<Timestamp>,
    cpu_seconds: Option<f64>,
    memory_bytes: Option<f64>,
    started: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub nano_cores: u64,
    pub memory_bytes: u64,
}

/// The time between two looks.
#[derive(Debug)]
pub struct Window {
    before: Page,
    after: Page,
}

/// A shorter time says more about the clock than about what was used.
const LEAST_SECONDS: f64 = 0.5;

impl Page {
    /// Reads Prometheus' text format. Lines of other families, and those that cannot be read, are none of
    /// this page's business.
    pub fn parse(text: &str, at: Timestamp) -> Page {
        let mut page = Page { at, node: Counters::default(), containers: HashMap::new() };
        for sample in text.lines().filter_map(Sample::parse) {
            let Some(family) = sample.name.strip_prefix("container_") else {
                if let Some(family) = sample.name.strip_prefix("node_") {
                    page.node.take(family, &sample);
                }
                continue;
            };
            let label = |name: &str| sample.labels.iter().find(|(key, _)| *key == name);
            if let (Some((_, namespace)), Some((_, pod)), Some((_, name))) =
                (label("namespace"), label("pod"), label("container"))
            {
                let container =
                    Container { namespace: namespace.clone(), pod: pod.clone(), name: name.clone() };
                page.containers.entry(container).or_default().take(family, &sample);
            }
        }
        page
    }

    pub fn at(&self) -> Timestamp {
        self.at
    }
}

impl Counters {
    fn take(&mut self, family: &str, sample: &Sample) {
        match family {
            "cpu_usage_seconds_total" => {
                self.cpu_seconds = Some(sample.value);
                self.at = sample.at;
            }
            "memory_working_set_bytes" => self.memory_bytes = Some(sample.value),
            "start_time_seconds" => self.started = instant(sample.value),
            _ => {}
        }
    }
}

impl Window {
    pub fn new(before: Page, after: Page) -> Window {
        Window { before, after }
    }

    pub fn until(&self) -> Timestamp {
        self.after.node.at.unwrap_or(self.after.at)
    }

    pub fn nanoseconds(&self) -> i64 {
        let since = self.before.node.at.unwrap_or(self.before.at);
        i64::try_from(self.until().duration_since(since).as_nanos()).unwrap_or(i64::MAX)
    }

    /// The later of the two looks, to begin the next window with.
    pub fn after(&self) -> &Page {
        &self.after
    }

    pub fn node(&self) -> Option<Usage> {
        self.between(Some(&self.before.node), &self.after.node)
    }

    pub fn container(&self, namespace: &str, pod: &str, name: &str) -> Option<Usage> {
        let container = Container { namespace: namespace.into(), pod: pod.into(), name: name.into() };
        self.between(self.before.containers.get(&container), self.after.containers.get(&container)?)
    }

    fn between(&self, before: Option<&Counters>, after: &Counters) -> Option<Usage> {
        let until = after.at.unwrap_or(self.after.at);
        let (cpu_seconds, memory_bytes) = (after.cpu_seconds?, after.memory_bytes?);
        let looked = before
            .and_then(|before| Some((before.at.unwrap_or(self.before.at), before.cpu_seconds?)))
            // A counter that went back is another container's, of the same name.
            .filter(|(at, used)| *used <= cpu_seconds && after.started.is_none_or(|started| started <= *at));
        // Who was not there at the first look has used everything since its start.
        let (since, used_before) = looked.or_else(|| Some((after.started?, 0.0)))?;
        let seconds = until.duration_since(since).as_secs_f64();
        (seconds >= LEAST_SECONDS).then(|| Usage {
            nano_cores: ((cpu_seconds - used_before) / seconds * 1e9) as u64,
            memory_bytes: memory_bytes as u64,
        })
    }
}

/// `name{label="value",…} value [milliseconds]`
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
    at: Option<Timestamp>,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Sample<'a>> {
        if line.starts_with('#') {
            return None;
        }
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(labels) => read_labels(labels)?,
            None => (Vec::new(), rest),
        };
        let mut words = rest.split_ascii_whitespace();
        let value = words.next()?.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)?;
        let at = match words.next() {
            Some(milliseconds) => Some(Timestamp::from_millisecond(milliseconds.parse().ok()?).ok()?),
            None => None,
        };
        Some(Sample { name, labels, value, at })
    }
}

type Labels<'a> = Vec<(&'a str, String)>;

/// The labels before the closing brace, and what is behind it.
fn read_labels(mut rest: &str) -> Option<(Labels<'_>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((labels, behind));
        }
        let (key, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut signs = quoted.char_indices();
        loop {
            match signs.next()? {
                (_, '\\') => value.push(match signs.next()? {
                    (_, 'n') => '\n',
                    (_, sign) => sign,
                }),
                (at, '"') => {
                    rest = &quoted[at + 1..];
                    break;
                }
                (_, sign) => value.push(sign),
            }
        }
        labels.push((key, value));
    }
}

fn instant(seconds: f64) -> Option<Timestamp> {
    Timestamp::from_millisecond((seconds * 1000.0) as i64).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(second: i64, text: &str) -> Page {
        Page::parse(text, Timestamp::from_second(second).expect("a time"))
    }

    fn container(cpu: &str, started: i64) -> String {
        format!(
            "# HELP container_cpu_usage_seconds_total Cumulative cpu time\n\
             container_cpu_usage_seconds_total{{container=\"web\",namespace=\"a\",pod=\"b\"}} {cpu}\n\
             container_memory_working_set_bytes{{container=\"web\",namespace=\"a\",pod=\"b\"}} 4.194304e+06\n\
             container_start_time_seconds{{container=\"web\",namespace=\"a\",pod=\"b\"}} {started}\n"
        )
    }

    fn used(before: Page, after: Page) -> Option<(u64, u64)> {
        let usage = Window::new(before, after).container("a", "b", "web")?;
        Some((usage.nano_cores, usage.memory_bytes))
    }

    #[test]
    fn two_looks_make_a_rate() {
        let (before, after) = (page(100, &container("1.5", 50)), page(110, &container("3.5", 50)));
        assert_eq!(used(before, after), Some((200_000_000, 4 << 20)));
    }

    #[test]
    fn a_container_that_began_in_between_is_measured_since_its_start() {
        let other = "node_cpu_usage_seconds_total 9\nnode_memory_working_set_bytes 1000\n";
        assert_eq!(used(page(100, other), page(110, &container("1", 108))), Some((500_000_000, 4 << 20)));
        let restarted = (page(100, &container("7", 50)), page(110, &container("1", 108)));
        assert_eq!(used(restarted.0, restarted.1), Some((500_000_000, 4 << 20)));
        let too_young = (page(100, other), page(110, &container("0", 110)));
        assert_eq!(used(too_young.0, too_young.1), None);
    }

    #[test]
    fn the_times_of_the_page_count_where_it_has_them() {
        let at = |cpu: &str, milliseconds: i64| {
            page(
                500,
                &format!(
                    "node_cpu_usage_seconds_total {cpu} {milliseconds}\nnode_memory_working_set_bytes 8 {milliseconds}\n"
                ),
            )
        };
        let window = Window::new(at("10", 100_000), at("12", 104_000));
        assert_eq!(window.node(), Some(Usage { nano_cores: 500_000_000, memory_bytes: 8 }));
        assert_eq!(window.nanoseconds(), 4_000_000_000);
        // A kubelet that has not measured again since.
        assert_eq!(Window::new(at("10", 100_000), at("10", 100_000)).node(), None);
    }

    #[test]
    fn labels_are_read_with_their_escapes() {
        let sample = Sample::parse(r#"x{a="q\"}\\",b="2"} 0.5 1000"#).expect("a sample");
        assert_eq!(sample.labels, [("a", r#"q"}\"#.to_string()), ("b", "2".to_string())]);
        assert_eq!((sample.value, sample.at.map(Timestamp::as_second)), (0.5, Some(1)));
        for bad in ["", "x", "x{a=\"b", "x{} NaN", "x -1", "x 1 soon"] {
            assert!(Sample::parse(bad).is_none(), "{bad}");
        }
    }
}
