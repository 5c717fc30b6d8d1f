//! The user's terminal: raw mode while a remote one is attached, its size, and standard input as
//! messages.

use std::io::{IsTerminal, Read};

use bytes::Bytes;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

/// Raw mode until dropped, also when the command fails in between.
pub struct RawMode(Termios);

impl RawMode {
    /// `None` when standard input is no terminal.
    pub fn enter() -> Option<Self> {
        if !std::io::stdin().is_terminal() {
            return None;
        }
        let before = tcgetattr(std::io::stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(RawMode(before))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// The message that tells a remote terminal its size.
pub fn size_message() -> Option<String> {
    let size = tcgetwinsize(std::io::stdout()).ok()?;
    Some(format!("{{\"Width\":{},\"Height\":{}}}\n", size.ws_col, size.ws_row))
}

/// Standard input, piece by piece. Reading blocks, so a thread does it; the thread ends with the
/// process.
pub fn stdin_messages() -> mpsc::Receiver<Bytes> {
    // a reader that is ahead waits for the network here
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        loop {
            match std::io::stdin().read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => {
                    if sender.blocking_send(Bytes::copy_from_slice(&buffer[..length])).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    receiver
}
