//! Messages quote what a person reads, not what a client sent: a refusal must not be larger than the request.

use std::borrow::Cow;

/// Of a value in a message.
pub const LONGEST_VALUE: usize = 1024;
/// Of a field's path, which holds the keys of maps.
pub const LONGEST_PATH: usize = 512;

/// The text, or its beginning and an ellipsis.
pub fn of(text: &str, longest: usize) -> Cow<'_, str> {
    if text.len() <= longest {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}...", &text[..text.floor_char_boundary(longest)]))
}

/// The same of a text that is one's own.
pub fn of_owned(mut text: String, longest: usize) -> String {
    if text.len() > longest {
        text.truncate(text.floor_char_boundary(longest));
        text.push_str("...");
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(of("abc", 3), "abc");
        assert_eq!(of("abcd", 3), "abc...");
        assert_eq!(of("aéé", 2), "a...");
        assert_eq!(of_owned("abcd".into(), 3), "abc...");
        assert_eq!(of_owned("abc".into(), 3), "abc");
    }
}
