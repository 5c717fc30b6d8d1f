//! The web server that Ferry carries, for a machine that reaches no registry: it says which pod answers.
//!
//! A program of its own, so that its image is small: built by `build.rs` with the compiler that builds Ferry, static,
//! of the standard library alone.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// A client that says nothing is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is left of a request after this is not read.
const MAX_LINES: usize = 100;

fn main() {
    end_when_told();
    let port = std::env::var("PORT").unwrap_or_else(|_| "80".into());
    let listener = TcpListener::bind(format!("0.0.0.0:{port}")).unwrap_or_else(|error| {
        eprintln!("listen on port {port}: {error}");
        std::process::exit(1);
    });
    println!("listening on port {port}");
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim().to_owned();
    for stream in listener.incoming().flatten() {
        let name = name.clone();
        std::thread::spawn(move || {
            // Who went away needs no answer.
            let _ = answer(stream, &name);
        });
    }
}

fn answer(stream: TcpStream, name: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(&stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    for line in lines.by_ref().take(MAX_LINES) {
        if line?.is_empty() {
            break;
        }
    }
    println!("{request} from {}", stream.peer_addr()?);
    let page = format!("hello from {name}, served by Ferry's own web server\n");
    let head = "HTTP/1.1 200 OK\r\nServer: ferry-web\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close";
    write!(&stream, "{head}\r\nContent-Length: {}\r\n\r\n{page}", page.len())
}

/// The first process of a container gets no signal that it does not ask for.
fn end_when_told() {
    const SIGINT: i32 = 2;
    const SIGTERM: i32 = 15;
    unsafe extern "C" {
        fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
        fn _exit(code: i32) -> !;
    }
    extern "C" fn end(_: i32) {
        // SAFETY: `_exit` may be called in a signal handler (signal-safety(7)).
        unsafe { _exit(0) }
    }
    for number in [SIGINT, SIGTERM] {
        // SAFETY: the handler calls nothing that a signal handler may not call.
        unsafe { signal(number, end) };
    }
}
