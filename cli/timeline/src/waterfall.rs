//! A story as text: one line a step, with a bar where and as long as it was, and a mark if the last step waited for it.

use std::fmt::Write as _;

use ferry_trace::Life;

use crate::axis::Axis;
use crate::chapters::{Step, Story, duration, long_duration};
use crate::terminal::{inert, inert_lines, inert_story};

#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Columns of the terminal.
    pub width: usize,
    pub has_color: bool,
}

/// How wide the bars' column is.
fn bar_width(style: &Style) -> usize {
    (style.width / 4).clamp(16, 48)
}

const TIME_WIDTH: usize = 9;
/// ` ◆100%`.
const SHARE_WIDTH: usize = 6;

pub fn render(story: &Story, reasons: &[String], style: &Style) -> String {
    let story = &inert_story(story);
    let mut text = String::new();
    if !story.steps.is_empty() {
        let axis = Axis::of(story.steps.iter().flat_map(|step| step.intervals.clone()), bar_width(style));
        heading(&mut text, story, &axis, style);
        let mut chapter = None;
        for step in &story.steps {
            if chapter != Some(step.chapter) {
                chapter = Some(step.chapter);
                let _ = writeln!(text, "\n{}", painted(step.chapter.title(), Paint::Bold, style));
            }
            line(&mut text, step, story, &axis, style);
        }
    }
    for (index, reason) in reasons.iter().enumerate() {
        let _ = write!(
            text,
            "{}{}",
            if index == 0 { "\n" } else { "" },
            painted(&inert_lines(reason), Paint::Red, style)
        );
        text.push('\n');
    }
    text
}

/// How many gaps are named one by one.
const NAMED_FOLDS: usize = 3;

fn heading(text: &mut String, story: &Story, axis: &Axis, style: &Style) {
    let began = time(story.start).map_or_else(String::new, |at| format!("{at} · "));
    let _ = write!(text, "{began}{} · {} spans", long_duration(story.end - story.start), story.spans);
    if story.idle_reconciles > 0 {
        let _ = write!(text, " · {} reconciles without a change", story.idle_reconciles);
    }
    text.push('\n');
    if story.critical > 0 {
        let said = format!("◆ critical path {}: {}", long_duration(story.critical), critical(story));
        let _ = writeln!(text, "{}", fitted(&said, style.width).trim_end());
    }
    let folds = axis.folds();
    for fold in folds.iter().take(NAMED_FOLDS) {
        let (length, after) = (long_duration(fold.length), long_duration(fold.after));
        let _ = writeln!(text, "┊ {length} without a step, {after} after the first");
    }
    if folds.len() > NAMED_FOLDS {
        let _ = writeln!(text, "┊ and {} more such gaps", folds.len() - NAMED_FOLDS);
    }
}

/// The longest parts of the critical path.
fn critical(story: &Story) -> String {
    const NAMED: usize = 3;
    let mut steps: Vec<(u64, &str)> =
        story.steps.iter().map(|step| (step.critical, step.label.as_str())).collect();
    steps.push((story.waited, "watches and queues"));
    steps.retain(|(time, _)| *time > 0);
    steps.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    let part = |(time, label): &(u64, &str)| format!("{} {label}", share(*time, story.critical));
    steps.iter().take(NAMED).map(part).collect::<Vec<_>>().join(", ")
}

fn share(part: u64, whole: u64) -> String {
    match u128::from(part) * 100 / u128::from(whole.max(1)) {
        0 => "<1%".to_owned(),
        percent => format!("{percent}%"),
    }
}

/// The other objects that had the name that was asked for.
pub fn other_lives(object: &str, lives: &[Life], shown: Option<&str>) -> String {
    let others: Vec<&Life> = lives.iter().filter(|life| Some(life.uid.as_str()) != shown).collect();
    if shown.is_none() || others.is_empty() {
        return String::new();
    }
    let mut text =
        format!("\nOther objects named {} (--uid UID shows one, --all shows all)\n", inert(object));
    for life in others.iter().rev() {
        let began = time(life.began).unwrap_or_default();
        let born = if life.is_whole { format!("created {began}") } else { format!("known since {began}") };
        let ended = life
            .ended
            .and_then(time)
            .map_or_else(|| ", end not recorded".into(), |at| format!(", deleted {at}"));
        let _ = writeln!(
            text,
            "  {}  {born} r{}{ended} r{}",
            inert(&life.uid),
            life.first_revision,
            life.last_revision
        );
    }
    text
}

/// To the millisecond, in UTC.
pub fn time(nanoseconds: u64) -> Option<String> {
    let at = i64::try_from(nanoseconds / 1_000).ok()?;
    jiff::Timestamp::from_microsecond(at).ok().map(|at| format!("{at:.3}"))
}

fn line(text: &mut String, step: &Step, story: &Story, axis: &Axis, style: &Style) {
    let room = style.width.saturating_sub(bar_width(style) + TIME_WIDTH + SHARE_WIDTH + 4);
    let indent = "  ".repeat(step.indent + 1);
    let times = match step.times {
        1 => String::new(),
        times if step.is_reconcile => format!(" ×{times}, {} in all", duration(step.duration)),
        times => format!(" ×{times}"),
    };
    let label = format!("{indent}{}{times}", step.label);
    let words = if step.facts.is_empty() { label.clone() } else { format!("{label}  {}", step.facts) };
    let words = fitted(&words, room);
    // The facts are quieter than what they are about.
    let (strong, quiet) = words.split_at(words.floor_char_boundary(label.len().min(words.len())));
    let paint = if step.error.is_some() { Paint::Red } else { Paint::Blue };
    let mark = match step.critical {
        0 => String::new(),
        time => format!("◆{}", share(time, story.critical)),
    };
    let row = format!(
        "{strong}{} {} {:>TIME_WIDTH$} {}",
        painted(quiet, Paint::Dim, style),
        painted(&axis.bar(&step.intervals), paint, style),
        duration(step.duration),
        painted(&mark, Paint::Bold, style),
    );
    text.push_str(row.trim_end());
    text.push('\n');
    if let Some(error) = &step.error {
        let said = fitted(&format!("{indent}  ✗ {error}"), style.width);
        let _ = writeln!(text, "{}", painted(said.trim_end(), Paint::Red, style));
    }
}

/// Cut or filled to exactly `width` columns, counting characters.
fn fitted(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return format!("{text}{}", " ".repeat(width - length));
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[derive(Clone, Copy)]
enum Paint {
    Bold,
    Dim,
    Red,
    Blue,
}

fn painted(text: &str, paint: Paint, style: &Style) -> String {
    if !style.has_color || text.trim().is_empty() {
        return text.to_owned();
    }
    let code = match paint {
        Paint::Bold => "1",
        Paint::Dim => "2",
        Paint::Red => "31",
        Paint::Blue => "34",
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chapters::{Detail, story};
    use ferry_trace::script::{COMMAND, history};

    const PLAIN: Style = Style { width: 100, has_color: false };

    #[test]
    fn each_line_is_as_wide_as_the_terminal_at_most() {
        let text = render(&story(&history(COMMAND), Detail::All), &[], &PLAIN);
        for line in text.lines() {
            assert!(line.chars().count() <= PLAIN.width, "{line}");
        }
    }

    #[test]
    fn a_story_reads_chapter_by_chapter_and_ends_with_the_reason() {
        let script = "
            kubectl.command command=kubectl-run
            store.commit ^kubectl.command @pods/default/a >10
            scheduler.schedule <10 @pods/default/a !unschedulable
        ";
        let text = render(&story(&history(script), Detail::Chapters), &["pod a is Pending".into()], &PLAIN);
        let expected = [
            "1970-01-01T00:00:01.000Z · 3.00 ms · 3 spans",
            "◆ critical path 2.00 ms: 50% kubectl-run, 50% commit pods/default/a",
            "",
            "Command",
            "  kubectl-run                                            ████████·················   1.00 ms ◆50%",
            "",
            "Storage and watch",
            "  commit pods/default/a  r10                             ········████████·········   1.00 ms ◆50%",
            "",
            "Scheduling",
            "  schedule pods/default/a  by r10 after 0 ns             ················█████████   1.00 ms",
            "    ✗ unschedulable",
            "",
            "pod a is Pending",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    /// Made, left alone for five minutes, scaled: the picture shows both moments, and what each took.
    #[test]
    fn a_gap_is_folded_reconciles_are_summed_and_the_critical_path_is_marked() {
        let script = "
            kubectl.command command=kubectl-create
            store.commit ^kubectl.command @replicasets.apps/default/web-1 >10
            reconcile <10 @replicasets.apps/default/web-1 controller=replicaset-controller
            store.commit ^reconcile @pods/default/web-1-a >11
            kubectl.command command=kubectl-scale
            store.commit ^kubectl.command @replicasets.apps/default/web-1 >20
            reconcile <20 @replicasets.apps/default/web-1 controller=replicaset-controller
            store.commit ^reconcile @pods/default/web-1-b >21
            kubelet.sync <21 @pods/default/web-1-b
            kubelet.sandbox ^kubelet.sync @pods/default/web-1-b
            kubelet.container ^kubelet.sync @pods/default/web-1-b container=web
        ";
        let times = [
            (0, 10),
            (4, 9),
            (12, 15),
            (13, 15),
            (327_000, 327_008),
            (327_002, 327_007),
            (327_010, 327_014),
            (327_011, 327_014),
            (327_014, 327_100),
            (327_020, 327_070),
            (327_070, 327_098),
        ];
        const BEGAN: u64 = 1_763_420_400_000_000_000;
        let mut records = history(script);
        for (record, (start, end)) in records.iter_mut().zip(times) {
            (record.start, record.duration) = (BEGAN + start * 1_000_000, (end - start) * 1_000_000);
        }
        let text = render(&story(&records, Detail::Chapters), &[], &PLAIN);
        assert_eq!(text, include_str!("../tests/golden/folded.txt"));
    }

    #[test]
    fn other_lives_are_listed_the_latest_first() {
        let life = |uid: &str, began: u64, ended: Option<u64>| Life {
            uid: uid.into(),
            first_revision: began as i64,
            began: began * 1_000_000_000,
            is_whole: began > 1,
            last_revision: 100 + began as i64,
            ended: ended.map(|ended| ended * 1_000_000_000),
        };
        let lives = [life("a", 1, Some(2)), life("b", 3, None), life("c", 5, None)];
        let expected = "
Other objects named pods/default/x (--uid UID shows one, --all shows all)
  b  created 1970-01-01T00:00:03.000Z r3, end not recorded r103
  a  known since 1970-01-01T00:00:01.000Z r1, deleted 1970-01-01T00:00:02.000Z r101
";
        assert_eq!(other_lives("pods/default/x", &lives, Some("c")), expected);
        assert_eq!(other_lives("pods/default/x", &lives, None), "");
        assert_eq!(other_lives("pods/default/x", &lives[2..], Some("c")), "");
    }

    #[test]
    fn words_of_others_do_nothing_to_the_terminal() {
        let mut records = history(COMMAND);
        for record in &mut records {
            record.object = Some("pods/default/a\u{1b}[2J\r\n\u{9b}1A".into());
            record.error = Some("\u{1b}]0;owned\u{7}\nnothing is wrong".into());
            record.source = Some("node\u{8}".into());
        }
        let text = render(&story(&records, Detail::All), &["\u{1b}[31mred\nmore".into()], &PLAIN);
        let obeyed: Vec<char> = text.chars().filter(|sign| sign.is_control() && *sign != '\n').collect();
        assert!(obeyed.is_empty(), "{obeyed:?}: {text}");
        assert!(
            text.contains("✗ ^[]0;owned") && !text.lines().any(|line| line.starts_with("nothing")),
            "{text}"
        );
    }

    #[test]
    fn color_changes_no_word() {
        let story = story(&history(COMMAND), Detail::Chapters);
        let colored = render(&story, &[], &Style { has_color: true, ..PLAIN });
        let mut plain = String::new();
        let mut rest = colored.as_str();
        while let Some(at) = rest.find('\u{1b}') {
            plain.push_str(&rest[..at]);
            rest = &rest[at + rest[at..].find('m').expect("a code ends with m") + 1..];
        }
        plain.push_str(rest);
        assert_eq!(plain, render(&story, &[], &PLAIN));
    }
}
