//! What functions cost, and the sizes of their results: a function for each family of functions.

use cel::common::ast::IdedExpr;
use ferry_cel::Type;

use super::{Estimate, Estimated, LIST, MinMax, REGEX, TRAVERSE, UNKNOWN, decl_size, inner, number};

/// A call, with the sizes that its target and arguments can have.
struct Call<'e> {
    name: &'e str,
    target: Option<(&'e IdedExpr, MinMax)>,
    args: &'e [IdedExpr],
    first: MinMax,
    second: MinMax,
}

impl Estimate<'_> {
    /// A function that is in none of the families costs one.
    pub(super) fn function(&self, name: &str, target: Option<&IdedExpr>, args: &[IdedExpr]) -> Estimated {
        let size_of = |at: usize| args.get(at).map_or(UNKNOWN, |argument| self.size_or_unknown(argument));
        let target = target.map(|target| (target, self.size_or_unknown(target)));
        let call = Call { name, target, args, first: size_of(0), second: size_of(1) };
        let families =
            [Self::text_function, Self::conversion, Self::search, Self::list_function, Self::address];
        families.into_iter().find_map(|family| family(self, &call)).unwrap_or((MinMax::of(1), None))
    }

    /// Functions that make texts of texts.
    fn text_function(&self, call: &Call) -> Option<Estimated> {
        let Call { name, target, args, first, second } = *call;
        Some(match (name, target, args.len()) {
            ("lowerAscii" | "upperAscii" | "substring" | "trim", Some((_, size)), _) => {
                (size.by(TRAVERSE), Some(size))
            }
            ("replace", Some((_, size)), 2..) => {
                (size.by(2.0 * TRAVERSE), Some(replaced(size, first, second)))
            }
            ("split", Some((_, size)), _) => {
                let most = args.get(1).and_then(number).unwrap_or(size.max);
                (size.by(2.0 * TRAVERSE), Some(MinMax { min: 0, max: most }))
            }
            ("join", Some((target, size)), _) => {
                let declared = self.places.get(&target.id).and_then(|decl| inner(decl));
                let element = declared
                    .map(|decl| decl_size(&decl))
                    .or_else(|| self.entry(target).map(|entry| entry.value))
                    .unwrap_or(UNKNOWN);
                let mut total = size.times(element);
                if !args.is_empty() {
                    let between = MinMax { min: size.min.saturating_sub(1), max: size.max.saturating_sub(1) };
                    total = total.and(first.times(between));
                }
                (total.by(TRAVERSE), Some(total))
            }
            ("format", Some((_, size)), _) => (size.by(TRAVERSE), None),
            ("strings.quote", _, 1) => {
                let max = first.max.saturating_mul(2).saturating_add(2);
                (first.by(TRAVERSE), Some(MinMax { min: first.min.saturating_add(2), max }))
            }
            _ => return None,
        })
    }

    /// Functions that read a value out of a text.
    fn conversion(&self, call: &Call) -> Option<Estimated> {
        let Call { name, target, args, first, .. } = *call;
        Some(match (name, target, args.len()) {
            ("url" | "jsonpatch.escapeKey", _, 1) => (first.by(TRAVERSE), Some(first)),
            ("cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver", _, 1..)
            | ("ip", None, 1) => (first.by(TRAVERSE), None),
            ("validate", _, 1..) => (first.by(TRAVERSE).by(128.0 * REGEX), None),
            ("bytes", None, 1) if matches!(self.type_of(&args[0]), Type::String) => {
                (first.by(TRAVERSE), Some(MinMax { min: first.min, max: first.max.saturating_mul(4) }))
            }
            ("string", None, 1) if matches!(self.type_of(&args[0]), Type::Bytes) => {
                (first.by(TRAVERSE), Some(MinMax { min: first.min / 4, max: first.max }))
            }
            _ => return None,
        })
    }

    /// Functions that look for one thing in another.
    fn search(&self, call: &Call) -> Option<Estimated> {
        let Call { name, target, args, first, second } = *call;
        let matched = |size: MinMax| size.and(MinMax::of(1)).by(TRAVERSE).times(first.by(REGEX));
        Some(match (name, target, args.len()) {
            ("find" | "findAll", Some((_, size)), 1..) => {
                (matched(size), Some(MinMax { min: 0, max: size.max }))
            }
            ("matches", Some((_, size)), 1) => (matched(size), None),
            ("contains", Some((_, size)), 1) => (size.by(TRAVERSE).times(first.by(TRAVERSE)), None),
            ("startsWith" | "endsWith", Some(_), 1) => (first.by(TRAVERSE), None),
            ("sets.contains" | "sets.intersects", _, 2) => (first.times(second).and(MinMax::of(1)), None),
            ("sets.equivalent", _, 2) => (first.times(second).by(2.0).and(MinMax::of(1)), None),
            _ => return None,
        })
    }

    /// Functions of lists; `indexOf` and `lastIndexOf` are those of texts, too.
    fn list_function(&self, call: &Call) -> Option<Estimated> {
        let Call { name, target, args, .. } = *call;
        let allocated =
            |factor: f64, size: MinMax| (size.by(factor).and(MinMax::of(1)).and(LIST), Some(size));
        Some(match (name, target, args.len()) {
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some((target, size)), _) => {
                match self.type_of(target) {
                    Type::List(element) => {
                        let mut each = MinMax::of(1);
                        if matches!(**element, Type::String | Type::Bytes) {
                            let size = self.places.get(&target.id).and_then(|decl| inner(decl));
                            each = each.and(size.map_or(UNKNOWN, |decl| decl_size(&decl)).by(TRAVERSE));
                        }
                        (size.times(each), None)
                    }
                    _ => (size.by(TRAVERSE), None),
                }
            }
            ("slice", Some((_, size)), 2) => {
                let (start, end) = (number(&args[0]).unwrap_or(0), number(&args[1]).unwrap_or(size.max));
                allocated(1.0, MinMax::of(end.saturating_sub(start)))
            }
            ("lists.range", _, 1) => allocated(1.0, MinMax::of(number(&args[0]).unwrap_or(u64::MAX))),
            ("reverse", Some((_, size)), 0) => allocated(1.0, size),
            ("flatten", Some((_, size)), _) => {
                let depth = if args.is_empty() { 1 } else { number(&args[0]).unwrap_or(u64::MAX) };
                allocated(depth as f64, size)
            }
            ("distinct" | "sort" | "sortBy" | "@sortByAssociatedKeys", Some((_, size)), _) => {
                allocated(2.0, size.times(size))
            }
            _ => return None,
        })
    }

    /// Functions of IP addresses and of their ranges.
    fn address(&self, call: &Call) -> Option<Estimated> {
        let Call { name, args, first, .. } = *call;
        match (name, args) {
            ("ip.isCanonical", [_]) => Some((first.by(2.0 * TRAVERSE), None)),
            ("containsIP" | "containsCIDR", [other]) => {
                let address = MinMax { min: 4, max: 16 };
                let mut cost = address.and(address).by(TRAVERSE);
                if name == "containsCIDR" {
                    cost = cost.and(address.by(TRAVERSE)).and(MinMax::of(1));
                }
                if matches!(self.type_of(other), Type::String) {
                    cost = cost.and(first.by(TRAVERSE));
                }
                Some((cost, None))
            }
            _ => None,
        }
    }
}

/// The size of a text after parts of the one size became parts of the other.
fn replaced(size: MinMax, old: MinMax, new: MinMax) -> MinMax {
    let (mut count, mut kept) = (MinMax::of(0), MinMax::of(0));
    if old.min == 0 {
        count.max = size.max.saturating_add(1);
        kept.max = size.max;
    } else if new.max <= old.min {
        kept.max = size.max;
    } else {
        count.max = (size.max as f64 / old.min as f64).ceil() as u64;
    }
    if old.max == 0 {
        count.min = size.min.saturating_add(1);
        kept.min = size.min;
    } else if old.max <= new.min {
        kept.min = size.min;
    } else {
        count.min = (size.min as f64 / old.max as f64).ceil() as u64;
    }
    count.times(new).and(kept)
}
