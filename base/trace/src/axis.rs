//! The axis that bars are drawn on: time from left to right, with long stretches in which nothing happened folded away.
//!
//! ```text
//! time     ├──work──┤           nothing           ├─work─┤
//! columns  ██·███···┊···█████   ┊ is the fold
//! ```

use serde::Serialize;

/// From and to, in nanoseconds since 1970.
pub type Interval = (u64, u64);

pub struct Axis {
    pieces: Vec<Piece>,
    width: usize,
}

/// A stretch of time that is drawn to scale, and the columns it has.
struct Piece {
    from: u64,
    to: u64,
    column: usize,
    columns: usize,
}

/// A stretch that is not drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fold {
    /// How long after the first step it begins, and how long it is, in nanoseconds.
    pub after: u64,
    pub length: u64,
}

/// A gap is folded if it is longer than this part of the time in which something happened…
const LONG: u64 = 4;
/// …and not so short that nobody would call it a gap.
const SHORTEST: u64 = 1_000_000;
/// Columns for each fold at least: more of them could not be told apart.
const COLUMNS_PER_FOLD: usize = 6;

impl Axis {
    /// An axis of `width` columns over everything that happened.
    pub fn of(intervals: impl IntoIterator<Item = Interval>, width: usize) -> Axis {
        let busy = merged(intervals.into_iter().collect());
        let total: u64 = busy.iter().map(|(from, to)| to - from).sum();
        let mut gaps: Vec<(u64, usize)> =
            busy.windows(2).enumerate().map(|(at, pair)| (pair[1].0 - pair[0].1, at)).collect();
        gaps.retain(|(length, _)| *length > (total / LONG).max(SHORTEST));
        gaps.sort_unstable_by(|one, other| other.cmp(one));
        gaps.truncate(width / COLUMNS_PER_FOLD);
        let mut pieces: Vec<Piece> = Vec::new();
        for (at, (from, to)) in busy.iter().enumerate() {
            let is_folded = at > 0 && gaps.iter().any(|(_, gap)| gap + 1 == at);
            match pieces.last_mut().filter(|_| !is_folded) {
                Some(piece) => piece.to = *to,
                None => pieces.push(Piece { from: *from, to: *to, column: 0, columns: 0 }),
            }
        }
        lay_out(&mut pieces, width);
        Axis { pieces, width }
    }

    pub fn folds(&self) -> Vec<Fold> {
        let start = self.pieces.first().map_or(0, |piece| piece.from);
        let fold = |pair: &[Piece]| Fold { after: pair[0].to - start, length: pair[1].from - pair[0].to };
        self.pieces.windows(2).map(fold).collect()
    }

    /// A step that ran in these intervals. Something that happened is never shown as nothing.
    pub fn bar(&self, intervals: &[Interval]) -> String {
        let mut cells = vec!['·'; self.width];
        for &(from, to) in intervals {
            let first = self.column(from).min(self.width - 1);
            let last = self.column(to).clamp(first + 1, self.width);
            cells[first..last].fill('█');
        }
        for piece in self.pieces.iter().skip(1) {
            cells[piece.column - 1] = '┊';
        }
        cells.into_iter().collect()
    }

    fn column(&self, time: u64) -> usize {
        let Some(piece) = self.pieces.iter().rev().find(|piece| piece.from <= time).or(self.pieces.first())
        else {
            return 0;
        };
        let length = u128::from((piece.to - piece.from).max(1));
        let offset = u128::from(time.saturating_sub(piece.from)).min(length);
        // What begins at the very end of a piece still stands in it.
        let column = (offset * piece.columns as u128 / length) as usize;
        piece.column + column.min(piece.columns)
    }
}

fn merged(mut intervals: Vec<Interval>) -> Vec<Interval> {
    intervals.sort_unstable();
    let mut merged: Vec<Interval> = Vec::new();
    for (from, to) in intervals {
        match merged.last_mut().filter(|last| from <= last.1) {
            Some(last) => last.1 = last.1.max(to),
            None => merged.push((from, to.max(from))),
        }
    }
    merged
}

/// Each piece has a column, and of the others its share; one column between two is the fold.
fn lay_out(pieces: &mut [Piece], width: usize) {
    let Some(folds) = pieces.len().checked_sub(1) else { return };
    let free = width.saturating_sub(folds + pieces.len()) as u128;
    let whole = pieces.iter().map(|piece| u128::from(piece.to - piece.from)).sum::<u128>().max(1);
    let mut left = free;
    for piece in pieces.iter_mut() {
        let share = free * u128::from(piece.to - piece.from) / whole;
        left -= share;
        piece.columns = 1 + share as usize;
    }
    if let Some(longest) = pieces.iter_mut().max_by_key(|piece| piece.to - piece.from) {
        longest.columns += left as usize;
    }
    let mut column = 0;
    for piece in pieces {
        piece.column = column;
        column += piece.columns + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn check(all: &[Interval], step: &[Interval], expected: &str) {
        let scale = |intervals: &[Interval]| -> Vec<Interval> {
            intervals.iter().map(|(from, to)| (from * MS, to * MS)).collect()
        };
        assert_eq!(Axis::of(scale(all), 10).bar(&scale(step)), expected, "{step:?} of {all:?}");
    }

    #[test]
    fn bars_stand_where_their_time_was() {
        let all = [(0, 100)];
        check(&all, &[(0, 100)], "██████████");
        check(&all, &[(0, 0)], "█·········");
        check(&all, &[(100, 100)], "·········█");
        check(&all, &[(50, 70)], "·····██···");
        check(&all, &[(10, 20), (90, 95)], "·█·······█");
        check(&[(7, 7)], &[(7, 7)], "█·········");
        check(&[], &[], "··········");
    }

    #[test]
    fn a_long_gap_is_folded_and_a_short_one_drawn() {
        let all = [(0, 40), (60, 100)];
        check(&all, &[(60, 100)], "······████");
        let all = [(0, 40), (5_000, 5_040)];
        check(&all, &[(0, 40)], "████┊·····");
        check(&all, &[(5_000, 5_040)], "····┊█████");
        check(&all, &all, "████┊█████");
        let folds = Axis::of([(0, 40 * MS), (5_000 * MS, 5_040 * MS)], 10).folds();
        assert_eq!(folds, [Fold { after: 40 * MS, length: 4_960 * MS }]);
    }

    #[test]
    fn no_more_gaps_are_folded_than_can_be_told_apart() {
        let moments: Vec<Interval> = (0..100).map(|at| (at * 1_000 * MS, at * 1_000 * MS + MS)).collect();
        let axis = Axis::of(moments.clone(), 30);
        assert_eq!(axis.folds().len(), 5);
        assert_eq!(axis.bar(&moments).chars().count(), 30);
    }
}
