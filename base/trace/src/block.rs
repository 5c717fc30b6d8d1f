//! Spans one after the other, in two pieces of memory: what all have, and what each says.

use std::mem::size_of;

#[cfg(test)]
use crate::record::Record;
use crate::record::{Head, Kept};

#[derive(Default)]
pub(crate) struct Block {
    heads: Vec<Head>,
    facts: Vec<u8>,
    /// The first that is still kept.
    first: usize,
}

impl Block {
    /// Two thirds for the heads: most spans say little.
    pub fn with_capacity(bytes: usize) -> Block {
        let heads = bytes * 2 / 3 / size_of::<Head>();
        let facts = bytes.saturating_sub(heads * size_of::<Head>());
        Block { heads: Vec::with_capacity(heads), facts: Vec::with_capacity(facts), first: 0 }
    }

    /// Whether there is room for one more span with these facts.
    pub fn fits(&self, facts: &[u8]) -> bool {
        self.heads.len() < self.heads.capacity() && facts.len() <= self.facts.capacity() - self.facts.len()
    }

    /// Where it does not fit the block grows.
    pub fn push(&mut self, head: Head, facts: &[u8]) {
        let facts_at = self.facts.len() as u32;
        self.heads.push(Head { facts_at, facts_length: facts.len() as u16, ..head });
        self.facts.extend_from_slice(facts);
    }

    pub fn clear(&mut self) {
        self.heads.clear();
        self.facts.clear();
        self.first = 0;
    }

    #[cfg(test)]
    pub fn of(records: &[Record]) -> Block {
        let mut block = Block::default();
        for record in records {
            let (head, facts) = record.take_apart();
            block.push(head, facts.bytes());
        }
        block
    }

    /// Into the order in which they ended.
    pub fn sort(&mut self) {
        self.heads.sort_by_key(|head| head.sequence);
    }

    pub fn len(&self) -> usize {
        self.heads.len() - self.first
    }

    pub fn all(&self) -> impl Iterator<Item = Kept<'_>> {
        self.heads[self.first..].iter().map(|head| self.kept(head))
    }

    /// Those that ended after the one and not after the other.
    pub fn between(&self, after: u64, latest: u64) -> impl Iterator<Item = Kept<'_>> {
        let heads = &self.heads[self.first..];
        let from = match heads.first() {
            Some(head) if head.sequence <= after => heads.partition_point(|head| head.sequence <= after),
            _ => 0,
        };
        heads[from..].iter().take_while(move |head| head.sequence <= latest).map(|head| self.kept(head))
    }

    /// The sequence of the first one.
    pub fn earliest(&self) -> u64 {
        self.heads.get(self.first).map_or(0, |head| head.sequence)
    }

    /// The sequence of the last one.
    pub fn latest(&self) -> u64 {
        self.heads.last().map_or(0, |head| head.sequence)
    }

    pub fn let_go(&mut self, sequence: u64) {
        self.first = self.heads.partition_point(|head| head.sequence <= sequence);
    }

    pub fn bytes(&self) -> usize {
        self.heads.capacity() * size_of::<Head>() + self.facts.capacity()
    }

    fn kept<'a>(&'a self, head: &'a Head) -> Kept<'a> {
        let at = head.facts_at as usize;
        Kept { head, facts: &self.facts[at..at + usize::from(head.facts_length)] }
    }
}
