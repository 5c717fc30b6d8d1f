//! Tokens without an end that were made for an account by itself, kept in a Secret, and used by nobody for a year: they
//! are marked invalid first, which the API server enforces, and removed when nobody has objected for as long again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::{Attempt, Client, Error, Informer, NamespacedName, Outcome, Selection, error};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};

use crate::context::{Context, Running};

const CONTROLLER: &str = "legacy-serviceaccount-token-cleaner-controller";
const SECRET_TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// Since when API servers note the use of tokens.
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
/// Dates decide, so once a day is often enough.
const INTERVAL: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Keep,
    /// Nobody uses it: invalid from this day on.
    Mark(String),
    Delete,
}

fn date_of(time: Timestamp) -> Date {
    time.to_zoned(TimeZone::UTC).date()
}

/// A date as it stands in labels, and in no other spelling: dates are compared as text too.
fn date(text: &str) -> Option<Date> {
    text.parse().ok().filter(|date: &Date| date.to_string() == text)
}

fn before(now: Timestamp, period: Duration) -> Option<Timestamp> {
    now.checked_sub(SignedDuration::try_from(period).ok()?).ok()
}

/// May it go, but for pods that mount it and for how long its use has been noted?
fn is_unused(secret: &Secret, account: Option<&ServiceAccount>, now: Timestamp, period: Duration) -> bool {
    let Some(oldest) = before(now, period) else { return false };
    let created = secret.metadata.creation_timestamp.as_ref();
    if created.is_none_or(|created| created.0 >= oldest) || secret.metadata.deletion_timestamp.is_some() {
        return false;
    }
    if let Some(last_used) = secret.labels().get(LAST_USED)
        && date(last_used).is_none_or(|last_used| last_used >= date_of(oldest))
    {
        return false;
    }
    account.is_some_and(|account| is_made_for(secret, account))
}

/// The account lists it: that is how tokens that were made by themselves are known.
fn is_made_for(secret: &Secret, account: &ServiceAccount) -> bool {
    let uid = secret.annotations().get(ACCOUNT_UID).filter(|uid| !uid.is_empty());
    let lists = account.secrets.iter().flatten().any(|listed| listed.name == secret.metadata.name);
    lists && uid.is_none_or(|uid| account.metadata.uid.as_ref() == Some(uid))
}

/// Has the use of tokens been noted for the whole period? The first day may have begun before the noting did.
fn is_tracked_long_enough(since: Date, now: Timestamp, period: Duration) -> bool {
    let first_whole_day = since.checked_add(1.day()).ok();
    let begin = first_whole_day.and_then(|day| day.to_zoned(TimeZone::UTC).ok());
    match (begin, before(now, period)) {
        (Some(begin), Some(oldest)) => oldest >= begin.timestamp(),
        _ => false,
    }
}

/// What becomes of a token that nobody uses.
fn plan(secret: &Secret, now: Timestamp, period: Duration) -> Plan {
    let Some(oldest) = before(now, period) else { return Plan::Keep };
    match secret.labels().get(INVALID_SINCE).and_then(|since| date(since)) {
        None => Plan::Mark(date_of(now).to_string()),
        Some(since) if since >= date_of(oldest) => Plan::Keep,
        Some(_) => Plan::Delete,
    }
}

/// The Secrets that a pod names: pull secrets, variables, and every sort of volume that has one.
fn secret_names(spec: &Value, names: &mut BTreeSet<String>) {
    let mut add = |value: &Value| names.extend(value.as_str().map(str::to_owned));
    match spec {
        Value::Object(fields) => {
            for (field, value) in fields {
                match field.as_str() {
                    "secretName" => add(value),
                    "secret" | "secretRef" | "secretKeyRef" | "nodePublishSecretRef" => add(&value["name"]),
                    "imagePullSecrets" => {
                        value.as_array().into_iter().flatten().for_each(|one| add(&one["name"]));
                    }
                    _ => {}
                }
            }
            fields.values().for_each(|value| secret_names(value, names));
        }
        Value::Array(items) => items.iter().for_each(|item| secret_names(item, names)),
        _ => {}
    }
}

struct Controller {
    client: Client,
    /// Reads pods, of which informers keep too little.
    reader: Client,
    secrets: Informer<Secret>,
    accounts: Informer<ServiceAccount>,
    period: Duration,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let only_tokens = Selection { fields: Some(format!("type={SECRET_TYPE}")), labels: None };
    let (secrets, accounts) = (builder.selected(only_tokens), builder.informer());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        reader: context.reader.clone(),
        secrets: secrets.clone(),
        accounts,
        period: context.config.legacy_token_clean_up_period,
    });
    builder.of(&secrets, controller).run(Controller::reconcile)
}

impl Controller {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(secret) = self.secrets.get(&key) else { return Ok(Outcome::Done) };
        let account = secret.annotations().get(ACCOUNT_NAME).cloned();
        let account =
            account.and_then(|name| self.accounts.get(&NamespacedName::new(key.namespace.clone(), name)));
        let now = Timestamp::now();
        if !is_unused(&secret, account.as_deref(), now, self.period) {
            return Ok(Outcome::After(INTERVAL));
        }
        let tracked = self.tracked_since().await?;
        if tracked.is_none_or(|since| !is_tracked_long_enough(since, now, self.period)) {
            return Ok(Outcome::After(INTERVAL));
        }
        match plan(&secret, now, self.period) {
            Plan::Keep => {}
            _ if self.is_mounted(&key).await? => {}
            Plan::Mark(day) => self.mark(&key, &secret, &day).await?,
            Plan::Delete => self.delete(&key, &secret).await?,
        }
        Ok(Outcome::After(INTERVAL))
    }

    async fn tracked_since(&self) -> Result<Option<Date>, Error> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let tracking = api.get_opt(TRACKING).await.attempting("read since when tokens are tracked")?;
        Ok(tracking.and_then(|tracking| date(tracking.data?.get("since")?)))
    }

    async fn is_mounted(&self, key: &NamespacedName) -> Result<bool, Error> {
        let api: Api<Pod> = Api::namespaced(self.reader.clone(), &key.namespace);
        let pods = api.list(&ListParams::default()).await.attempting("list pods that may mount a token")?;
        let mut names = BTreeSet::new();
        for pod in pods {
            let spec = serde_json::to_value(&pod.spec).map_err(kube::Error::SerdeError);
            secret_names(&spec.attempting("read pod")?, &mut names);
        }
        Ok(names.contains(&key.name))
    }

    async fn mark(&self, key: &NamespacedName, secret: &Secret, day: &str) -> Result<(), Error> {
        tracing::info!(secret = %key, since = day, "mark the unused token as invalid");
        let patch = json!({"metadata": {"uid": secret.uid(), "labels": {INVALID_SINCE: day}}});
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
        let patched = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        error::ignore_not_found(patched).attempting("mark token invalid").map(|_| ())
    }

    /// Only in the state that was judged: a use that was noted since then keeps it.
    async fn delete(&self, key: &NamespacedName, secret: &Secret) -> Result<(), Error> {
        tracing::info!(secret = %key, "delete the unused token");
        let only_this = DeleteParams::default()
            .preconditions(Preconditions { uid: secret.uid(), resource_version: secret.resource_version() });
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
        match api.delete(&key.name, &only_this).await {
            Err(error) if error::is_conflict(&error) => Ok(()),
            deleted => error::ignore_not_found(deleted).attempting("delete token").map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;
    use crate::testing::{at, deleting, labels, named};

    const DAY: i64 = 24 * 3600;
    /// `at(0)` is in the evening of 2023-11-14.
    const PERIOD: Duration = Duration::from_secs(10 * 24 * 3600);

    fn secret(pairs: &[(&str, &str)]) -> Secret {
        let mut secret: Secret = named("token");
        secret.metadata.labels = Some(labels(pairs));
        secret.metadata.annotations = Some(labels(&[(ACCOUNT_NAME, "robot"), (ACCOUNT_UID, "uid-robot")]));
        secret
    }

    fn account(secrets: &[&str]) -> ServiceAccount {
        let listed = |name: &&str| ObjectReference { name: Some(name.to_string()), ..Default::default() };
        ServiceAccount { secrets: Some(secrets.iter().map(listed).collect()), ..named("robot") }
    }

    #[test]
    fn only_old_tokens_of_accounts_that_list_them_are_unused() {
        let check = |secret: &Secret, account: Option<&ServiceAccount>, day: i64, expected: bool| {
            let found = is_unused(secret, account, at(day * DAY), PERIOD);
            assert_eq!(found, expected, "{secret:?} {account:?} on day {day}");
        };
        let (own, foreign) = (account(&["other", "token"]), account(&["other"]));
        check(&secret(&[]), Some(&own), 10, false);
        check(&secret(&[]), Some(&own), 11, true);
        check(&secret(&[]), Some(&foreign), 11, false);
        check(&secret(&[]), None, 11, false);
        check(&secret(&[(LAST_USED, "2023-11-15")]), Some(&own), 11, false);
        check(&secret(&[(LAST_USED, "2023-11-14")]), Some(&own), 11, true);
        check(&secret(&[(LAST_USED, "yesterday")]), Some(&own), 99, false);
        check(&deleting(secret(&[])), Some(&own), 11, false);
        let again = ServiceAccount { metadata: named::<ServiceAccount>("another").metadata, ..own.clone() };
        check(&secret(&[]), Some(&again), 11, false);
    }

    #[test]
    fn an_unused_token_is_marked_and_goes_a_period_later() {
        let check = |pairs: &[(&str, &str)], day: i64, expected: Plan| {
            assert_eq!(plan(&secret(pairs), at(day * DAY), PERIOD), expected, "{pairs:?} on day {day}");
        };
        check(&[], 11, Plan::Mark("2023-11-25".into()));
        check(&[(INVALID_SINCE, "long ago")], 11, Plan::Mark("2023-11-25".into()));
        check(&[(INVALID_SINCE, "2023-11-25")], 21, Plan::Keep);
        check(&[(INVALID_SINCE, "2023-11-25")], 22, Plan::Delete);
    }

    #[test]
    fn tokens_are_judged_only_after_a_full_tracking_period() {
        let since = date("2023-11-14").expect("a date");
        assert!(!is_tracked_long_enough(since, at(10 * DAY), PERIOD));
        assert!(is_tracked_long_enough(since, at(11 * DAY), PERIOD));
    }

    #[test]
    fn every_place_of_a_pod_that_names_a_secret_counts() {
        let spec = json!({
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [{"name": "c", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "variable", "key": "k"}}}],
                "envFrom": [{"secretRef": {"name": "all"}}]}],
            "volumes": [
                {"name": "v", "secret": {"secretName": "mounted"}},
                {"name": "p", "projected": {"sources": [{"secret": {"name": "projected"}}]}},
                {"name": "d", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "csi"}}},
            ],
        });
        let mut names = BTreeSet::new();
        secret_names(&spec, &mut names);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(names, ["all", "csi", "mounted", "projected", "pull", "variable"]);
    }
}
