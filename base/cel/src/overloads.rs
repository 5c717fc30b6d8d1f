//! Which values a method takes. Methods that are not listed take what they are given; whether they can work with it is
//! seen when they run.

use crate::types::Type;

/// Whether one of the method's overloads is for these types.
pub fn fit(method: &str, target: &Type, arguments: &[Type]) -> bool {
    if *target == Type::Dyn {
        return true;
    }
    match method {
        "sum" => is_list_of(target, |element| element.is_number() || *element == Type::Duration),
        "min" | "max" | "isSorted" => is_list_of(target, is_ordered),
        "indexOf" | "lastIndexOf" => match (target, arguments) {
            (Type::String, [text, ..]) => Type::String.agrees_with(text),
            (Type::List(element), [item]) => element.agrees_with(item),
            _ => false,
        },
        "reverse" => matches!(target, Type::List(_)),
        "getFullYear" | "getMonth" | "getDate" | "getDayOfMonth" | "getDayOfWeek" | "getDayOfYear" => {
            *target == Type::Timestamp
        }
        "getHours" | "getMinutes" | "getSeconds" | "getMilliseconds" => {
            matches!(target, Type::Timestamp | Type::Duration)
        }
        "hasValue" | "orValue" | "or" => matches!(target, Type::Optional(_)),
        "isGreaterThan" | "isLessThan" | "compareTo" => match (target, arguments) {
            (Type::Opaque(_), [other]) => target.agrees_with(other),
            _ => false,
        },
        "size" => matches!(target, Type::String | Type::Bytes | Type::List(_) | Type::Map(_)),
        _ => true,
    }
}

fn is_list_of(kind: &Type, fits: impl Fn(&Type) -> bool) -> bool {
    matches!(kind, Type::List(element) if **element == Type::Dyn || fits(element))
}

fn is_ordered(kind: &Type) -> bool {
    let others = [Type::Bool, Type::String, Type::Bytes, Type::Duration, Type::Timestamp];
    kind.is_number() || others.contains(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_for_their_own_types() {
        let check = |method: &str, target: Type, arguments: &[Type], expected: bool| {
            assert_eq!(fit(method, &target, arguments), expected, "{method} of {target}");
        };
        check("sum", Type::list(Type::Int), &[], true);
        check("sum", Type::list(Type::String), &[], false);
        check("sum", Type::list(Type::Dyn), &[], true);
        check("indexOf", Type::list(Type::Int), &[Type::String], false);
        check("indexOf", Type::String, &[Type::String], true);
        check("getHours", Type::String, &[], false);
        check("getHours", Type::Duration, &[], true);
        check("hasValue", Type::String, &[], false);
        check("size", Type::object("o", []), &[], false);
        check("size", Type::Dyn, &[], true);
        check("isGreaterThan", Type::Opaque("kubernetes.Quantity"), &[Type::Int], false);
        check("nobody knows", Type::Int, &[], true);
    }
}
