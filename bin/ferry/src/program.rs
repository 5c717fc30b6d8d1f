//! Upstream's programs by name: a link called `kube-apiserver` is `ferry apiserver`, and so on, so that whoever starts
//! them by their path (envtest, kubeadm's static pods, kwok) starts Ferry.

use std::ffi::OsString;
use std::path::Path;

/// A program of upstream's, and the role that takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    name: &'static str,
    role: &'static str,
}

const PROGRAMS: [Program; 6] = [
    Program { name: "etcd", role: "etcd" },
    Program { name: "kube-apiserver", role: "apiserver" },
    Program { name: "kube-controller-manager", role: "controller-manager" },
    Program { name: "kube-scheduler", role: "scheduler" },
    Program { name: "kubelet", role: "kubelet" },
    Program { name: "kube-proxy", role: "proxy" },
];

/// What such a call comes to.
#[derive(Debug, PartialEq, Eq)]
pub enum Call {
    /// The version, in the program's own words.
    Version(String),
    /// A role of this binary, with its flags.
    Run(Vec<OsString>),
}

/// What a script says that stands for a link, in an archive that keeps none: `ferry --called-as=etcd --data-dir …`.
const CALLED_AS: &str = "--called-as=";

/// The name that the program goes by, and its arguments after that name.
pub fn called(mut arguments: Vec<OsString>) -> (Option<String>, Vec<OsString>) {
    let said = arguments.get(1).and_then(|word| word.to_str()?.strip_prefix(CALLED_AS).map(OsString::from));
    if let Some(name) = said {
        arguments.remove(1);
        arguments[0] = name;
    }
    let name =
        arguments.first().map(Path::new).and_then(|path| path.file_name()?.to_str().map(str::to_owned));
    (name, arguments)
}

pub fn role(called: &str) -> Option<Program> {
    PROGRAMS.into_iter().find(|program| program.name == called)
}

/// `words` are what follows the program's name.
pub fn arguments(program: Program, words: &[OsString]) -> Call {
    // `--version=v1.36.4-custom` is a flag of the role: what it reports.
    let asks =
        |word: &OsString| ["--version", "--version=true", "--version=raw"].iter().any(|flag| word == flag);
    if words.iter().any(asks) {
        return Call::Version(match program.name {
            "etcd" => format!("etcd Version: {}", ferry_etcd::VERSION),
            _ => format!("Kubernetes {}", ferry_apiserver::version::GIT_VERSION),
        });
    }
    let mut arguments = vec![program.name.into(), program.role.into()];
    arguments.extend_from_slice(words);
    if program.name == "kube-apiserver" && value_of(words, "--data-dir").is_none() {
        // Upstream keeps what it makes itself, certificates, in one directory, and so does Ferry.
        let made = value_of(words, "--cert-dir").unwrap_or_else(|| "/var/run/kubernetes".into());
        arguments.push("--data-dir".into());
        arguments.push(made);
    }
    Call::Run(arguments)
}

fn value_of(words: &[OsString], flag: &str) -> Option<OsString> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == flag {
            return words.next().cloned();
        }
        let text = word.to_str().unwrap_or_default();
        if let Some(value) = text.strip_prefix(flag).and_then(|rest| rest.strip_prefix('=')) {
            return Some(value.into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_as(name: &str, words: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        match arguments(role(name).expect("a program of upstream's"), &words) {
            Call::Run(arguments) => arguments.into_iter().map(|word| word.into_string().unwrap()).collect(),
            Call::Version(words) => vec![words],
        }
    }

    #[test]
    fn a_program_of_upstreams_is_a_role_with_the_same_flags() {
        assert_eq!(run_as("kube-scheduler", &["--v=2"]), ["kube-scheduler", "scheduler", "--v=2"]);
        assert_eq!(run_as("kube-proxy", &[]), ["kube-proxy", "proxy"]);
        assert_eq!(role("ferry"), None);
        assert_eq!(role("kube-dns"), None);
    }

    #[test]
    fn an_api_server_keeps_what_it_makes_in_its_certificate_directory() {
        let data = |words: &[&str]| run_as("kube-apiserver", words).split_off(2 + words.len());
        assert_eq!(data(&["--cert-dir=/tmp/c"]), ["--data-dir", "/tmp/c"]);
        assert_eq!(data(&["--cert-dir", "/tmp/c"]), ["--data-dir", "/tmp/c"]);
        assert_eq!(data(&["--v=2"]), ["--data-dir", "/var/run/kubernetes"]);
        assert_eq!(data(&["--data-dir=/d"]), [""; 0]);
    }

    #[test]
    fn a_script_stands_for_a_link() {
        let check = |words: &[&str], name: &str, rest: &[&str]| {
            let (called, arguments) = called(words.iter().map(OsString::from).collect());
            assert_eq!(called.as_deref(), Some(name));
            assert_eq!(arguments[1..], rest.iter().map(OsString::from).collect::<Vec<_>>());
        };
        check(&["/usr/bin/etcd", "--name=a"], "etcd", &["--name=a"]);
        check(&["/k8s/ferry", "--called-as=etcd", "--name=a"], "etcd", &["--name=a"]);
        check(&["ferry", "up", "--called-as=etcd"], "ferry", &["up", "--called-as=etcd"]);
        assert_eq!(called(Vec::new()).0, None);
    }

    #[test]
    fn a_version_is_told_in_the_programs_own_words() {
        assert!(run_as("etcd", &["--version"])[0].starts_with("etcd Version: 3."));
        assert!(run_as("kubelet", &["--version"])[0].starts_with("Kubernetes v1."));
    }
}
