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
        TypeName::Dyn => Type::Dyn,
        TypeName::Bool => Type::Bool,
        TypeName::Int => Type::Int,
        TypeName::Uint => Type::Uint,
        TypeName::Double => Type::Double,
        TypeName::Text => Type::String,
        TypeName::Bytes => Type::Bytes,
        TypeName::List => Type::list(Type::Dyn),
        TypeName::Texts => Type::list(Type::String),
        TypeName::Map => Type::map(Type::Dyn),
        TypeName::Optional => Type::optional(Type::Dyn),
        TypeName::Duration => Type::Duration,
        TypeName::Timestamp => Type::Timestamp,
        TypeName::Type => Type::Type,
        TypeName::Opaque(name) => Type::Opaque(name),
    })
}

enum TypeName {
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
static RESULTS: &[(TypeName, &[&str])] = &[
    (TypeName::Bool, &["bool", "contains", "startsWith", "endsWith", "matches", "hasValue", "isSorted", "isQuantity",
        "isInteger", "isLessThan", "isGreaterThan", "isIP", "ip.isCanonical", "isUnspecified", "isLoopback",
        "isLinkLocalMulticast", "isLinkLocalUnicast", "isGlobalUnicast", "isCIDR", "containsIP", "containsCIDR",
        "isURL", "isSemver", "sets.contains", "sets.equivalent", "sets.intersects", "allowed", "errored"]),
    (TypeName::Int, &["int", "size", "indexOf", "lastIndexOf", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear",
        "getFullYear", "getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds", "asInteger", "sign",
        "compareTo", "family", "prefixLength", "major", "minor", "patch"]),
    (TypeName::Uint, &["uint"]),
    (TypeName::Double, &["double", "asApproximateFloat"]),
    (TypeName::Text, &["string", "charAt", "join", "lowerAscii", "upperAscii", "trim", "replace", "substring", "format",
        "strings.quote", "jsonpatch.escapeKey", "find", "getScheme", "getHost", "getHostname", "getPort", "getEscapedPath", "reason",
        "error"]),
    (TypeName::Bytes, &["bytes"]),
    (TypeName::Texts, &["split", "findAll"]),
    (TypeName::List, &["slice", "flatten", "distinct", "sort", "@sortByAssociatedKeys", "lists.range"]),
    (TypeName::Map, &["getQuery", "@toMap", "@merged"]),
    (TypeName::Dyn, &["dyn", "@entries", "orValue", "value", "min", "max", "sum", "reverse", "ip"]),
    (TypeName::Optional, &["optional.of", "optional.none", "optional.ofNonZeroValue", "or", "format.named", "validate",
        "first", "last"]),
    (TypeName::Duration, &["duration"]),
    (TypeName::Timestamp, &["timestamp"]),
    (TypeName::Type, &["type"]),
    (TypeName::Opaque("kubernetes.Quantity"), &["quantity", "add", "sub"]),
    (TypeName::Opaque("net.CIDR"), &["cidr", "masked"]),
    (TypeName::Opaque("kubernetes.URL"), &["url"]),
    (TypeName::Opaque("kubernetes.Semver"), &["semver"]),
    (TypeName::Opaque("kubernetes.NamedFormat"), &["format.dns1123Label", "format.dns1123Subdomain", "format.dns1035Label",
        "format.qualifiedName", "format.dns1123LabelPrefix", "format.dns1123SubdomainPrefix",
        "format.dns1035LabelPrefix", "format.labelValue", "format.uri", "format.uuid", "format.byte", "format.date",
        "format.datetime"]),
    (TypeName::Opaque("kubernetes.authorization.Authorizer"), &["serviceAccount"]),
    (TypeName::Opaque("kubernetes.authorization.PathCheck"), &["path"]),
    (TypeName::Opaque("kubernetes.authorization.GroupCheck"), &["group"]),
    (TypeName::Opaque("kubernetes.authorization.ResourceCheck"), &["resource", "subresource", "namespace", "name",
        "fieldSelector", "labelSelector"]),
    (TypeName::Opaque("kubernetes.authorization.Decision"), &["check"]),
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
