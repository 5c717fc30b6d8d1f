//! Expressions, what they come to, and what is said of those that come to nothing.

use ferry_cel::{
    Access, AccessReviews, Bindings, Budget, Environment, Failure, PER_CALL_LIMIT, Question, Type,
};
use serde_json::{Value, json};

fn environment() -> Environment {
    let user = Type::object(
        "kubernetes.UserInfo",
        [("username", Type::String), ("groups", Type::list(Type::String))],
    );
    let request = Type::object(
        "kubernetes.AdmissionRequest",
        [("operation", Type::String), ("dryRun", Type::Bool), ("userInfo", user)],
    );
    Environment::new([
        ("object", Type::Dyn),
        ("oldObject", Type::Dyn),
        ("request", request),
        ("authorizer", Type::Opaque("kubernetes.authorization.Authorizer")),
        ("authorizer.requestResource", Type::Opaque("kubernetes.authorization.ResourceCheck")),
        ("variables.small", Type::Dyn),
    ])
}

fn object() -> Value {
    json!({
        "metadata": {"name": "web-1", "labels": {"app": "web", "tier": "front"}},
        "spec": {"replicas": 3, "ratio": 0.5, "containers": [
            {"name": "a", "image": "nginx:1.25", "cpu": "100m"},
            {"name": "b", "image": "redis", "cpu": "2"},
        ]},
    })
}

fn evaluate(source: &str) -> Result<Value, String> {
    let object = object();
    let request = json!({"operation": "CREATE", "userInfo": {"username": "ann", "groups": ["dev"]}});
    let program = environment().compile(source, &[]).map_err(|error| error.to_string())?;
    let mut bindings = Bindings::new();
    bindings.set("object", &object).set("oldObject", &Value::Null).set("request", &request);
    let outcome = program
        .evaluate(&bindings, &mut Budget::new(10 * PER_CALL_LIMIT))
        .map_err(|failure| failure.to_string())?;
    outcome.to_json().ok_or_else(|| format!("a {}", outcome.type_name()))
}

fn check(source: &str, expected: Value) {
    assert_eq!(evaluate(source), Ok(expected), "{source}");
}

fn holds(source: &str) {
    check(source, json!(true));
}

#[test]
fn objects_are_what_they_are_in_json() {
    holds("object.spec.replicas == 3 && object.spec.ratio < 1.0 && object.spec.replicas > 2.5");
    holds("object.metadata.labels.exists(key, key == 'app') && 'tier' in object.metadata.labels");
    holds("object.metadata.labels == {'tier': 'front', 'app': 'web'}");
    holds("oldObject == null && object != null");
    holds("!has(object.spec.paused) && object.?spec.?paused.orValue(false) == false");
    holds("object.spec.containers.all(c, c.name.size() == 1 && c.image.startsWith(c.name) == false)");
    check("object.spec.containers.map(c, c.name)", json!(["a", "b"]));
    check("object.spec.containers.filter(c, c.name == 'b')[0].image", json!("redis"));
    holds("request.operation == 'CREATE' && 'dev' in request.userInfo.groups && !has(request.dryRun)");
    holds("type(object.spec.replicas) == int && type('x') == string");
}

#[test]
fn libraries_of_the_language() {
    check("'TacoCat'.lowerAscii().replace('t', 'T', 1).split('o').join('-')", json!("Tac-cat"));
    check("'%s has %d'.format(['pod', 2])", json!("pod has 2"));
    check("'hello'.substring(1, 3) + 'x'.charAt(0)", json!("elx"));
    check("[3, 1, 2].sort() + [[1], [2]].flatten()", json!([1, 2, 3, 1, 2]));
    holds("sets.contains([1, 2, 3], [2]) && sets.intersects([1], [1, 2]) && !sets.equivalent([1], [1, 2])");
    holds("optional.of(1).hasValue() && [1, 2].exists_one(x, x == 1)");
    holds("timestamp('2024-01-02T03:04:05Z').getFullYear() == 2024 && duration('90s').getMinutes() == 1");
}

#[test]
fn loops_with_two_variables() {
    holds("{'a': 1, 'b': 2}.all(k, v, v > 0 && k != '')");
    holds("['x', 'y'].exists(i, item, i == 1 && item == 'y')");
    holds("[5, 6].existsOne(i, item, item == 5)");
    check("['x', 'y'].transformList(i, item, string(i) + item)", json!(["0x", "1y"]));
    check("['x', 'y'].transformList(i, item, i > 0, item)", json!(["y"]));
    check("{'a': 1, 'b': 2}.transformMap(k, v, v > 1, v * 10)", json!({"b": 20}));
}

#[test]
fn functions_of_kubernetes_libraries_give_upstreams_results() {
    holds(
        "quantity('100Mi').isLessThan(quantity('1Gi')) && quantity('1').add(quantity('500m')).sub(1) == quantity('0.5')",
    );
    holds(
        "isQuantity('20k') && !isQuantity('x') && quantity('1.5').isInteger() == false && quantity('2k').asInteger() == 2000",
    );
    holds("quantity('-1').sign() == -1 && quantity('1').compareTo(quantity('1000m')) == 0");
    holds("ip('127.0.0.1').isLoopback() && ip('::1').family() == 6 && isIP('10.0.0.300') == false");
    holds("ip.isCanonical('::1') && !ip.isCanonical('0:0::1') && string(ip('10.0.0.1')) == '10.0.0.1'");
    holds(
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsCIDR(cidr('10.1.0.0/16'))",
    );
    holds("cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('10.0.0.0/8').prefixLength() == 8");
    holds("url('https://example.com:8443/a%20b?x=1&x=2').getPort() == '8443'");
    check("url('https://example.com:8443/a%20b?x=1&x=2').getQuery()", json!({"x": ["1", "2"]}));
    check("url('https://[::1]:80/a').getHostname()", json!("::1"));
    holds("isURL('/path') && !isURL('nothing')");
    check("'abc 12 34'.findAll('[0-9]+')", json!(["12", "34"]));
    check("'abc 12'.find('[a-z]+')", json!("abc"));
    holds("[1, 2, 3].isSorted() && [1, 2].sum() == 3 && [2, 1].min() == 1 && ['b', 'a'].max() == 'b'");
    holds("[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(7) == -1");
    holds(
        "!format.dns1123Label().validate('a-b').hasValue() && format.named('uuid').value().validate('x').hasValue()",
    );
    holds(
        "semver('1.2.3').isLessThan(semver('1.10.0')) && semver('v1.2', true).minor() == 2 && !isSemver('1')",
    );
}

#[test]
fn compile_errors_are_reported_before_evaluation() {
    let check = |source: &str, expected: &str| {
        assert_eq!(
            evaluate(source).expect_err(source),
            format!("compilation failed: {expected}"),
            "{source}"
        );
    };
    check(
        "nothing == 1",
        "ERROR: <input>:1:1: undeclared reference to 'nothing' (in container '')\n | nothing == 1\n | ^",
    );
    check(
        "object.name.shout()",
        "ERROR: <input>:1:18: undeclared reference to 'shout' (in container '')\n | object.name.shout()\n | .................^",
    );
    assert!(evaluate("request.nobody").expect_err("a field").contains("undefined field 'nobody'"));
    assert!(
        evaluate("1 == 'a'")
            .expect_err("types")
            .contains("found no matching overload for '_==_' applied to '(int, string)'")
    );
    assert!(
        evaluate("object.spec.").expect_err("syntax").starts_with("compilation failed: ERROR: <input>:1:")
    );
}

#[test]
fn an_expression_has_to_come_to_the_type_that_is_asked_for() {
    let compile = |source| environment().compile(source, &[Type::Bool]).map(|_| ()).map_err(|error| error.0);
    assert_eq!(compile("object.anything"), Ok(()));
    assert_eq!(compile("1 + 2"), Err("must evaluate to bool but got int".to_string()));
    assert_eq!(compile("[1].map(x, x > 0)"), Err("must evaluate to bool but got list(bool)".to_string()));
}

#[test]
fn failures_have_the_words_that_clients_know() {
    let check = |source: &str, expected: &str| assert_eq!(evaluate(source), Err(expected.into()), "{source}");
    check("object.spec.missing.deeper", "no such key: missing");
    check("object.spec.containers[7]", "index out of bounds: 7");
    check("object.spec.replicas / 0", "division by zero");
    check("object.spec.replicas > 'a'", "no such overload");
    check(
        "quantity('x')",
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
    );
    // An error on one side of `||` is forgiven when the other side decides.
    holds("object.spec.missing == 1 || true");
}

#[test]
fn an_expression_ends_at_its_cost_limit() {
    let expensive =
        "lists.range(1000).all(a, lists.range(1000).all(b, lists.range(1000).all(c, a + b + c >= 0)))";
    assert_eq!(evaluate(expensive), Err("operation cancelled: actual cost limit exceeded".into()));
    let growing =
        (0..12).fold("'aaaaaaaaaa'".to_string(), |text, _| format!("{text}.replace('a', 'aaaaaaaaaa')"));
    assert_eq!(evaluate(&growing), Err("operation cancelled: actual cost limit exceeded".into()));
    let copies = "lists.range(100000).map(x, object)";
    assert_eq!(evaluate(copies), Err("operation cancelled: actual cost limit exceeded".into()));
    // Hiding the error does not help.
    assert_eq!(
        evaluate(&format!("({expensive}) || true")),
        Err("operation cancelled: actual cost limit exceeded".into())
    );

    let program = environment().compile("object.all(x, x > 0)", &[]).expect("compiles");
    let list = Value::from((1..200).collect::<Vec<i64>>());
    let mut bindings = Bindings::new();
    bindings.set("object", &list);
    let mut budget = Budget::new(5_000);
    let spent = (0..100).take_while(|_| program.evaluate(&bindings, &mut budget).is_ok()).count();
    assert!((1..20).contains(&spent), "{spent}");
    assert_eq!(program.evaluate(&bindings, &mut budget).err(), Some(Failure::TooExpensive { whole: true }));
}

#[test]
fn the_authorizer_is_asked_outside_and_the_expression_goes_on() {
    let source = "authorizer.group('apps').resource('deployments').namespace('a').check('get').allowed() \
                  && authorizer.requestResource.check('custom').reason() == 'why not'";
    let program = environment().compile(source, &[Type::Bool]).expect("compiles");
    let answers = AccessReviews::default();
    let own = Question { resource: "pods".into(), namespace: "a".into(), ..Question::default() };
    let mut bindings = Bindings::new();
    bindings.set_authorizer(answers.clone(), own.clone());
    let mut asked = Vec::new();
    let outcome = loop {
        match program.evaluate(&bindings, &mut Budget::new(PER_CALL_LIMIT)) {
            Err(Failure::Asks(questions)) => {
                for question in questions {
                    asked.push(question.clone());
                    answers.answer(question, Access { allowed: true, reason: "why not".into(), error: None });
                }
            }
            other => break other.expect("no failure"),
        }
    };
    assert_eq!(outcome.as_bool(), Some(true));
    // Both at once: what the one says does not decide whether the other is needed.
    let first = Question {
        verb: "get".into(),
        group: "apps".into(),
        resource: "deployments".into(),
        namespace: "a".into(),
        ..Question::default()
    };
    assert_eq!(asked, [Question { verb: "custom".into(), ..own }, first]);
}

#[test]
fn variables_are_expressions_and_fail_where_they_are_named() {
    let environment = environment();
    let program = environment.compile("variables.small && true", &[Type::Bool]).expect("compiles");
    assert!(program.references().contains("variables.small"));
    let (yes, mut budget) = (json!(true), Budget::new(PER_CALL_LIMIT));
    let mut source = Bindings::new();
    source.set("object", &yes);
    let small = environment.compile("object", &[]).expect("compiles").evaluate(&source, &mut budget);
    let mut bindings = Bindings::new();
    bindings.set_variable("small", small);
    assert_eq!(program.evaluate(&bindings, &mut budget).expect("true").as_bool(), Some(true));
    bindings.set_variable("small", Err(Failure::Error("no such key: x".into())));
    assert_eq!(
        program.evaluate(&bindings, &mut budget).expect_err("failed").to_string(),
        "composited variable \"small\" fails to evaluate: no such key: x"
    );
}

#[test]
fn objects_that_are_written_out_are_checked_by_their_names() {
    let environment = environment().with_object_literals();
    let compile = |source: &str| environment.compile(source, &[]);
    let check = |source: &str, kind: Type, expected: Value| {
        let program = compile(source).unwrap_or_else(|error| panic!("{source}: {error}"));
        assert_eq!(program.result(), &kind, "{source}");
        let outcome = program.evaluate(&Bindings::new(), &mut Budget::new(PER_CALL_LIMIT)).expect("it runs");
        assert_eq!(outcome.to_json(), Some(expected), "{source}");
    };
    check("Object{}", Type::literal("Object"), json!({}));
    check(
        "Object{spec: Object.spec{replicas: 1 + 2, ?paused: optional.none(), list: [Object.spec.list{a: 'b'}]}}",
        Type::literal("Object"),
        json!({"spec": {"replicas": 3, "list": [{"a": "b"}]}}),
    );
    check(
        "[1, 2].map(n, JSONPatch{op: 'remove', path: '/' + string(n)})",
        Type::list(Type::literal("JSONPatch")),
        json!([{"op": "remove", "path": "/1"}, {"op": "remove", "path": "/2"}]),
    );
    check("jsonpatch.escapeKey('a/b~c')", Type::String, json!("a~1b~0c"));
    let refused = |source: &str, expected: &str| {
        let error = compile(source).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(expected), "{source}: {error}");
    };
    refused(
        "Object{spec: Object.status{}}",
        "unexpected type name \"Object.status\", expected \"Object.spec\"",
    );
    refused("JSONPatch{op: 1}", "expected type of field 'op' is 'string' but provided type is 'int'");
    refused("JSONPatch{do: 'add'}", "undefined field 'do'");
    refused("Pod{}", "undeclared reference to 'Pod'");
    assert!(self::environment().compile("Object{}", &[]).is_err(), "only where they are allowed");
}

#[test]
fn urls_are_read_as_requests_have_them() {
    holds("url('https://example.com/with space/').getEscapedPath() == '/with%20space/'");
    holds("url('https://example.com/a%20b').getEscapedPath() == '/a%20b'");
    check("url('https://a/b?k=x y#part').getQuery()", json!({"k": ["x y"]}));
    holds("isURL('mailto:a@b.c') && !isURL('example.com/a')");
}

#[test]
fn types_have_names_with_dots() {
    holds("type(duration('1h')) == google.protobuf.Duration");
    holds("type(timestamp('2020-01-01T00:00:00Z')) == google.protobuf.Timestamp");
    holds("type(ip('10.0.0.1')) == net.IP");
}

#[test]
fn entries_of_maps_are_transformed() {
    check("{'a': 1, 'b': 2}.transformMapEntry(k, v, {k + '2': v + 1})", json!({"a2": 2, "b2": 3}));
    check("{'a': 1, 'b': 2}.transformMapEntry(k, v, v > 1, {k: v})", json!({"b": 2}));
    assert!(evaluate("{'a': 1, 'b': 2}.transformMapEntry(k, v, {'same': v})").is_err());
}

#[test]
fn arguments_that_can_only_be_wrong_are_refused() {
    for (source, at) in [
        ("'a'.matches(')')", "1:13"),
        ("duration('1d') > duration('1h')", "1:10"),
        ("timestamp('x') == timestamp('y')", "1:11"),
    ] {
        let why = evaluate(source).expect_err("refused");
        let place = format!("compilation failed: ERROR: <input>:{at}: invalid ");
        assert!(why.starts_with(&place), "{source}: {why}");
    }
}
