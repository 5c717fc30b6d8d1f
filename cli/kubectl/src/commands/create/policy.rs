//! `create quota`, `poddisruptionbudget`, `priorityclass`.

use ferry_api::quantity::Quantity;
use ferry_api::selector::{LabelSelector, Operator};
use serde_json::{Map, Value, json};

use super::{create_generated, generator_flags, int_or_string, one_name};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::flags::{Args, Flag};

pub const QUOTA: Command = Command {
    name: "quota",
    aliases: &["resourcequota"],
    short: "Create a resource quota",
    usage: "NAME [--hard=key1=value1,key2=value2] [--scopes=Scope1,Scope2]",
    flags: generator_flags!(&[
        Flag::text("hard", "Limits, as resource=quantity separated by commas"),
        Flag::text("scopes", "Scopes the quota is about, separated by commas"),
    ]),
    run: Some(|cli| {
        Box::pin(async move { create_generated(cli, quota(&cli.args)?, "failed to create quota:").await })
    }),
    ..Command::NONE
};

pub const POD_DISRUPTION_BUDGET: Command = Command {
    name: "poddisruptionbudget",
    aliases: &["pdb"],
    short: "Create a pod disruption budget",
    usage: "NAME --selector=SELECTOR --min-available=N",
    flags: generator_flags!(&[
        Flag::text("min-available", "Pods that must stay available, as number or percentage"),
        Flag::text("max-unavailable", "Pods that may be unavailable, as number or percentage"),
        Flag::text("selector", "Label selector of the pods"),
    ]),
    run: Some(|cli| {
        Box::pin(async move {
            create_generated(cli, budget(&cli.args)?, "failed to create poddisruptionbudgets:").await
        })
    }),
    ..Command::NONE
};

pub const PRIORITY_CLASS: Command = Command {
    name: "priorityclass",
    aliases: &["pc"],
    short: "Create a priority class",
    usage: "NAME --value=VALUE --global-default=BOOL",
    flags: generator_flags!(&[
        Flag::int("value", "Value of the class"),
        Flag::bool("global-default", "Use this class for pods that name none"),
        Flag::text("description", "What the class is for"),
        Flag::text("preemption-policy", "PreemptLowerPriority or Never").default("PreemptLowerPriority"),
    ]),
    run: Some(|cli| {
        Box::pin(async move {
            create_generated(cli, priority_class(&cli.args)?, "failed to create priorityclass:").await
        })
    }),
    ..Command::NONE
};

/// `cpu=1,memory=2Gi` as a resource list.
pub fn resource_list(text: &str) -> Result<Map<String, Value>> {
    let mut list = Map::new();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (name, quantity) = match pair.split('=').collect::<Vec<_>>().as_slice() {
            [name, quantity] => ((*name).to_owned(), (*quantity).to_owned()),
            _ => {
                return Err(Error::message(format!(
                    "Invalid argument syntax {pair}, expected <resource>=<value>"
                )));
            }
        };
        if Quantity::parse(&quantity).is_err() {
            return Err(Error::message(
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ));
        }
        list.insert(name, quantity.into());
    }
    Ok(list)
}

fn quota(args: &Args) -> Result<Value> {
    let name = one_name(args)?;
    let mut spec = Map::new();
    let hard = resource_list(args.text("hard"))?;
    if !hard.is_empty() {
        spec.insert("hard".to_owned(), Value::Object(hard));
    }
    if !args.text("scopes").is_empty() {
        let scopes: Vec<&str> = args.text("scopes").split(',').collect();
        if scopes.contains(&"") {
            return Err(Error::message("invalid resource quota scope \"\""));
        }
        spec.insert("scopes".to_owned(), json!(scopes));
    }
    Ok(
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec, "status": {}}),
    )
}

fn budget(args: &Args) -> Result<Value> {
    let name = one_name(args)?;
    let (minimum, maximum) = (args.text("min-available"), args.text("max-unavailable"));
    if args.text("selector").is_empty() {
        return Err(Error::message("a selector must be specified"));
    }
    if minimum.is_empty() && maximum.is_empty() {
        return Err(Error::message("one of min-available or max-unavailable must be specified"));
    }
    if !minimum.is_empty() && !maximum.is_empty() {
        return Err(Error::message("min-available and max-unavailable cannot be both specified"));
    }
    let is_amount =
        |text: &str| text.strip_suffix('%').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
    if !is_amount(minimum) {
        return Err(Error::message("invalid format specified for min-available"));
    }
    if !is_amount(maximum) {
        return Err(Error::message("invalid format specified for max-unavailable"));
    }
    let mut spec = json!({"selector": label_selector(args.text("selector"))?});
    if minimum.is_empty() {
        spec["maxUnavailable"] = int_or_string(maximum);
    } else {
        spec["minAvailable"] = int_or_string(minimum);
    }
    Ok(
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec,
        "status": {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}}),
    )
}

/// A selector's text as the API's selector object.
fn label_selector(text: &str) -> Result<Value> {
    let parsed = LabelSelector::parse(text)
        .map_err(|error| Error::message(format!("couldn't parse the selector string {text:?}: {error}")))?;
    let mut selector = json!({});
    for requirement in parsed.requirements() {
        let operator = match requirement.operator {
            Operator::Equals | Operator::DoubleEquals => {
                selector["matchLabels"][requirement.key.as_str()] = json!(requirement.values.first());
                continue;
            }
            Operator::In => "In",
            Operator::NotIn | Operator::NotEquals => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            Operator::GreaterThan | Operator::LessThan => {
                return Err(Error::message(format!(
                    "couldn't parse the selector string {text:?}: {:?} is not a valid label selector operator",
                    requirement.operator
                )));
            }
        };
        let mut expression = json!({"key": requirement.key, "operator": operator});
        if !requirement.values.is_empty() {
            expression["values"] = json!(requirement.values);
        }
        if !selector["matchExpressions"].is_array() {
            selector["matchExpressions"] = json!([]);
        }
        if let Some(expressions) = selector["matchExpressions"].as_array_mut() {
            expressions.push(expression);
        }
    }
    Ok(selector)
}

fn priority_class(args: &Args) -> Result<Value> {
    let name = one_name(args)?;
    let mut object = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
        "value": args.int("value"), "preemptionPolicy": args.text("preemption-policy")});
    if args.bool("global-default") {
        object["globalDefault"] = json!(true);
    }
    if !args.text("description").is_empty() {
        object["description"] = json!(args.text("description"));
    }
    Ok(object)
}
