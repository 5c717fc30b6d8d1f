//! What lasts costs memory for as long as it lasts: watches, followed logs, connections to pods, and the connections that they
//! are made on. Seats of priority levels do not count them, so each user has a limit of its own.

use std::sync::{Arc, OnceLock};

use ferry_api::Status;
use ferry_auth::User;
use ferry_auth::user::ANONYMOUS;

use crate::api::Api;
use crate::fair_limit::{FairLimit, FairPermit};
use crate::filters::Connection;
use crate::request_info::RequestInfo;

/// More than a kubelet or an operator has by two orders of magnitude: a node of 110 pods watches some hundred Secrets and
/// ConfigMaps, a garbage collector each of some thousand kinds.
pub const OF_USER: usize = 10_000;
/// Clients use one connection for 100 to 250 requests; those of one user may run on many hosts.
pub const CONNECTIONS_OF_USER: usize = 1_000;
/// How many users may be at their limit at once. Beyond half of that, what one user gets becomes less.
const USERS: usize = 25;
const RETRY_AFTER_SECONDS: u32 = 5;

/// Zero is no limit.
pub fn limit(of_user: usize) -> Arc<FairLimit> {
    match of_user {
        0 => FairLimit::new(usize::MAX),
        of_user => FairLimit::with_most_of_one(of_user.saturating_mul(USERS), of_user),
    }
}

/// The place of a request that lasts. Clones are for whoever goes on after the response's head is sent.
pub type LongRunning = Option<Arc<FairPermit>>;

pub fn begin(
    api: &Api,
    connection: &Connection,
    info: &RequestInfo,
    user: &User,
) -> Result<LongRunning, Status> {
    // A component of this process is one of a few.
    let lasts = info.is_long_running() || (info.path == crate::trace::PATH && !info.is_mutating());
    if !lasts || connection.identity.is_some() {
        return Ok(None);
    }
    let place = api.limits.long_running.take(user, 1);
    let place = place.ok_or_else(|| too_many(user, "watches and streams", "end some of them"))?;
    Ok(Some(Arc::new(place)))
}

/// Counts a connection as the user's who was first authenticated on it. One beyond the limit stays among those on which
/// nobody is known, the oldest of which are closed.
pub fn keep_connection(api: &Api, connection: &Connection, user: &User) -> Result<(), Status> {
    let Some(unauthenticated) = &connection.unauthenticated else { return Ok(()) };
    if user.name == ANONYMOUS || connection.place.get().is_some() {
        return Ok(());
    }
    let place = api.limits.connections.take(user, 1);
    let place = place.ok_or_else(|| too_many(user, "connections", "close some of them"))?;
    // Of two first requests at once, one is enough.
    let _ = connection.place.set(place);
    unauthenticated.authenticated();
    Ok(())
}

/// A connection's place among its user's.
pub type ConnectionPlace = Arc<OnceLock<FairPermit>>;

fn too_many(user: &User, of_what: &str, remedy: &str) -> Status {
    let name = ferry_api::excerpt::of(&user.name, 128);
    Status::too_many_requests(
        format!("user {name:?} holds too many {of_what}: {remedy}, or try again later"),
        RETRY_AFTER_SECONDS,
    )
}
