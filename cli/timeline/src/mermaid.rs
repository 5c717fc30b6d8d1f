//! A story as a Mermaid Gantt chart: chapters are sections, milliseconds since the first step are the axis.

use std::fmt::Write as _;

use crate::chapters::Story;

/// Of a step that was summed up.
const MOST_BARS: usize = 8;

pub fn gantt(story: &Story) -> String {
    let mut text = String::from("gantt\n    dateFormat x\n    axisFormat %S.%L s\n");
    let mut chapter = None;
    for step in &story.steps {
        if chapter != Some(step.chapter) {
            chapter = Some(step.chapter);
            let _ = writeln!(text, "    section {}", step.chapter.title());
        }
        let tag = if step.error.is_some() { "crit, " } else { "" };
        // A row has one bar. What happened a few times gets a row for each, so that no bar covers what lies between.
        let whole = [(step.start, step.end)];
        let bars = if step.intervals.len() <= MOST_BARS { &step.intervals[..] } else { &whole };
        for (start, end) in bars {
            // A bar of no length is not drawn, and the format knows no microseconds.
            let start = start.saturating_sub(story.start) / 1_000_000;
            let end = (end.saturating_sub(story.start) / 1_000_000).max(start + 1);
            let _ = writeln!(text, "    {} :{tag}{start}, {end}", plain(&step.label));
        }
    }
    text
}

/// What would end a task's name, or the chart, is left out of it.
fn plain(label: &str) -> String {
    label
        .chars()
        .map(|character| {
            if matches!(character, ':' | ';' | '#' | ',') || character.is_control() { ' ' } else { character }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chapters::{Detail, story};
    use ferry_trace::script::history;

    #[test]
    fn chapters_are_sections_and_steps_are_bars() {
        let script = "
            kubectl.request method=POST path=/api/v1/pods:x
            store.commit ^kubectl.request @pods/default/a >10
            scheduler.schedule <10 @pods/default/a !unschedulable
        ";
        let expected = "gantt
    dateFormat x
    axisFormat %S.%L s
    section Command
    POST /api/v1/pods x :0, 1
    section Storage and watch
    commit pods/default/a :1, 2
    section Scheduling
    schedule pods/default/a :crit, 2, 3
";
        assert_eq!(gantt(&story(&history(script), Detail::Chapters)), expected);
    }
}
