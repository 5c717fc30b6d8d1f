//! JSON into CEL's values and back. Strings are borrowed from the JSON, so binding an object copies no
//! text.

use std::collections::HashMap;

use cel::common::types::{
    CelBool, CelBytes, CelDouble, CelDuration, CelInt, CelList, CelMap, CelMapKey, CelNull, CelOptional,
    CelString, CelTimestamp, CelUInt,
};
use cel::common::value::Val;
use serde_json::{Number, Value};

pub fn from_json(value: &Value) -> Box<dyn Val + '_> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(bool) => Box::new(CelBool::from(*bool)),
        Value::Number(number) => number_val(number),
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Array(items) => {
            let items: Vec<Box<dyn Val + '_>> = items.iter().map(from_json).collect();
            Box::new(CelList::from(items))
        }
        Value::Object(fields) => {
            let fields: HashMap<CelMapKey<'_>, Box<dyn Val + '_>> =
                fields.iter().map(|(key, value)| (CelMapKey::from(key.as_str()), from_json(value))).collect();
            Box::new(CelMap::from(fields))
        }
    }
}

fn number_val(number: &Number) -> Box<dyn Val> {
    match (number.as_i64(), number.as_f64()) {
        (Some(int), _) => Box::new(CelInt::from(int)),
        (None, Some(double)) => Box::new(CelDouble::from(double)),
        (None, None) => Box::new(CelNull),
    }
}

/// The value as JSON, where it has such a form; what the libraries add has none.
pub fn to_json(value: &dyn Val) -> Option<Value> {
    if let Some(bool) = value.downcast_ref::<CelBool>() {
        return Some(Value::Bool(*bool.inner()));
    }
    if let Some(int) = value.downcast_ref::<CelInt>() {
        return Some(Value::from(*int.inner()));
    }
    if let Some(uint) = value.downcast_ref::<CelUInt>() {
        return Some(Value::from(*uint.inner()));
    }
    if let Some(double) = value.downcast_ref::<CelDouble>() {
        return Number::from_f64(*double.inner()).map(Value::Number);
    }
    if let Some(text) = value.downcast_ref::<CelString>() {
        return Some(Value::from(text.inner()));
    }
    if let Some(bytes) = value.downcast_ref::<CelBytes>() {
        use base64::Engine;
        return Some(Value::from(base64::engine::general_purpose::STANDARD.encode(bytes.inner())));
    }
    if value.downcast_ref::<CelNull>().is_some() {
        return Some(Value::Null);
    }
    if let Some(list) = value.downcast_ref::<CelList>() {
        return list
            .inner()
            .iter()
            .map(|item| to_json(item.as_ref()))
            .collect::<Option<Vec<_>>>()
            .map(Value::Array);
    }
    if let Some(map) = value.downcast_ref::<CelMap>() {
        let mut fields = serde_json::Map::new();
        for (key, value) in map.inner() {
            fields.insert(text_of(key.inner())?, to_json(value.as_ref())?);
        }
        return Some(Value::Object(fields));
    }
    if let Some(time) = value.downcast_ref::<CelTimestamp>() {
        return Some(Value::from(time.inner().to_rfc3339()));
    }
    if let Some(duration) = value.downcast_ref::<CelDuration>() {
        return Some(Value::from(format!("{}s", duration.inner().num_seconds())));
    }
    if let Some(optional) = value.downcast_ref::<CelOptional>() {
        return optional.option().map_or(Some(Value::Null), to_json);
    }
    None
}

/// A map's key as the name of a field.
fn text_of(key: &dyn Val) -> Option<String> {
    if let Some(text) = key.downcast_ref::<CelString>() {
        return Some(text.inner().to_string());
    }
    to_json(key).map(|json| json.to_string())
}

/// Whether a value nests at most this many levels.
pub fn is_within(value: &dyn Val, levels: usize) -> bool {
    let inner = |value: &dyn Val| levels > 0 && is_within(value, levels - 1);
    if let Some(list) = value.downcast_ref::<CelList>() {
        return list.inner().iter().all(|item| inner(item.as_ref()));
    }
    if let Some(map) = value.downcast_ref::<CelMap>() {
        return map.inner().values().all(|value| inner(value.as_ref()));
    }
    if let Some(optional) = value.downcast_ref::<CelOptional>() {
        return optional.option().is_none_or(inner);
    }
    true
}

/// How much there is of a value, in the units of the budget: one for each value, and one for every ten
/// bytes of text. Stops counting past `limit`.
pub fn weight(value: &dyn Val, limit: i64) -> i64 {
    let mut total = 1;
    if let Some(text) = value.downcast_ref::<CelString>() {
        total += text.inner().len() as i64 / 10;
    } else if let Some(bytes) = value.downcast_ref::<CelBytes>() {
        total += bytes.inner().len() as i64 / 10;
    } else if let Some(list) = value.downcast_ref::<CelList>() {
        for item in list.inner() {
            if total > limit {
                break;
            }
            total += weight(item.as_ref(), limit - total);
        }
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        for (key, value) in map.inner() {
            if total > limit {
                break;
            }
            total += weight(key.inner(), limit - total) + weight(value.as_ref(), limit - total);
        }
    } else if let Some(optional) = value.downcast_ref::<CelOptional>() {
        total += optional.option().map_or(0, |value| weight(value, limit - total));
    }
    total
}
