//! The API server's metrics that `ferry status` shows.

/// Numbers of the server that answered.
#[derive(Debug, Default, PartialEq)]
pub struct Metrics {
    pub store_bytes: f64,
    /// 0 where the store does not tell.
    pub store_quota: f64,
    pub is_store_full: bool,
    pub requests: f64,
    /// Answered with a code of 500 or more.
    pub server_errors: f64,
}

/// From here on a store is worth a word.
const NEARLY_FULL: f64 = 0.9;

impl Metrics {
    pub fn of(page: &str) -> Metrics {
        let mut metrics = Metrics::default();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            match name {
                "apiserver_storage_size_bytes" => metrics.store_bytes += value,
                "etcd_server_quota_backend_bytes" => metrics.store_quota = value,
                "ferry_storage_no_space" => metrics.is_store_full = value != 0.0,
                "apiserver_request_total" => {
                    metrics.requests += value;
                    if labels.contains("code=\"5") {
                        metrics.server_errors += value;
                    }
                }
                _ => {}
            }
        }
        metrics
    }

    pub fn problems(&self) -> Option<String> {
        let used = self.store_bytes / self.store_quota;
        match () {
            () if self.is_store_full => Some("the store is full (alarm NOSPACE) and refuses writes".into()),
            () if self.store_quota > 0.0 && used > NEARLY_FULL => {
                Some(format!("the store has {:.0}% of the space that it may have", 100.0 * used))
            }
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_of_the_store_and_of_errors() {
        let page = "\
# TYPE apiserver_request_total counter
apiserver_request_total{code=\"200\",verb=\"GET\"} 40
apiserver_request_total{code=\"503\",verb=\"GET\"} 2
apiserver_storage_size_bytes{storage_cluster_id=\"etcd-0\"} 9.5e+06
etcd_server_quota_backend_bytes 1e+07
ferry_storage_no_space 0
";
        let mut metrics = Metrics::of(page);
        assert_eq!((metrics.requests, metrics.server_errors), (42.0, 2.0));
        assert_eq!(metrics.problems().as_deref(), Some("the store has 95% of the space that it may have"));
        metrics.is_store_full = true;
        assert!(metrics.problems().is_some_and(|problem| problem.contains("NOSPACE")));
        metrics = Metrics { store_bytes: 1.0, ..Metrics::default() };
        assert_eq!(metrics.problems(), None);
    }
}
