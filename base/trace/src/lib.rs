//! Spans and their causes: what happened, when, and because of what.
//!
//! Every step of Ferry opens a [`span()`]. When it is dropped it is recorded, with its start,
//! its duration and a few small facts, in one bounded [`Ring`] in memory. A span knows its
//! parent (the task's current span, or the `traceparent` of a request), the revisions that
//! caused it ([`Span::caused_by`]) and the revision it committed ([`Span::committed`]).
//! From these three links [`timeline()`] puts together the chain from a user's command to the
//! running container; nothing in it is guessed from clocks.
//!
//! ```
//! # async fn pull() -> Result<(), std::io::Error> { Ok(()) }
//! # async fn example() {
//! let mut span = ferry_trace::span("kubelet.pull");
//! span.set("image", "nginx:1.29");
//! if let Err(error) = span.in_scope(pull()).await {
//!     span.fail(&error);
//! }
//! # }
//! ```
//!
//! **What may go into a span:** names, counts, verdicts and revisions. Never the value of a
//! field, a header, a token or an environment variable: a span is kept, shown to whoever may
//! read the trace, and exported. Text is cut at [`Value::MAX_TEXT`] bytes.
//!
//! This room deliberately knows no kind, no HTTP and no collector. It takes no global
//! subscriber: a span costs a few hundred nanoseconds at most (`cargo run --release -p
//! ferry-trace --example span_cost`), one that is not recorded a few.
//!
//! A server also keeps them on disk, for days: [`history`] follows the ring from a thread of its own.
//!
//! Several servers tell each other what they recorded, in [`packet`]s; [`clocks`] of several hosts are corrected by what
//! caused what.
//!
//! [`chapters`] tells a chain as a story: lines by chapter, with the [critical path](critical) and an [`axis`] that folds
//! gaps. `ferry trace` prints it and the page of `ferry ui` draws it.
//!
//! Start reading at [`span`](mod@span), then [`ring`](mod@ring), then
//! [`timeline`](mod@timeline) and [`history`].

mod arrange;
pub mod axis;
mod block;
pub mod chapters;
pub mod clocks;
pub mod context;
pub mod critical;
mod facts;
pub mod handoff;
pub mod history;
pub mod lives;
pub mod packet;
mod record;
pub mod ring;
#[cfg(any(test, feature = "script"))]
pub mod script;
pub mod span;
pub mod timeline;
pub mod value;
mod wall;

pub use context::{Context, MalformedTraceparent, SpanId, TraceId};
pub use facts::Fact;
pub use history::{History, Retention};
pub use lives::{Life, lives};
pub use record::{Kept, Record, Step};
pub use ring::{Ring, ring};
pub use span::{Span, current, current_cause, inherit, recorded_path, span, span_since};
pub use timeline::{Focus, Timeline, timeline};
pub use value::Value;
pub use wall::Moment;
