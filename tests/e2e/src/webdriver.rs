//! A real browser, through WebDriver's own protocol (W3C): Debian's Chromium, without a window.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// No condition is waited for any longer.
const PATIENCE: Duration = Duration::from_secs(90);
/// How WebDriver names an element in JSON.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: tempfile::TempDir,
}

/// The window, in the pixels of a page.
#[derive(Clone, Copy)]
pub struct Window {
    pub width: u32,
    pub height: u32,
    pub is_dark: bool,
}

impl Browser {
    /// None, with a note, where there is no Chromium.
    pub fn start(window: Window) -> Option<Browser> {
        for program in ["/usr/bin/chromium", "/usr/bin/chromedriver"] {
            if !Path::new(program).exists() {
                ferry_testkit::skip::missing(&format!("{program} (Debian: chromium, chromium-driver)"));
                return None;
            }
        }
        let profile = tempfile::tempdir().expect("a directory");
        let mut driver = Command::new("/usr/bin/chromedriver")
            .arg("--port=0")
            .env("HOME", profile.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts");
        let mut said = BufReader::new(driver.stdout.take().expect("is piped"));
        let port = port_of(&mut said);
        // Nobody reads on; a full pipe must not stop it.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let mut browser = Browser { driver, port, session: String::new(), _profile: profile };
        let arguments = [
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-quic".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            "--hide-scrollbars".to_owned(),
            "--lang=en-GB".to_owned(),
            format!("--blink-settings=preferredColorScheme={}", if window.is_dark { 0 } else { 1 }),
            format!("--window-size={},{}", window.width, window.height),
            format!("--user-data-dir={}", browser._profile.path().join("profile").display()),
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome", "acceptInsecureCerts": true,
            "goog:chromeOptions": { "binary": "/usr/bin/chromium", "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let answer = browser.call("POST", "/session", Some(&wanted));
        browser.session = answer["sessionId"].as_str().expect("a session").to_owned();
        // A window is larger than what it shows.
        browser.resize(u64::from(window.width), u64::from(window.height));
        let inner = browser.run("return [innerWidth, innerHeight]", &[]);
        let outer = |wanted: u32, inner: &Value| u64::from(wanted) * 2 - inner.as_u64().expect("a number");
        browser.resize(outer(window.width, &inner[0]), outer(window.height, &inner[1]));
        Some(browser)
    }

    fn resize(&self, width: u64, height: u64) {
        self.ask("POST", "/window/rect", Some(&json!({ "width": width, "height": height })));
    }

    fn open(&self, url: &str) {
        // A page that cannot be loaded is an error of the driver's, and an empty page.
        let body = json!({ "url": url });
        let path = format!("/session/{}/url", self.session);
        let (status, _) = self.exchange("POST", &path, &body.to_string());
        assert!(status.contains(" 200 ") || status.contains(" 500 "), "{status}");
    }

    /// What a script returns.
    pub fn run(&self, script: &str, arguments: &[Value]) -> Value {
        self.ask("POST", "/execute/sync", Some(&json!({ "script": script, "args": arguments })))
    }

    /// What a promise comes to.
    pub fn run_async(&self, script: &str) -> Value {
        let script = format!(
            "const done = arguments[arguments.length - 1]; (async () => {{ {script} }})().then(done, (error) => done('failed: ' + error));"
        );
        self.ask("POST", "/execute/async", Some(&json!({ "script": script, "args": [] })))
    }

    /// Waits until an expression of the page is true, and returns what it is.
    #[track_caller]
    pub fn until(&self, what: &str, expression: &str) -> Value {
        self.within(PATIENCE, expression).unwrap_or_else(|| {
            let page = self.run("return document.body.innerText", &[]);
            panic!("never: {what}\n{page}\n{:#?}", self.console())
        })
    }

    /// The same, for as long as this.
    pub fn within(&self, patience: Duration, expression: &str) -> Option<Value> {
        let give_up = Instant::now() + patience;
        loop {
            let found = self.run(&format!("return ({expression})"), &[]);
            let is_true = !matches!(&found, Value::Null | Value::Bool(false)) && found != "" && found != 0;
            if is_true {
                return Some(found);
            }
            if Instant::now() > give_up {
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Opens a page until it shows `wanted`. Chromium drops what it loads when an interface of the host comes or goes, and
    /// other tests make some; so each attempt has an address of its own.
    #[track_caller]
    pub fn load(&self, url: impl Fn() -> String, wanted: &str) {
        let loaded = (0..6).any(|_| {
            self.open(&url());
            let expression = format!(
                "!!document.querySelector({}) || /ERR_NETWORK_CHANGED/.test(document.body?.innerText)",
                json!(wanted)
            );
            self.within(PATIENCE / 3, &expression).is_some()
                && self.run("return !!document.querySelector(arguments[0])", &[json!(wanted)]) == true
        });
        assert!(loaded, "{wanted} is not shown: {}", self.run("return document.body.innerText", &[]));
    }

    /// Waits for an element and clicks it, as a person does: it must be in sight.
    #[track_caller]
    pub fn click(&self, selector: &str) {
        self.act(selector, "click", &json!({}));
    }

    #[track_caller]
    pub fn type_into(&self, selector: &str, text: &str) {
        self.act(selector, "value", &json!({ "text": text }));
    }

    /// Does something with an element. The page may draw it anew after it was found; then it is looked for again.
    #[track_caller]
    fn act(&self, selector: &str, action: &str, body: &Value) {
        let mut refused = Value::Null;
        for _ in 0..20 {
            let element = self.element(selector);
            let path = format!("/session/{}/element/{element}/{action}", self.session);
            match self.attempt("POST", &path, Some(body)) {
                Ok(_) => return,
                Err(error) if error["error"] == "stale element reference" => refused = error,
                Err(error) => panic!("{action} of {selector}: {}", error["message"]),
            }
        }
        panic!("{action} of {selector}: {}", refused["message"]);
    }

    /// Shows pages to somebody who prefers `light` or `dark`; "" is what the window was opened with.
    pub fn prefer(&self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        let features = if scheme.is_empty() { json!([]) } else { json!([feature]) };
        let command = json!({ "cmd": "Emulation.setEmulatedMedia", "params": { "features": features } });
        self.ask("POST", "/goog/cdp/execute", Some(&command));
    }

    /// Keys for whatever has the focus.
    pub fn press(&self, keys: &[&str]) {
        let actions: Vec<Value> = keys
            .iter()
            .map(|key| json!({ "type": "keyDown", "value": key }))
            .chain(keys.iter().rev().map(|key| json!({ "type": "keyUp", "value": key })))
            .collect();
        let keyboard = json!({ "actions": [{ "type": "key", "id": "keys", "actions": actions }] });
        self.ask("POST", "/actions", Some(&keyboard));
    }

    #[track_caller]
    fn element(&self, selector: &str) -> String {
        self.until(selector, &format!("!!document.querySelector({})", json!(selector)));
        let query = json!({ "using": "css selector", "value": selector });
        let found = self.ask("POST", "/element", Some(&query));
        found[ELEMENT].as_str().expect("an element").to_owned()
    }

    pub fn cookies(&self) -> Vec<Value> {
        self.ask("GET", "/cookie", None).as_array().cloned().unwrap_or_default()
    }

    /// What the browser complained about since it was asked last.
    pub fn console(&self) -> Vec<String> {
        let lines = self.ask("POST", "/se/log", Some(&json!({ "type": "browser" })));
        let lines = lines.as_array().cloned().unwrap_or_default();
        lines.iter().filter_map(|line| line["message"].as_str().map(str::to_owned)).collect()
    }

    pub fn screenshot(&self) -> Vec<u8> {
        let picture = self.ask("GET", "/screenshot", None);
        STANDARD.decode(picture.as_str().expect("a picture")).expect("Base64")
    }

    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        self.call(method, &format!("/session/{}{path}", self.session), body)
    }

    #[track_caller]
    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        self.attempt(method, path, body)
            .unwrap_or_else(|error| panic!("{method} {path}: {}", error["message"]))
    }

    /// What the browser answers, or its error.
    #[track_caller]
    fn attempt(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Value> {
        let (head, body) = self.exchange(method, path, &body.map_or_else(String::new, Value::to_string));
        let value: Value =
            serde_json::from_str(&body).unwrap_or_else(|error| panic!("{method} {path}: {error}: {head}"));
        let value = value["value"].clone();
        if head.contains(" 200 ") { Ok(value) } else { Err(value) }
    }

    /// The status line and the body of the answer.
    fn exchange(&self, method: &str, path: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("chromedriver listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).expect("chromedriver listens");
        read_answer(&mut BufReader::new(stream))
    }
}

/// The status line, and as much of a body as the head says: the driver keeps its connections open.
fn read_answer(stream: &mut impl BufRead) -> (String, String) {
    let mut line = || {
        let mut line = String::new();
        stream.read_line(&mut line).expect("chromedriver answers");
        line.trim().to_owned()
    };
    let status = line();
    let headers: Vec<String> = std::iter::from_fn(|| Some(line()).filter(|line| !line.is_empty())).collect();
    let length = headers.iter().find_map(|header| {
        let (name, value) = header.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().expect("a number"))
    });
    let mut body = vec![0; length.expect("chromedriver says how long its answer is")];
    stream.read_exact(&mut body).expect("chromedriver answers");
    (status, String::from_utf8(body).expect("text"))
}

fn port_of(said: &mut impl BufRead) -> u16 {
    let mut line = String::new();
    while said.read_line(&mut line).expect("chromedriver speaks") > 0 {
        if let Some((_, port)) = line.trim().trim_end_matches('.').rsplit_once("on port ")
            && let Ok(port @ 1..) = port.parse()
        {
            return port;
        }
        line.clear();
    }
    panic!("chromedriver ended before it listened");
}

impl Drop for Browser {
    /// The end of the session ends the browser; the driver is our child.
    fn drop(&mut self) {
        if !self.session.is_empty()
            && let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port))
        {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            let head = format!(
                "DELETE /session/{} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n",
                self.session
            );
            let _ = stream.write_all(head.as_bytes());
            // Its answer comes when the browser has ended.
            let _ = stream.read(&mut [0; 1]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
