//! Conversion between the versions of a resource. The server converts built-in kinds, and custom resources without a
//! conversion webhook, whose versions differ only in their name. A webhook takes time and may fail.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use ferry_api::{FieldValidation, Kind, Object, Schema, Status, convert};
use ferry_patch::managed_fields::Versions;
use serde_json::Value;

use crate::cache::{Change, Encoding, Entry, Event, Filter, Form, Snapshot};
use crate::registry::Resource;
use crate::verbs::ResponseObject;

#[derive(Clone)]
pub enum Conversion {
    Local,
    Webhook(Arc<dyn ConversionWebhook>),
}

#[async_trait]
pub trait ConversionWebhook: Send + Sync {
    /// All objects in the version `to` (`example.com/v2`), in their order.
    async fn convert(&self, objects: Vec<Object>, to: &str) -> Result<Vec<Object>, Status>;
}

impl Resource {
    /// The row of one of its versions, served or not.
    pub fn version(&self, api_version: &str) -> Option<&Arc<Kind>> {
        self.versions.iter().find(|row| row.api_version() == api_version)
    }

    /// An object of any version of the resource in the version `to`.
    pub async fn convert(&self, object: Object, to: &Kind) -> Result<Object, Status> {
        match &self.conversion {
            Conversion::Local => self.convert_here(object, to),
            Conversion::Webhook(_) => {
                let mut converted = self.convert_all(vec![object], to).await?;
                converted.pop().ok_or_else(|| Status::internal("a conversion gave no object"))
            }
        }
    }

    /// The object in the version `to`, if it is not so already.
    pub async fn seen_in<'o>(&self, object: &'o Object, to: &Kind) -> Result<Cow<'o, Object>, Status> {
        if object.api_version() == to.api_version() {
            return Ok(Cow::Borrowed(object));
        }
        self.convert(object.clone(), to).await.map(Cow::Owned)
    }

    /// All objects in the version `to`; what has to be asked of a webhook is asked at once.
    pub async fn convert_all(&self, objects: Vec<Object>, to: &Kind) -> Result<Vec<Object>, Status> {
        let Conversion::Webhook(webhook) = &self.conversion else {
            return objects.into_iter().map(|object| self.convert_here(object, to)).collect();
        };
        let api_version = to.api_version();
        let (mut converted, mut others) = (Vec::with_capacity(objects.len()), Vec::new());
        for object in objects {
            if object.api_version() == api_version {
                converted.push(Some(object));
            } else {
                converted.push(None);
                others.push(object);
            }
        }
        if others.is_empty() {
            return Ok(converted.into_iter().flatten().collect());
        }
        let _span = ferry_trace::span("registry.convert");
        let mut others = webhook.convert(others, &api_version).await?.into_iter();
        let all = converted.into_iter().map(|object| match object {
            Some(object) => Ok(object),
            None => {
                let object =
                    others.next().ok_or_else(|| Status::internal("a conversion gave too few objects"))?;
                in_form_of(object, to)
            }
        });
        all.collect()
    }

    /// The conversion of what needs no webhook.
    pub fn convert_here(&self, object: Object, to: &Kind) -> Result<Object, Status> {
        if object.api_version() == to.api_version() {
            return Ok(object);
        }
        if let Conversion::Webhook(_) = &self.conversion {
            return Err(Status::internal(format!(
                "{} was not converted to {}",
                object.api_version(),
                to.version
            )));
        }
        match to.codec.typed() {
            Some(_) => {
                let from = self.version(object.api_version()).unwrap_or(&self.stored);
                convert::convert(object, from, to)
            }
            // Its defaults are those of the version that it lies in; others would not be stored.
            None => in_form_of(object, to),
        }
    }

    /// Makes the JSON of entries in the version `kind`, for those that a webhook has to convert, and keeps it with them.
    pub async fn prepare(&self, entries: &[Arc<Entry>], kind: &Kind) -> Result<(), Status> {
        if let Conversion::Local = &self.conversion {
            return Ok(());
        }
        let form = Form { version: kind.api_version().into(), encoding: Encoding::Json };
        let missing: Vec<&Arc<Entry>> = entries
            .iter()
            .filter(|entry| !entry.is_in_version(&form.version) && !entry.has_form(&form))
            .collect();
        let objects = missing.iter().map(|entry| entry.read_object()).collect::<Result<Vec<_>, _>>()?;
        for (entry, object) in missing.iter().zip(self.convert_all(objects, kind).await?) {
            entry.form(&form, || Ok(object.to_json().into()))?;
        }
        Ok(())
    }

    /// Those objects of a snapshot that a filter asks for by fields of the version `kind`.
    pub async fn select_converted(
        &self,
        snapshot: &Snapshot,
        filter: &Filter,
        kind: &Kind,
    ) -> Result<Snapshot, Status> {
        let entries = snapshot.values().filter(|entry| filter.matches(entry));
        let entries: Vec<Arc<Entry>> = entries.cloned().collect();
        self.prepare(&entries, kind).await?;
        let mut selected = Snapshot::new();
        for entry in entries {
            if self.matches_converted(&entry, filter, kind)? {
                selected.insert(entry.key.clone(), entry);
            }
        }
        Ok(selected)
    }

    /// What a filter sees of an event by fields of the version `kind`.
    pub async fn see_converted(
        &self,
        event: &Event,
        filter: &Filter,
        kind: &Kind,
    ) -> Result<Option<Change>, Status> {
        let before = event.previous.as_ref().filter(|previous| filter.matches(previous));
        let after = Some(&event.entry).filter(|entry| !event.deleted && filter.matches(entry));
        let entries: Vec<Arc<Entry>> = before.into_iter().chain(after).cloned().collect();
        self.prepare(&entries, kind).await?;
        let matches = |entry: Option<&Arc<Entry>>| {
            entry.map_or(Ok(false), |entry| self.matches_converted(entry, filter, kind))
        };
        Ok(Change::between(matches(before)?, matches(after)?))
    }

    fn matches_converted(&self, entry: &Entry, filter: &Filter, kind: &Kind) -> Result<bool, Status> {
        let peeked = self.cache.paths().read(&self.json_of(entry, kind)?);
        let peeked = peeked
            .map_err(|error| Status::internal(format!("an object of the cache cannot be read: {error}")))?;
        Ok(filter.matches_converted(&peeked.fields))
    }

    /// An entry's JSON in the version `kind`. Where a webhook converts, [`Resource::prepare`] goes before.
    pub fn json_of(&self, entry: &Entry, kind: &Kind) -> Result<Bytes, Status> {
        let as_it_is = match &self.conversion {
            Conversion::Local => kind.is_storage_version(),
            Conversion::Webhook(_) => entry.is_in_version(&kind.api_version()),
        };
        if as_it_is {
            return Ok(entry.json.clone());
        }
        let form = Form { version: kind.api_version().into(), encoding: Encoding::Json };
        entry.form(&form, || Ok(self.convert_here(entry.read_object()?, kind)?.to_json().into()))
    }

    /// An answer in the version `kind`: objects are converted, entries prepared.
    pub async fn prepare_answer(
        &self,
        answer: &ResponseObject,
        kind: &Kind,
    ) -> Result<ResponseObject, Status> {
        Ok(match answer {
            ResponseObject::Object(object) => {
                ResponseObject::Object(Box::new(self.seen_in(object, kind).await?.into_owned()))
            }
            ResponseObject::Entry(entry) => {
                self.prepare(std::slice::from_ref(entry), kind).await?;
                ResponseObject::Entry(entry.clone())
            }
        })
    }
}

/// A custom object by the schema of another version: its name and its fields.
pub(crate) fn in_form_of(mut object: Object, to: &Kind) -> Result<Object, Status> {
    object.set_type(&to.api_version(), &to.kind);
    let managers = object.take_managers();
    let mut object = to.decode_value(Value::Object(object.0), FieldValidation::Ignore)?.object;
    object.set_managers(managers);
    Ok(object)
}

impl Resource {
    /// Runs `decide`, which asks for objects in other versions. It cannot wait, and a webhook takes time: what it asks for
    /// is converted, and it is run again with that at hand, until it asks for nothing more.
    pub async fn decide<T>(&self, mut decide: impl FnMut(&dyn Versions) -> T) -> Result<T, Status> {
        let Conversion::Webhook(_) = &self.conversion else { return Ok(decide(self)) };
        let mut versions = FetchedVersions { resource: self, fetched: Vec::new(), wanted: Cell::new(None) };
        for _ in 0..MOST_FETCHED {
            let decided = decide(&versions);
            let Some((object, to)) = versions.wanted.take() else { return Ok(decided) };
            let converted = self.convert(object.clone(), &to).await?;
            versions.fetched.push(Fetched { object, to, converted });
        }
        Err(Status::internal(format!(
            "field ownership asks for more than {MOST_FETCHED} conversions of an object"
        )))
    }
}

/// How many conversions by a webhook one decision may ask for: a few for each version that managers wrote through.
const MOST_FETCHED: usize = 100;

/// Objects in other versions, as far as the webhook was asked for them already.
struct FetchedVersions<'a> {
    resource: &'a Resource,
    fetched: Vec<Fetched>,
    /// The first conversion that was asked for and is not there yet.
    wanted: Cell<Option<(Object, Arc<Kind>)>>,
}

struct Fetched {
    object: Object,
    to: Arc<Kind>,
    converted: Object,
}

impl Versions for FetchedVersions<'_> {
    fn convert(&self, object: &Object, api_version: &str) -> Option<(Object, Schema)> {
        let to = self.resource.version(api_version)?;
        let known = self.fetched.iter().find(|known| Arc::ptr_eq(&known.to, to) && known.object == *object);
        let Some(known) = known else {
            let first = self.wanted.take().unwrap_or_else(|| (object.clone(), to.clone()));
            self.wanted.set(Some(first));
            return None;
        };
        Some((known.converted.clone(), to.codec.field_rows().clone()))
    }

    fn same_fields(&self, a: &str, b: &str) -> bool {
        a == b
    }
}

/// Objects as managers see them that wrote through other versions, where no webhook is needed. Versions of a custom resource
/// that need none have the same fields.
impl Versions for Resource {
    fn convert(&self, object: &Object, api_version: &str) -> Option<(Object, Schema)> {
        let to = self.version(api_version)?;
        let converted = self.convert_here(object.clone(), to).ok()?;
        Some((converted, to.codec.field_rows().clone()))
    }

    fn same_fields(&self, a: &str, b: &str) -> bool {
        self.stored.codec.typed().is_none() || convert::same_fields(a, b)
    }
}
