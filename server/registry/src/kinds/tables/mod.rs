//! What `kubectl get` shows of each kind, in upstream's columns and words. Kinds of one group of the API
//! stand together; cells that need more than a path are small functions beside them.

pub mod cluster;
pub mod network;
pub mod pods;
pub mod storage;
pub mod workloads;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ferry_api::kinds::builtin;

    use crate::columns::{Column, NAME};

    fn shown(columns: &[Column]) -> String {
        let show = |column: &Column| {
            let format = if column.format.is_empty() { String::new() } else { format!(":{}", column.format) };
            let wide = if column.priority > 0 { "*" } else { "" };
            format!("{}:{}{format}{wide}", column.name, column.kind)
        };
        let name =
            (!columns.iter().any(|column| column.name == NAME)).then(|| "Name:string:name".to_string());
        name.into_iter().chain(columns.iter().map(show)).collect::<Vec<_>>().join(", ")
    }

    /// Upstream tells the age of an IPAddress in a cell that has no column; here it has one.
    #[test]
    fn every_kind_has_upstreams_columns() {
        // what upstream has no printer for is shown by name and time, or by the server that serves it
        const OTHERS: [(&str, &str); 3] = [
            ("APIService", "Name:string:name, Service:string, Available:string, Age:string"),
            ("NodeMetrics", "Name:string:name, CPU:string, Memory:string, Window:string"),
            ("PodMetrics", "Name:string:name, CPU:string, Memory:string, Window:string"),
        ];
        let lines = include_str!("upstream.txt").lines().filter(|line| !line.starts_with('#'));
        let mut upstream: BTreeMap<&str, &str> = lines.filter_map(|line| line.split_once(": ")).collect();
        upstream.extend(OTHERS);
        let mut seen = Vec::new();
        let mut faults = Vec::new();
        for kind in builtin().iter().filter(|kind| !kind.is_virtual()) {
            let columns = shown(crate::kinds::strategy(kind).columns(&kind.version));
            let expected = upstream.get(&*kind.kind).copied().unwrap_or("Name:string:name, Created At:date");
            if columns != expected {
                faults.push(format!(
                    "{}/{}\n  has    {columns}\n  not    {expected}",
                    kind.api_version(),
                    kind.kind
                ));
            }
            seen.push(&*kind.kind);
        }
        upstream.retain(|kind, _| !seen.contains(kind) && !OTHERS.iter().any(|(other, _)| other == kind));
        faults.extend(upstream.keys().map(|kind| format!("{kind} is not served")));
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}
