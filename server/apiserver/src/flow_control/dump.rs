//! `/debug/api_priority_and_fairness/…`: the state as tables, in upstream's columns.

use std::time::SystemTime;

use ferry_api::duration;
use jiff::Timestamp;

use super::levels::Levels;
use super::queue_set::{Queue, QueueSet, Request, Ticket};

pub fn priority_levels(levels: &Levels) -> String {
    let mut rows = vec![row(&[
        "PriorityLevelName",
        "ActiveQueues",
        "IsIdle",
        "IsQuiescing",
        "WaitingRequests",
        "ExecutingRequests",
        "DispatchedRequests",
        "RejectedRequests",
        "TimedoutRequests",
        "CancelledRequests",
    ])];
    for (name, level) in levels.iter() {
        let (queues, totals) = (&level.queues, level.queues.totals);
        let active = queues.queues().iter().filter(|queue| !queue.waiting.is_empty()).count();
        rows.push(vec![
            name.to_string(),
            active.to_string(),
            queues.is_idle().to_string(),
            level.quiescing.to_string(),
            queues.waiting().to_string(),
            queues.executing().to_string(),
            totals.dispatched.to_string(),
            totals.rejected.to_string(),
            // Upstream counts requests whose time in the queue ended as cancelled.
            "0".to_string(),
            totals.cancelled.to_string(),
        ]);
    }
    table(&rows)
}

pub fn queues(levels: &Levels) -> String {
    let mut rows = vec![row(&[
        "PriorityLevelName",
        "Index",
        "PendingRequests",
        "ExecutingRequests",
        "SeatsInUse",
        "NextDispatchR",
        "InitialSeatsSum",
        "MaxSeatsSum",
        "TotalWorkSum",
    ])];
    for (name, level) in levels.iter() {
        for (index, queue) in level.queues.queues().iter().enumerate() {
            let sum = |seats: fn(&Request) -> usize| -> usize {
                waiting(&level.queues, queue).map(|(_, request)| seats(request)).sum()
            };
            rows.push(vec![
                name.to_string(),
                index.to_string(),
                queue.waiting.len().to_string(),
                queue.executing.to_string(),
                queue.seats_in_use.to_string(),
                seat_seconds(queue.next_dispatch_r),
                sum(|request| request.work.initial_seats).to_string(),
                sum(|request| request.work.max_seats()).to_string(),
                seat_seconds(queue.waiting_work),
            ]);
        }
    }
    table(&rows)
}

pub fn requests(levels: &Levels, with_details: bool) -> String {
    let mut header = row(&[
        "PriorityLevelName",
        "FlowSchemaName",
        "QueueIndex",
        "RequestIndexInQueue",
        "FlowDistingsher",
        "ArriveTime",
        "InitialSeats",
        "FinalSeats",
        "AdditionalLatency",
        "StartTime",
    ]);
    if with_details {
        header.extend(row(&[
            "UserName",
            "Verb",
            "APIPath",
            "Namespace",
            "Name",
            "APIVersion",
            "Resource",
            "SubResource",
        ]));
    }
    let mut rows = vec![header];
    for (name, level) in levels.iter() {
        let queues = &level.queues;
        for (at, queue) in queues.queues().iter().enumerate() {
            for (index, (_, request)) in waiting(queues, queue).enumerate() {
                rows.push(described(name, request, at as i64, index as i64, with_details));
            }
        }
        let mut executing: Vec<_> = queues.requests().filter(|(_, request)| request.is_executing()).collect();
        executing.sort_by_key(|(ticket, request)| (request.queue, **ticket));
        for (_, request) in executing {
            let at = request.queue.map_or(-1, |at| at as i64);
            rows.push(described(name, request, at, -1, with_details));
        }
    }
    table(&rows)
}

fn waiting<'a>(set: &'a QueueSet, queue: &'a Queue) -> impl Iterator<Item = (Ticket, &'a Request)> {
    queue.waiting.iter().filter_map(|ticket| Some((*ticket, set.request(*ticket)?)))
}

fn described(level: &str, request: &Request, queue: i64, index: i64, with_details: bool) -> Vec<String> {
    let description = &request.description;
    let time =
        |time: SystemTime| Timestamp::try_from(time).map_or_else(|_| String::new(), |time| time.to_string());
    let started = request.executing_for().and_then(|since| SystemTime::now().checked_sub(since));
    let mut columns = vec![
        level.to_string(),
        description.flow_schema.to_string(),
        queue.to_string(),
        index.to_string(),
        description.distinguisher.clone(),
        time(description.arrived),
        request.work.initial_seats.to_string(),
        request.work.final_seats.to_string(),
        duration::format(request.work.additional_latency.as_nanos() as i64),
        started.map_or_else(|| "0001-01-01T00:00:00Z".to_string(), time),
    ];
    if with_details {
        columns.extend([
            description.user.clone(),
            description.verb.to_string(),
            description.path.clone(),
            description.namespace.clone(),
            description.name.clone(),
            description.api_version.clone(),
            description.resource.clone(),
            description.subresource.clone(),
        ]);
    }
    columns
}

fn seat_seconds(value: f64) -> String {
    format!("{value:.8}ss")
}

fn row(columns: &[&str]) -> Vec<String> {
    columns.iter().map(ToString::to_string).collect()
}

/// Columns end with a comma and are at least eight wide.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let longest = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        (longest + 2).max(8)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            match at + 1 == columns {
                true => out.push_str(cell),
                false => out.push_str(&format!("{:<width$}", format!("{cell},"), width = *width)),
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [row(&["PriorityLevelName", "A", "B"]), row(&["exempt", "1", "2"])];
        assert_eq!(table(&rows), "PriorityLevelName, A,      B\nexempt,            1,      2\n");
    }
}
