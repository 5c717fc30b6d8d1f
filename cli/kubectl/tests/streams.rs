//! exec, port-forward and cp over WebSocket channels: the real binary against a server that speaks
//! the protocol's other end. The pods themselves are the node's business, and tested there.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

const DISCOVERY: &str = r#"{"kind":"APIGroupDiscoveryList","items":[{"metadata":{"name":""},"versions":[{"version":"v1","resources":[
    {"resource":"pods","responseKind":{"kind":"Pod"},"scope":"Namespaced","singularResource":"pod","verbs":["get","list"],"shortNames":["po"]}]}]}]}"#;
const POD: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"default"},
    "spec":{"nodeName":"n","containers":[{"name":"main"},{"name":"side"}]},"status":{"phase":"Running"}}"#;

#[test]
fn exec_joins_streams_and_returns_the_exit_code() {
    let output = kubectl("hello", &["exec", "-i", "web", "--", "cat", "-n"], |path, mut socket| {
        assert!(
            path.starts_with(
                "/api/v1/namespaces/default/pods/web/exec?command=cat&command=-n&container=main&stderr=true&stdin=true"
            ),
            "{path}"
        );
        let input = read_until_closed(&mut socket);
        send(&mut socket, 1, &[b"out:", input.as_slice()].concat());
        send(&mut socket, 2, b"err");
        send(&mut socket, 3, br#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#);
    });
    assert_eq!(String::from_utf8_lossy(&output.stdout), "out:hello");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "Defaulted container \"main\" out of: main, side\nerrcommand terminated with exit code 7\n"
    );
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn a_refused_upgrade_shows_the_servers_reason() {
    let output =
        kubectl("", &["exec", "web", "-c", "side", "--", "true"], |path, _| panic!("{path} was refused"));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: unable to upgrade connection: no exec for you\n"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn cp_unpacks_what_tar_prints() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("copy");
    let output =
        kubectl("", &["cp", "web:/etc/motd", target.to_str().unwrap(), "-c", "main"], |path, mut socket| {
            assert!(path.contains("command=tar&command=cf&command=-&command=%2Fetc%2Fmotd"), "{path}");
            let mut archive = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(7);
            header.set_mode(0o644);
            header.set_cksum();
            archive.append_data(&mut header, "etc/motd", &b"welcome"[..]).unwrap();
            send(&mut socket, 1, &archive.into_inner().unwrap());
            send(&mut socket, 3, br#"{"status":"Success"}"#);
        });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(target).unwrap(), "welcome");
}

#[test]
fn port_forward_carries_bytes_both_ways() {
    let server = Server::start(|path, mut socket| {
        assert_eq!(path, "/api/v1/namespaces/default/pods/web/portforward?ports=80");
        for channel in [0, 1] {
            send(&mut socket, channel, &80u16.to_le_bytes());
        }
        while let Ok(message) = socket.read() {
            if let Message::Binary(data) = message {
                let reversed: Vec<u8> = data[1..].iter().rev().copied().collect();
                send(&mut socket, 0, &reversed);
            }
        }
    });
    let mut child = server.command(&["port-forward", "web", ":80"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut said = String::new();
    let mut byte = [0];
    while !said.ends_with('\n') && stdout.read(&mut byte).unwrap() == 1 {
        said.push(char::from(byte[0]));
    }
    let address = said
        .strip_prefix("Forwarding from ")
        .and_then(|rest| rest.split(' ').next())
        .unwrap_or_else(|| panic!("{said:?}"));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"abc").unwrap();
    let mut answer = [0; 3];
    stream.read_exact(&mut answer).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(&answer, b"cba");
}

type Socket = WebSocket<TcpStream>;

fn send(socket: &mut Socket, channel: u8, data: &[u8]) {
    let mut message = vec![channel];
    message.extend_from_slice(data);
    socket.send(Message::Binary(message.into())).unwrap();
}

/// Standard input, up to the message by which v5 closes it.
fn read_until_closed(socket: &mut Socket) -> Vec<u8> {
    let mut input = Vec::new();
    loop {
        match socket.read().unwrap() {
            Message::Binary(data) if data[..] == [255, 0] => return input,
            Message::Binary(data) if data[0] == 0 => input.extend_from_slice(&data[1..]),
            _ => {}
        }
    }
}

fn kubectl(stdin: &str, args: &[&str], serve: impl Fn(&str, Socket) + Send + Clone + 'static) -> Output {
    let server = Server::start(serve);
    let mut child = server
        .command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("kubectl {args:?} did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

struct Server {
    port: u16,
    home: tempfile::TempDir,
}

impl Server {
    /// Answers discovery and the pod; hands upgraded connections to `serve`.
    fn start(serve: impl Fn(&str, Socket) + Send + Clone + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let serve = serve.clone();
                std::thread::spawn(move || answer(stream, serve));
            }
        });
        Server { port, home: tempfile::tempdir().unwrap() }
    }

    fn command(&self, args: &[&str]) -> Command {
        // the server's flag must not follow `--`
        let (before, after) = args.split_at(args.iter().position(|word| *word == "--").unwrap_or(args.len()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferry-kubectl"));
        command.args(before).arg(format!("--server=http://127.0.0.1:{}", self.port)).args(after);
        command.env("HOME", self.home.path()).env("KUBECONFIG", "/dev/null");
        command
    }
}

fn answer(stream: TcpStream, serve: impl Fn(&str, Socket)) {
    let mut head = [0; 4096];
    let length = stream.peek(&mut head).unwrap_or(0);
    let text = String::from_utf8_lossy(&head[..length]).into_owned();
    let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
    if path.contains("container=side") {
        return reply(
            stream,
            "403 Forbidden",
            r#"{"kind":"Status","code":403,"reason":"Forbidden","message":"no exec for you"}"#,
        );
    }
    if text.to_ascii_lowercase().contains("upgrade: websocket") {
        let choose = |request: &Request, mut response: Response| {
            let offered = request.headers()["sec-websocket-protocol"].to_str().unwrap_or_default().to_owned();
            let chosen = offered.split(", ").next().unwrap_or_default().to_owned();
            response.headers_mut().insert("sec-websocket-protocol", chosen.parse().unwrap());
            Ok(response)
        };
        let socket: Socket = tungstenite::accept_hdr(stream, choose).unwrap();
        return serve(&path, socket);
    }
    match path.split('?').next().unwrap_or_default() {
        "/api" => reply(stream, "200 OK", DISCOVERY),
        "/apis" => reply(stream, "200 OK", r#"{"kind":"APIGroupDiscoveryList","items":[]}"#),
        "/api/v1/namespaces/default/pods/web" => reply(stream, "200 OK", POD),
        _ => reply(stream, "404 Not Found", "{}"),
    }
}

fn reply(mut stream: TcpStream, status: &str, body: &str) {
    let mut head = [0; 4096];
    let _ = stream.read(&mut head);
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(answer.as_bytes());
    // As a server behind a slow network: the body comes after the head, and in two pieces.
    for piece in [&body[..body.len() / 2], &body[body.len() / 2..]] {
        std::thread::sleep(Duration::from_millis(20));
        let _ = stream.write_all(piece.as_bytes());
    }
}
