//! Expressions that are meant to harm: none exhausts the stack of a worker thread, and each ends when it has cost what
//! it may.

use ferry_cel::{Bindings, Budget, CompileError, Environment, Failure, PER_CALL_LIMIT, Type};
use serde_json::{Value, json};

/// Half of a worker's stack: the request that evaluates has taken its part already.
const STACK: usize = 1 << 20;

fn on_small_stack(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(test).expect("a thread");
    thread.join().expect("the test passes");
}

fn environment() -> Environment {
    Environment::new([("object", Type::Dyn)])
}

fn evaluate(source: &str, object: &Value) -> Result<(), String> {
    let program = environment().compile(source, &[]).map_err(|CompileError(why)| why)?;
    let mut bindings = Bindings::new();
    bindings.set("object", object);
    let outcome = program.evaluate(&bindings, &mut Budget::new(PER_CALL_LIMIT * 10));
    outcome.map(drop).map_err(|failure| failure.to_string())
}

/// Every way in which an expression nests, `levels` deep.
fn nested(levels: usize) -> Vec<String> {
    let around = |open: &str, inner: &str, close: &str| {
        format!("{}{inner}{}", open.repeat(levels), close.repeat(levels))
    };
    vec![
        format!("1{} > 0", "+1".repeat(levels)),
        format!("1{} > 0", "*1".repeat(levels)),
        format!("true{}", "==true".repeat(levels)),
        format!("1{}", " in [1]".repeat(levels)),
        format!("object{} == 1", ".a".repeat(levels)),
        format!("object{} == 1", "[0]".repeat(levels)),
        format!("object{} == 1", ".?a".repeat(levels)),
        format!("object{} == 1", ". ?a".repeat(levels)),
        format!("'a'{}", ".trim()".repeat(levels)),
        format!("'a'{}", ".replace('a', 'b')".repeat(levels)),
        format!("{}true", "!".repeat(levels)),
        format!("{}1 > 0", "-".repeat(levels)),
        format!("{}true", "true ? true : ".repeat(levels)),
        format!("true{}", " && true".repeat(levels)),
        format!("true{}", " || object.a == 1".repeat(levels)),
        around("(", "1", ")"),
        around("[", "1", "]"),
        around("{'a': ", "1", "}"),
        around("[1].all(x, ", "true", ")"),
        around("[1].map(x, ", "x", ")"),
        around("[1].exists(i, x, ", "true", ")"),
        around("[1].filter(x, [x].exists_one(y, ", "true", "))"),
        around("size([", "1", "])"),
        around("type(", "1", ")"),
        around("a{b: ", "1", "}"),
        // broken, and read on
        "(".repeat(levels),
        format!("1{}", "+1,".repeat(levels)),
        format!("1{}", "+1,+1 1:".repeat(levels)),
        format!("'\\q{}'", "+1&&1".repeat(levels)),
        format!("'\\q'{}", "+1,'\\q'".repeat(levels)),
        format!("'''{}", "+1'''".repeat(levels)),
        format!("r'\\'{}", "+r'&&\\'+'&&'".repeat(levels)),
        format!("1{}", "+'&&'".repeat(levels)),
        format!("1{}", "+\"\"\"&&\"\"\"".repeat(levels)),
        format!("1{}", "+1//&&\n".repeat(levels)),
        format!("a{}", ".`&&`".repeat(levels)),
    ]
}

#[test]
fn no_expression_exhausts_the_stack() {
    on_small_stack(|| {
        let object = json!({"a": 1});
        for levels in [2, 20, 45, 60, 90, 95, 96, 124, 240, 249, 250, 251, 1_000, 10_000, 30_000] {
            for source in nested(levels) {
                // It is refused or comes to something; either way the process lives on.
                let _ = evaluate(&source, &object);
            }
        }
        for source in nested(20).into_iter().take(24) {
            let result = evaluate(&source, &object);
            let is_compiled = !matches!(&result, Err(why) if why.contains("recursion limit"));
            assert!(is_compiled, "{source}: {result:?}");
        }
    });
}

#[test]
fn expressions_beyond_the_limits_are_refused() {
    let too_long = format!("'{}'", "x".repeat(100_000));
    let why = evaluate(&too_long, &json!(null)).expect_err("too long");
    assert!(why.contains("expression code point size exceeds limit: size: 100002, limit 100000"), "{why}");
    let why = evaluate(&format!("1{}", "+1".repeat(40_000)), &json!(null)).expect_err("too deep");
    assert!(why.contains("expression recursion limit exceeded: 250"), "{why}");
    let faults = format!("{}true", "nobody && ".repeat(9_000));
    let why = evaluate(&faults, &json!(null)).expect_err("undeclared");
    assert!(why.contains("undeclared reference to 'nobody'") && why.len() < 64 << 10, "{}", why.len());
}

/// Variables may hold each other, each a level deeper.
#[test]
fn values_do_not_nest_without_end() {
    on_small_stack(|| {
        for source in ["[variables.x]", "{'a': variables.x}", "optional.of(variables.x)"] {
            let environment = environment().with("variables.x", Type::Dyn);
            let program = environment.compile(source, &[]).expect("compiles");
            let first = environment.compile("1", &[]).expect("compiles");
            let mut budget = Budget::new(i64::MAX / 2);
            let mut outcome = first.evaluate(&Bindings::new(), &mut budget);
            let deepest = (0..5_000).position(|_| {
                let mut bindings = Bindings::new();
                bindings.set_variable("x", outcome.clone());
                outcome = program.evaluate(&bindings, &mut budget);
                outcome.is_err()
            });
            assert!(deepest.is_some_and(|levels| levels < 130), "{source}: {deepest:?}");
        }
    });
}

#[test]
fn cel_calls_are_charged_by_argument_sizes() {
    let long = "a".repeat(100_000);
    let numbers: Vec<usize> = (0..20_000).collect();
    let texts = vec![long.clone(); 10];
    let object = json!({"long": long, "other": format!("{long}b"), "numbers": numbers, "texts": texts,
        "deep": [numbers, numbers]});
    let check = |source: &str| {
        let failed = evaluate(source, &object).expect_err(source);
        assert_eq!(failed, "operation cancelled: actual cost limit exceeded", "{source}");
    };
    for set in ["contains", "equivalent", "intersects"] {
        check(&format!("sets.{set}(object.numbers, object.numbers)"));
        check(&format!("object.numbers.all(x, sets.{set}(object.numbers, [x]) || true)"));
    }
    check("object.numbers.distinct().size() > 0");
    check("object.long.contains(object.long)");
    check("object.numbers.all(x, object.long.contains('b') || true)");
    check("object.numbers.all(x, object.long.startsWith(object.long) || true)");
    check("object.numbers.all(x, object.long.matches('b') || true)");
    check("object.numbers.all(x, matches('a', string(x)) || true)");
    check("object.numbers.all(x, 'a'.matches('(a{50}){50}' + string(x)) || true)");
    check("object.numbers.all(x, 'a'.find(string(x)) == '' || true)");
    check("object.numbers.all(x, object.long.findAll('a').size() > 0 || true)");
    check("object.numbers.map(x, object.long).join(object.long).size() > 0");
    check("object.numbers.map(x, 'a').join(object.long).size() > 0");
    check("object.long.replace('', object.long).size() > 0");
    check("object.numbers.all(x, object.long == object.other || true)");
    check("object.numbers.all(x, object.long < object.other || true)");
    check("object.numbers.all(x, object.numbers == object.numbers || true)");
    check("object.numbers.all(x, -1 in object.numbers || true)");
    check("object.numbers.all(x, size(object.long) > 0 || true)");
    check("object.numbers.all(x, object.long.size() > 0 || true)");
    for function in ["lowerAscii", "upperAscii", "trim"] {
        check(&format!("object.numbers.all(x, object.long.{function}() != '' || true)"));
    }
    check("object.numbers.all(x, object.long.substring(99999) == 'a' || true)");
    check("object.numbers.all(x, object.long.charAt(99999) == 'a' || true)");
    check("object.numbers.all(x, object.long.indexOf('b') < 0 || true)");
    check("object.numbers.all(x, object.numbers.indexOf(-1) < 0 || true)");
    for function in
        ["isSorted() ", "sum() == 0", "min() == 0", "max() == 0", "sort() == []", "reverse() == []"]
    {
        check(&format!("object.numbers.all(x, object.numbers.{function} || true)"));
    }
    for function in ["isQuantity", "isIP", "isCIDR", "isURL", "isSemver"] {
        check(&format!("object.numbers.all(x, !{function}(object.long) || true)"));
    }
}

/// What people write stays far below the limit.
#[test]
fn patterns_that_are_written_out_cost_little() {
    let environment = environment();
    let program = environment
        .compile("object.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && object.contains('a')", &[Type::Bool])
        .expect("compiles");
    let name = json!("a-name-that-somebody-has");
    let mut budget = Budget::new(10_000);
    for _ in 0..100 {
        let mut bindings = Bindings::new();
        bindings.set("object", &name);
        let outcome = program.evaluate(&bindings, &mut budget).expect("within the budget");
        assert_eq!(outcome.as_bool(), Some(true));
    }
    let broken = json!("(");
    let mut bindings = Bindings::new();
    bindings.set("object", &broken);
    let program = environment.compile("'a'.matches(object)", &[]).expect("compiles");
    let failure = program.evaluate(&bindings, &mut Budget::new(PER_CALL_LIMIT)).expect_err("no pattern");
    assert!(matches!(failure, Failure::Error(why) if why.contains("illegal regex")));
}
