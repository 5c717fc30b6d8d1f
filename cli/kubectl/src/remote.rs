//! Running a session in a container: our standard streams joined to a remote process, its end
//! turned into our exit code.

use std::io::Write;

use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::Cli;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::terminal::{RawMode, size_message, stdin_messages};
use crate::transport::websocket::{Channels, ERROR, REMOTE_COMMAND, RESIZE, STDERR, STDIN, STDOUT};

#[derive(Debug, Clone, Copy)]
pub struct Session {
    pub stdin: bool,
    pub tty: bool,
    pub quiet: bool,
}

/// Connects to `path` and stays until the remote side ends.
pub async fn run(cli: &Cli, path: &str, session: Session) -> Result<()> {
    let mut channels = cli.client()?.channels(path, REMOTE_COMMAND).await?;
    let _raw = if session.tty { RawMode::enter() } else { None };
    if session.tty
        && let Some(size) = size_message()
    {
        channels.send(RESIZE, size.as_bytes()).await?;
    }
    join(channels, session).await
}

async fn join(mut channels: Channels, session: Session) -> Result<()> {
    let mut input = session.stdin.then(stdin_messages);
    let mut resized = signal(SignalKind::window_change())?;
    loop {
        tokio::select! {
            message = channels.next() => {
                match message? {
                    Some((STDOUT, data)) => write_all(&mut std::io::stdout().lock(), &data)?,
                    Some((STDERR, data)) => write_all(&mut std::io::stderr().lock(), &data)?,
                    Some((ERROR, data)) => return ended(&data),
                    Some(_) => {}
                    None => return Ok(()),
                }
            }
            data = next_input(&mut input) => {
                match data {
                    Some(data) => channels.send(STDIN, &data).await?,
                    None => {
                        input = None;
                        channels.close_channel(STDIN).await?;
                    }
                }
            }
            _ = resized.recv(), if session.tty => {
                if let Some(size) = size_message() {
                    channels.send(RESIZE, size.as_bytes()).await?;
                }
            }
        }
    }
}

async fn next_input(input: &mut Option<tokio::sync::mpsc::Receiver<bytes::Bytes>>) -> Option<bytes::Bytes> {
    match input {
        Some(receiver) => receiver.recv().await,
        None => std::future::pending().await,
    }
}

fn write_all(target: &mut impl Write, data: &[u8]) -> Result<()> {
    target.write_all(data)?;
    target.flush()?;
    Ok(())
}

/// The Status that ends a session.
pub fn ended(data: &[u8]) -> Result<()> {
    let Ok(status) = serde_json::from_slice::<Value>(data) else {
        let text = String::from_utf8_lossy(data).into_owned();
        return if text.is_empty() { Ok(()) } else { Err(Error::message(text)) };
    };
    if status.text("status") == "Success" {
        return Ok(());
    }
    if status.text("reason") == "NonZeroExitCode" {
        let causes = status.list("details.causes").iter();
        let code = causes
            .filter(|cause| cause.text("reason") == "ExitCode")
            .find_map(|cause| cause.text("message").parse::<i64>().ok());
        if let Some(code) = code {
            return Err(Error::Exit {
                code: u8::try_from(code & 0xff).unwrap_or(1),
                message: format!("command terminated with exit code {code}"),
            });
        }
    }
    Err(Error::message(status.text("message").to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remote_exit_code_becomes_ours() {
        let failure = br#"{"status":"Failure","reason":"NonZeroExitCode","message":"m","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;
        assert_eq!(
            ended(failure).unwrap_err().render(),
            ("command terminated with exit code 3".to_owned(), 3)
        );
        assert!(ended(br#"{"status":"Success"}"#).is_ok());
        assert_eq!(
            ended(br#"{"status":"Failure","message":"no such container"}"#).unwrap_err().render().1,
            1
        );
        assert!(ended(b"").is_ok());
    }
}
