//! Sets of completion indexes, written as the API does: `0-2,5`.

use std::collections::BTreeSet;

/// What the text names, as far as it lies below `completions`; nonsense in it names nothing.
pub fn parse(text: &str, completions: i32) -> BTreeSet<i32> {
    let mut indexes = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            indexes.extend(first.max(0)..=last.min(completions - 1));
        }
    }
    indexes
}

/// Runs of three and more are joined by a dash; the empty set is the empty text.
pub fn print(indexes: &BTreeSet<i32>) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut remaining = indexes.iter().copied().peekable();
    while let Some(first) = remaining.next() {
        let mut last = first;
        while remaining.next_if_eq(&(last + 1)).is_some() {
            last += 1;
        }
        match last - first {
            0 => parts.push(first.to_string()),
            1 => parts.extend([first.to_string(), last.to_string()]),
            _ => parts.push(format!("{first}-{last}")),
        }
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_printed_and_read_back() {
        let check = |indexes: &[i32], text: &str| {
            let set: BTreeSet<i32> = indexes.iter().copied().collect();
            assert_eq!(print(&set), text);
            assert_eq!(parse(text, 100), set);
        };
        check(&[], "");
        check(&[3], "3");
        check(&[0, 1], "0,1");
        check(&[0, 1, 2, 5, 7, 8, 9, 10], "0-2,5,7-10");
    }

    #[test]
    fn invalid_job_indexes_are_ignored() {
        assert_eq!(parse("0-99", 3), BTreeSet::from([0, 1, 2]));
        assert_eq!(parse("x,2,-1,1-", 3), BTreeSet::from([2]));
    }
}
