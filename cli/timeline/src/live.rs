//! `ferry trace -- COMMAND`: runs it under a trace of its own, and prints each step of its life as it ends. `ferry trace
//! --follow`: everything as it ends, for a collector or another program.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ferry_client::Client;
use ferry_trace::timeline::{Focus, timeline};
use ferry_trace::{Context, Record, SpanId};
use futures::{Stream, StreamExt};
use tokio::time::Instant;

use crate::chapters::{Detail, Step, Story, duration, story};
use crate::error::Error;
use crate::fetch::{self, Selection};
use crate::otlp::Collector;
use crate::terminal::inert;
use crate::{print_all, reason};

pub struct Command {
    /// `kubectl …` is Ferry's own; anything else is a program.
    pub words: Vec<OsString>,
    pub kubeconfig: Option<PathBuf>,
    /// How long its consequences are waited for.
    pub patience: Duration,
    /// Whether steps are printed as they end.
    pub is_shown: bool,
}

/// After this long without a further step a story is over, unless a pod of it is still on its way.
const QUIET: Duration = Duration::from_secs(1);
/// A pod that is stuck may only look so; this long it gets to prove it.
const DOUBT: Duration = Duration::from_secs(3);

/// Returns the records of the whole story.
pub async fn follow(client: &Client, command: Command) -> Result<Vec<Record>, Error> {
    let context = Context::generate();
    let mut stream = fetch::follow(client).await?;
    let mut child = start(&command, context)?;
    let mut printer = LivePrinter::new(context, command.is_shown);
    // Gathered while the command runs: the stream has an end, and must not fill up.
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            record = stream.next() => printer.take(record)?,
        }
    };
    let status = status.map_err(|source| Error::Run { program: command.words[0].clone().into(), source })?;
    let deadline = Instant::now() + command.patience;
    while !printer.gather(&mut stream, deadline).await? {
        if is_over(client, &printer).await? {
            break;
        }
    }
    if !printer.has_own_records() && status.success() {
        // A program that hands no trace on; the server knows who wrote last.
        return fetch::records(client, &Selection::Last).await;
    }
    Ok(printer.chain())
}

/// A collector is sent what ended in this time at once.
const GATHER: Duration = Duration::from_millis(200);
/// Before the server is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Tells each span as it ends, until the server or the collector refuses. A stream has an end, after an hour or when the
/// server is started anew; then it is gone on with behind what was told.
pub async fn follow_all(client: &Client, collector: Option<&str>) -> Result<(), Error> {
    let mut collector = collector.map(Collector::at).transpose()?;
    let mut stream = fetch::follow(client).await?;
    let mut told = 0;
    loop {
        while let Some(batch) = next_batch(&mut stream).await {
            told = batch.last().map_or(told, |record| record.sequence);
            match &mut collector {
                Some(collector) => drop(collector.send(&batch).await?),
                None => print_all(&lines(&batch)?)?,
            }
        }
        stream = loop {
            tokio::time::sleep(AGAIN).await;
            match fetch::follow_after(client, told).await {
                Ok(stream) => break stream,
                Err(error @ Error::NotKept) => return Err(error),
                Err(error) => eprintln!("{error}; asking again"),
            }
        };
    }
}

/// What ends together; nothing at the end of the stream, or where it breaks.
async fn next_batch(stream: &mut (impl Stream<Item = Result<Record, Error>> + Unpin)) -> Option<Vec<Record>> {
    let mut batch = vec![stream.next().await?.ok()?];
    let until = Instant::now() + GATHER;
    while let Ok(Some(Ok(record))) = tokio::time::timeout_at(until, stream.next()).await {
        batch.push(record);
    }
    Some(batch)
}

fn lines(records: &[Record]) -> Result<String, Error> {
    let lines: Result<Vec<String>, _> = records.iter().map(serde_json::to_string).collect();
    Ok(lines?.join("\n"))
}

fn start(command: &Command, context: Context) -> Result<tokio::process::Child, Error> {
    let [program, arguments @ ..] = command.words.as_slice() else { return Err(Error::NothingAsked) };
    let failed = |source| Error::Run { program: program.into(), source };
    let mut child = if program == "kubectl" {
        let mut own = tokio::process::Command::new(std::env::current_exe().map_err(failed)?);
        own.arg("kubectl");
        own
    } else {
        tokio::process::Command::new(program)
    };
    child.args(arguments).env("TRACEPARENT", context.to_string()).kill_on_drop(true);
    if let Some(kubeconfig) = &command.kubeconfig {
        child.env("KUBECONFIG", kubeconfig);
    }
    child.spawn().map_err(failed)
}

/// All pods are well, or will not be as far as can be seen, or there are none.
async fn is_over(client: &Client, printer: &LivePrinter) -> Result<bool, Error> {
    if printer.last_step.elapsed() < QUIET {
        return Ok(false);
    }
    for (namespace, name) in printer.story().pods() {
        if let Some((pod, _)) = fetch::pod(client, &namespace, &name).await?
            && !reason::is_well(&pod)
            && !(reason::is_stuck(&pod) && printer.last_step.elapsed() > DOUBT)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What was heard so far, and which of it was told.
struct LivePrinter {
    context: Context,
    records: Vec<Record>,
    told: HashSet<SpanId>,
    is_shown: bool,
    last_step: Instant,
}

impl LivePrinter {
    fn new(context: Context, is_shown: bool) -> Self {
        LivePrinter {
            context,
            records: Vec::new(),
            told: HashSet::new(),
            is_shown,
            last_step: Instant::now(),
        }
    }

    fn take(&mut self, record: Option<Result<Record, Error>>) -> Result<(), Error> {
        match record {
            Some(record) => self.records.push(record?),
            None => return Err(Error::Follow(std::io::ErrorKind::UnexpectedEof.into())),
        }
        Ok(())
    }

    /// Listens until the story is quiet for a while; true when its time is up.
    async fn gather(
        &mut self,
        stream: &mut (impl Stream<Item = Result<Record, Error>> + Unpin),
        deadline: Instant,
    ) -> Result<bool, Error> {
        let quiet = Instant::now() + QUIET;
        while let Ok(record) = tokio::time::timeout_at(quiet.min(deadline), stream.next()).await {
            self.take(record)?;
            // Whatever else ended in the same moment belongs to the same printer.
            while let Ok(record) = tokio::time::timeout(Duration::from_millis(20), stream.next()).await {
                self.take(record)?;
            }
            self.tell();
        }
        self.tell();
        Ok(Instant::now() >= deadline)
    }

    fn chain(&self) -> Vec<Record> {
        let entries = timeline(&self.records, &Focus::Trace(self.context.trace)).entries;
        entries.into_iter().map(|entry| entry.record).collect()
    }

    fn story(&self) -> Story {
        story(&self.chain(), Detail::Chapters)
    }

    fn has_own_records(&self) -> bool {
        self.records.iter().any(|record| record.trace == self.context.trace)
    }

    /// Prints what is new. A step stands in the chain only when what called it has ended too, so some come late; each
    /// is told once.
    fn tell(&mut self) {
        let story = self.story();
        let mut new: Vec<&Step> = story.steps.iter().filter(|step| self.told.insert(step.span)).collect();
        if new.is_empty() {
            return;
        }
        self.last_step = Instant::now();
        new.sort_by_key(|step| step.start);
        if self.is_shown {
            new.iter().for_each(|step| eprintln!("{}", line(step, story.start)));
        }
    }
}

fn line(step: &Step, began: u64) -> String {
    let failed = step.error.as_ref().map(|error| format!("  ✗ {}", inert(error))).unwrap_or_default();
    format!(
        "+{:<8} {:<20} {}  {}{failed}",
        duration(step.start.saturating_sub(began)),
        step.chapter.title(),
        inert(&step.label),
        duration(step.duration)
    )
}
