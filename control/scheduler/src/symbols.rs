//! Strings as small numbers, so that comparing a label is comparing an integer.
//!
//! Only what nodes carry is ever entered (label keys and values, taints); what a pod asks for
//! is looked up. The table therefore grows with the cluster's nodes and not with its pods.

use std::collections::HashMap;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(u32);

#[derive(Default)]
pub struct Symbols {
    numbers: HashMap<Arc<str>, Symbol>,
    texts: Vec<Arc<str>>,
}

impl Symbols {
    pub fn enter(&mut self, text: &str) -> Symbol {
        if let Some(symbol) = self.numbers.get(text) {
            return *symbol;
        }
        let symbol = Symbol(u32::try_from(self.texts.len()).expect("fewer than 2^32 distinct labels"));
        let text: Arc<str> = text.into();
        self.numbers.insert(text.clone(), symbol);
        self.texts.push(text);
        symbol
    }

    /// None if no node has ever carried the text, so nothing can equal it.
    pub fn find(&self, text: &str) -> Option<Symbol> {
        self.numbers.get(text).copied()
    }

    pub fn text(&self, symbol: Symbol) -> &str {
        &self.texts[symbol.0 as usize]
    }
}
