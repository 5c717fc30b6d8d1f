//! How a request for a pod's certificate ends: a certificate for the key that was asked for, a refusal or a failure.

use ferry_api::FieldErrors;
use ferry_api::field_error::Reason;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::super::conditions;
use super::super::field::{Context, Field};
use super::key::PublicKey;
use super::{certificate, pem, pod};
use crate::kinds::checks::Path;

const ENDS: [&str; 3] = ["Issued", "Denied", "Failed"];
const LARGEST_CHAIN: usize = 100 << 10;
/// How far the beginning of a certificate may be from now.
const SKEW: SignedDuration = SignedDuration::from_mins(5);
/// Between the time to ask again and both ends of a certificate.
const MARGIN: SignedDuration = SignedDuration::from_mins(10);
const SHORTEST: SignedDuration = SignedDuration::from_hours(1);

pub fn pod_certificate_status(status: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    judge(status, context, Timestamp::now(), errors);
}

fn judge(status: Field<'_>, context: &Context<'_>, now: Timestamp, errors: &mut FieldErrors) {
    let before = errors.0.len();
    let list = status.child("conditions");
    known_conditions(list, errors);
    conditions::judge(list, errors);
    // What the rest has to be follows from the conditions.
    if errors.0.len() > before {
        return;
    }
    let old = context.old_object.and_then(|old| old.get(&["status"]));
    let ended = |status: Option<&Value>, kind: &str| {
        conditions::holds(status.and_then(|status| status.get("conditions")), kind)
    };
    let is_same = without_empty(old) == without_empty(status.value);
    let refuse = |why: &str, errors: &mut FieldErrors| {
        errors.push(status.path, Reason::Invalid, why.to_owned());
    };
    if ENDS.iter().any(|kind| ended(old, kind)) {
        if !is_same {
            refuse("immutable after PodCertificateRequest is issued, denied, or failed", errors);
        }
    } else if ended(status.value, "Denied") || ended(status.value, "Failed") {
        let rest = ["certificateChain", "notBefore", "beginRefreshAt", "notAfter"];
        if rest.iter().any(|field| !status.child(field).is_empty()) {
            let why =
                "non-condition status fields must be empty when denying or failing the PodCertificateRequest";
            refuse(why, errors);
        }
    } else if ended(status.value, "Issued") {
        let spec = Field { value: context.object.get(&["spec"]), path: Path::root("spec") };
        issued(status, spec, now, errors);
    } else if !is_same {
        refuse(r#"status is immutable unless transitioning to "Issued", "Denied", or "Failed""#, errors);
    }
}

fn without_empty(status: Option<&Value>) -> Value {
    let map = status.and_then(Value::as_object).into_iter().flatten();
    let given = map.filter(|(_, value)| !super::super::field::is_empty(Some(value)));
    Value::Object(given.map(|(field, value)| (field.clone(), value.clone())).collect())
}

fn known_conditions(list: Field<'_>, errors: &mut FieldErrors) {
    let mut known = 0;
    for (index, condition) in list.items().iter().enumerate() {
        // Upstream writes the index as a field's name.
        let shown = format!("[{index}]");
        let condition = Field { value: Some(condition), path: list.path.child(&shown) };
        let (kind, holds) = (condition.child("type"), condition.child("status"));
        if !ENDS.contains(&kind.text()) {
            errors.not_supported(kind.path, kind.text(), &ENDS);
            continue;
        }
        known += 1;
        if known > 1 {
            let why = r#"There may be at most one condition with type "Issued", "Denied", or "Failed""#;
            kind.invalid(why, errors);
        }
        if holds.text() != "True" {
            errors.not_supported(holds.path, holds.text(), &["True"]);
        }
    }
}

fn issued(status: Field<'_>, spec: Field<'_>, now: Timestamp, errors: &mut FieldErrors) {
    let chain = status.child("certificateChain");
    if chain.text().len() > LARGEST_CHAIN {
        return errors.too_long(chain.path, LARGEST_CHAIN);
    }
    let mut blocks = pem::blocks(chain.text());
    let Some(first) = blocks.next() else {
        return chain.invalid("issued certificate chain must contain at least one certificate", errors);
    };
    if first.label != "CERTIFICATE" {
        return chain
            .invalid("issued certificate chain must consist entirely of CERTIFICATE PEM blocks", errors);
    }
    let Some(leaf) = certificate(&first.bytes) else {
        return chain.invalid("leaf certificate does not parse as valid X.509", errors);
    };
    let before = errors.0.len();
    names(&leaf, chain.path, errors);
    let Some(wanted) = pod::requested_key(spec) else {
        let why = "must be a valid PKCS#10 CSR";
        return errors.push(spec.path.child("stubPKCS10Request"), Reason::Invalid, why.to_owned());
    };
    if PublicKey::of(leaf.public_key()).as_ref() != Some(&wanted) {
        return chain.invalid("leaf certificate was not issued to the requested public key", errors);
    }
    times_are_given(status, errors);
    if errors.0.len() > before || !times_fit(status, spec, &leaf, now, errors) {
        return;
    }
    for block in blocks {
        if block.label != "CERTIFICATE" {
            // As upstream spells it.
            let why = "issued certificate chain must consist entirely of CERTFICATE PEM blocks";
            return chain.invalid(why, errors);
        }
        if certificate(&block.bytes).is_none() {
            return chain.invalid("intermediate certificate does not parse as valid X.509", errors);
        }
    }
}

fn names(leaf: &X509Certificate<'_>, path: Path<'_>, errors: &mut FieldErrors) {
    let alternatives = leaf.subject_alternative_name().ok().flatten();
    for name in alternatives.iter().flat_map(|found| &found.value.general_names) {
        match name {
            GeneralName::DNSName(name) => {
                if name.is_empty() {
                    errors.invalid(path, *name, "leaf certificate should not contain empty DNSName");
                }
                if name.contains("..") {
                    errors.invalid(path, *name, "leaf certificate's DNSName should not contain '..'");
                }
                if name.starts_with('.') || name.ends_with('.') {
                    errors.invalid(
                        path,
                        *name,
                        "leaf certificate's DNSName should not start or end with '.'",
                    );
                }
            }
            GeneralName::RFC822Name(address) if !is_address(address) => {
                errors.invalid(path, *address, "leaf certificate should not contain invalid EmailAddress");
            }
            _ => {}
        }
    }
}

/// `local@domain`, both of words between dots.
fn is_address(text: &str) -> bool {
    let atom = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || !c.is_ascii();
    let words = |part: &str| part.split('.').all(|word| !word.is_empty() && word.chars().all(atom));
    text.rsplit_once('@').is_some_and(|(local, domain)| words(local) && words(domain))
}

fn times_are_given(status: Field<'_>, errors: &mut FieldErrors) {
    let consistent = "must be present and consistent with the issued certificate";
    let between = "must be present and in the range [notbefore+10min, notafter-10min]";
    for (field, why) in [("notBefore", consistent), ("notAfter", consistent), ("beginRefreshAt", between)] {
        status.child(field).required(why, errors);
    }
}

/// The first that is wrong is told.
fn times_fit(
    status: Field<'_>,
    spec: Field<'_>,
    leaf: &X509Certificate<'_>,
    now: Timestamp,
    errors: &mut FieldErrors,
) -> bool {
    let fields = ["notBefore", "notAfter", "beginRefreshAt"].map(|field| status.child(field));
    let [begin, end, refresh] = fields.map(|field| field.text().parse::<Timestamp>().unwrap_or_default());
    let [begin_field, end_field, refresh_field] = fields;
    let chain = status.child("certificateChain");
    let of_leaf =
        |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).unwrap_or_default();
    let (from, to) = (of_leaf(leaf.validity().not_before), of_leaf(leaf.validity().not_after));
    let lifetime = to.duration_since(from);
    let most = SignedDuration::from_secs(spec.child("maxExpirationSeconds").number());
    let nanoseconds = || json!(i64::try_from(lifetime.as_nanos()).unwrap_or(i64::MAX));
    let (field, value, why) = if begin != from {
        let why = "must be set to the NotBefore time encoded in the leaf certificate";
        (begin_field, begin_field.json(), why.to_owned())
    } else if begin.duration_since(now).abs() >= SKEW {
        let why = "must be set to within 5 minutes of kube-apiserver's current time";
        (begin_field, begin_field.json(), why.to_owned())
    } else if end != to {
        let why = "must be set to the NotAfter time encoded in the leaf certificate";
        (end_field, end_field.json(), why.to_owned())
    } else if lifetime < SHORTEST {
        (chain, nanoseconds(), "leaf certificate lifetime must be >= 1 hour".to_owned())
    } else if lifetime > most {
        let why =
            format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({})", most.as_secs());
        (chain, nanoseconds(), why)
    } else if refresh.duration_since(begin) < MARGIN {
        (refresh_field, refresh_field.json(), "must be at least 10 minutes after status.notBefore".to_owned())
    } else if end.duration_since(refresh) < MARGIN {
        (refresh_field, refresh_field.json(), "must be at least 10 minutes before status.notAfter".to_owned())
    } else {
        return true;
    };
    errors.invalid(field.path, value, &why);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For an Ed25519 key, from 05:16:46 on for a day, and a request with the same key.
    const LEAF: &str = concat!(
        "MIIBLzCB4qADAgECAhQ1rwl+ghLwZDujqzgb+GYAdVv0yjAFBgMrZXAwDzENMAsGA1UEAwwEbGVhZjAeFw0yNjExMTkwNTE2NDZa",
        "Fw0yNjExMjAwNTE2NDZaMA8xDTALBgNVBAMMBGxlYWYwKjAFBgMrZXADIQBusuOOTbN60iBN3kimnQ4c5XIu+o/5fkkYeoBaq6L4",
        "JaNQME4wHQYDVR0OBBYEFGtriaJK7mwQRwyta4f4uu/Jzq7/MB8GA1UdIwQYMBaAFGtriaJK7mwQRwyta4f4uu/Jzq7/MAwGA1Ud",
        "EwEB/wQCMAAwBQYDK2VwA0EAG9FlLvOtyBtNB+ClnNUixq51z8fzY2O6B4w7OwTwr7ZPixsivmusJIZYjCl5/t5+INnH8v+YCF5n",
        "WNPQMRzyCA==",
    );
    const REQUEST: &str = concat!(
        "MH8wMwIBADAAMCowBQYDK2VwAyEAbrLjjk2zetIgTd5Ipp0OHOVyLvqP+X5JGHqAWqui+CWgADAFBgMrZXADQQB721yHjNAgmPcm",
        "gyxyBBmoaVUB7h6cLqKl9F/ZBsRsTy5ZSMQoXlCGxufwXowJTp+5hHS9uotkHdAKkJ5y3asN",
    );

    fn told(change: Value, seconds: i64, now: &str) -> Vec<String> {
        let mut status = json!({
            "certificateChain": format!("-----BEGIN CERTIFICATE-----\n{LEAF}\n-----END CERTIFICATE-----\n"),
            "notBefore": "2026-11-19T05:16:46Z", "notAfter": "2026-11-20T05:16:46Z",
            "beginRefreshAt": "2026-11-19T20:00:00Z",
        });
        for (field, value) in change.as_object().expect("a map") {
            status[field] = value.clone();
        }
        let spec = json!({"stubPKCS10Request": REQUEST, "maxExpirationSeconds": seconds});
        let mut errors = FieldErrors::default();
        issued(
            Field::of(&status, Path::root("status")),
            Field::of(&spec, Path::root("spec")),
            now.parse().expect("a time"),
            &mut errors,
        );
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_certificate_for_the_key_that_was_asked_for_ends_a_request() {
        const NOW: &str = "2026-11-19T05:18:00Z";
        let check = |change: Value, seconds: i64, now: &str, expected: &[&str]| {
            assert_eq!(told(change.clone(), seconds, now), expected, "{change} {seconds} {now}");
        };
        check(json!({}), 86_400, NOW, &[]);
        check(
            json!({}),
            86_400,
            "2026-11-19T05:30:00Z",
            &[
                "status.notBefore: Invalid value: \"2026-11-19T05:16:46Z\": must be set to within 5 minutes of kube-apiserver's current time",
            ],
        );
        check(
            json!({}),
            3600,
            NOW,
            &[
                "status.certificateChain: Invalid value: 86400000000000: leaf certificate lifetime must be <= spec.maxExpirationSeconds (3600)",
            ],
        );
        check(
            json!({"notAfter": "2026-11-20T05:16:47Z"}),
            86_400,
            NOW,
            &[
                "status.notAfter: Invalid value: \"2026-11-20T05:16:47Z\": must be set to the NotAfter time encoded in the leaf certificate",
            ],
        );
        check(
            json!({"beginRefreshAt": "2026-11-19T05:26:45Z"}),
            86_400,
            NOW,
            &[
                "status.beginRefreshAt: Invalid value: \"2026-11-19T05:26:45Z\": must be at least 10 minutes after status.notBefore",
            ],
        );
        check(
            json!({"beginRefreshAt": "2026-11-20T05:06:47Z"}),
            86_400,
            NOW,
            &[
                "status.beginRefreshAt: Invalid value: \"2026-11-20T05:06:47Z\": must be at least 10 minutes before status.notAfter",
            ],
        );
    }

    #[test]
    fn addresses_of_mail() {
        for good in ["a@b", "a.b+c@d.example"] {
            assert!(is_address(good), "{good}");
        }
        for bad in ["", "a", "@b", "a@", "a..b@c", "a b@c"] {
            assert!(!is_address(bad), "{bad}");
        }
    }
}
