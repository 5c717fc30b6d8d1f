//! What functions and methods take, and what they come to. What is not listed takes whatever it is given; whether it can
//! work with that is seen when it runs.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::types::Type;

/// The type of a call.
#[derive(Debug, PartialEq)]
pub enum Call {
    /// The function is not in the table.
    Unlisted,
    /// None of its overloads is for these types.
    Fits(Option<Type>),
}

/// What a function, or a method of `target`, comes to when it is called with these types.
pub fn call(name: &str, target: Option<&Type>, arguments: &[Type]) -> Call {
    let Some(overloads) = OVERLOADS.get(name) else { return Call::Unlisted };
    let results = overloads.iter().filter_map(|overload| overload.result_of(target, arguments));
    // More than one is for values that could be anything.
    Call::Fits(results.reduce(|a, b| if a == b { a } else { Type::Dyn }))
}

/// `A` is any type, `O` one whose values have an order, `N` one whose values have a sum; the same letter is the same type in
/// all of an overload.
const TABLE: &str = "
size: (string) int, (bytes) int, (list(A)) int, (map(A)) int, string.() int, bytes.() int, list(A).() int, map(A).() int
contains: string.(string) bool
startsWith: string.(string) bool
endsWith: string.(string) bool
matches: string.(string) bool, (string, string) bool
charAt: string.(int) string
indexOf: string.(string) int, string.(string, int) int, list(A).(A) int
lastIndexOf: string.(string) int, string.(string, int) int, list(A).(A) int
lowerAscii: string.() string
upperAscii: string.() string
trim: string.() string
replace: string.(string, string) string, string.(string, string, int) string
split: string.(string) list(string), string.(string, int) list(string)
substring: string.(int) string, string.(int, int) string
join: list(string).() string, list(string).(string) string
format: string.(list(dyn)) string
find: string.(string) string
findAll: string.(string) list(string), string.(string, int) list(string)
strings.quote: (string) string
reverse: list(A).() list(A)
isSorted: list(O).() bool
sum: list(N).() N
min: list(O).() O
max: list(O).() O
distinct: list(A).() list(A)
sort: list(O).() list(O)
flatten: list(list(A)).() list(A), list(dyn).(int) list(dyn)
slice: list(A).(int, int) list(A)
first: list(A).() optional(A)
last: list(A).() optional(A)
lists.range: (int) list(int)
sets.contains: (list(A), list(A)) bool
sets.equivalent: (list(A), list(A)) bool
sets.intersects: (list(A), list(A)) bool
int: (int) int, (uint) int, (double) int, (string) int, (timestamp) int, (duration) int
uint: (int) uint, (uint) uint, (double) uint, (string) uint
double: (int) double, (uint) double, (double) double, (string) double
bytes: (string) bytes, (bytes) bytes
bool: (bool) bool, (string) bool
string: (int) string, (uint) string, (double) string, (bool) string, (string) string, (bytes) string, (timestamp) string, (duration) string, (net.IP) string, (net.CIDR) string
duration: (string) duration, (duration) duration, (int) duration
timestamp: (string) timestamp, (timestamp) timestamp, (int) timestamp
type: (A) type
dyn: (A) dyn
optional.of: (A) optional(A)
optional.ofNonZeroValue: (A) optional(A)
optional.none: () optional(dyn)
hasValue: optional(A).() bool
value: optional(A).() A
orValue: optional(A).(A) A
or: optional(A).(optional(A)) optional(A)
getFullYear: timestamp.() int, timestamp.(string) int
getMonth: timestamp.() int, timestamp.(string) int
getDate: timestamp.() int, timestamp.(string) int
getDayOfMonth: timestamp.() int, timestamp.(string) int
getDayOfWeek: timestamp.() int, timestamp.(string) int
getDayOfYear: timestamp.() int, timestamp.(string) int
getHours: timestamp.() int, timestamp.(string) int, duration.() int
getMinutes: timestamp.() int, timestamp.(string) int, duration.() int
getSeconds: timestamp.() int, timestamp.(string) int, duration.() int
getMilliseconds: timestamp.() int, timestamp.(string) int, duration.() int
quantity: (string) kubernetes.Quantity
isQuantity: (string) bool
isInteger: kubernetes.Quantity.() bool
asInteger: kubernetes.Quantity.() int
asApproximateFloat: kubernetes.Quantity.() double
sign: kubernetes.Quantity.() int
add: kubernetes.Quantity.(kubernetes.Quantity) kubernetes.Quantity, kubernetes.Quantity.(int) kubernetes.Quantity
sub: kubernetes.Quantity.(kubernetes.Quantity) kubernetes.Quantity, kubernetes.Quantity.(int) kubernetes.Quantity
isLessThan: kubernetes.Quantity.(kubernetes.Quantity) bool, kubernetes.Semver.(kubernetes.Semver) bool
isGreaterThan: kubernetes.Quantity.(kubernetes.Quantity) bool, kubernetes.Semver.(kubernetes.Semver) bool
compareTo: kubernetes.Quantity.(kubernetes.Quantity) int, kubernetes.Semver.(kubernetes.Semver) int
semver: (string) kubernetes.Semver, (string, bool) kubernetes.Semver
isSemver: (string) bool, (string, bool) bool
major: kubernetes.Semver.() int
minor: kubernetes.Semver.() int
patch: kubernetes.Semver.() int
ip: (string) net.IP, net.CIDR.() net.IP
isIP: (string) bool
ip.isCanonical: (string) bool
family: net.IP.() int
isUnspecified: net.IP.() bool
isLoopback: net.IP.() bool
isLinkLocalMulticast: net.IP.() bool
isLinkLocalUnicast: net.IP.() bool
isGlobalUnicast: net.IP.() bool
cidr: (string) net.CIDR
isCIDR: (string) bool
containsIP: net.CIDR.(net.IP) bool, net.CIDR.(string) bool
containsCIDR: net.CIDR.(net.CIDR) bool, net.CIDR.(string) bool
masked: net.CIDR.() net.CIDR
prefixLength: net.CIDR.() int
url: (string) kubernetes.URL
isURL: (string) bool
getScheme: kubernetes.URL.() string
getHost: kubernetes.URL.() string
getHostname: kubernetes.URL.() string
getPort: kubernetes.URL.() string
getEscapedPath: kubernetes.URL.() string
getQuery: kubernetes.URL.() map(list(string))
format.named: (string) optional(kubernetes.NamedFormat)
format.dns1123Label: () kubernetes.NamedFormat
format.dns1123Subdomain: () kubernetes.NamedFormat
format.dns1035Label: () kubernetes.NamedFormat
format.qualifiedName: () kubernetes.NamedFormat
format.dns1123LabelPrefix: () kubernetes.NamedFormat
format.dns1123SubdomainPrefix: () kubernetes.NamedFormat
format.dns1035LabelPrefix: () kubernetes.NamedFormat
format.labelValue: () kubernetes.NamedFormat
format.uri: () kubernetes.NamedFormat
format.uuid: () kubernetes.NamedFormat
format.byte: () kubernetes.NamedFormat
format.date: () kubernetes.NamedFormat
format.datetime: () kubernetes.NamedFormat
validate: kubernetes.NamedFormat.(string) optional(list(string))
path: kubernetes.authorization.Authorizer.(string) kubernetes.authorization.PathCheck
group: kubernetes.authorization.Authorizer.(string) kubernetes.authorization.GroupCheck
serviceAccount: kubernetes.authorization.Authorizer.(string, string) kubernetes.authorization.Authorizer
resource: kubernetes.authorization.GroupCheck.(string) kubernetes.authorization.ResourceCheck
subresource: kubernetes.authorization.ResourceCheck.(string) kubernetes.authorization.ResourceCheck
namespace: kubernetes.authorization.ResourceCheck.(string) kubernetes.authorization.ResourceCheck
name: kubernetes.authorization.ResourceCheck.(string) kubernetes.authorization.ResourceCheck
fieldSelector: kubernetes.authorization.ResourceCheck.(string) kubernetes.authorization.ResourceCheck
labelSelector: kubernetes.authorization.ResourceCheck.(string) kubernetes.authorization.ResourceCheck
check: kubernetes.authorization.PathCheck.(string) kubernetes.authorization.Decision, kubernetes.authorization.ResourceCheck.(string) kubernetes.authorization.Decision
allowed: kubernetes.authorization.Decision.() bool
errored: kubernetes.authorization.Decision.() bool
error: kubernetes.authorization.Decision.() string
reason: kubernetes.authorization.Decision.() string
";

static OVERLOADS: LazyLock<HashMap<&'static str, Vec<Overload>>> = LazyLock::new(|| {
    let rows = TABLE.lines().filter_map(|line| line.split_once(": "));
    rows.map(|(name, overloads)| (name, split(overloads).into_iter().map(Overload::read).collect())).collect()
});

struct Overload {
    target: Option<Shape>,
    arguments: Vec<Shape>,
    result: Shape,
}

enum Shape {
    Is(Type),
    Parameter(char),
    List(Box<Shape>),
    Map(Box<Shape>),
    Optional(Box<Shape>),
}

/// At the commas that no bracket is around.
fn split(text: &'static str) -> Vec<&'static str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, char) in text.char_indices() {
        match char {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

impl Overload {
    /// `TARGET.(ARGUMENTS) RESULT`, or the same without a target.
    fn read(text: &'static str) -> Overload {
        let (head, result) = text.rsplit_once(' ').expect("the table is constant");
        let (target, arguments) = match head.split_once(".(") {
            Some((target, arguments)) => (Some(Shape::read(target)), arguments),
            None => (None, &head[1..]),
        };
        let arguments = split(arguments.strip_suffix(')').expect("the table is constant"));
        Overload {
            target,
            arguments: arguments.into_iter().map(Shape::read).collect(),
            result: Shape::read(result),
        }
    }

    fn result_of(&self, target: Option<&Type>, arguments: &[Type]) -> Option<Type> {
        let mut bound = Bound::default();
        let fits = match (&self.target, target) {
            (Some(shape), Some(target)) => shape.takes(target, &mut bound),
            (None, None) => true,
            _ => false,
        };
        let fits = fits
            && self.arguments.len() == arguments.len()
            && self.arguments.iter().zip(arguments).all(|(shape, given)| shape.takes(given, &mut bound));
        fits.then(|| self.result.made(&bound))
    }
}

/// What the parameters of an overload stand for.
#[derive(Default)]
struct Bound(Vec<(char, Type)>);

impl Shape {
    fn read(text: &'static str) -> Shape {
        let inside = |text: &'static str| Box::new(Shape::read(text.strip_suffix(')').unwrap_or(text)));
        if let Some(element) = text.strip_prefix("list(") {
            return Shape::List(inside(element));
        }
        if let Some(value) = text.strip_prefix("map(") {
            return Shape::Map(inside(value));
        }
        if let Some(value) = text.strip_prefix("optional(") {
            return Shape::Optional(inside(value));
        }
        Shape::Is(match text {
            "A" | "O" | "N" => return Shape::Parameter(text.chars().next().unwrap_or('A')),
            "dyn" => Type::Dyn,
            "bool" => Type::Bool,
            "int" => Type::Int,
            "uint" => Type::Uint,
            "double" => Type::Double,
            "string" => Type::String,
            "bytes" => Type::Bytes,
            "timestamp" => Type::Timestamp,
            "duration" => Type::Duration,
            "type" => Type::Type,
            opaque => Type::Opaque(opaque),
        })
    }

    fn takes(&self, given: &Type, bound: &mut Bound) -> bool {
        match (self, given) {
            (_, Type::Dyn) => true,
            (Shape::Is(own), Type::Null) => own.is_nullable(),
            (Shape::Is(own), given) => own.agrees_with(given),
            (Shape::Parameter(letter), given) => {
                let fits = match letter {
                    'N' => given.is_number() || *given == Type::Duration,
                    'O' => given.is_ordered(),
                    _ => true,
                };
                let known = bound.0.iter_mut().find(|(known, _)| known == letter);
                fits && match known {
                    Some((_, Type::Null)) if given.may_be_null() => true,
                    Some((_, known)) => {
                        known.agrees_with(given) || (*given == Type::Null && known.may_be_null())
                    }
                    None => {
                        bound.0.push((*letter, given.clone()));
                        true
                    }
                }
            }
            (Shape::List(shape), Type::List(element)) => shape.takes(element, bound),
            (Shape::Map(shape), Type::Map(value)) => shape.takes(value, bound),
            (Shape::Optional(shape), Type::Optional(value)) => shape.takes(value, bound),
            (Shape::Optional(_), Type::Null) => true,
            _ => false,
        }
    }

    fn made(&self, bound: &Bound) -> Type {
        match self {
            Shape::Is(own) => own.clone(),
            Shape::Parameter(letter) => {
                let known = bound.0.iter().find(|(known, _)| known == letter);
                known.map_or(Type::Dyn, |(_, known)| known.clone())
            }
            Shape::List(shape) => Type::list(shape.made(bound)),
            Shape::Map(shape) => Type::map(shape.made(bound)),
            Shape::Optional(shape) => Type::optional(shape.made(bound)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expected` is the type that the call comes to; `None` where no overload fits.
    fn check(name: &str, target: Option<Type>, arguments: &[Type], expected: Option<Type>) {
        assert_eq!(call(name, target.as_ref(), arguments), Call::Fits(expected), "{name} of {target:?}");
    }

    #[test]
    fn methods_are_for_their_own_types() {
        let list = |element: Type| Some(Type::list(element));
        check("sum", list(Type::Int), &[], Some(Type::Int));
        check("sum", list(Type::String), &[], None);
        check("sum", list(Type::Dyn), &[], Some(Type::Dyn));
        check("max", list(Type::String), &[], Some(Type::String));
        check("max", list(Type::object("o", [])), &[], None);
        check("indexOf", list(Type::Int), &[Type::String], None);
        check("indexOf", list(Type::Int), &[Type::Int], Some(Type::Int));
        check("indexOf", Some(Type::String), &[Type::String, Type::Int], Some(Type::Int));
        check("startsWith", Some(Type::String), &[Type::Int], None);
        check("startsWith", Some(Type::String), &[], None);
        check("startsWith", Some(Type::Int), &[Type::String], None);
        check("getHours", Some(Type::String), &[], None);
        check("getHours", Some(Type::Duration), &[], Some(Type::Int));
        check("getHours", Some(Type::Duration), &[Type::String], None);
        check("size", Some(Type::object("o", [])), &[], None);
        check("size", Some(Type::Dyn), &[], Some(Type::Int));
        check("size", None, &[Type::map(Type::Int)], Some(Type::Int));
        check("first", list(Type::Bool), &[], Some(Type::optional(Type::Bool)));
        check("orValue", Some(Type::optional(Type::Int)), &[Type::String], None);
        check("orValue", Some(Type::optional(Type::Int)), &[Type::Int], Some(Type::Int));
        assert_eq!(call("nobody knows", None, &[]), Call::Unlisted);
    }

    #[test]
    fn functions_count_their_arguments() {
        check("quantity", None, &[Type::String], Some(Type::Opaque("kubernetes.Quantity")));
        check("quantity", None, &[Type::String, Type::String], None);
        check("quantity", None, &[Type::Int], None);
        check("ip", None, &[Type::String], Some(Type::Opaque("net.IP")));
        check("ip", Some(Type::Opaque("net.CIDR")), &[], Some(Type::Opaque("net.IP")));
        check("sets.contains", None, &[Type::list(Type::Int), Type::list(Type::String)], None);
        check("sets.contains", None, &[Type::list(Type::Dyn), Type::list(Type::String)], Some(Type::Bool));
        // Null stands for values of the libraries.
        check("isLessThan", Some(Type::Opaque("kubernetes.Quantity")), &[Type::Null], Some(Type::Bool));
        check("isLessThan", Some(Type::Opaque("kubernetes.Quantity")), &[Type::Int], None);
        // A value that could be anything has every result that it could have.
        check("add", Some(Type::Dyn), &[Type::Dyn], Some(Type::Opaque("kubernetes.Quantity")));
        check("indexOf", Some(Type::Dyn), &[Type::Bool], Some(Type::Int));
    }
}
