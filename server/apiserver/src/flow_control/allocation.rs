//! Divides the server's seats among priority levels: each gets the same fraction of what it wants, within its bounds.

/// A small demand still counts: nothing is divided by zero.
const LEAST_TARGET: f64 = 0.001;
/// Halvings of the interval that the fraction is searched in: more than a float has digits.
const STEPS: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllocationItem {
    pub lower: f64,
    pub upper: f64,
    pub target: f64,
}

impl AllocationItem {
    fn at(&self, fraction: f64) -> f64 {
        (self.target.max(LEAST_TARGET) * fraction).clamp(self.lower, self.upper)
    }
}

/// The allocations, which sum to `total`, and the fraction. `None` where the bounds allow no such sum.
pub fn allocate(total: f64, wanted: &[AllocationItem]) -> Option<(Vec<f64>, f64)> {
    let sum = |fraction: f64| wanted.iter().map(|wanted| wanted.at(fraction)).sum::<f64>();
    let is_sound = |wanted: &AllocationItem| wanted.lower >= 0.0 && wanted.upper >= wanted.lower;
    let highest =
        wanted.iter().map(|wanted| wanted.upper / wanted.target.max(LEAST_TARGET)).fold(0.0, f64::max);
    if !wanted.iter().all(is_sound) || sum(0.0) > total + 1e-6 || sum(highest) < total - 1e-6 {
        return None;
    }
    let (mut low, mut high) = (0.0, highest);
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        if sum(middle) < total {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some((wanted.iter().map(|wanted| wanted.at(high)).collect(), high))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(total: f64, wanted: &[(f64, f64, f64)], expected: Option<&[f64]>) {
        let wanted: Vec<AllocationItem> = wanted
            .iter()
            .map(|(lower, target, upper)| AllocationItem { lower: *lower, target: *target, upper: *upper })
            .collect();
        let found = allocate(total, &wanted).map(|(found, _)| found);
        match (&found, expected) {
            (Some(found), Some(expected)) => {
                let near = |(one, other): (&f64, &f64)| (one - other).abs() < 1e-6;
                assert!(
                    found.len() == expected.len() && found.iter().zip(expected).all(near),
                    "{found:?} {expected:?}"
                );
            }
            (found, expected) => assert_eq!(found.is_some(), expected.is_some(), "{wanted:?}"),
        }
    }

    #[test]
    fn seats_are_divided_in_proportion_to_targets_within_bounds() {
        check(10.0, &[(0.0, 1.0, 100.0), (0.0, 4.0, 100.0)], Some(&[2.0, 8.0]));
        check(10.0, &[(4.0, 1.0, 100.0), (0.0, 4.0, 100.0)], Some(&[4.0, 6.0]));
        check(10.0, &[(0.0, 1.0, 100.0), (0.0, 4.0, 5.0)], Some(&[5.0, 5.0]));
        check(10.0, &[(0.0, 0.0, 100.0), (0.0, 0.0, 100.0)], Some(&[5.0, 5.0]));
        check(10.0, &[(5.0, 5.0, 5.0), (5.0, 9.0, 9.0)], Some(&[5.0, 5.0]));
        check(14.0, &[(5.0, 5.0, 5.0), (5.0, 9.0, 9.0)], Some(&[5.0, 9.0]));
        check(0.0, &[(0.0, 1.0, 1.0)], Some(&[0.0]));
        check(9.0, &[(5.0, 5.0, 5.0), (5.0, 9.0, 9.0)], None);
        check(15.0, &[(5.0, 5.0, 5.0), (5.0, 9.0, 9.0)], None);
    }
}
