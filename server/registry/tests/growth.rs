//! Every list and map of every kind, grown: what a write does with an object costs in proportion to its size.

use std::alloc::System;
use std::collections::HashSet;
use std::hint::black_box;
use std::time::Duration;

use ferry_api::types::ListType;
use ferry_api::{
    FieldErrors, FieldValidation, Kind, Schema, Shape, Status, Type, Types, defaulting, json, kinds,
};
use ferry_patch::{managed_fields, merge, strategic};
use ferry_registry::strategy::UpdateScope;
use ferry_registry::{kinds as strategies, metadata};
use serde_json::{Map, Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Counts what is allocated: work that is the same on every machine, however busy.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Elements of a list at first.
const FEW: usize = 1_000;
/// Steps that take no longer with the first list are not looked at again; nor are checks that take no longer than reading
/// the object does.
const SHORT: Duration = Duration::from_millis(60);
const SHORT_CHECK: Duration = Duration::from_millis(8);
/// For those that do, lists of this length are compared with ones four times as long.
const MANY: usize = 2_000;
/// Four times the work is linear, sixteen times is quadratic.
const TOO_STEEP: f64 = 9.0;

/// Lists of these lengths, each twice the one before, are compared by what is allocated for them.
const LENGTHS: [usize; 3] = [32, 64, 128];
/// From the second to the third length linear work grows twice as much as from the first to the second, quadratic work four
/// times; what grows in steps, as vectors do, lies between.
const TOO_FAST: f64 = 3.0;
/// Growth that is less than this between two lengths is a step of some buffer.
const LITTLE: usize = 64 << 10;

const DECODE: &str = "decode";
const CHECKS: &[&str] = &["default", "prepare", "validate", "validate an update"];

#[test]
fn memory_and_responses_grow_linearly_with_the_object() {
    let mut fast = Vec::new();
    let lists = each_list(|kind, schema, path| {
        // What is made once, at its first use, belongs to no list.
        steps(kind, schema, path, 1);
        let [few, more, most] = LENGTHS.map(|count| steps(kind, schema, path, count));
        for ((few, more), most) in few.iter().zip(&more).zip(&most) {
            assert_eq!((few.step, few.step), (more.step, most.step));
            let (first, second) =
                (more.allocated.saturating_sub(few.allocated), most.allocated.saturating_sub(more.allocated));
            if second > LITTLE && second as f64 > TOO_FAST * first as f64 {
                let bytes = [few.allocated, more.allocated, most.allocated];
                fast.push(format!("{} {} {}: {bytes:?} bytes", kind.kind, names(path), few.step));
            }
        }
    });
    assert!(lists > 300, "only {lists} lists and maps were found");
    assert!(fast.is_empty(), "more than linear: {fast:#?}");
}

/// By hand: it takes more than a minute of CPU, and compares times.
#[test]
#[ignore = "by hand: cargo test -p ferry-registry --test growth -- --ignored"]
fn the_cost_of_a_write_is_linear_in_every_list() {
    let mut steep = Vec::new();
    let lists = each_list(|kind, schema, path| {
        let taken = steps(kind, schema, path, FEW);
        let decode = taken.iter().find(|cost| cost.step == DECODE).map_or(SHORT, |cost| cost.time);
        for Cost { step, time, .. } in taken {
            let short = if CHECKS.contains(&step) { SHORT_CHECK.max(decode) } else { SHORT };
            if time > short && is_steep(kind, schema, path, step) {
                steep.push(format!("{} {} {step}", kind.kind, names(path)));
            }
        }
    });
    assert!(lists > 300, "only {lists} lists and maps were found");
    assert!(steep.is_empty(), "more than linear: {steep:#?}");
}

/// Calls `look` for every list and map of every kind; returns how many there are.
fn each_list(mut look: impl FnMut(&Kind, &Schema, &[Field<'_>])) -> usize {
    let (mut seen, mut lists) = (HashSet::new(), 0);
    for kind in kinds::builtin().iter().filter(|kind| kind.is_stored() && kind.is_storage_version()) {
        let Some(schema) = kind.codec.typed() else { continue };
        let mut paths = Vec::new();
        find_lists(schema.root(), &schema.types, &mut Vec::new(), &mut seen, &mut paths);
        lists += paths.len();
        paths.iter().for_each(|path| look(kind, schema, path));
    }
    lists
}

fn is_steep(kind: &Kind, schema: &Schema, path: &[Field<'_>], step: &str) -> bool {
    let measure = |count: usize| {
        let taken = steps(kind, schema, path, count).into_iter();
        taken.filter(|cost| cost.step == step).map(|cost| cost.time.as_secs_f64()).fold(0.0, f64::max)
    };
    // One measurement may be of a machine that was busy otherwise.
    (0..3).all(|_| measure(4 * MANY) / measure(MANY).max(0.01) > TOO_STEEP)
}

type Field<'t> = &'t ferry_api::Field;

fn names(path: &[Field<'_>]) -> String {
    path.iter().map(|field| field.name.as_ref()).collect::<Vec<_>>().join(".")
}

/// The ways to all lists and maps, each field of a type once: what kinds share is judged by the same code.
fn find_lists<'t>(
    ty: &'t Type,
    types: &'t Types,
    path: &mut Vec<Field<'t>>,
    seen: &mut HashSet<(String, String)>,
    found: &mut Vec<Vec<Field<'t>>>,
) {
    for field in &ty.fields {
        if !seen.insert((ty.name.to_string(), field.name.to_string())) {
            continue;
        }
        path.push(field);
        let mut shape = &field.shape;
        if let Shape::List(element) | Shape::Map(element) = shape {
            found.push(path.clone());
            shape = element;
        }
        if let Shape::Struct(id) = shape {
            let inner = types.get(*id);
            if path.len() < 12
                && inner.either.is_none()
                && !path[..path.len() - 1].iter().any(|above| above.shape == field.shape)
            {
                find_lists(inner, types, path, seen, found);
            }
        }
        path.pop();
    }
}

/// An object of the kind in which the list at the end of `path` has `count` elements.
fn object(kind: &Kind, types: &Types, path: &[Field<'_>], count: usize) -> Value {
    let mut value = json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"name": "a"}});
    if kind.is_namespaced() {
        value["metadata"]["namespace"] = json!("a");
    }
    let (last, way) = path.split_last().expect("a path");
    let mut at = &mut value;
    for field in way {
        let slot = at.as_object_mut().expect("an object").entry(field.name.as_ref()).or_insert(Value::Null);
        at = match &field.shape {
            Shape::List(_) => {
                *slot = json!([{}]);
                &mut slot[0]
            }
            Shape::Map(_) => {
                *slot = json!({"a": {}});
                &mut slot["a"]
            }
            _ => {
                if !slot.is_object() {
                    *slot = json!({});
                }
                slot
            }
        };
    }
    at[last.name.as_ref()] = match &last.shape {
        Shape::List(element) => (0..count).map(|index| sample(element, types, index, 1)).collect(),
        Shape::Map(element) => {
            let entries = (0..count).map(|index| (format!("a{index}"), sample(element, types, index, 1)));
            Value::Object(entries.collect())
        }
        other => unreachable!("{other:?} is no list"),
    };
    value
}

/// A value that differs from that of any other index where the shape has so many.
fn sample(shape: &Shape, types: &Types, index: usize, levels: usize) -> Value {
    match shape {
        Shape::String => json!(format!("a{index}")),
        Shape::Bytes => json!(""),
        Shape::Bool => json!(true),
        Shape::Int32 | Shape::Int64 | Shape::IntOrString | Shape::Double => json!(index),
        Shape::Quantity => json!("1"),
        Shape::Time => json!("2026-01-01T00:00:00Z"),
        Shape::MicroTime => json!("2026-01-01T00:00:00.000000Z"),
        Shape::Duration => json!("1s"),
        Shape::Raw | Shape::Json | Shape::FieldsV1 => json!({}),
        Shape::ExtraValue => json!([]),
        Shape::List(element) => json!([sample(element, types, index, levels.saturating_sub(1))]),
        Shape::Map(_) => json!({}),
        Shape::Struct(id) => {
            let ty = types.get(*id);
            if ty.either.is_some() || levels == 0 {
                return json!({});
            }
            let fields = ty.fields.iter().filter(|field| {
                let is_inner = matches!(field.shape, Shape::Struct(_) | Shape::List(_) | Shape::Map(_));
                !is_inner || (levels > 1 && !field.pointer)
            });
            let fields =
                fields.map(|field| (field.name.to_string(), sample(&field.shape, types, index, levels - 1)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
    }
}

/// What one step of a write took.
struct Cost {
    step: &'static str,
    time: Duration,
    /// Bytes, all that were asked for, though they were given back.
    allocated: usize,
}

/// What a write does with the object, and what each step took.
fn steps(kind: &Kind, schema: &Schema, path: &[Field<'_>], count: usize) -> Vec<Cost> {
    let value = object(kind, &schema.types, path, count);
    let text = value.to_string();
    let strategy = strategies::strategy(kind);
    let mut taken = Vec::new();
    let mut time = |step: &'static str, work: &mut dyn FnMut()| {
        let (before, bytes) = (cpu_time(), ALLOCATOR.stats().bytes_allocated);
        work();
        let allocated = ALLOCATOR.stats().bytes_allocated - bytes;
        taken.push(Cost { step, time: cpu_time() - before, allocated });
    };
    let mut read = Err(Status::success());
    time(DECODE, &mut || read = json::decode(text.as_bytes(), schema, FieldValidation::Strict));
    let mut new = match read {
        Ok(decoded) => decoded.object,
        Err(status) => panic!("{} {}: {status}", kind.kind, names(path)),
    };
    time("default", &mut || {
        defaulting::apply(&mut new, schema);
        strategy.default(&mut new);
    });
    let old = new.clone();
    time("prepare", &mut || {
        metadata::drop_repeated_owners(&mut new);
        strategy.prepare_create(&mut new);
    });
    time("validate", &mut || {
        let mut errors = FieldErrors::default();
        metadata::validate(&new, kind.is_namespaced(), &strategy.options(), &mut errors);
        black_box(strategy.validate(&new, kind, &mut errors).is_ok());
        black_box(Status::invalid(&kind.group, &kind.kind, "a", &errors).to_json());
    });
    let subresources = kind.subresources.iter().map(|subresource| subresource.name.as_ref());
    for subresource in std::iter::once("").chain(subresources) {
        let mut changed = old.clone();
        changed.set_meta("labels", json!({"a": "b"}));
        let mut deleted = old.clone();
        deleted.set_meta("deletionTimestamp", "2026-01-01T00:00:00Z");
        time("validate an update", &mut || {
            let mut errors = FieldErrors::default();
            strategy.prepare_update(&mut changed, &deleted);
            metadata::validate_update(&changed, &deleted, &strategy.options(), &mut errors);
            let scope = UpdateScope::of(subresource);
            black_box(strategy.validate_update(&changed, &deleted, kind, scope, &mut errors).is_ok());
        });
    }
    // Patches and owners have work of their own only where elements have an identity; other lists are one value to them.
    let last = path.last().expect("a path");
    if matches!(last.list, ListType::Unset | ListType::Atomic) {
        return taken;
    }
    let write = managed_fields::Write {
        manager: "test",
        subresource: "",
        api_version: &kind.api_version(),
        now: jiff::Timestamp::UNIX_EPOCH,
        schema,
        reset: managed_fields::Reset::Nothing,
        versions: &managed_fields::OneVersion,
    };
    let mut owned = old.clone();
    time("own", &mut || managed_fields::update(None, &mut owned, &write));
    let mut shorter = object(kind, &schema.types, path, count / 2);
    shorter["metadata"]["uid"] = json!("u");
    let shorter = json::decode_value(shorter, schema, FieldValidation::Strict).expect("an object").object;
    let mut changed = shorter.clone();
    time("own a change", &mut || managed_fields::update(Some(&owned), &mut changed, &write));
    time("apply", &mut || {
        let mut configuration = shorter.clone();
        configuration.take_managers();
        black_box(managed_fields::apply(Some(&owned), &configuration, true, &write).is_ok());
        let other = managed_fields::Write { manager: "other", ..write };
        black_box(managed_fields::apply(Some(&owned), &configuration, false, &other).is_ok());
    });
    let (mut left, right) = (old.clone().into_value(), shorter.into_value());
    let mut merged = left.clone();
    time("merge patch", &mut || {
        merge::apply(&mut merged, &right);
        black_box(merge::diff(&merged, &right));
    });
    time("strategic patch", &mut || {
        let patch = strategic::two_way(&left, &right, schema);
        black_box(strategic::apply(&mut left, patch.unwrap_or_else(|_| right.clone()), schema).is_ok());
        black_box(strategic::apply(&mut left, value.clone(), schema).is_ok());
    });
    taken
}

/// Of this thread: what others do on the machine does not count.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts it");
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("a number");
    Duration::from_nanos(nanos)
}
