//! GET of one object and of many.

use ferry_api::Status;
use ferry_api::selector::{FieldSelector, LabelSelector};
use ferry_registry::cache::Filter;
use ferry_registry::conversion::Conversion;
use ferry_registry::verbs::ResponseObject;
use ferry_registry::verbs::list::{Continue, Freshness};

use super::Target;
use crate::body::Response;
use crate::request::{BadRevision, namespace_of, revision};
use crate::{continue_token, respond};

pub async fn get(target: Target<'_>) -> Result<Response, Status> {
    let media_type = target.media_type()?;
    let freshness = match target.request.query.text("resourceVersion") {
        "" => Freshness::Current,
        "0" => Freshness::Any,
        text => Freshness::NotOlderThan(revision(text)?),
    };
    let options = target.request.write_options("GetOptions")?;
    let call = target.call(&options);
    let entry = target.api.registry.get(&call, freshness).await?;
    respond::answer(target, 200, &ResponseObject::Entry(entry), media_type).await
}

pub async fn list(target: Target<'_>) -> Result<Response, Status> {
    let media_type = target.media_type()?;
    let query = &target.request.query;
    // What is not more than nothing is no limit.
    let limit =
        number(query.text("limit"))?.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0);
    number(query.text("timeoutSeconds"))?;
    if query.get("sendInitialEvents").is_some() {
        let mut errors = ferry_api::FieldErrors::default();
        errors.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
        return Err(Status::invalid("meta.k8s.io", "ListOptions", "", &errors));
    }
    let from = match query.text("continue") {
        "" => None,
        token => Some(continue_token::decode(token)?),
    };
    let freshness =
        freshness(query.text("resourceVersion"), query.text("resourceVersionMatch"), limit, from.is_some())?;
    let filter = filter(target)?;
    let listed = target.api.registry.list(target.resource, &filter, freshness, limit, from.clone()).await;
    let listed = listed.map_err(|status| match from {
        Some(from) if status.code == 410 => with_rest_of_the_list(status, from),
        _ => status,
    })?;
    respond::list(target, listed, media_type).await
}

/// Who can live with a list of two revisions finds in the answer where to go on.
fn with_rest_of_the_list(mut status: Status, from: Continue) -> Status {
    let token = continue_token::encode(&Continue { revision: Continue::NEWEST, ..from });
    status.metadata.insert("continue".into(), token.into());
    status
}

fn number(text: &str) -> Result<Option<i64>, Status> {
    match text {
        "" => Ok(None),
        text => text
            .parse()
            .map(Some)
            .map_err(|_| Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))),
    }
}

/// The rules of resourceVersion and resourceVersionMatch for lists.
fn freshness(version: &str, rule: &str, limit: Option<usize>, continued: bool) -> Result<Freshness, Status> {
    let invalid = |why: &str| {
        let mut errors = ferry_api::FieldErrors::default();
        errors.forbidden("resourceVersionMatch", why);
        Status::invalid("meta.k8s.io", "ListOptions", "", &errors)
    };
    if continued && !rule.is_empty() {
        return Err(invalid("resourceVersionMatch is forbidden when continue is provided"));
    }
    if continued && !version.is_empty() && version != "0" {
        return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
    }
    if version.is_empty() && !rule.is_empty() {
        return Err(invalid("resourceVersionMatch is forbidden unless resourceVersion is provided"));
    }
    match (version, rule) {
        ("", _) => Ok(Freshness::Current),
        ("0", "Exact") => {
            Err(invalid("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""))
        }
        ("0", _) => Ok(Freshness::Any),
        (text, "Exact") => Ok(Freshness::Exactly(revision(text).map_err(BadRevision::in_list)?)),
        // A limit without a match rule means the exact revision, for old clients' sake.
        (text, "") if limit.is_some() => {
            Ok(Freshness::Exactly(revision(text).map_err(BadRevision::in_list)?))
        }
        (text, "NotOlderThan" | "") => {
            Ok(Freshness::NotOlderThan(revision(text).map_err(BadRevision::in_list)?))
        }
        (_, other) => {
            let mut errors = ferry_api::FieldErrors::default();
            errors.not_supported("resourceVersionMatch", other, &["Exact", "NotOlderThan", ""]);
            Err(Status::invalid("meta.k8s.io", "ListOptions", "", &errors))
        }
    }
}

/// What the request selects: its namespace, labels and fields.
pub fn filter(target: Target<'_>) -> Result<Filter, Status> {
    let info = &target.request.info;
    let labels = LabelSelector::parse(target.request.query.text("labelSelector"))
        .map_err(|error| Status::bad_request(error.to_string()))?;
    let mut fields = FieldSelector::parse(target.request.query.text("fieldSelector"))
        .map_err(|error| Status::bad_request(error.to_string()))?;
    // The old watch of one object: /api/v1/watch/namespaces/a/pods/b.
    if !info.name.is_empty() {
        fields = FieldSelector::parse(&format!("{fields},metadata.name={}", info.name))
            .map_err(|error| Status::bad_request(error.to_string()))?;
    }
    let namespace = Some(namespace_of(target.kind, info)).filter(|namespace| !namespace.is_empty());
    let mut filter = {
        let (strategy, version) = (&target.resource.strategy, &target.kind.version);
        Filter::new(namespace, labels, &fields, strategy.selectable(), |field| {
            strategy.may_select(field, version)
        })?
    };
    if let Conversion::Webhook(_) = &target.resource.conversion {
        filter = filter.seen_in(target.kind);
    }
    filter.include_uninitialized = target.request.query.flag("includeUninitialized");
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_store::Revision;

    #[test]
    fn a_list_is_as_new_as_its_parameters_say() {
        let check = |version, rule, limit, expected| {
            assert_eq!(freshness(version, rule, limit, false).ok(), expected, "{version} {rule} {limit:?}");
        };
        check("", "", None, Some(Freshness::Current));
        check("0", "", Some(5), Some(Freshness::Any));
        check("7", "", None, Some(Freshness::NotOlderThan(Revision(7))));
        check("7", "", Some(5), Some(Freshness::Exactly(Revision(7))));
        check("7", "NotOlderThan", Some(5), Some(Freshness::NotOlderThan(Revision(7))));
        check("0", "Exact", None, None);
        check("", "Exact", None, None);
        check("x", "", None, None);
    }
}
