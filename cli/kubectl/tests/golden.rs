//! Command lines and what they print, recorded from upstream's kubectl and replayed with ours.
//!
//! A script under `tests/golden` is a list of `$ command` lines, each followed by what it prints
//! (`> ` standard output, `! ` standard error) and by `= code` unless the code is 0. Everything that
//! differs from run to run is normalised: ages, times, UIDs, revisions, ports.
//!
//! - Without further settings the scripts run against Ferry's own API server, the `ferry` binary
//!   beside this test's. `known-differences` lists the commands that its server does not answer as
//!   upstream's yet, or answers where a plain upstream has nothing to say (`top`); `KUBECTL_GOLDEN_REWRITE=1` rewrites that list, and the diff is reviewed.
//! - `KUBECTL_GOLDEN_KUBECONFIG` names another cluster to run on.
//! - `KUBECTL_GOLDEN_RECORD` names a kubectl whose output replaces the recorded one; the difference
//!   is then reviewed.
//! - A kubectl of our version in PATH, or in `KUBECTL_GOLDEN_OTHER`, is compared directly.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const OURS: &str = env!("CARGO_BIN_EXE_ferry-kubectl");
const VERSION: &str = "v1.36.4";

#[test]
fn scripts_print_what_upstreams_kubectl_prints() {
    let Some(cluster) = Cluster::find() else { return };
    let recorder = std::env::var("KUBECTL_GOLDEN_RECORD").ok();
    let subject = recorder.as_deref().unwrap_or(OURS);
    let mut failures = Vec::new();
    for script in scripts() {
        let recorded = std::fs::read_to_string(&script).unwrap();
        let transcript = Run::new(&cluster, subject, &script, "a").transcript(&commands(&recorded));
        if recorder.is_some() {
            std::fs::write(&script, &transcript).unwrap();
        } else {
            failures.extend(differences(&script, &recorded, &transcript));
        }
    }
    if std::env::var_os("KUBECTL_GOLDEN_REWRITE").is_some() {
        let lines: Vec<String> = failures.iter().map(|failure| title(failure)).collect();
        std::fs::write(known_path(), lines.join("\n") + "\n").unwrap();
        return;
    }
    // What Ferry's own server does not answer as upstream's yet; another cluster has no excuse.
    if std::env::var_os("KUBECTL_GOLDEN_KUBECONFIG").is_none() {
        let known = std::fs::read_to_string(known_path()).unwrap();
        failures.retain(|failure| !known.lines().any(|line| line == title(failure)));
    }
    assert!(
        failures.is_empty(),
        "{} commands differ from the record:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

fn known_path() -> PathBuf {
    PathBuf::from("tests/golden/known-differences")
}

/// `script: $ command` of a difference.
fn title(failure: &str) -> String {
    let mut lines = failure.lines();
    let script = lines.next().unwrap_or("").trim_start_matches("--- ");
    format!("{script}: {}", lines.next().unwrap_or(""))
}

#[test]
fn both_kubectls_print_the_same_on_one_cluster() {
    let other = std::env::var("KUBECTL_GOLDEN_OTHER").unwrap_or_else(|_| "kubectl".to_owned());
    let version = Command::new(&other).args(["version", "--client"]).output();
    if !version.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout).contains(&format!("Client Version: {VERSION}\n"))
    }) {
        eprintln!("not compared: no kubectl {VERSION} in PATH");
        return;
    }
    let Some(cluster) = Cluster::find() else { return };
    let mut failures = Vec::new();
    for script in scripts() {
        let lines = commands(&std::fs::read_to_string(&script).unwrap());
        let theirs = Run::new(&cluster, &other, &script, "b").transcript(&lines);
        let ours = Run::new(&cluster, OURS, &script, "c").transcript(&lines);
        failures.extend(differences(&script, &theirs, &ours));
    }
    assert!(failures.is_empty(), "{} commands differ:\n{}", failures.len(), failures.join("\n"));
}

/// Upstream's kubectl deletes first and asks later; ours must not, so there is nothing to compare.
#[test]
fn forced_replace_deletes_only_what_it_can_create_again() {
    let Some(cluster) = Cluster::find() else { return };
    let run = Run::new(&cluster, OURS, Path::new("force.txt"), "f");
    let must = |line: &str| {
        let output = run.shell(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    must("kubectl create deployment web --image=i");
    must("kubectl create configmap other --from-literal=a=1");
    let uids = "kubectl get deployment/web configmap/other -o jsonpath='{.items[*].metadata.uid}'";
    let before = must(uids);
    // a name that is none: the server refuses it in every way
    must("kubectl get deployment/web configmap/other -o yaml > $TMP_DIR/both.yaml");
    must("sed -i 's/image: i$/image: \"\"/; s/ a: .1./ a: \"2\"/' $TMP_DIR/both.yaml");
    for line in
        ["kubectl replace --force -f $TMP_DIR/both.yaml", "kubectl apply --force -f $TMP_DIR/both.yaml"]
    {
        let output = run.shell(line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{line}");
        assert!(said.contains("image: Required value"), "{line}: {said}");
        assert_eq!(must(uids), before, "{line} deleted something: {said}");
    }
}

#[test]
fn the_suite_is_large_enough_and_recorded() {
    let mut count = 0;
    for script in scripts() {
        let text = std::fs::read_to_string(&script).unwrap();
        count += commands(&text).len();
        assert!(
            text.lines().any(|line| line.starts_with("> ")),
            "{} has no recorded output",
            script.display()
        );
    }
    assert!(count >= 200, "only {count} command lines");
}

fn golden() -> PathBuf {
    PathBuf::from("tests/golden")
}

fn scripts() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(golden()).unwrap().map(|entry| entry.unwrap().path());
    let mut scripts: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "txt")).collect();
    scripts.sort();
    scripts
}

fn commands(script: &str) -> Vec<String> {
    script.lines().filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect()
}

/// The commands whose blocks are not the same, with both versions.
fn differences(script: &Path, expected: &str, actual: &str) -> Vec<String> {
    let (expected, actual) = (blocks(expected), blocks(actual));
    assert_eq!(expected.len(), actual.len(), "{}", script.display());
    let name = script.file_name().unwrap().to_string_lossy().into_owned();
    let differing = expected.iter().zip(&actual).filter(|(expected, actual)| expected != actual);
    differing.map(|(expected, actual)| format!("--- {name}\n{expected}+++\n{actual}")).collect()
}

fn blocks(text: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    for line in text.lines() {
        match blocks.last_mut() {
            Some(block) if !line.starts_with("$ ") => block.push_str(&format!("{line}\n")),
            _ if line.starts_with("$ ") => blocks.push(format!("{line}\n")),
            _ => {}
        }
    }
    blocks
}

/// One script with one kubectl, in a namespace and a home of its own.
struct Run {
    home: tempfile::TempDir,
    namespace: String,
    kubeconfig: PathBuf,
}

impl Run {
    fn new(cluster: &Cluster, kubectl: &str, script: &Path, side: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let bin = home.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let program = if kubectl.contains('/') { PathBuf::from(kubectl) } else { which(kubectl) };
        std::os::unix::fs::symlink(program, bin.join("kubectl")).unwrap();
        let stem = script.file_stem().unwrap().to_string_lossy().into_owned();
        let namespace = format!("golden-{stem}-{side}-{:x}", std::process::id());
        let kubeconfig = home.path().join("kubeconfig");
        std::fs::copy(&cluster.kubeconfig, &kubeconfig).unwrap();
        let run = Run { home, namespace, kubeconfig };
        run.prepare();
        run
    }

    /// The namespace and its default service account, which a server without controllers lacks.
    fn prepare(&self) {
        for line in [
            format!("kubectl create namespace {}", self.namespace),
            format!("kubectl config set-context --current --namespace={}", self.namespace),
            "kubectl get serviceaccount default || kubectl create serviceaccount default".to_owned(),
        ] {
            let output = self.shell(&line);
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    fn shell(&self, line: &str) -> std::process::Output {
        let path = format!(
            "{}:{}",
            self.home.path().join("bin").display(),
            std::env::var("PATH").unwrap_or_default()
        );
        Command::new("sh")
            .arg("-c")
            .arg(line)
            .env("PATH", path)
            .env("HOME", self.home.path())
            .env("KUBECONFIG", &self.kubeconfig)
            .env("NS", &self.namespace)
            .env("TMP_DIR", self.home.path())
            .env("TZ", "UTC")
            .current_dir(golden().join("fixtures"))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn transcript(&self, commands: &[String]) -> String {
        let mut text = String::new();
        for line in commands {
            let output = self.shell(line);
            text.push_str(&format!("$ {line}\n"));
            for (mark, stream) in [("> ", &output.stdout), ("! ", &output.stderr)] {
                let normalised = self.normalise(&String::from_utf8_lossy(stream));
                normalised.lines().for_each(|line| text.push_str(&format!("{mark}{line}\n")));
            }
            if let Some(code) = output.status.code().filter(|code| *code != 0) {
                text.push_str(&format!("= {code}\n"));
            }
            text.push('\n');
        }
        text
    }

    fn normalise(&self, text: &str) -> String {
        let text = text
            .replace(&self.namespace, "NAMESPACE")
            .replace(&self.home.path().display().to_string(), "HOME");
        // upstream logs each failed try of discovery in the log's own format, with times and pids
        let kept = text.lines().filter(|line| !is_log_line(line));
        let lines: Vec<String> = kept.map(normalise_line).collect();
        let has_age = lines.iter().any(|line| line.contains("<age>") || line.contains("<time>"));
        let lines: Vec<String> =
            if has_age { lines.iter().map(|line| collapse(line)).collect() } else { lines };
        lines.join("\n")
    }
}

/// `E1115 21:51:08.044214   10478 memcache.go:265] …`
fn is_log_line(line: &str) -> bool {
    line.len() > 20
        && line.starts_with(['E', 'W', 'I'])
        && line[1..5].bytes().all(|byte| byte.is_ascii_digit())
        && line.contains(".go:")
}

/// Columns around an age have no fixed width.
fn collapse(line: &str) -> String {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let words: Vec<&str> = line[indent..]
        .split("  ")
        .map(|word| word.trim_matches(' '))
        .filter(|word| !word.is_empty())
        .collect();
    format!("{}{}", &line[..indent], words.join("  "))
}

fn normalise_line(line: &str) -> String {
    let mut result = String::new();
    let mut word = String::new();
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-:+._".contains(c);
    for character in line.chars() {
        if is_part(character) {
            word.push(character);
            continue;
        }
        result.push_str(&normalise_word(&word, &result));
        word.clear();
        result.push(character);
    }
    result.push_str(&normalise_word(&word, &result));
    named_times(&result)
}

fn normalise_word(word: &str, before: &str) -> String {
    if is_uuid(word) {
        return "<uid>".to_owned();
    }
    if word.len() >= 20 && word.as_bytes()[4] == b'-' && word.as_bytes()[10] == b'T' {
        return "<time>".to_owned();
    }
    if is_age(word) && !before.ends_with('=') {
        return "<age>".to_owned();
    }
    if let Some((host, port)) = word.rsplit_once(':')
        && host == "127.0.0.1"
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && !port.is_empty()
    {
        return "127.0.0.1:<port>".to_owned();
    }
    let numeric = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let after_revision =
        ["resourceVersion: ", "resourceVersion: \"", "resourceVersion\": \"", "Resource Version:  "];
    if numeric
        && after_revision.iter().any(|key| before.trim_end_matches(' ').ends_with(key.trim_end_matches(' ')))
    {
        return "<revision>".to_owned();
    }
    word.to_owned()
}

fn is_uuid(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    parts.len() == 5
        && parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        && word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// `5s`, `2m10s`, `3d4h`: up to two numbers with their units. `100m` and the like are quantities.
fn is_age(word: &str) -> bool {
    let mut units = 0;
    let mut digits = 0;
    for byte in word.bytes() {
        match byte {
            b'0'..=b'9' => digits += 1,
            b's' | b'm' | b'h' | b'd' | b'y' if digits > 0 => {
                units += 1;
                digits = 0;
            }
            _ => return false,
        }
    }
    (1..=2).contains(&units)
        && digits == 0
        && !matches!(word, "300s")
        && !word.ends_with('m') | (units > 1) | (word.len() <= 3)
}

/// `Sun, 15 Nov 2026 22:44:27 +0000`, but not the fixtures' own 2024.
fn named_times(line: &str) -> String {
    let mut line = line.to_owned();
    for day in ["Mon, ", "Tue, ", "Wed, ", "Thu, ", "Fri, ", "Sat, ", "Sun, "] {
        while let Some(start) = line.find(day) {
            let end = start + "Sun, 15 Nov 2026 22:44:27 +0000".len();
            if end > line.len() || line[start..end].contains(" 2024 ") {
                break;
            }
            line.replace_range(start..end, "<time>");
        }
    }
    line
}

fn which(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
        .expect("found it a moment ago")
}

/// The cluster the scripts run on; one we started ends with the test.
struct Cluster {
    kubeconfig: PathBuf,
    server: Option<(Child, tempfile::TempDir)>,
}

impl Cluster {
    fn find() -> Option<Self> {
        if let Some(kubeconfig) = std::env::var_os("KUBECTL_GOLDEN_KUBECONFIG") {
            return Some(Cluster { kubeconfig: kubeconfig.into(), server: None });
        }
        let ferry = Path::new(OURS).with_file_name("ferry");
        if !ferry.exists() {
            writeln!(
                std::io::stderr(),
                "not run: no API server; build the ferry binary or set KUBECTL_GOLDEN_KUBECONFIG"
            )
            .ok();
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let mut child = Command::new(ferry)
            .args(["apiserver", "--data-dir"])
            .arg(directory.path())
            .args(["--bind-address", "127.0.0.1", "--secure-port", &port.to_string()])
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let kubeconfig = directory.path().join("admin.kubeconfig");
        let deadline = Instant::now() + Duration::from_secs(30);
        let is_ready = || {
            let answer = Command::new(OURS)
                .args(["get", "--raw", "/readyz", "--kubeconfig"])
                .arg(&kubeconfig)
                .output();
            answer.is_ok_and(|answer| answer.status.success())
        };
        while !(kubeconfig.exists() && is_ready()) {
            let said = || std::fs::read_to_string(directory.path().join("log")).unwrap_or_default();
            if let Some(status) = child.try_wait().unwrap() {
                panic!("ferry apiserver ended with {status}: {}", said());
            }
            assert!(Instant::now() < deadline, "ferry apiserver is not ready: {}", said());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(Cluster { kubeconfig, server: Some((child, directory)) })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.server {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
