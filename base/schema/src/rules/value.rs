//! JSON as CEL's values, by the schema: fields under the names that expressions have for them, times and
//! durations as such, numbers as floating point where the schema says so, lists that are sets or maps equal
//! whatever their order.
//!
//! Containers are shared: what expressions copy (a variable, an element of a loop) is a pointer.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::common::ast::IdedExpr;
use cel::common::traits::{Adder, Container, Indexer, Iterable, Sizer, Zeroer};
use cel::common::types::{
    CelBool, CelBytes, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelOptional, CelString, Type,
};
use cel::common::value::{Builtin, BuiltinRef, CowVal, Val};
use cel::{Context, Env, ExecutionError};
use serde_json::{Map, Value};

use crate::decl::{declares_metadata, escape, is_map, names};
use crate::prune::META_FIELDS;
use crate::structural::{EMBEDDED, INT_OR_STRING, Kind, List, Node, Text};

/// The value of a node; `resource`: it has type and metadata.
pub fn typed<'v>(value: &'v Value, node: &'v Node, resource: bool) -> Box<dyn Val + 'v> {
    match value {
        Value::Object(fields) if node.kind == Kind::Object => {
            object(fields, node, resource || node.is(EMBEDDED))
        }
        Value::Array(items) if node.kind == Kind::Array => array(items, node),
        Value::Number(number) if node.kind == Kind::Number => {
            Box::new(CelDouble::from(number.as_f64().unwrap_or(0.0)))
        }
        // `1.0` is an integer where one is asked for.
        Value::Number(number) if node.kind == Kind::Integer => {
            let whole = number.as_i64().or_else(|| number.as_f64().map(|number| number as i64));
            Box::new(CelInt::from(whole.unwrap_or(0)))
        }
        Value::String(text) if node.kind == Kind::String && !node.is(INT_OR_STRING) => {
            formatted(text, node).unwrap_or_else(|| Box::new(CelString::from(text.as_str())))
        }
        other => plain(other),
    }
}

/// The object itself. A null is no value of a field.
pub fn object<'v>(fields: &'v Map<String, Value>, node: &'v Node, resource: bool) -> Box<dyn Val + 'v> {
    let resource = resource && !declares_metadata(node);
    let mut made: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> = HashMap::with_capacity(fields.len());
    for (name, value) in fields {
        let value = match node.property(name) {
            _ if value.is_null() && !is_map(node) => continue,
            _ if resource && name == "metadata" => metadata(value),
            _ if resource && META_FIELDS.contains(&name.as_str()) => plain(value),
            Some(property) => {
                let value = typed(value, property, false);
                for name in names(name) {
                    made.insert(CelMapKey::from(name), value.clone());
                }
                // No expression can name it, but two objects may differ in it.
                if escape(name).is_none() {
                    made.insert(CelMapKey::from(name.as_str()), value);
                }
                continue;
            }
            None => match node.values() {
                Some(values) if is_map(node) => typed(value, values, false),
                _ => plain(value),
            },
        };
        made.insert(CelMapKey::from(name.as_str()), value);
    }
    Shared::boxed(CelMap::from(made), Order::Counts)
}

/// Expressions see the names alone; the rest is the server's.
fn metadata(value: &Value) -> Box<dyn Val + '_> {
    let mut made: HashMap<CelMapKey<'_>, Box<dyn Val + '_>> = HashMap::new();
    for name in ["name", "generateName"] {
        if let Some(value) = value.get(name) {
            made.insert(CelMapKey::from(name), plain(value));
        }
    }
    Shared::boxed(CelMap::from(made), Order::Counts)
}

fn array<'v>(items: &'v [Value], node: &'v Node) -> Box<dyn Val + 'v> {
    let made: Vec<Box<dyn Val + 'v>> = items
        .iter()
        .map(|item| match node.items() {
            Some(inner) => typed(item, inner, false),
            None => plain(item),
        })
        .collect();
    let order = match node.list {
        List::Set => Order::Set,
        List::Map => Order::Map(node.more().list_keys.iter().cloned().collect()),
        List::Unset | List::Atomic => Order::Counts,
    };
    Shared::boxed(CelList::from(made), order)
}

/// A value that no schema describes.
fn plain(value: &Value) -> Box<dyn Val + '_> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(bool) => Box::new(CelBool::from(*bool)),
        Value::Number(number) => match number.as_i64() {
            Some(int) => Box::new(CelInt::from(int)),
            None => Box::new(CelDouble::from(number.as_f64().unwrap_or(0.0))),
        },
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Array(items) => {
            let items: Vec<Box<dyn Val + '_>> = items.iter().map(plain).collect();
            Shared::boxed(CelList::from(items), Order::Counts)
        }
        Value::Object(fields) => {
            let fields: HashMap<CelMapKey<'_>, Box<dyn Val + '_>> =
                fields.iter().map(|(key, value)| (CelMapKey::from(key.as_str()), plain(value))).collect();
            Shared::boxed(CelMap::from(fields), Order::Counts)
        }
    }
}

fn formatted<'v>(text: &'v str, node: &Node) -> Option<Box<dyn Val + 'v>> {
    use base64::Engine;
    match node.format()? {
        "byte" => {
            let standard = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
            Some(Box::new(CelBytes::from(standard)))
        }
        "duration" => {
            let nanoseconds = crate::format::duration(text)?;
            converted(&DURATION, &ferry_api::duration::format(nanoseconds))
        }
        "date" => converted(&TIMESTAMP, &format!("{text}T00:00:00Z")),
        "date-time" => converted(&TIMESTAMP, &text.to_uppercase()),
        _ => None,
    }
}

static DURATION: LazyLock<Option<(Arc<Env>, IdedExpr)>> = LazyLock::new(|| conversion("duration(x)"));
static TIMESTAMP: LazyLock<Option<(Arc<Env>, IdedExpr)>> = LazyLock::new(|| conversion("timestamp(x)"));

fn conversion(source: &str) -> Option<(Arc<Env>, IdedExpr)> {
    let env = Arc::new(Env::stdlib());
    let expression = env.parser().parse(source).ok()?;
    Some((env, expression))
}

/// The interpreter's own conversion: its types for times are not made from outside.
fn converted<'v>(
    conversion: &LazyLock<Option<(Arc<Env>, IdedExpr)>>,
    text: &str,
) -> Option<Box<dyn Val + 'v>> {
    let (env, expression) = LazyLock::force(conversion).as_ref()?;
    let mut context: Context<'_, 'static> = Context::with_env(env.clone());
    context.add_variable_as_val("x", Box::new(CelString::from(text.to_string())));
    Some(cel::Value::resolve_val(expression, &context).ok()?.into_owned())
}

/// `oldSelf` where there may be none.
pub fn optional<'v>(value: Option<Box<dyn Val + 'v>>) -> Box<dyn Val + 'v> {
    Box::new(match value {
        Some(value) => CelOptional::of(value),
        None => CelOptional::none(),
    })
}

/// A list or map that is copied by its address.
#[derive(Clone)]
struct Shared<'v> {
    inner: Arc<dyn Val + 'v>,
    order: Order,
}

/// Whether the order of elements counts.
#[derive(Debug, Clone)]
enum Order {
    Counts,
    Set,
    /// Elements are told apart by these fields.
    Map(Arc<[Text]>),
}

impl<'v> Shared<'v> {
    fn boxed(inner: impl Val + 'v, order: Order) -> Box<dyn Val + 'v> {
        Box::new(Shared { inner: Arc::new(inner), order })
    }

    /// What tells an element from others: sets by the whole, maps by their keys.
    fn identity(&self, element: &dyn Val) -> String {
        let (Order::Map(keys), Some(fields)) = (&self.order, element.downcast_ref::<CelMap>()) else {
            return canonical(element);
        };
        let value = |key: &Text| {
            let name = escape(key).unwrap_or_else(|| key.to_string());
            fields
                .inner()
                .get(&CelMapKey::from(name))
                .map(|value| canonical(value.as_ref()))
                .unwrap_or_default()
        };
        keys.iter().map(value).collect::<Vec<_>>().join("\0")
    }
}

/// Text that equal values have in common.
fn canonical(value: &dyn Val) -> String {
    if let Some(list) = value.downcast_ref::<CelList>() {
        let elements: Vec<String> = list.inner().iter().map(|element| canonical(element.as_ref())).collect();
        return format!("[{}]", elements.join(","));
    }
    if let Some(map) = value.downcast_ref::<CelMap>() {
        let mut entries: Vec<String> = Vec::with_capacity(map.inner().len());
        for (key, value) in map.inner() {
            entries.push(format!("{:?}:{}", key.inner(), canonical(value.as_ref())));
        }
        entries.sort();
        return format!("{{{}}}", entries.join(","));
    }
    format!("{value:?}")
}

impl std::fmt::Debug for Shared<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl<'v> Val for Shared<'v> {
    fn get_type(&self) -> &Type {
        self.inner.get_type()
    }

    fn cel_type() -> &'static Type {
        &cel::common::types::DYN_TYPE
    }

    fn as_adder<'b, 'w>(&'b self) -> Option<&'b (dyn Adder + 'w)>
    where
        Self: 'w,
    {
        match self.order {
            Order::Counts => self.inner.as_adder(),
            Order::Set | Order::Map(_) => Some(self),
        }
    }

    fn as_container(&self) -> Option<&dyn Container> {
        self.inner.as_container()
    }

    fn as_indexer<'b, 'w>(&'b self) -> Option<&'b (dyn Indexer + 'w)>
    where
        Self: 'w,
    {
        self.inner.as_indexer()
    }

    fn into_indexer<'w>(self: Box<Self>) -> Option<Box<dyn Indexer + 'w>>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_iterable<'b, 'w>(&'b self) -> Option<&'b (dyn Iterable + 'w)>
    where
        Self: 'w,
    {
        self.inner.as_iterable()
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        self.inner.as_sizer()
    }

    fn as_zeroer(&self) -> Option<&dyn Zeroer> {
        self.inner.as_zeroer()
    }

    fn equals(&self, other: &dyn Val) -> bool {
        if matches!(self.order, Order::Counts) {
            return self.inner.equals(other);
        }
        let (Some(mine), Some(others)) =
            (self.inner.downcast_ref::<CelList>(), other.downcast_ref::<CelList>())
        else {
            return false;
        };
        if mine.inner().len() != others.inner().len() {
            return false;
        }
        let mine: HashMap<String, &dyn Val> =
            mine.inner().iter().map(|element| (self.identity(element.as_ref()), element.as_ref())).collect();
        others.inner().iter().all(|other| {
            mine.get(&self.identity(other.as_ref())).is_some_and(|mine| mine.equals(other.as_ref()))
        })
    }

    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(self.clone())
    }

    fn as_builtin<'b, 'w>(&'b self) -> BuiltinRef<'b, 'w>
    where
        Self: 'w,
    {
        self.inner.as_builtin()
    }

    fn into_builtin<'w>(self: Box<Self>) -> Option<Builtin<'w>>
    where
        Self: 'w,
    {
        self.inner.clone_as_boxed().into_builtin()
    }
}

impl<'v> Indexer for Shared<'v> {
    fn get<'b, 'w>(&'b self, index: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        match self.inner.as_indexer() {
            Some(indexer) => indexer.get(index),
            None => Err(ExecutionError::function_error("_[_]", "no such overload")),
        }
    }

    fn steal<'w>(self: Box<Self>, index: &dyn Val) -> Result<Box<dyn Val + 'w>, ExecutionError>
    where
        Self: 'w,
    {
        self.get(index).map(CowVal::into_owned)
    }
}

/// `+` of sets joins them, and that of maps replaces elements with the same keys.
impl<'v> Adder for Shared<'v> {
    fn add<'b, 'w>(&'b self, other: &(dyn Val + 'w)) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        let no_overload = || ExecutionError::function_error("_+_", "no such overload");
        let mine = self.inner.downcast_ref::<CelList>().ok_or_else(no_overload)?;
        let others = other.downcast_ref::<CelList>().ok_or_else(no_overload)?;
        let mut elements: Vec<Box<dyn Val + 'w>> =
            Vec::with_capacity(mine.inner().len() + others.inner().len());
        let mut places: HashMap<String, usize> = HashMap::new();
        for element in mine.inner() {
            let identity = self.identity(element.as_ref());
            places.insert(identity, elements.len());
            elements.push(element.clone());
        }
        for element in others.inner() {
            let identity = self.identity(element.as_ref());
            match (places.get(&identity), &self.order) {
                (Some(place), Order::Map(_)) => elements[*place] = element.clone(),
                (Some(_), _) => {}
                (None, _) => {
                    places.insert(identity, elements.len());
                    elements.push(element.clone());
                }
            }
        }
        let inner: Arc<dyn Val + 'w> = Arc::new(CelList::from(elements));
        Ok(CowVal::owned(Shared { inner, order: self.order.clone() }))
    }
}
