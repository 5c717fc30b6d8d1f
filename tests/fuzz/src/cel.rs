//! CEL: an expression, parsed, checked and run with a budget. After it may come the object it is about, as JSON.

use ferry_cel::{Access, AccessReviews, Bindings, Budget, Failure, Question, Type, admission};
use serde_json::{Value, json};

use crate::parts;

/// A hundredth of what a policy may cost: an expression that goes round and round ends soon.
const BUDGET: i64 = 100_000;

pub fn run(data: &[u8]) {
    let Some(mut parts) = parts(data) else { return };
    let expression = parts.next().unwrap_or_default();
    let object = parts.next().and_then(|text| ferry_api::read::document(text.as_bytes()).ok());
    let object = object.unwrap_or_else(sample);
    let request = json!({"kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE", "name": "a",
        "namespace": "default", "userInfo": {"username": "ann", "groups": ["a", "b"]}, "dryRun": false});
    let environment = admission::environment(true, true).with_object_literals();
    let _ = environment.compile(expression, &[Type::Bool]);
    let Ok(program) = environment.compile(expression, &[]) else { return };
    let answers = AccessReviews::default();
    let mut bindings = Bindings::new();
    bindings
        .set("object", &object)
        .set("oldObject", &object)
        .set("namespaceObject", &object)
        .set("params", &object)
        .set("request", &request)
        .set_authorizer(answers.clone(), Question::default());
    // What the authorizer is asked is answered, as an apiserver does; no more often than a program can ask.
    for _ in 0..8 {
        match program.evaluate(&bindings, &mut Budget::new(BUDGET)) {
            Err(Failure::Asks(questions)) => {
                for question in questions {
                    answers.answer(question, Access { allowed: true, ..Access::default() });
                }
            }
            Ok(outcome) => {
                let _ = (outcome.to_json(), outcome.as_bool(), outcome.type_name());
                return;
            }
            Err(_) => return,
        }
    }
}

fn sample() -> Value {
    json!({"metadata": {"name": "a", "labels": {"app": "a"}}, "spec": {"replicas": 3, "items": [1, 2, 3, 2.5, "x"],
        "text": "some text, 10.0.0.1, https://a.example:443/p?q=r", "when": "2026-01-02T03:04:05Z", "memory": "1Gi"}})
}

pub fn seeds() -> Vec<Vec<u8>> {
    const EXPRESSIONS: &[&str] = &[
        "object.spec.replicas <= 5 && has(object.metadata.labels) || !('app' in object.metadata.labels)",
        "object.spec.items.all(i, i in [1, 2, 3]) ? object.spec.items.map(i, i).size() : object.spec.items.filter(i, type(i) == int)[0]",
        "object.spec.text.split(',').exists_one(t, t.trim().startsWith('10')) && object.spec.text.matches('^[a-z ]+')",
        "ip('10.0.0.1').family() == 4 && cidr('10.0.0.0/8').containsIP('10.1.2.3') && isIP(object.spec.text)",
        "url(object.spec.text).getHost() + quantity(object.spec.memory).asInteger() - quantity('1k').sub(1)",
        "timestamp(object.spec.when).getFullYear() + duration('1h').getMinutes() > 1u",
        "object.metadata.?labels.?app.orValue('x') == optional.of('a').hasValue()",
        "authorizer.group('apps').resource('deployments').namespace('default').check('create').allowed()",
        "sets.contains([1, 2], [2]) && [3, 1, 2].sort() == [1, 2, 3] && [1, 2].sum() == 3 && 'a'.format([1])",
        "Object{spec: Object.spec{replicas: 3}} == object && JSONPatch{op: 'add', path: '/a', value: {}} != null",
        "semver('1.2.3').isLessThan(semver('2.0.0')) && format.dns1123Label().validate('a').hasValue()",
        "base64.encode(b'\\x00\\u00e9') + r'raw' + \"\"\"long\"\"\" + string(1e3) + dyn(0x1F)",
        "request.userInfo.groups.exists(g, g == 'system:masters') && -(-1) - - 1 % 2 * 3 / 4 == 5",
    ];
    EXPRESSIONS.iter().map(|text| text.as_bytes().to_vec()).collect()
}
