//! Kubernetes' function libraries, a file each, over those of CEL itself.

pub mod authorizer;
pub mod bind;
mod format;
mod ip;
mod json_patch;
mod lists;
pub mod quantity;
pub mod regex;
pub mod semver;
mod sets;
mod texts;
mod two_variables;
mod url;

use cel::common::value::CowVal;
use cel::{DeclarationError, Env, ExecutionError, extensions};

use crate::cost;
use crate::types::Type;

/// A Rust type as a value that expressions can hold but not look into.
macro_rules! opaque {
    ($kind:ty, $name:literal) => {
        impl Val for $kind {
            fn get_type(&self) -> &cel::common::types::Type {
                <$kind as Val>::cel_type()
            }

            fn cel_type() -> &'static cel::common::types::Type {
                static TYPE: cel::common::types::Type = cel::common::types::Type::new_unspecified_type($name);
                &TYPE
            }

            fn equals(&self, other: &dyn Val) -> bool {
                other.downcast_ref::<$kind>().is_some_and(|other| self == other)
            }

            fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
            where
                Self: 'v,
            {
                Box::new(self.clone())
            }

            fn as_any(&self) -> Option<&dyn std::any::Any> {
                Some(self)
            }
        }

        impl StaticVal for $kind {}
    };
}
pub(crate) use opaque;

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    cost::declare(env)?;
    env.add_extension(extensions::strings)?;
    env.add_extension(extensions::lists)?;
    authorizer::declare(env)?;
    format::declare(env)?;
    ip::declare(env)?;
    json_patch::declare(env)?;
    lists::declare(env)?;
    quantity::declare(env)?;
    regex::declare(env)?;
    semver::declare(env)?;
    sets::declare(env)?;
    texts::declare(env)?;
    two_variables::declare(env)?;
    url::declare(env)
}

/// Type names that stand for themselves: `type(x) == int`.
pub const TYPE_NAMES: &[&str] = &[
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
    "net.IP",
    "net.CIDR",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
];

/// What a function comes to, whatever it is called with; `None` when there is no such function. Where the
/// argument decides, the answer is `Dyn`.
pub fn result_of(function: &str) -> Option<Type> {
    RESULTS.iter().find(|(_, names)| names.contains(&function)).map(|(result, _)| match result {
        Sort::Dyn => Type::Dyn,
        Sort::Bool => Type::Bool,
        Sort::Int => Type::Int,
        Sort::Uint => Type::Uint,
        Sort::Double => Type::Double,
        Sort::Text => Type::String,
        Sort::Bytes => Type::Bytes,
        Sort::List => Type::list(Type::Dyn),
        Sort::Texts => Type::list(Type::String),
        Sort::Map => Type::map(Type::Dyn),
        Sort::Optional => Type::optional(Type::Dyn),
        Sort::Duration => Type::Duration,
        Sort::Timestamp => Type::Timestamp,
        Sort::Type => Type::Type,
        Sort::Opaque(name) => Type::Opaque(name),
    })
}

enum Sort {
    Dyn,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    List,
    Texts,
    Map,
    Optional,
    Duration,
    Timestamp,
    Type,
    Opaque(&'static str),
}

#[rustfmt::skip]
static RESULTS: &[(Sort, &[&str])] = &[
    (Sort::Bool, &["bool", "contains", "startsWith", "endsWith", "matches", "hasValue", "isSorted", "isQuantity",
        "isInteger", "isLessThan", "isGreaterThan", "isIP", "ip.isCanonical", "isUnspecified", "isLoopback",
        "isLinkLocalMulticast", "isLinkLocalUnicast", "isGlobalUnicast", "isCIDR", "containsIP", "containsCIDR",
        "isURL", "isSemver", "sets.contains", "sets.equivalent", "sets.intersects", "allowed", "errored"]),
    (Sort::Int, &["int", "size", "indexOf", "lastIndexOf", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear",
        "getFullYear", "getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds", "asInteger", "sign",
        "compareTo", "family", "prefixLength", "major", "minor", "patch"]),
    (Sort::Uint, &["uint"]),
    (Sort::Double, &["double", "asApproximateFloat"]),
    (Sort::Text, &["string", "charAt", "join", "lowerAscii", "upperAscii", "trim", "replace", "substring", "format",
        "strings.quote", "jsonpatch.escapeKey", "find", "getScheme", "getHost", "getHostname", "getPort", "getEscapedPath", "reason",
        "error"]),
    (Sort::Bytes, &["bytes"]),
    (Sort::Texts, &["split", "findAll"]),
    (Sort::List, &["slice", "flatten", "distinct", "sort", "@sortByAssociatedKeys", "lists.range"]),
    (Sort::Map, &["getQuery", "@toMap", "@merged"]),
    (Sort::Dyn, &["dyn", "@entries", "orValue", "value", "min", "max", "sum", "reverse", "ip"]),
    (Sort::Optional, &["optional.of", "optional.none", "optional.ofNonZeroValue", "or", "format.named", "validate",
        "first", "last"]),
    (Sort::Duration, &["duration"]),
    (Sort::Timestamp, &["timestamp"]),
    (Sort::Type, &["type"]),
    (Sort::Opaque("kubernetes.Quantity"), &["quantity", "add", "sub"]),
    (Sort::Opaque("net.CIDR"), &["cidr", "masked"]),
    (Sort::Opaque("kubernetes.URL"), &["url"]),
    (Sort::Opaque("kubernetes.Semver"), &["semver"]),
    (Sort::Opaque("kubernetes.NamedFormat"), &["format.dns1123Label", "format.dns1123Subdomain", "format.dns1035Label",
        "format.qualifiedName", "format.dns1123LabelPrefix", "format.dns1123SubdomainPrefix",
        "format.dns1035LabelPrefix", "format.labelValue", "format.uri", "format.uuid", "format.byte", "format.date",
        "format.datetime"]),
    (Sort::Opaque("kubernetes.authorization.Authorizer"), &["serviceAccount"]),
    (Sort::Opaque("kubernetes.authorization.PathCheck"), &["path"]),
    (Sort::Opaque("kubernetes.authorization.GroupCheck"), &["group"]),
    (Sort::Opaque("kubernetes.authorization.ResourceCheck"), &["resource", "subresource", "namespace", "name",
        "fieldSelector", "labelSelector"]),
    (Sort::Opaque("kubernetes.authorization.Decision"), &["check"]),
];

/// A function's own complaint.
fn wrong(function: &str, why: impl ToString) -> ExecutionError {
    ExecutionError::function_error(function, why)
}

/// The elements of any list.
fn elements<'b, 'v>(
    list: &'b CowVal<'_, 'v>,
) -> Result<Vec<&'b (dyn cel::common::value::Val + 'v)>, ExecutionError> {
    let iterable = list.as_iterable().ok_or_else(|| wrong("list", "no such overload"))?;
    let mut items = iterable.iter();
    let mut elements = Vec::new();
    while let Some(item) = items.next() {
        elements.push(item);
    }
    Ok(elements)
}

/// The text that an argument is.
fn text_at<'b>(argument: &'b CowVal<'_, '_>) -> Result<&'b str, ExecutionError> {
    let text = argument.downcast_ref::<cel::common::types::CelString>();
    text.map(|text| text.inner()).ok_or_else(|| wrong("text", "no such overload"))
}
