//! Ranges, puts, deletions and transactions. What is written goes through the store's writer as one piece of work, so
//! a transaction sees what the one before it left, and nothing in between.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use ferry_etcd_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use ferry_etcd_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use ferry_etcd_api::etcdserverpb::request_op::Request;
use ferry_etcd_api::etcdserverpb::response_op::Response;
use ferry_etcd_api::etcdserverpb::{
    CompactionRequest, CompactionResponse, Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};
use ferry_etcd_api::mvccpb;
use ferry_store::embedded::{Budget, Located, Transaction};
use ferry_store::{KeyValue, Revision, Span, Store};
use prost::Message;

use crate::failure::{Failure, Result};
use crate::lease::Leases;
use crate::overlaps;
use crate::service::Service;

impl Service {
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        check_range(&request)?;
        let query = Query::new(&request);
        let (entries, left, revision) =
            self.store.entries(&query.span, query.at, query.limit).map_err(Failure::from)?;
        let count = entries.len() + left;
        let kvs = self.store.read(query.select(&request, entries)).await?;
        let mut response = query.respond(&request, kvs, count);
        response.header = Some(self.header(revision));
        Ok(response)
    }

    pub async fn put(&self, request: PutRequest) -> Result<PutResponse> {
        check_put(&request)?;
        self.check_size(&request)?;
        let mut budget = Budget::default();
        self.budget_put(&mut budget, &request).await?;
        self.write(budget, move |step| step.put(&request), |header, response| response.header = header).await
    }

    pub async fn delete_range(&self, request: DeleteRangeRequest) -> Result<DeleteRangeResponse> {
        check_delete(&request)?;
        let mut budget = Budget::default();
        budget.delete(span_of(&request.key, &request.range_end));
        self.write(budget, move |step| step.delete(&request), |header, response| response.header = header)
            .await
    }

    pub async fn txn(&self, request: TxnRequest) -> Result<TxnResponse> {
        self.check_size(&request)?;
        check_txn(&request, self.limits.operations)?;
        overlaps::check(&request)?;
        let mut budget = Budget::default();
        self.budget_txn(&mut budget, &request).await?;
        self.write(budget, move |step| step.txn(&request), |header, response| response.header = header).await
    }

    pub async fn compact(&self, request: CompactionRequest) -> Result<CompactionResponse> {
        self.store.compact(Revision(request.revision)).await?;
        Ok(CompactionResponse { header: self.current_header().await? })
    }

    /// Runs one step in the store's writer, then lets leases know what it did to their keys.
    async fn write<T: Send + 'static>(
        &self,
        budget: Budget,
        run: impl FnOnce(&mut Step<'_, '_>) -> Result<T> + Send + 'static,
        set_header: impl FnOnce(Option<ResponseHeader>, &mut T),
    ) -> Result<T> {
        let leases = self.leases.clone();
        let work = move |transaction: &mut Transaction<'_>| {
            let mut step = Step { transaction, leases: &leases, attached: Vec::new() };
            let response = run(&mut step)?;
            let (revision, attached) = (step.transaction.revision(), step.attached);
            leases.attach(attached);
            Ok::<_, Failure>((response, revision))
        };
        let ((mut response, revision), _) = self.store.transact(budget, work).await?;
        set_header(Some(self.header(revision)), &mut response);
        Ok(response)
    }

    fn check_size(&self, request: &impl Message) -> Result<()> {
        match request.encoded_len() > self.limits.request_bytes {
            true => Err(Failure::request_too_large()),
            false => Ok(()),
        }
    }

    /// A put that keeps its value writes as much as the key holds; it may have grown until then, so there is room for
    /// the largest value a request can bring.
    async fn budget_put(&self, budget: &mut Budget, put: &PutRequest) -> Result<()> {
        budget.put(&put.key, &put.value);
        if put.ignore_value {
            let kept = self.store.get(text(&put.key)?, None).await?.kv;
            let size = kept.map_or(0, |kv| kv.value.len()).max(self.limits.request_bytes);
            budget.reserve(size);
        }
        Ok(())
    }

    async fn budget_txn(&self, budget: &mut Budget, txn: &TxnRequest) -> Result<()> {
        let mut txns = vec![txn];
        while let Some(txn) = txns.pop() {
            for operation in txn.success.iter().chain(&txn.failure) {
                match &operation.request {
                    Some(Request::RequestPut(put)) => self.budget_put(budget, put).await?,
                    Some(Request::RequestDeleteRange(deletion)) => {
                        budget.delete(span_of(&deletion.key, &deletion.range_end));
                    }
                    Some(Request::RequestTxn(txn)) => txns.push(txn),
                    Some(Request::RequestRange(_)) | None => {}
                }
            }
        }
        Ok(())
    }
}

/// Where a range looks and how far, read off a request.
struct Query {
    span: Span,
    at: Option<Revision>,
    /// Entries that the store need look up: all of them where they are sorted or filtered first.
    limit: usize,
}

impl Query {
    fn new(request: &RangeRequest) -> Self {
        let sorted = request.sort_target() != SortTarget::Key || request.sort_order() == SortOrder::Descend;
        let limit = match usize::try_from(request.limit) {
            _ if request.count_only => 0,
            Ok(limit) if limit > 0 && !sorted && !is_filtered(request) => limit,
            _ => usize::MAX,
        };
        Query {
            span: span_of(&request.key, &request.range_end),
            at: (request.revision > 0).then_some(Revision(request.revision)),
            limit,
        }
    }

    /// What of the entries is asked for, in order. Sorting by value has to wait until values are read.
    fn select(&self, request: &RangeRequest, mut entries: Vec<Located>) -> Vec<Located> {
        let within = |revision: Revision, least: i64, most: i64| {
            (least == 0 || revision.0 >= least) && (most == 0 || revision.0 <= most)
        };
        if is_filtered(request) {
            entries.retain(|entry| {
                within(entry.mod_revision(), request.min_mod_revision, request.max_mod_revision)
                    && within(
                        entry.create_revision(),
                        request.min_create_revision,
                        request.max_create_revision,
                    )
            });
        }
        match request.sort_target() {
            SortTarget::Key => {}
            SortTarget::Version => entries.sort_by_key(Located::version),
            SortTarget::Create => entries.sort_by_key(Located::create_revision),
            SortTarget::Mod => entries.sort_by_key(Located::mod_revision),
            SortTarget::Value => return entries,
        }
        if request.sort_order() == SortOrder::Descend {
            entries.reverse();
        }
        if request.limit > 0 {
            // One more than asked for tells that there are more.
            entries.truncate(request.limit as usize + 1);
        }
        entries
    }

    fn respond(&self, request: &RangeRequest, mut kvs: Vec<KeyValue>, count: usize) -> RangeResponse {
        if request.sort_target() == SortTarget::Value {
            kvs.sort_by(|one, other| one.value.cmp(&other.value));
            if request.sort_order() == SortOrder::Descend {
                kvs.reverse();
            }
        }
        let mut more = !request.count_only && self.limit < count;
        if request.limit > 0 && kvs.len() > request.limit as usize {
            kvs.truncate(request.limit as usize);
            more = true;
        }
        let mut kvs: Vec<_> = kvs.into_iter().map(key_value).collect();
        if request.keys_only {
            kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
        }
        RangeResponse { header: None, kvs, more, count: count as i64 }
    }
}

fn is_filtered(request: &RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

/// Requests carried out inside one transaction.
struct Step<'a, 'b> {
    transaction: &'a mut Transaction<'b>,
    leases: &'a Leases,
    /// Keys that were put or deleted, and the lease each goes with now; zero for none.
    attached: Vec<(Arc<str>, i64)>,
}

impl Step<'_, '_> {
    /// As in etcd, all comparisons are made before anything is written, those of transactions inside this one too.
    fn txn(&mut self, txn: &TxnRequest) -> Result<TxnResponse> {
        let mut branches = VecDeque::new();
        self.compare(txn, &mut branches)?;
        self.run(txn, &mut branches)
    }

    /// Notes whether a transaction's comparisons hold, then those of the transactions in the branch that is taken.
    fn compare(&self, txn: &TxnRequest, branches: &mut VecDeque<bool>) -> Result<()> {
        let mut succeeded = true;
        for compare in &txn.compare {
            succeeded = succeeded && self.holds(compare)?;
        }
        branches.push_back(succeeded);
        for operation in branch(txn, succeeded) {
            if let Some(Request::RequestTxn(txn)) = &operation.request {
                self.compare(txn, branches)?;
            }
        }
        Ok(())
    }

    /// Carries out the branches that [`Step::compare`] noted, in its order.
    fn run(&mut self, txn: &TxnRequest, branches: &mut VecDeque<bool>) -> Result<TxnResponse> {
        let succeeded = branches.pop_front().unwrap_or(false);
        let operations = branch(txn, succeeded).iter();
        let responses =
            operations.map(|operation| self.operation(operation, branches)).collect::<Result<_>>()?;
        Ok(TxnResponse { header: self.header(), succeeded, responses })
    }

    fn operation(&mut self, operation: &RequestOp, branches: &mut VecDeque<bool>) -> Result<ResponseOp> {
        let response = match &operation.request {
            Some(Request::RequestRange(range)) => Some(Response::ResponseRange(self.range(range)?)),
            Some(Request::RequestPut(put)) => Some(Response::ResponsePut(self.put(put)?)),
            Some(Request::RequestDeleteRange(deletion)) => {
                Some(Response::ResponseDeleteRange(self.delete(deletion)?))
            }
            Some(Request::RequestTxn(txn)) => Some(Response::ResponseTxn(self.run(txn, branches)?)),
            None => None,
        };
        Ok(ResponseOp { response })
    }

    fn range(&self, request: &RangeRequest) -> Result<RangeResponse> {
        let query = Query::new(request);
        let (entries, left) = self.transaction.entries(&query.span, query.at, query.limit)?;
        let count = entries.len() + left;
        let selected = query.select(request, entries);
        let kvs =
            selected.iter().map(|entry| self.transaction.read(entry)).collect::<ferry_store::Result<_>>()?;
        let mut response = query.respond(request, kvs, count);
        response.header = self.header();
        Ok(response)
    }

    fn put(&mut self, put: &PutRequest) -> Result<PutResponse> {
        let key: Arc<str> = text(&put.key)?.into();
        let previous = match put.prev_kv || put.ignore_value || put.ignore_lease {
            true => self.transaction.get(&key)?,
            false => None,
        };
        let (mut value, mut lease) = (put.value.clone(), put.lease);
        if put.ignore_value || put.ignore_lease {
            let kept = previous.as_ref().ok_or_else(Failure::key_not_found)?;
            if put.ignore_value {
                value = kept.value.clone();
            }
            if put.ignore_lease {
                lease = kept.lease;
            }
        }
        if lease != 0 && !self.leases.exists(lease) {
            return Err(Failure::lease_not_found());
        }
        self.transaction.put(&key, &value, lease)?;
        self.attached.push((key, lease));
        let prev_kv = previous.filter(|_| put.prev_kv).map(key_value);
        Ok(PutResponse { header: self.header(), prev_kv })
    }

    fn delete(&mut self, request: &DeleteRangeRequest) -> Result<DeleteRangeResponse> {
        let span = span_of(&request.key, &request.range_end);
        let (entries, _) = self.transaction.entries(&span, None, usize::MAX)?;
        let mut prev_kvs = Vec::new();
        for entry in &entries {
            if request.prev_kv {
                prev_kvs.push(key_value(self.transaction.read(entry)?));
            }
            self.transaction.delete(entry.key())?;
            self.attached.push((entry.key().clone(), 0));
        }
        Ok(DeleteRangeResponse { header: self.header(), deleted: entries.len() as i64, prev_kvs })
    }

    /// A comparison with a range holds if it does for every key of it.
    fn holds(&self, compare: &Compare) -> Result<bool> {
        let span = span_of(&compare.key, &compare.range_end);
        let (entries, _) = self.transaction.entries(&span, None, usize::MAX)?;
        if entries.is_empty() {
            // As in etcd, a key that does not exist has zeros for everything, and no value at all.
            return Ok(compare.target() != CompareTarget::Value && compare_numbers(compare, 0));
        }
        for entry in &entries {
            let holds = match compare.target() {
                CompareTarget::Version => compare_numbers(compare, entry.version()),
                CompareTarget::Create => compare_numbers(compare, entry.create_revision().0),
                CompareTarget::Mod => compare_numbers(compare, entry.mod_revision().0),
                CompareTarget::Lease => compare_numbers(compare, self.transaction.read(entry)?.lease),
                CompareTarget::Value => {
                    let expected = match &compare.target_union {
                        Some(TargetUnion::Value(value)) => &value[..],
                        _ => &[],
                    };
                    is_so(compare, (*self.transaction.read(entry)?.value).cmp(expected))
                }
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Inside a transaction only the revision is told.
    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: self.transaction.revision().0, ..ResponseHeader::default() })
    }
}

fn compare_numbers(compare: &Compare, found: i64) -> bool {
    let expected = match (compare.target(), &compare.target_union) {
        (CompareTarget::Version, Some(TargetUnion::Version(number)))
        | (CompareTarget::Create, Some(TargetUnion::CreateRevision(number)))
        | (CompareTarget::Mod, Some(TargetUnion::ModRevision(number)))
        | (CompareTarget::Lease, Some(TargetUnion::Lease(number))) => *number,
        _ => 0,
    };
    is_so(compare, found.cmp(&expected))
}

fn is_so(compare: &Compare, ordering: Ordering) -> bool {
    match compare.result() {
        CompareResult::Equal => ordering.is_eq(),
        CompareResult::Greater => ordering.is_gt(),
        CompareResult::Less => ordering.is_lt(),
        CompareResult::NotEqual => ordering.is_ne(),
    }
}

fn check_range(request: &RangeRequest) -> Result<()> {
    if request.key.is_empty() {
        return Err(Failure::empty_key());
    }
    let sort = (SortOrder::try_from(request.sort_order), SortTarget::try_from(request.sort_target));
    match sort {
        (Ok(_), Ok(_)) => Ok(()),
        _ => Err(Failure::invalid_sort_option()),
    }
}

fn check_put(put: &PutRequest) -> Result<()> {
    if put.key.is_empty() {
        return Err(Failure::empty_key());
    }
    if put.key.len() > usize::from(u16::MAX) {
        return Err(Failure::request_too_large());
    }
    if put.ignore_value && !put.value.is_empty() {
        return Err(Failure::value_provided());
    }
    if put.ignore_lease && put.lease != 0 {
        return Err(Failure::lease_provided());
    }
    text(&put.key).map(drop)
}

fn check_delete(request: &DeleteRangeRequest) -> Result<()> {
    match request.key.is_empty() {
        true => Err(Failure::empty_key()),
        false => Ok(()),
    }
}

fn branch(txn: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    if succeeded { &txn.success } else { &txn.failure }
}

/// `most` is what one list may have. A transaction inside another gets what the longest list around it leaves, which bounds
/// the depth as well.
fn check_txn(txn: &TxnRequest, most: usize) -> Result<()> {
    let longest = txn.compare.len().max(txn.success.len()).max(txn.failure.len());
    let left = most.checked_sub(longest).ok_or_else(Failure::too_many_operations)?;
    if txn.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Failure::empty_key());
    }
    for operation in txn.success.iter().chain(&txn.failure) {
        match &operation.request {
            Some(Request::RequestRange(range)) => check_range(range)?,
            Some(Request::RequestDeleteRange(deletion)) => check_delete(deletion)?,
            Some(Request::RequestTxn(txn)) => check_txn(txn, left)?,
            Some(Request::RequestPut(put)) => check_put(put)?,
            None => return Err(Failure::key_not_found()),
        }
    }
    Ok(())
}

pub fn key_value(kv: KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: Bytes::copy_from_slice(kv.key.as_bytes()),
        create_revision: kv.create_revision.0,
        mod_revision: kv.mod_revision.0,
        version: kv.version,
        value: kv.value,
        lease: kv.lease,
    }
}

pub fn span_of(key: &[u8], range_end: &[u8]) -> Span {
    // "\0" stands for the least key there is.
    let start = if key == [0] && !range_end.is_empty() { &[] } else { key };
    Span::between(start, range_end)
}

fn text(key: &[u8]) -> Result<&str> {
    std::str::from_utf8(key).map_err(|_| Failure::key_is_not_text())
}
