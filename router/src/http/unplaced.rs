//! Memory of requests that have no place (`--max-concurrent-requests`): while their bodies are collected and wait to be read, or for
//! as long as their routes' answers are not taken, where those need none. HTTP/2 has hundreds of requests on each of thousands of
//! connections, so their number alone bounds nothing. Each holds an `Unplaced`, made by `connection` and found in its extensions;
//! what it takes is given back when a place is taken, or at its end.

use std::sync::{Arc, Mutex, MutexGuard};

use axum::http::{Extensions, HeaderMap};

use crate::address;
use crate::config::RouterArgs;
use crate::http::connection::ClientAddress;
use crate::http::error::ApiError;
use crate::http::keys::KeyIndex;
use crate::http::shares::{Exhausted, Holder, Share, Shares};

/// What a request takes beside its head and body, about: its task, and what HTTP/2 keeps of it.
const REQUEST: usize = 16 << 10;

/// What a header takes beside its name and value (RFC 9113, 6.5.2).
const HEADER: usize = 32;

/// Memory for all of them together, at least.
const LEAST: usize = 256 << 20;

/// For each connection, each place, and of the largest bodies: flags that ask for more of these ask for memory.
const OF_CONNECTION: usize = 32 << 10;
const OF_PLACE: usize = 256 << 10;
const LARGEST_BODIES: usize = 16;

/// The memory that there is for such requests, in bytes.
pub fn memory(args: &RouterArgs) -> Arc<Shares> {
    let connections = OF_CONNECTION.saturating_mul(args.max_connections as usize);
    let places = OF_PLACE.saturating_mul(args.max_concurrent_requests as usize);
    let bodies = LARGEST_BODIES.saturating_mul(args.payload_limit);
    Shares::new(LEAST.max(connections).max(places).max(bodies))
}

/// What one request holds.
#[derive(Clone, Debug)]
pub struct Unplaced(Arc<Mutex<Holding>>);

#[derive(Debug)]
struct Holding {
    memory: Arc<Shares>,
    /// `None`: it has a place.
    share: Option<Share>,
    /// What it takes for as long as it lasts.
    least: usize,
}

impl Unplaced {
    pub fn begin(
        memory: &Arc<Shares>,
        ClientAddress(client): ClientAddress,
        headers: &HeaderMap,
    ) -> Result<Self, ApiError> {
        let head: usize =
            headers.iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER).sum();
        let least = REQUEST + head;
        let share = memory.take(Holder::Address(address::holder(client)), least);
        let share = Some(share.map_err(|Exhausted| exhausted(memory))?);
        Ok(Self(Arc::new(Mutex::new(Holding { memory: memory.clone(), share, least }))))
    }

    /// It counts as the key's.
    pub fn belongs_to(&self, key: KeyIndex) -> Result<(), ApiError> {
        let Holding { memory, share, .. } = &mut *self.holding();
        let given = share.as_mut().map_or(Ok(()), |share| share.give_to(Holder::Key(key)));
        given.map_err(|Exhausted| exhausted(memory))
    }

    /// It is to hold so many bytes more. With an error the caller lets go of what it held.
    pub fn grow(&self, bytes: usize) -> Result<(), ApiError> {
        let Holding { memory, share, least } = &mut *self.holding();
        let Some(share) = share else { return Ok(()) };
        share.grow(bytes).map_err(|Exhausted| {
            share.shrink_to(*least);
            exhausted(memory)
        })
    }

    /// What it holds is bounded by its place from now on.
    pub fn has_place(&self) {
        self.holding().share = None;
    }

    fn holding(&self) -> MutexGuard<'_, Holding> {
        self.0.lock().expect("nothing panics while it holds this lock")
    }
}

fn exhausted(memory: &Shares) -> ApiError {
    ApiError::overloaded(format!(
        "requests without a place hold as much memory as they may: {} MiB together, of which the last eighth is for clients \
         that hold little (--max-concurrent-requests, --max-connections and --payload-limit say how much)",
        memory.most() >> 20
    ))
}

/// That of a request. A health probe has none where there is no memory for it: it is answered all the same.
pub fn of(extensions: &Extensions) -> Option<&Unplaced> {
    extensions.get()
}
