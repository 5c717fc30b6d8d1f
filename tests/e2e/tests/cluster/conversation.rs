//! A program that goes on talking: its lines are read as they come, within a bound, and it ends with its test.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Conversation {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Conversation {
    pub fn start(command: &mut Command) -> Conversation {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Conversation { input: child.stdin.take(), child, lines }
    }

    pub fn say(&mut self, text: &str) {
        self.input.as_mut().expect("input is open").write_all(text.as_bytes()).unwrap();
    }

    /// The first line that has these words.
    pub fn hears(&self, words: &str) -> String {
        let mut heard = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(words) => return line,
                Ok(line) => heard.push(line),
                Err(_) => panic!("never said {words:?}, but {heard:?}"),
            }
        }
    }

    /// Everything until the program ends by itself.
    pub fn rest(mut self) -> Vec<String> {
        drop(self.input.take());
        let mut heard = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => heard.push(line),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return heard,
                Err(_) => panic!("it does not end; so far {heard:?}"),
            }
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
