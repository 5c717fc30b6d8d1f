//! Objects that an expression writes out: `Object{spec: Object.spec{replicas: 3}}`, `JSONPatch{op: 'remove', path: '/a'}`.
//!
//! They have names only so that they can be checked before they ever run ([`check`]); to the interpreter they are maps
//! ([`as_maps`]). A part of an object is named by the way to it, without the places in lists.

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, MapEntryExpr, MapExpr};
use cel::common::types::CelString;

use crate::types::Type;

/// The whole object.
pub const OBJECT: &str = "Object";
pub const JSON_PATCH: &str = "JSONPatch";

pub fn is_known(name: &str) -> bool {
    name == JSON_PATCH
        || name == OBJECT
        || name.strip_prefix(OBJECT).is_some_and(|rest| rest.starts_with('.'))
}

/// What is wrong with a field of a literal of this name, if anything.
pub fn check(name: &str, field: &str, value: &Type) -> Result<(), String> {
    if name == JSON_PATCH {
        return match field {
            "op" | "path" | "from" if Type::String.agrees_with(value) => Ok(()),
            "op" | "path" | "from" => {
                Err(format!("expected type of field '{field}' is 'string' but provided type is '{value}'"))
            }
            "value" => Ok(()),
            _ => Err(format!("undefined field '{field}'")),
        };
    }
    let mut part = value;
    while let Type::List(element) | Type::Optional(element) = part {
        part = element;
    }
    let expected = format!("{name}.{field}");
    match part {
        Type::Literal(given) if **given != *expected => Err(format!(
            "unexpected type name {given:?}, expected {expected:?}, which matches field name path from root Object type"
        )),
        _ => Ok(()),
    }
}

/// Writes every such object as the map that it is.
pub fn as_maps(expression: &mut IdedExpr) {
    match &mut expression.expr {
        Expr::Call(call) => call.target.as_deref_mut().into_iter().chain(&mut call.args).for_each(as_maps),
        Expr::Comprehension(looped) => {
            let looped = &mut **looped;
            let parts = [
                &mut looped.iter_range,
                &mut looped.accu_init,
                &mut looped.loop_cond,
                &mut looped.loop_step,
                &mut looped.result,
            ];
            parts.into_iter().for_each(as_maps);
        }
        Expr::List(list) => list.elements.iter_mut().for_each(as_maps),
        Expr::Select(select) => as_maps(&mut select.operand),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    as_maps(&mut entry.key);
                    as_maps(&mut entry.value);
                }
            }
        }
        Expr::Struct(object) => {
            let mut entries = std::mem::take(&mut object.entries);
            for entry in &mut entries {
                let EntryExpr::StructField(field) = &mut entry.expr else { continue };
                let mut field = std::mem::take(field);
                as_maps(&mut field.value);
                let name = Expr::Literal(LiteralValue::String(CelString::from(field.field)));
                let key = IdedExpr { id: entry.id, expr: name };
                entry.expr =
                    EntryExpr::MapEntry(MapEntryExpr { key, value: field.value, optional: field.optional });
            }
            expression.expr = Expr::Map(MapExpr { entries });
        }
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
}
