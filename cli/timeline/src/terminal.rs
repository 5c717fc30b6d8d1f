//! Text of others on a terminal: names, errors and messages come from whoever writes objects, events or spans. They must not
//! move the cursor or change the window, and no step's words begin a line of their own.

use std::borrow::Cow;

use crate::chapters::Story;

/// Control characters as they are written in programs; `^[` for the one that begins the rest, as kubectl shows it.
pub fn inert(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            '\u{1b}' => shown.push_str("^["),
            character if character.is_control() => shown.extend(character.escape_default()),
            character => shown.push(character),
        }
    }
    Cow::Owned(shown)
}

/// The same for what may have several lines: the last words of a container, say.
pub fn inert_lines(text: &str) -> String {
    text.lines().map(inert).collect::<Vec<_>>().join("\n")
}

/// A story whose words stay in their places.
pub fn inert_story(story: &Story) -> Story {
    let mut story = story.clone();
    for step in &mut story.steps {
        for words in [Some(&mut step.label), Some(&mut step.facts), step.error.as_mut()].into_iter().flatten()
        {
            *words = inert(words).into_owned();
        }
    }
    story
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_that_a_terminal_obeys() {
        assert_eq!(inert("größer ✗ →"), "größer ✗ →");
        assert_eq!(inert_lines("a\u{1b}[1m\r\nb\n"), "a^[[1m\nb");
        assert_eq!(inert("a\u{1b}]0;b\u{7}\rc\nd\u{9b}2J\te"), "a^[]0;b\\u{7}\\rc\\nd\\u{9b}2J\\te");
    }
}
