//! The options of a connection (exec, attach, port-forward, log, proxy), parsed once from the query. Admission validates
//! them, and the node receives exactly these and nothing else of the URL.

use ferry_api::{GroupVersionKind, Object, Status};
use serde_json::Map;

use crate::request_info::Query;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct ConnectionOptions {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
    pub container: String,
    pub path: String,
    pub command: Vec<String>,
    pub ports: Vec<i32>,
}

/// Parameters of a log, which only the kubelet reads.
const LOG: [&str; 8] =
    ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream"];

impl ConnectionOptions {
    pub fn read(query: &Query) -> Result<ConnectionOptions, Status> {
        let ports = query.all("ports").flat_map(|ports| ports.split(',')).map(|port| {
            port.parse().map_err(|_| Status::bad_request(format!("ports: {port:?} is not a port")))
        });
        Ok(ConnectionOptions {
            stdin: query.flag("stdin"),
            stdout: query.flag("stdout"),
            stderr: query.flag("stderr"),
            tty: query.flag("tty"),
            container: query.text("container").to_string(),
            path: query.text("path").to_string(),
            command: query.all("command").map(str::to_string).collect(),
            ports: ports.collect::<Result<_, _>>()?,
        })
    }

    /// The object that admission sees: PodExecOptions and its kin.
    pub fn to_object(&self, kind: &GroupVersionKind) -> Object {
        let mut options = Map::new();
        options.insert("apiVersion".into(), kind.api_version().into());
        options.insert("kind".into(), kind.kind.to_string().into());
        for (flag, _, _) in self.streams().into_iter().filter(|(_, _, on)| *on) {
            options.insert(flag.into(), true.into());
        }
        for (field, text) in [("container", &self.container), ("path", &self.path)] {
            if !text.is_empty() {
                options.insert(field.into(), text.as_str().into());
            }
        }
        if !self.command.is_empty() {
            options.insert("command".into(), self.command.clone().into());
        }
        if !self.ports.is_empty() {
            options.insert("ports".into(), self.ports.clone().into());
        }
        Object::new(options)
    }

    /// The query of the kubelet's path. The options of a log are the kubelet's to read; admission never sees them.
    pub fn kubelet_query(&self, action: &str, query: &Query) -> String {
        let mut pairs: Vec<(&str, String)> = Vec::new();
        match action {
            "log" => pairs.extend(
                query
                    .iter()
                    .filter(|(key, _)| LOG.contains(key))
                    .map(|(key, value)| (key, value.to_string())),
            ),
            "portforward" => pairs.extend(self.ports.iter().map(|port| ("port", port.to_string()))),
            _ => {
                let streams = self.streams();
                pairs.extend(
                    streams.iter().filter(|(_, _, on)| *on).map(|(_, key, _)| (*key, "1".to_string())),
                );
            }
        }
        if action == "exec" {
            pairs.extend(self.command.iter().map(|word| ("command", word.clone())));
        }
        let encode = |text: &str| {
            percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
        };
        pairs.iter().map(|(key, value)| format!("{key}={}", encode(value))).collect::<Vec<_>>().join("&")
    }

    /// The streams of exec and attach, by their names in the API and at the kubelet.
    fn streams(&self) -> [(&'static str, &'static str, bool); 4] {
        [
            ("stdin", "input", self.stdin),
            ("stdout", "output", self.stdout),
            ("stderr", "error", self.stderr),
            ("tty", "tty", self.tty),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(action: &str, query: &str, sent: &str, seen: &serde_json::Value) {
        let query = Query::parse(query);
        let options = ConnectionOptions::read(&query).expect("readable");
        assert_eq!(options.kubelet_query(action, &query), sent);
        let kind = GroupVersionKind::new("", "v1", "Options");
        let mut object = options.to_object(&kind).into_value();
        object
            .as_object_mut()
            .expect("an object")
            .retain(|field, _| !["apiVersion", "kind"].contains(&field.as_str()));
        assert_eq!(&object, seen, "{sent}");
    }

    #[test]
    fn the_kubelet_gets_exactly_the_options_that_admission_saw() {
        use serde_json::json;
        let seen = json!({"stdin": true, "stdout": true, "command": ["sh", "-c", "a b"]});
        check(
            "exec",
            "stdin=true&stdout=1&stderr=false&tty=0&command=sh&command=-c&command=a+b",
            "input=1&output=1&command=sh&command=%2Dc&command=a%20b",
            &seen,
        );
        check("exec", "stdin=yes", "input=1", &json!({"stdin": true}));
        check("exec", "stdin=0&stdin=1&input=1&tty=false&tty=1&error=1", "", &json!({}));
        check("attach", "stdin=1&command=sh&input=1", "input=1", &json!({"stdin": true, "command": ["sh"]}));
        check(
            "portforward",
            "ports=80,81&ports=82&port=22",
            "port=80&port=81&port=82",
            &json!({"ports": [80, 81, 82]}),
        );
        assert!(ConnectionOptions::read(&Query::parse("ports=x")).is_err());
        check(
            "log",
            "follow=true&tailLines=5&container=c&command=x",
            "follow=true&tailLines=5",
            &json!({"container": "c", "command": ["x"]}),
        );
    }
}
