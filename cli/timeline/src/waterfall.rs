//! A story as text: one line a step, with a bar where and as long as it was.

use std::fmt::Write as _;

use crate::chapters::{Step, Story, duration};

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

pub fn render(story: &Story, reasons: &[String], style: &Style) -> String {
    let mut text = String::new();
    if !story.steps.is_empty() {
        heading(&mut text, story);
        let mut chapter = None;
        for step in &story.steps {
            if chapter != Some(step.chapter) {
                chapter = Some(step.chapter);
                let _ = writeln!(text, "\n{}", painted(step.chapter.title(), Paint::Bold, style));
            }
            line(&mut text, step, story, style);
        }
    }
    for (index, reason) in reasons.iter().enumerate() {
        let _ = write!(text, "{}{}", if index == 0 { "\n" } else { "" }, painted(reason, Paint::Red, style));
        text.push('\n');
    }
    text
}

fn heading(text: &mut String, story: &Story) {
    let began =
        i64::try_from(story.start / 1_000).ok().and_then(|at| jiff::Timestamp::from_microsecond(at).ok());
    let began = began.map_or_else(String::new, |at| format!("{at:.3} · "));
    let _ = write!(text, "{began}{} · {} spans", duration(story.end - story.start), story.spans);
    if story.idle_reconciles > 0 {
        let _ = write!(text, " · {} reconciles found nothing to do", story.idle_reconciles);
    }
    text.push('\n');
}

fn line(text: &mut String, step: &Step, story: &Story, style: &Style) {
    let bar = bar_width(style);
    let room = style.width.saturating_sub(bar + TIME_WIDTH + 4);
    let indent = "  ".repeat(step.indent + 1);
    let times = if step.times > 1 { format!(" ×{}", step.times) } else { String::new() };
    let label = format!("{indent}{}{times}", step.label);
    let words = if step.facts.is_empty() { label.clone() } else { format!("{label}  {}", step.facts) };
    let words = fitted(&words, room);
    // The facts are quieter than what they are about.
    let (strong, quiet) = words.split_at(words.floor_char_boundary(label.len().min(words.len())));
    let drawn = self::bar(step.start, step.end, story.start, story.end, bar);
    let paint = if step.error.is_some() { Paint::Red } else { Paint::Blue };
    let row = format!(
        "{strong}{} {} {:>TIME_WIDTH$}",
        painted(quiet, Paint::Dim, style),
        painted(&drawn, paint, style),
        duration(step.duration)
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

/// Where between `from` and `to` a step was. Something that happened is never shown as nothing.
fn bar(start: u64, end: u64, from: u64, to: u64, width: usize) -> String {
    let whole = to.saturating_sub(from).max(1);
    let at = |time: u64| (u128::from(time.saturating_sub(from)) * width as u128 / u128::from(whole)) as usize;
    let first = at(start).min(width - 1);
    let last = at(end).clamp(first + 1, width);
    format!("{}{}{}", "·".repeat(first), "█".repeat(last - first), "·".repeat(width - last))
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
    use crate::chapters::tests::{COMMAND, history};
    use crate::chapters::{Detail, story};

    const PLAIN: Style = Style { width: 100, has_color: false };

    #[test]
    fn bars_stand_where_their_time_was() {
        for ((start, end), expected) in [
            ((0, 100), "██████████"),
            ((0, 0), "█·········"),
            ((100, 100), "·········█"),
            ((50, 70), "·····██···"),
            ((95, 1_000), "·········█"),
        ] {
            assert_eq!(bar(start, end, 0, 100, 10), expected, "{start} to {end}");
        }
        assert_eq!(bar(7, 7, 7, 7, 4), "█···", "a story of no length");
    }

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
            "",
            "Command",
            "  kubectl-run                                                  ████████·················   1.00 ms",
            "",
            "Storage and watch",
            "  commit pods/default/a  r10                                   ········████████·········   1.00 ms",
            "",
            "Scheduling",
            "  schedule pods/default/a  by r10 after 0 ns                   ················█████████   1.00 ms",
            "    ✗ unschedulable",
            "",
            "pod a is Pending",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
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
