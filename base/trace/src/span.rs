//! A step: opened, described, made current for what it calls, recorded when dropped.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::{Display, Write as _};
use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;

use crate::context::{Context, SpanId};
use crate::facts::{Fact, Facts};
use crate::record::Head;
use crate::ring::ring;
use crate::wall::Moment;

/// Opens a step as a child of the task's current span; where there is none, of a new trace.
///
/// Names read `room.step`: `kubelet.sandbox`, `admission.mutate`.
pub fn span(name: &'static str) -> Span {
    below_current(name, Moment::now)
}

/// The same for a step whose time is measured anyway: it began at `began`, and its end is said with [`Span::took`]. The
/// clock is not read once more.
pub fn span_since(name: &'static str, began: Moment) -> Span {
    below_current(name, || began)
}

fn below_current(name: &'static str, began: impl FnOnce() -> Moment) -> Span {
    match CURRENT.get() {
        Some(Scope { context, cause }) if context.sampled => {
            Span::open(name, context.child(), Some(context.span), cause, began)
        }
        // Nobody will see its identifier, nor how long it took.
        Some(Scope { context, cause }) => Span { context, cause, recorded: None },
        None => Span::open(name, Context::generate(), None, None, began),
    }
}

/// The context that a request sent now should carry.
pub fn current() -> Option<Context> {
    CURRENT.get().map(|scope| scope.context)
}

/// The latest revision that caused the current span, or the nearest of its parents that
/// names one. It goes out with each request, so that a server that never sees this process'
/// spans still learns what made it write.
pub fn current_cause() -> Option<i64> {
    CURRENT.get().and_then(|scope| scope.cause)
}

/// Runs a future that is about to be spawned under the span that is current now; a new task
/// has none of its own.
pub fn inherit<F: Future>(future: F) -> impl Future<Output = F::Output> {
    Scoped { scope: CURRENT.get(), future }
}

/// An open step. Dropping it records it.
pub struct Span {
    /// The caller's, or a remote's, or a new trace; `sampled` decides whether it is recorded.
    context: Context,
    /// What children and requests are told: the latest cause named here or above.
    cause: Option<i64>,
    recorded: Option<Recorded>,
}

struct Recorded {
    name: &'static str,
    parent: Option<SpanId>,
    began: Moment,
    /// Where its duration was said already.
    took: Option<u64>,
    facts: Facts,
}

impl Span {
    /// The first span of this process for a piece of work: a request from `remote`, or, where
    /// that says nothing, a new trace.
    pub fn root(name: &'static str, remote: Option<Context>) -> Self {
        match remote {
            Some(remote) => Span::open(name, remote.child(), Some(remote.span), None, Moment::now),
            None => Span::open(name, Context::generate(), None, None, Moment::now),
        }
    }

    /// The same for work that changes nothing and is asked for often (reads, watches, heartbeats), which would push out the
    /// history that someone will ask for: neither it nor what is opened under it, here and in called processes, is
    /// recorded.
    pub fn unrecorded(remote: Option<Context>) -> Self {
        let context = remote.unwrap_or_else(Context::generate);
        Span { context: Context { sampled: false, ..context }, cause: None, recorded: None }
    }

    fn open(
        name: &'static str,
        context: Context,
        parent: Option<SpanId>,
        cause: Option<i64>,
        began: impl FnOnce() -> Moment,
    ) -> Self {
        let recorded = context.sampled.then(|| Recorded {
            name,
            parent,
            began: began(),
            took: None,
            facts: Facts::default(),
        });
        Span { context, cause, recorded }
    }

    pub fn context(&self) -> Context {
        self.context
    }

    /// Leaves this span and all that is opened under it, here and in called processes, out of
    /// the ring. For work that changes nothing and is asked for often: reads, watches,
    /// heartbeats. They would push out the history that someone will ask for.
    pub fn unsampled(mut self) -> Self {
        self.context.sampled = false;
        self.recorded = None;
        self
    }

    /// Whether this span will be recorded: a fact that costs something to find out need not be found out otherwise.
    pub fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    /// Forgets this span: it looked, and there was nothing to do. Steps that were recorded below it stay.
    pub fn discard(mut self) {
        self.forget();
    }

    /// The same for a span that somebody else ends.
    pub fn forget(&mut self) {
        self.recorded = None;
    }

    /// How long it took, said by whoever has measured it.
    pub fn took(&mut self, duration: Duration) -> &mut Self {
        if let Some(recorded) = &mut self.recorded {
            recorded.took = Some(duration.as_nanos() as u64);
        }
        self
    }

    /// Adds a fact. Only names, counts, verdicts and revisions; never a secret.
    pub fn set<'a>(&mut self, key: &'static str, value: impl Into<Fact<'a>>) -> &mut Self {
        if let Some(Recorded { facts, .. }) = &mut self.recorded {
            facts.attribute(key, &value.into());
        }
        self
    }

    /// Names the object this step is about: resource (`deployments.apps`), namespace (empty
    /// for cluster scope) and name.
    pub fn object(&mut self, resource: &str, namespace: &str, name: &str) -> &mut Self {
        if let Some(Recorded { facts, .. }) = &mut self.recorded {
            facts.object(&key_parts(resource, namespace, name));
        }
        self
    }

    /// This step happens because of `revision`. May be said several times: one reconcile often
    /// answers several changes.
    pub fn caused_by(&mut self, revision: i64) -> &mut Self {
        self.cause = Some(revision);
        if let Some(Recorded { facts, .. }) = &mut self.recorded {
            facts.cause(revision);
        }
        self
    }

    /// This step wrote `revision`. Known at once, not only when the span ends: a watcher may
    /// act on the revision before the request that made it has been answered.
    pub fn committed(&mut self, revision: i64) -> &mut Self {
        if let Some(Recorded { facts, .. }) = &mut self.recorded {
            facts.committed(revision);
            ring().note_writer(revision, self.context);
        }
        self
    }

    /// The step did not do what it was opened for.
    pub fn fail(&mut self, error: &dyn Display) -> &mut Self {
        if let Some(Recorded { facts, .. }) = &mut self.recorded {
            let mut text = String::new();
            // A Display that fails leaves what it wrote so far, which is still the best account.
            let _ = write!(text, "{error}");
            facts.error(&without_values(&text));
        }
        self
    }

    /// The same for an error with the text of another program (a container runtime, a webhook, a driver). What it quotes
    /// may come from the user (a command, a mount option), so it is left out.
    pub fn fail_unquoted(&mut self, error: &dyn Display) -> &mut Self {
        match self.is_recorded() {
            true => self.fail(&without_quotes(&error.to_string())),
            false => self,
        }
    }

    /// Makes this span the current one while `future` runs, and ends with it.
    pub fn instrument<F: Future>(self, future: F) -> Instrumented<F> {
        Instrumented { scoped: self.scoped(future), span: self }
    }

    /// Makes this span the current one while `future` runs, and stays open, so that the
    /// outcome can be described.
    pub fn in_scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        self.scoped(future)
    }

    /// The same for plain code.
    pub fn enter<T>(&self, run: impl FnOnce() -> T) -> T {
        let _restore = Restore::entering(Some(self.scope()));
        run()
    }

    fn scoped<F>(&self, future: F) -> Scoped<F> {
        Scoped { scope: Some(self.scope()), future }
    }

    fn scope(&self) -> Scope {
        Scope { context: self.context, cause: self.cause }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(Recorded { name, parent, began, took, facts }) = self.recorded.take() else { return };
        let head = Head {
            name,
            trace: self.context.trace,
            span: self.context.span,
            parent,
            start: began.time_of_day(),
            duration: took.unwrap_or_else(|| began.nanoseconds()),
            sequence: 0,
            facts_at: 0,
            facts_length: 0,
            marks: facts.marks(),
        };
        ring().keep(head, facts.bytes());
    }
}

/// A validation error quotes the value it refuses (`spec.x: Invalid value: "…": why`). The field and the why are
/// an account of what happened; the value may be anything, so it is left out. So is what a webhook or a policy
/// says of an object: both may repeat parts of it.
fn without_values(text: &str) -> Cow<'_, str> {
    const QUOTES: [&str; 5] = [
        "Invalid value: ",
        "Unsupported value: ",
        "Duplicate value: ",
        "invalid type: string ",
        "invalid value: string ",
    ];
    const WORDS_OF_OTHERS: [&str; 4] =
        ["denied the request: ", "denied request: ", "failed calling webhook ", "conversion webhook for "];
    let text = match WORDS_OF_OTHERS.iter().filter_map(|words| Some(text.find(words)? + words.len())).min() {
        Some(end) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    };
    if !QUOTES.iter().any(|quote| text.contains(quote)) {
        return text;
    }
    let mut kept = String::new();
    let mut rest = &*text;
    while let Some((at, quote)) =
        QUOTES.iter().filter_map(|quote| Some((rest.find(quote)?, *quote))).min_by_key(|(at, _)| *at)
    {
        kept.push_str(&rest[..at + quote.len()]);
        rest = after_value(&rest[at + quote.len()..]);
        kept.push('…');
    }
    kept.push_str(rest);
    Cow::Owned(kept)
}

/// `exec: "x": stat x: not found` becomes `exec: "…": stat …: not found`. A quote without an end takes the rest along.
fn without_quotes(text: &str) -> String {
    let mut kept = String::new();
    let mut quoted: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('"') {
        kept.push_str(&rest[..at]);
        kept.push_str("\"…\"");
        let behind = after_value(&rest[at..]);
        quoted.push(rest[at..rest.len() - behind.len()].trim_matches('"'));
        rest = behind;
    }
    kept.push_str(rest);
    // A word of one letter would take letters out of others.
    quoted.retain(|text| text.len() > 1);
    quoted.sort_by_key(|text| std::cmp::Reverse(text.len()));
    quoted.into_iter().fold(kept, |kept, text| kept.replace(text, "…"))
}

/// What stands behind a quoted or bare value.
fn after_value(text: &str) -> &str {
    let Some(quoted) = text.strip_prefix('"') else {
        return text.find(": ").map_or("", |end| &text[end..]);
    };
    let mut escaped = false;
    for (at, character) in quoted.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return &quoted[at + 1..],
            _ => {}
        }
    }
    ""
}

/// A URL as it is recorded: without the query, and without the path that a proxy passes on. Both belong to other programs and
/// may hold a token; what is left are names.
pub fn recorded_path(url: &str) -> &str {
    const PROXY: &str = "/proxy/";
    let path = url.split('?').next().unwrap_or_default();
    match path.find(PROXY) {
        Some(at) => &path[..at + PROXY.len()],
        None => path,
    }
}

/// How an object is named in records: `pods/default/nginx`, `nodes/worker`.
pub fn object_key(resource: &str, namespace: &str, name: &str) -> String {
    key_parts(resource, namespace, name).concat()
}

fn key_parts<'a>(resource: &'a str, namespace: &'a str, name: &'a str) -> [&'a str; 5] {
    let separator = if namespace.is_empty() { "" } else { "/" };
    [resource, "/", namespace, separator, name]
}

impl Context {
    fn child(self) -> Self {
        Context { span: SpanId::generate(), ..self }
    }
}

/// What is current, as `Copy` so that entering and leaving is two stores.
#[derive(Clone, Copy)]
struct Scope {
    context: Context,
    cause: Option<i64>,
}

thread_local! {
    /// Set while a future of that scope is being polled, so it follows the task across
    /// threads and never leaks into another.
    static CURRENT: Cell<Option<Scope>> = const { Cell::new(None) };
}

/// Puts back the outer scope, also when the inner code panics.
struct Restore(Option<Scope>);

impl Restore {
    fn entering(scope: Option<Scope>) -> Self {
        Restore(CURRENT.replace(scope))
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

pin_project! {
    struct Scoped<F> {
        scope: Option<Scope>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _restore = Restore::entering(*this.scope);
        this.future.poll(cx)
    }
}

pin_project! {
    /// A future that carries its span.
    pub struct Instrumented<F> {
        #[pin]
        scoped: Scoped<F>,
        span: Span,
    }
}

impl<F> Instrumented<F> {
    pub fn span(&self) -> &Span {
        &self.span
    }
}

impl<F: Future> Future for Instrumented<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<F::Output> {
        self.project().scoped.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::value::Value;

    fn recorded(context: Context) -> Option<Record> {
        ring().trace(context.trace).into_iter().find(|record| record.span == context.span)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_current_span_survives_await_and_stays_in_its_task() {
        let span = span("outer");
        let context = span.context();
        span.instrument(async move {
            let stranger = tokio::spawn(async { current() });
            let child = tokio::spawn(inherit(async {
                tokio::task::yield_now().await;
                current()
            }));
            tokio::task::yield_now().await;
            assert_eq!(current(), Some(context));
            assert_eq!(stranger.await.unwrap(), None);
            assert_eq!(child.await.unwrap(), Some(context));
        })
        .await;
        assert_eq!(current(), None);
        assert!(recorded(context).is_some(), "an instrumented span ends with its future");
    }

    #[tokio::test]
    async fn children_name_their_parent_and_share_its_trace() {
        let outer = span("outer");
        let inner = outer.in_scope(async { span("inner").context() }).await;
        assert_eq!(inner.trace, outer.context().trace);
        assert_eq!(recorded(inner).unwrap().parent, Some(outer.context().span));
        assert!(recorded(outer.context()).is_none(), "an open span is not recorded yet");
    }

    #[test]
    fn a_request_continues_the_callers_trace() {
        let remote = Context::generate();
        let span = Span::root("request", Some(remote));
        assert_eq!(span.context().trace, remote.trace);
        assert_ne!(span.context().span, remote.span);
    }

    #[test]
    fn a_cause_is_inherited_for_requests_but_recorded_once() {
        let mut reconcile = span("reconcile");
        reconcile.caused_by(7).caused_by(9);
        let child = reconcile.enter(|| {
            assert_eq!(current_cause(), Some(9));
            span("write").context()
        });
        let outer = reconcile.context();
        drop(reconcile);
        assert_eq!(recorded(outer).unwrap().causes, [7, 9]);
        assert!(recorded(child).unwrap().causes.is_empty());
        assert_eq!(current_cause(), None);
    }

    #[test]
    fn nothing_under_an_unsampled_span_is_recorded() {
        let mut read = span("list").unsampled();
        read.set("items", 3).fail(&"gone").committed(i64::MAX);
        let (outer, inner) = (read.context(), read.enter(|| span("inner").context()));
        assert!(!inner.sampled && outer.to_string().ends_with("-00"));
        drop(read);
        assert!(recorded(outer).is_none() && recorded(inner).is_none());
        assert_eq!(ring().writer(i64::MAX), None);
    }

    #[test]
    fn a_panic_leaves_the_outer_scope_in_place() {
        let outer = span("outer");
        outer.enter(|| {
            let inner = span("inner");
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                inner.enter(|| panic!("on purpose"))
            }));
            assert_eq!(current(), Some(outer.context()));
        });
    }

    #[test]
    fn an_error_keeps_the_field_and_the_reason_but_not_the_value() {
        fn check(text: &str, expected: &str) {
            assert_eq!(without_values(text), expected);
        }
        check("not found", "not found");
        check(r#"a.b: Invalid value: "s3\"cret": must be x"#, "a.b: Invalid value: …: must be x");
        check(r#"a: Invalid value: 17: too big"#, "a: Invalid value: …: too big");
        check(
            r#"a: Unsupported value: "x": supported values: "y""#,
            r#"a: Unsupported value: …: supported values: "y""#,
        );
        check(
            r#"[a: Invalid value: "x": m, b: Invalid value: "unended"#,
            "[a: Invalid value: …: m, b: Invalid value: …",
        );
        check(r#"a[1]: Duplicate value: {"name":"x"}"#, "a[1]: Duplicate value: …");
        check(r#"invalid type: string "x", expected u32"#, "invalid type: string …, expected u32");
        check(
            r#"admission webhook "w" denied the request: "x" is weak"#,
            r#"admission webhook "w" denied the request: …"#,
        );
        check(
            "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: x",
            "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: …",
        );
    }

    #[test]
    fn a_path_is_recorded_without_what_belongs_to_other_programs() {
        assert_eq!(
            recorded_path("/api/v1/namespaces/a/pods/b/exec?command=x"),
            "/api/v1/namespaces/a/pods/b/exec"
        );
        assert_eq!(
            recorded_path("/api/v1/namespaces/a/services/b/proxy/hooks/x?y"),
            "/api/v1/namespaces/a/services/b/proxy/"
        );
        assert_eq!(recorded_path(""), "");
    }

    #[test]
    fn an_error_of_another_program_keeps_no_quotes() {
        let check = |text: &str, expected: &str| assert_eq!(without_quotes(text), expected);
        check("no such container", "no such container");
        check(r#"exec: "/bin/x": stat /bin/x: no such file"#, r#"exec: "…": stat …: no such file"#);
        check(r#"exec: "a \"b\"": not found: "c""#, r#"exec: "…": not found: "…""#);
        check(r#"exec: "unended"#, r#"exec: "…""#);
    }

    #[test]
    fn facts_outcome_and_commit_are_recorded() {
        let mut step = span("store.commit");
        step.object("pods", "default", "nginx").set("bytes", 812usize).set("verdict", "allowed");
        step.committed(41).fail(&"disk full");
        let context = step.context();
        assert_eq!(ring().writer(41), Some(context), "known before the span ends");
        drop(step);
        let record = recorded(context).unwrap();
        assert_eq!(record.object.as_deref(), Some("pods/default/nginx"));
        assert_eq!(record.attribute("bytes").and_then(Value::as_i64), Some(812));
        assert_eq!(record.attribute("verdict").and_then(Value::as_str), Some("allowed"));
        assert_eq!((record.committed, record.error.as_deref()), (Some(41), Some("disk full")));
    }
}
