//! Texts that were written before, by their number: one piece of memory for all of them, and a table of hashes that grows
//! without a look at them.

use std::hash::BuildHasher;

#[derive(Default)]
pub struct Texts {
    bytes: Vec<u8>,
    /// Where each text ends; the next one begins there.
    ends: Vec<u32>,
    /// A hash and the number of its text plus one; nothing where that is 0. A power of two of them, half full at most.
    slots: Vec<(u32, u32)>,
    hasher: foldhash::fast::RandomState,
}

impl Texts {
    /// The number of a text that is known. One that is not gets the next number.
    pub fn find_or_add(&mut self, text: &[u8]) -> Option<u32> {
        if self.ends.len() * 2 >= self.slots.len() {
            self.grow();
        }
        let hash = self.hasher.hash_one(text) as u32;
        let mut at = hash as usize & (self.slots.len() - 1);
        loop {
            match self.slots[at] {
                (_, 0) => break,
                (known, number) if known == hash && self.text(number - 1) == text => return Some(number - 1),
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len() as u32);
        self.slots[at] = (hash, self.ends.len() as u32);
        None
    }

    fn text(&self, number: u32) -> &[u8] {
        let number = number as usize;
        let start = if number == 0 { 0 } else { self.ends[number - 1] as usize };
        &self.bytes[start..self.ends[number] as usize]
    }

    #[cold]
    fn grow(&mut self) {
        let wider = (self.slots.len() * 2).max(64);
        for (hash, number) in std::mem::replace(&mut self.slots, vec![(0, 0); wider]) {
            if number != 0 {
                let mut at = hash as usize & (wider - 1);
                while self.slots[at].1 != 0 {
                    at = (at + 1) & (wider - 1);
                }
                self.slots[at] = (hash, number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_has_one_number_however_many_there_are() {
        let mut texts = Texts::default();
        let all: Vec<String> =
            (0..5_000).map(|number| "x".repeat(number % 7) + &number.to_string()).collect();
        for text in &all {
            assert_eq!(texts.find_or_add(text.as_bytes()), None, "{text}");
        }
        for (number, text) in all.iter().enumerate() {
            assert_eq!(texts.find_or_add(text.as_bytes()), Some(number as u32), "{text}");
        }
        assert_eq!(texts.find_or_add(b""), None);
        assert_eq!(texts.find_or_add(b""), Some(5_000));
    }
}
