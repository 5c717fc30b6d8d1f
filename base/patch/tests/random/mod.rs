//! Seeded random values: numbers, JSON, and objects that fit their rows.

use ferry_api::types::ListType;
use ferry_api::{Field, Schema, Shape, Type, Types};
use serde_json::{Map, Value, json};

/// SplitMix64: small, and the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Any JSON, with a taste for what patches are made of.
pub fn json(random: &mut Random, depth: usize) -> Value {
    let words = [
        "name",
        "a",
        "b",
        "$patch",
        "delete",
        "replace",
        "merge",
        "$retainKeys",
        "metadata",
        "spec",
        "containers",
        "$setElementOrder/containers",
        "$deleteFromPrimitiveList/finalizers",
        "finalizers",
        "f:a",
        "k:{\"name\":\"a\"}",
        "v:1",
        ".",
        "i:0",
        "labels",
        "",
        "k:{",
        "status",
        "ports",
        "containerPort",
    ];
    match random.below(if depth == 0 { 5 } else { 8 }) {
        0 => Value::Null,
        1 => json!(random.chance(50)),
        2 => json!(random.below(4)),
        3 => json!(1.5),
        4 => json!(random.pick(&words)),
        5 => (0..random.below(4)).map(|_| json(random, depth - 1)).collect(),
        _ => {
            let fields =
                (0..random.below(5)).map(|_| (random.pick(&words).to_string(), json(random, depth - 1)));
            Value::Object(fields.collect::<Vec<_>>().into_iter().collect())
        }
    }
}

/// Puts random JSON somewhere into a value, takes something out, or moves it.
pub fn mutate(random: &mut Random, value: &mut Value) {
    let descend = random.chance(75);
    match value {
        Value::Object(fields) if descend && !fields.is_empty() => {
            let key = fields.keys().nth(random.below(fields.len())).cloned().unwrap_or_default();
            if random.chance(10) {
                fields.remove(&key);
            } else if let Some(inner) = fields.get_mut(&key) {
                mutate(random, inner);
            }
        }
        Value::Array(items) if descend && !items.is_empty() => {
            let place = random.below(items.len());
            if random.chance(10) {
                let copy = items[place].clone();
                items.push(copy);
            } else {
                mutate(random, &mut items[place]);
            }
        }
        Value::Object(fields) if random.chance(50) => {
            if let Value::Object(more) = json(random, 2) {
                fields.extend(more);
            }
        }
        other => *other = json(random, 2),
    }
}

/// An object of this kind. Nothing in it is empty, and elements of lists have keys of their own.
pub fn object(random: &mut Random, schema: &Schema) -> Value {
    Value::Object(fields(random, schema.root(), &schema.types, 7))
}

fn fields(random: &mut Random, ty: &Type, types: &Types, depth: usize) -> Map<String, Value> {
    let mut map = Map::new();
    for field in &ty.fields {
        let wanted = if ty.fields.len() > 12 { 15 } else { 55 };
        let keep = matches!(&*field.name, "spec" | "metadata" | "template" | "containers");
        if (keep || random.chance(wanted))
            && let Some(value) = value(random, &field.shape, Some(field), types, depth)
        {
            map.insert(field.name.to_string(), value);
        }
    }
    map
}

fn value(
    random: &mut Random,
    shape: &Shape,
    field: Option<&Field>,
    types: &Types,
    depth: usize,
) -> Option<Value> {
    let small = |random: &mut Random| random.below(3);
    Some(match shape {
        Shape::String | Shape::Bytes => json!(random.pick(&["a", "b", "c"])),
        Shape::Bool => json!(true),
        Shape::Int32 | Shape::Int64 | Shape::IntOrString => json!(1 + small(random)),
        Shape::Double => json!(1.5),
        Shape::Quantity => json!(random.pick(&["1", "2", "3Gi"])),
        Shape::Time | Shape::MicroTime => json!("2026-01-01T00:00:00Z"),
        Shape::Duration => json!("1s"),
        Shape::Raw | Shape::Json | Shape::FieldsV1 | Shape::ExtraValue => return None,
        _ if depth == 0 => return None,
        Shape::Struct(id) => {
            let map = fields(random, types.get(*id), types, depth - 1);
            if map.is_empty() {
                return None;
            }
            Value::Object(map)
        }
        Shape::Map(inner) => {
            let mut map = Map::new();
            for key in ["x", "y", "z"] {
                if random.chance(50)
                    && let Some(value) = value(random, inner, None, types, depth - 1)
                {
                    map.insert(key.to_string(), value);
                }
            }
            if map.is_empty() {
                return None;
            }
            Value::Object(map)
        }
        Shape::List(element) => {
            let items = list(random, element, field, types, depth - 1);
            if items.is_empty() {
                return None;
            }
            Value::Array(items)
        }
    })
}

fn list(
    random: &mut Random,
    element: &Shape,
    field: Option<&Field>,
    types: &Types,
    depth: usize,
) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    let mut keys: Vec<&str> = Vec::new();
    if let Some(field) = field {
        keys.extend(field.patch.merge_key.as_deref());
        if let ListType::Map(names) = &field.list {
            keys.extend(names.iter().map(AsRef::as_ref));
        }
    }
    for _ in 0..1 + random.below(3) {
        let Some(mut item) = value(random, element, None, types, depth) else { continue };
        if let (Value::Object(item), Shape::Struct(id)) = (&mut item, element) {
            for key in &keys {
                let row = types.get(*id).field(key).expect("a key is a field");
                if !item.contains_key(*key) {
                    let Some(value) = value(random, &row.shape, Some(row), types, depth) else { continue };
                    item.insert(key.to_string(), value);
                }
            }
        }
        let same = |other: &Value| match keys.first() {
            Some(key) => other.get(key) == item.get(key),
            None => *other == item,
        };
        if !items.iter().any(same) {
            items.push(item);
        }
    }
    items
}
