//! Each rule by the least change to a good definition that breaks it.

use ferry_api::{FieldErrors, GroupVersionKind, Kind, Object, kinds};
use serde_json::{Value, json};

use super::Definition;
use crate::strategy::{Strategy, UpdateScope};

fn good() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["w"], "categories": ["all"]},
            "versions": [version("v1", true), version("v2", false)],
        },
    })
}

fn version(name: &str, storage: bool) -> Value {
    json!({
        "name": name, "served": true, "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "color": {"type": "string"}, "count": {"type": "integer"}, "size": {"type": "number"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            }},
        }}},
    })
}

/// A webhook that converts; `config` is whom it calls.
fn webhook(config: Value) -> Value {
    json!({"strategy": "Webhook", "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]}})
}

/// What every new definition goes through before it is judged.
fn prepared(value: Value) -> Object {
    let mut object = Object::from_value(value).expect("an object");
    Definition.default(&mut object);
    Definition.prepare_create(&mut object);
    object
}

/// The version that definitions are written in.
fn asked() -> &'static Kind {
    let gvk = GroupVersionKind::from_api_version("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    kinds::builtin_row(&gvk).expect("definitions are built in")
}

fn told(errors: &FieldErrors) -> Vec<String> {
    errors.0.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn create(change: impl FnOnce(&mut Value), expected: &[&str]) {
    let mut value = good();
    change(&mut value);
    let mut errors = FieldErrors::default();
    Definition.validate(&prepared(value), asked(), &mut errors).expect("judged");
    assert_eq!(told(&errors), expected);
}

#[track_caller]
fn update(old: impl FnOnce(&mut Value), new: impl FnOnce(&mut Value), expected: &[&str]) {
    let mut value = prepared(good()).into_value();
    old(&mut value);
    let before = Object::from_value(value.clone()).expect("an object");
    new(&mut value);
    let mut after = Object::from_value(value).expect("an object");
    Definition.default(&mut after);
    Definition.prepare_update(&mut after, &before);
    let mut errors = FieldErrors::default();
    Definition.validate_update(&after, &before, asked(), UpdateScope::Main, &mut errors).expect("judged");
    assert_eq!(told(&errors), expected);
}

fn established(object: &mut Value) {
    object["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
}

#[test]
fn a_good_definition_gets_its_defaults() {
    create(|_| {}, &[]);
    let object = prepared(good());
    assert_eq!(object.get(&["spec", "names", "singular"]), Some(&json!("widget")));
    assert_eq!(object.get(&["spec", "names", "listKind"]), Some(&json!("WidgetList")));
    assert_eq!(object.get(&["spec", "conversion"]), Some(&json!({"strategy": "None"})));
    assert_eq!(object.get(&["status", "storedVersions"]), Some(&json!(["v1"])));
    let mut value = good();
    value["spec"]["conversion"] = webhook(json!({"service": {"name": "a", "namespace": "b"}}));
    let port = ["spec", "conversion", "webhook", "clientConfig", "service", "port"];
    assert_eq!(prepared(value).get(&port), Some(&json!(443)));
}

#[test]
fn the_name_is_made_of_plural_and_group() {
    create(
        |it| it["metadata"]["name"] = "gadgets.example.com".into(),
        &[r#"metadata.name: Invalid value: "gadgets.example.com": must be spec.names.plural+"."+spec.group"#],
    );
}

#[test]
fn the_group_is_a_domain() {
    let check = |group: &str, expected: &str| {
        create(
            |it| {
                it["spec"]["group"] = group.into();
                it["metadata"]["name"] = format!("widgets.{group}").into();
            },
            &[expected],
        );
    };
    check("", "spec.group: Required value");
    check("apps", r#"spec.group: Invalid value: "apps": should be a domain with at least one dot"#);
    let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    check("Example.com", &format!(r#"spec.group: Invalid value: "Example.com": {rule}"#));
}

#[test]
fn scope_and_names_are_those_that_there_are() {
    create(|it| it["spec"]["scope"] = "".into(), &["spec.scope: Required value"]);
    create(
        |it| it["spec"]["scope"] = "Galaxy".into(),
        &[r#"spec.scope: Unsupported value: "Galaxy": supported values: "Cluster", "Namespaced""#],
    );
    let label = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
    create(
        |it| it["spec"]["names"]["singular"] = "Wid_get".into(),
        &[&format!(r#"spec.names.singular: Invalid value: "Wid_get": {label}"#)],
    );
    create(
        |it| it["spec"]["names"]["kind"] = "Wid_get".into(),
        &[
            &format!(r#"spec.names.singular: Invalid value: "wid_get": {label}"#),
            &format!(
                r#"spec.names.kind: Invalid value: "Wid_get": may have mixed case, but should otherwise match: {label}"#
            ),
            &format!(
                r#"spec.names.listKind: Invalid value: "Wid_getList": may have mixed case, but should otherwise match: {label}"#
            ),
        ],
    );
    create(
        |it| it["spec"]["names"]["kind"] = "".into(),
        &[
            "spec.names.singular: Required value",
            "spec.names.kind: Required value",
            "spec.names.listKind: Required value",
        ],
    );
    create(
        |it| it["spec"]["names"]["listKind"] = "Widget".into(),
        &[r#"spec.names.listKind: Invalid value: "Widget": kind and listKind may not be the same"#],
    );
    create(
        |it| {
            it["spec"]["names"]["shortNames"] = json!(["w", "W"]);
            it["spec"]["names"]["categories"] = json!(["0"]);
        },
        &[
            &format!(r#"spec.names.shortNames[1]: Invalid value: "W": {label}"#),
            &format!(r#"spec.names.categories[0]: Invalid value: "0": {label}"#),
        ],
    );
}

#[test]
fn versions_have_names_of_their_own_and_one_is_stored() {
    create(
        |it| it["spec"]["versions"][1]["name"] = "v1".into(),
        &[r#"spec.versions: Invalid value: ["v1","v1"]: must contain unique version names"#],
    );
    create(
        |it| it["spec"]["versions"][1]["storage"] = true.into(),
        &[
            r#"spec.versions: Invalid value: ["v1","v2"]: must have exactly one version marked as storage version"#,
            r#"status.storedVersions: Invalid value: ["v1"]: must have the storage version v2"#,
        ],
    );
    create(
        |it| it["spec"]["versions"] = json!([]),
        &[
            "spec.versions: Invalid value: []: must have exactly one version marked as storage version",
            "status.storedVersions: Invalid value: null: must have at least one stored version",
        ],
    );
    create(
        |it| it["spec"]["versions"][1]["schema"] = Value::Null,
        &["spec.versions[1].schema.openAPIV3Schema: Required value"],
    );
}

#[test]
fn a_warning_belongs_to_a_deprecated_version() {
    let check = |deprecated: bool, warning: &str, why: &[&str]| {
        let path = "spec.versions[0].deprecationWarning: Invalid value";
        let expected: Vec<String> = why.iter().map(|why| format!("{path}: {warning:?}: {why}")).collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        create(
            |it| {
                it["spec"]["versions"][0]["deprecated"] = deprecated.into();
                it["spec"]["versions"][0]["deprecationWarning"] = warning.into();
            },
            &expected,
        );
    };
    check(true, "use v2, überall", &[]);
    check(false, "use v2", &["can only be set for deprecated versions"]);
    check(true, "", &["must not be an empty string"]);
    check(true, &"a".repeat(257), &["must be <= 256 characters long"]);
    check(
        true,
        "use\nv2",
        &["must only contain printable UTF-8 characters; non-printable character found at index 3"],
    );
}

#[test]
fn schemas_are_judged_once_where_all_versions_have_the_same() {
    create(
        |it| {
            for index in 0..2 {
                it["spec"]["versions"][index]["schema"]["openAPIV3Schema"]["type"] = "array".into();
            }
        },
        &[
            "spec.validation.openAPIV3Schema.items: Required value: must be specified",
            r#"spec.validation.openAPIV3Schema.type: Invalid value: "array": must be object at the root"#,
        ],
    );
    create(
        |it| it["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["type"] = "".into(),
        &["spec.versions[1].schema.openAPIV3Schema.type: Required value: must not be empty at the root"],
    );
}

#[test]
fn fields_are_pruned() {
    create(
        |it| it["spec"]["preserveUnknownFields"] = true.into(),
        &[
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ],
    );
}

#[test]
fn printer_columns_have_a_name_a_type_and_a_path() {
    let check = |column: Value, expected: &[&str]| {
        create(|it| it["spec"]["versions"][0]["additionalPrinterColumns"] = json!([column]), expected);
    };
    check(json!({"name": "Color", "type": "string", "jsonPath": ".spec.color"}), &[]);
    let path = "spec.versions[0].additionalPrinterColumns[0]";
    check(
        json!({}),
        &[
            &format!("{path}.name: Required value"),
            &format!("{path}.type: Required value: must be one of boolean,date,integer,number,string"),
            &format!("{path}.JSONPath: Required value"),
        ],
    );
    check(
        json!({"name": "Color", "type": "colour", "format": "rgb", "jsonPath": "spec.color"}),
        &[
            &format!(
                r#"{path}.type: Invalid value: "colour": must be one of boolean,date,integer,number,string"#
            ),
            &format!(
                r#"{path}.format: Invalid value: "rgb": must be one of byte,date,date-time,double,float,int32,int64,password"#
            ),
            &format!(
                r#"{path}.JSONPath: Invalid value: "spec.color": must be a simple json path starting with ."#
            ),
        ],
    );
}

#[test]
fn scale_finds_its_numbers_in_spec_and_status() {
    let check = |scale: Value, expected: &[&str]| {
        create(
            |it| {
                for index in 0..2 {
                    it["spec"]["versions"][index]["subresources"] = json!({"scale": scale});
                }
            },
            expected,
        );
    };
    check(json!({"specReplicasPath": ".spec.count", "statusReplicasPath": ".status.count"}), &[]);
    check(
        json!({}),
        &[
            "spec.subresources.scale.specReplicasPath: Required value",
            "spec.subresources.scale.statusReplicasPath: Required value",
        ],
    );
    check(
        json!({"specReplicasPath": ".status.a", "statusReplicasPath": "status.a", "labelSelectorPath": ".metadata.labels"}),
        &[
            r#"spec.subresources.scale.specReplicasPath: Invalid value: ".status.a": should be a json path under .spec"#,
            r#"spec.subresources.scale.statusReplicasPath: Invalid value: "status.a": must be a simple json path starting with ."#,
            r#"spec.subresources.scale.labelSelectorPath: Invalid value: ".metadata.labels": should be a json path under either .spec or .status"#,
        ],
    );
}

#[test]
fn selectable_fields_are_in_the_schema_and_few() {
    let fields = |paths: &[&str]| -> Value {
        paths.iter().map(|path| json!({"jsonPath": path})).collect::<Vec<_>>().into()
    };
    let check = |paths: &[&str], expected: &[&str]| {
        create(|it| it["spec"]["versions"][0]["selectableFields"] = fields(paths), expected);
    };
    let at = |index: usize| format!("spec.versions[0].selectableFields[{index}].jsonPath");
    check(&[".spec.color", ".spec.count", ".spec.labels.a"], &[]);
    let invalid = |index: usize, path: &str, why: &str| {
        format!("{}: Invalid value: {path:?}: is an invalid path: {why}", at(index))
    };
    check(
        &["", ".spec.none", ".spec.labels['a']", "spec.color", ".spec."],
        &[
            &format!("{}: Required value", at(0)),
            &invalid(1, ".spec.none", "does not refer to a valid field"),
            &invalid(2, ".spec.labels['a']", "array notation is not allowed"),
            &invalid(3, "spec.color", "expected [ or . but got: spec"),
            &invalid(4, ".spec.", "unexpected end of JSON path"),
        ],
    );
    check(
        &[".spec.size", ".spec.color", ".spec.color"],
        &[
            &format!(
                "{}: Invalid value: \".spec.size\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
                at(0)
            ),
            &format!(r#"{}: Duplicate value: ".spec.color""#, at(2)),
        ],
    );
    let many: Vec<String> = (0..9).map(|number| format!(".spec.labels.l{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    check(&many, &["spec.versions[0].selectableFields: Too many: 9: must have at most 8 items"]);
    // What was there before may stay.
    update(|it| it["spec"]["versions"][0]["selectableFields"] = fields(&many), |_| {}, &[]);
}

#[test]
fn a_webhook_that_converts_can_be_called() {
    let check = |conversion: Value, expected: &[&str]| {
        create(|it| it["spec"]["conversion"] = conversion, expected);
    };
    let service = json!({"service": {"name": "a", "namespace": "b"}});
    check(webhook(service.clone()), &[]);
    check(json!({"strategy": ""}), &["spec.conversion.strategy: Required value"]);
    check(
        json!({"strategy": "Magic"}),
        &[r#"spec.conversion.strategy: Unsupported value: "Magic": supported values: "None", "Webhook""#],
    );
    check(
        json!({"strategy": "Webhook"}),
        &[
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
            "spec.conversion.conversionReviewVersions: Required value",
        ],
    );
    check(
        json!({"strategy": "None", "webhook": {"clientConfig": service, "conversionReviewVersions": ["v1"]}}),
        &[
            "spec.conversion.webhookClientConfig: Forbidden: should not be set when strategy is not set to Webhook",
            "spec.conversion.conversionReviewVersions: Forbidden: should not be set when strategy is not set to Webhook",
        ],
    );
    check(
        webhook(json!({})),
        &["spec.conversion.webhookClientConfig: Required value: exactly one of url or service is required"],
    );
    check(
        webhook(json!({"url": "http://example.com"})),
        &[
            r#"spec.conversion.webhookClientConfig.url: Invalid value: "http": 'https' is the only allowed URL scheme; desired format: https://host[/path]"#,
        ],
    );
    let mut reviews = webhook(json!({"service": {"name": "a", "namespace": "b"}}));
    reviews["webhook"]["conversionReviewVersions"] = json!(["v7", "v7"]);
    check(
        reviews,
        &[
            r#"spec.conversion.conversionReviewVersions[1]: Invalid value: "v7": duplicate version"#,
            r#"spec.conversion.conversionReviewVersions: Invalid value: ["v7","v7"]: must include at least one of v1, v1beta1"#,
        ],
    );
}

#[test]
fn a_certificate_must_be_readable_once_the_definition_is_established() {
    let broken = webhook(json!({"url": "https://example.com", "caBundle": "bm90IGEgY2VydGlmaWNhdGU="}));
    create(|it| it["spec"]["conversion"] = broken.clone(), &[]);
    update(|_| {}, |it| it["spec"]["conversion"] = broken.clone(), &[]);
    let why = r#"spec.conversion.webhookClientConfig.caBundle: Invalid value: "bm90IGEgY2VydGlmaWNhdGU=": unable to load root certificates: unable to parse bytes as PEM block"#;
    update(established, |it| it["spec"]["conversion"] = broken.clone(), &[why]);
    let broken_before = |it: &mut Value| {
        established(it);
        it["spec"]["conversion"] = broken.clone();
    };
    update(broken_before, |_| {}, &[]);
}

#[test]
fn groups_of_the_kubernetes_project_need_an_approval() {
    let protect = |it: &mut Value| {
        it["spec"]["group"] = "widgets.k8s.io".into();
        it["metadata"]["name"] = "widgets.widgets.k8s.io".into();
    };
    let annotate = |it: &mut Value, text: &str| {
        it["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": text});
    };
    let missing = r#"metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation "api-approved.kubernetes.io", see https://github.com/kubernetes/enhancements/pull/1111"#;
    create(protect, &[missing]);
    create(
        |it| {
            protect(it);
            annotate(it, "because");
        },
        &[
            r#"metadata.annotations[api-approved.kubernetes.io]: Invalid value: "because": protected groups must have approval annotation "api-approved.kubernetes.io" with either a URL or a reason starting with "unapproved", see https://github.com/kubernetes/enhancements/pull/1111"#,
        ],
    );
    create(
        |it| {
            protect(it);
            annotate(it, "unapproved, for tests");
        },
        &[],
    );
    // It was missing before: a client that changes something else is not to blame.
    update(protect, |it| it["spec"]["names"]["shortNames"] = json!(["x"]), &[]);
    let approved = |it: &mut Value| {
        protect(it);
        annotate(it, "https://example.com");
    };
    update(approved, |it| it["metadata"]["annotations"] = json!({}), &[missing]);
}

#[test]
fn fields_that_determine_storage_keys_are_immutable() {
    let change = |it: &mut Value| {
        it["spec"]["scope"] = "Cluster".into();
        it["spec"]["names"]["kind"] = "Gadget".into();
    };
    update(|_| {}, change, &[]);
    update(
        established,
        change,
        &[
            r#"spec.scope: Invalid value: "Cluster": field is immutable"#,
            r#"spec.names.kind: Invalid value: "Gadget": field is immutable"#,
        ],
    );
    update(
        |_| {},
        |it| {
            it["spec"]["group"] = "example.org".into();
            it["spec"]["names"]["plural"] = "gadgets".into();
        },
        &[
            r#"spec.group: Invalid value: "example.org": field is immutable"#,
            r#"spec.names.plural: Invalid value: "gadgets": field is immutable"#,
        ],
    );
}

#[test]
fn a_version_that_objects_lie_in_stays() {
    let only_v2 = |it: &mut Value| it["spec"]["versions"] = json!([version("v2", true)]);
    update(
        |_| {},
        only_v2,
        &[
            r#"status.storedVersions[0]: Invalid value: "v1": missing from spec.versions; v1 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1 and removes v1 from status.storedVersions"#,
        ],
    );
    update(|it| it["status"]["storedVersions"] = json!(["v2"]), only_v2, &[]);
    // The new storage version is remembered beside the old one.
    let before = prepared(good());
    let mut value = before.clone().into_value();
    value["spec"]["versions"] = json!([version("v1", false), version("v2", true)]);
    let mut after = Object::from_value(value).expect("an object");
    Definition.prepare_update(&mut after, &before);
    assert_eq!(after.get(&["status", "storedVersions"]), Some(&json!(["v1", "v2"])));
}

#[test]
fn a_status_write_is_judged_by_its_names_alone() {
    let before = prepared(good());
    let mut after = before.clone();
    after.section_mut("status").insert("acceptedNames".into(), json!({"plural": "W"}));
    let mut errors = FieldErrors::default();
    let scope = UpdateScope::Status;
    Definition.validate_update(&after, &before, asked(), scope, &mut errors).expect("judged");
    assert_eq!(errors.0.len(), 1);
    assert_eq!(errors.0[0].path, "status.acceptedNames.plural");
}

#[test]
fn formats_that_nobody_knows_are_told_once() {
    let warnings = |value: &Value| {
        let object = prepared(value.clone());
        Definition.validate(&object, asked(), &mut FieldErrors::default()).expect("judged")
    };
    assert_eq!(warnings(&good()), Vec::<String>::new());
    let mut value = good();
    for index in 0..2 {
        let schema = &mut value["spec"]["versions"][index]["schema"]["openAPIV3Schema"];
        let fields = &mut schema["properties"]["spec"]["properties"];
        fields["color"]["format"] = "colour".into();
        fields["count"]["format"] = "int32".into();
        fields["labels"]["additionalProperties"]["format"] = "date-time".into();
    }
    assert_eq!(warnings(&value), [r#"unrecognized format "colour""#]);
    let object = prepared(value);
    let again = Definition
        .validate_update(&object, &object, asked(), UpdateScope::Main, &mut FieldErrors::default())
        .expect("judged");
    assert_eq!(again, Vec::<String>::new(), "what was said before is not said again");
}

#[test]
fn a_deletion_begins_with_the_finalizer_that_waits_for_objects() {
    let mut object = prepared(good());
    assert!(Definition.is_retained(&object));
    object.set_meta("deletionTimestamp", "2026-01-01T00:00:00Z");
    Definition.begin_deletion(&mut object);
    assert_eq!(object.finalizers().collect::<Vec<_>>(), ["customresourcecleanup.apiextensions.k8s.io"]);
    let condition = &object.0["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("Terminating"), &json!("InstanceDeletionPending"))
    );
    assert!(!Definition.is_retained(&object));
}
