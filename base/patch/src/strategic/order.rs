//! The order of a merged list. Elements the patch names come in the patch's order, elements only the
//! server has stay in the server's; where the two meet, the server's list decides.

use std::collections::HashMap;

use serde_json::Value;

use super::directive;

/// Puts `merged` in order. `asked` is the order of the patch, `server` the list before the merge;
/// elements are the same when their values under `key` are, or, without a key, when they are equal.
pub fn arrange(merged: Vec<Value>, asked: &[Value], server: &[Value], key: Option<&str>) -> Vec<Value> {
    let in_patch = ranks(&merged, asked, key);
    let on_server = ranks(&merged, server, key);
    let mut named: Vec<usize> = Vec::with_capacity(merged.len());
    let mut others: Vec<usize> = Vec::new();
    for (element, rank) in in_patch.iter().enumerate() {
        if rank.is_some() { named.push(element) } else { others.push(element) }
    }
    // Deletions, which only a patch under construction holds, go last.
    sort(&mut named, &in_patch, &merged);
    sort(&mut others, &on_server, &merged);

    let mut order = Vec::with_capacity(merged.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let next = match (others.peek(), named.peek()) {
            (Some(&other), Some(&name)) => match (on_server[other], on_server[name]) {
                (Some(left), Some(right)) if left < right => others.next(),
                _ => named.next(),
            },
            (Some(_), None) => others.next(),
            (None, _) => named.next(),
        };
        match next {
            Some(element) => order.push(element),
            None => break,
        }
    }
    let mut elements: Vec<Option<Value>> = merged.into_iter().map(Some).collect();
    order.into_iter().filter_map(|element| elements[element].take()).collect()
}

/// Sorts elements by rank, deletions last. An element without a rank goes before all that come
/// earlier, and those with one go before it: what clients see for elements nobody put in order.
fn sort(elements: &mut [usize], ranks: &[Option<usize>], merged: &[Value]) {
    /// Up to this length upstream's sort compares neighbours only, and its answer for elements
    /// without a rank follows from that.
    const SHORT: usize = 20;
    let key = |element: usize| (is_deletion(&merged[element]), ranks[element]);
    if elements.len() > SHORT {
        return elements.sort_by_key(|&element| key(element));
    }
    elements.sort_by_key(|&element| is_deletion(&merged[element]));
    let kept = elements.iter().take_while(|&&element| !is_deletion(&merged[element])).count();
    for end in 1..kept {
        for place in (1..=end).rev() {
            let before = match (ranks[elements[place]], ranks[elements[place - 1]]) {
                (Some(rank), Some(other)) => rank < other,
                _ => true,
            };
            if !before {
                break;
            }
            elements.swap(place, place - 1);
        }
    }
}

/// Where each element stands in `order`; the first place counts.
pub fn ranks(elements: &[Value], order: &[Value], key: Option<&str>) -> Vec<Option<usize>> {
    let identity = |element: &Value| identity(element, key).cloned();
    // Short lists, almost all of them, are quicker without a table.
    if elements.len() * order.len() <= 256 {
        return elements
            .iter()
            .map(|element| {
                let wanted = self::identity(element, key)?;
                order.iter().position(|other| self::identity(other, key) == Some(wanted))
            })
            .collect();
    }
    let mut first: HashMap<Value, usize> = HashMap::with_capacity(order.len());
    for (rank, element) in order.iter().enumerate() {
        if let Some(identity) = identity(element) {
            first.entry(identity).or_insert(rank);
        }
    }
    elements.iter().map(|element| first.get(self::identity(element, key)?).copied()).collect()
}

/// What makes two elements the same one.
pub fn identity<'a>(element: &'a Value, key: Option<&str>) -> Option<&'a Value> {
    match key {
        Some(key) => element.get(key),
        None => Some(element),
    }
}

fn is_deletion(element: &Value) -> bool {
    directive(element) == Some("delete")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(merged: Value, asked: Value, server: Value, expected: Value) {
        let list = |value: Value| value.as_array().cloned().expect("a list");
        assert_eq!(arrange(list(merged), &list(asked), &list(server), None), list(expected));
    }

    #[test]
    fn patch_order_wins_and_the_server_keeps_its_own_between() {
        check(json!([1, 2, 3]), json!([]), json!([1, 2, 3]), json!([1, 2, 3]));
        check(json!([1, 2, 3, 4]), json!([4, 2]), json!([1, 2, 3]), json!([4, 1, 2, 3]));
        check(json!([1, 2, 3]), json!([3, 1]), json!([1, 2, 3]), json!([2, 3, 1]));
        check(json!([1, 2, 5]), json!([5]), json!([1, 2]), json!([5, 1, 2]));
    }
}
