//! Nodes: keeping new pods off them, moving pods away, tainting them.

pub mod cordon;
pub mod drain;
pub mod taint;
