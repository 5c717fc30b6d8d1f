//! Which expressions have types: `golden/types.txt` holds what a kube-apiserver 1.36.4 said of `dyn(EXPRESSION) == 1` as a rule
//! of a definition whose fields are those below: every expression of a large table that it took, and some of those it refused.
//!
//! What still differs is in `golden/types-differences.txt`, which is checked in both directions; `FERRY_REWRITE=1` rewrites it.

use std::fmt::Write as _;
use std::path::Path;

use ferry_cel::{Environment, Type};

#[test]
fn expressions_have_the_types_that_upstream_finds() {
    let object = Type::object("object.o", [("x", Type::Int)]);
    let fields = [
        ("i", Type::Int),
        ("d", Type::Double),
        ("s", Type::String),
        ("b", Type::Bool),
        ("by", Type::Bytes),
        ("l", Type::list(Type::Int)),
        ("ls", Type::list(Type::String)),
        ("m", Type::map(Type::String)),
        ("o", object.clone()),
        ("lo", Type::list(object)),
        ("dur", Type::Duration),
        ("ts", Type::Timestamp),
        ("ios", Type::Dyn),
    ];
    let environment = Environment::new([("self", Type::object("object", fields))]);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let table = std::fs::read_to_string(golden.join("types.txt")).expect("the table");
    let (mut rows, mut differences) = (0, String::new());
    for line in table.lines() {
        let (expected, expression) = line.split_once('\t').expect("two columns");
        let compiled = environment.compile(&format!("dyn({expression}) == 1"), &[Type::Bool]);
        if compiled.is_ok() != (expected == "ok") {
            let verdict = if compiled.is_ok() { "accepted" } else { "refused" };
            writeln!(differences, "{verdict}\t{expression}").expect("text grows");
        }
        rows += 1;
    }
    assert!(rows > 3_000, "the table has lost rows");
    let list = golden.join("types-differences.txt");
    if std::env::var_os("FERRY_REWRITE").is_some() {
        std::fs::write(&list, &differences).expect("a file");
    }
    let known = std::fs::read_to_string(&list).expect("the list");
    assert_eq!(differences, known, "run with FERRY_REWRITE=1 and look at the difference");
}
