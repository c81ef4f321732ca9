//! `/block_events`, with `--block-events`: what the prefix cache gains and loses, as server-sent events, for a router of several
//! servers that sends a request to where its beginning is cached. `docs/block-events.md` describes them.

use std::net::Ipv4Addr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Extensions, Response};
use futures::StreamExt;
use futures::stream::BoxStream;
use penstock_core::health::Health;
use penstock_core::scheduler::{BlockChange, BlockEvent};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

use crate::address;
use crate::http::connection::ClientAddress;
use crate::http::error::{ApiError, Family};
use crate::http::shares::{Holder, Share, Shares};
use crate::http::sse::{self, Encoder, EventSource};
use crate::http::state::Server;

/// So long a reader counts at least, so that one that comes again and again is no more work than one that stays.
const COUNTED: Duration = Duration::from_secs(1);

/// Changes of one event: more are told in several, so that no event is longer than what is written at once.
const CHANGES: usize = 128;

pub async fn block_events(State(server): State<Arc<Server>>, request: Request) -> Response<Body> {
    let loaded = match server.loaded() {
        Ok(loaded) => loaded,
        Err(error) => return error.response(Family::Tgi),
    };
    let reading = match Reading::begin(&server.block_readers, request.extensions()) {
        Ok(reading) => reading,
        Err(error) => return error.response(Family::Tgi),
    };
    let block_size = loaded.model.block_size;
    let events = ReceiverStream::new(loaded.serving.scheduler.read_blocks());
    // A reader must not keep a server that is to stop.
    let mut health = server.health.clone();
    let stops = async move {
        drop(health.wait_for(|health| matches!(health, Health::Draining | Health::Failed(_))).await);
    };
    let events = events.take_until(stops).boxed();
    sse::answer(BlockEvents { events, rest: None, block_size, _reading: reading })
}

/// A reader's share of `block_readers`.
struct Reading {
    share: Option<Share>,
    until: Instant,
}

impl Reading {
    fn begin(readers: &Arc<Shares>, of: &Extensions) -> Result<Self, ApiError> {
        let address = of.get().map(|&ClientAddress(client)| Holder::Address(address::holder(client)));
        let holder = of.get().map(|&key| Holder::Key(key)).or(address);
        let holder = holder.unwrap_or(Holder::Address(Ipv4Addr::UNSPECIFIED.into()));
        let share = readers.take(holder, 1).map_err(|_| {
            let most = readers.most();
            ApiError::overloaded(format!(
                "there are {most} readers of block events, or of this client as many as it may have"
            ))
        })?;
        Ok(Self { share: Some(share), until: Instant::now() + COUNTED })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let (share, until) = (self.share.take(), self.until);
        if Instant::now() < until
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                sleep_until(until).await;
                drop(share);
            });
        }
    }
}

struct BlockEvents {
    events: BoxStream<'static, BlockEvent>,
    /// An event that is told in several, and how many of its changes were.
    rest: Option<(BlockEvent, usize)>,
    block_size: u32,
    _reading: Reading,
}

impl EventSource for BlockEvents {
    fn poll_encode(&mut self, context: &mut Context<'_>, encoder: &mut Encoder) -> Poll<ControlFlow<()>> {
        let (event, from) = match self.rest.take() {
            Some(rest) => rest,
            None => match ready!(self.events.poll_next_unpin(context)) {
                Some(event) => (event, 0),
                None => return Poll::Ready(ControlFlow::Break(())),
            },
        };
        let block_size = self.block_size;
        let upto = match &event {
            BlockEvent::Lost => {
                encoder.event(&Told::Lost {});
                return Poll::Ready(ControlFlow::Continue(()));
            }
            BlockEvent::Known(all) | BlockEvent::Changed(all) => {
                let upto = all.len().min(from + CHANGES);
                let changes = all[from..upto].iter().map(Change::from).collect();
                encoder.event(&match event {
                    BlockEvent::Known(_) if from == 0 => Told::Known { block_size, changes },
                    _ => Told::Changed { changes },
                });
                (upto < all.len()).then_some(upto)
            }
        };
        self.rest = upto.map(|upto| (event, upto));
        Poll::Ready(ControlFlow::Continue(()))
    }
}

/// One event.
#[derive(JsonSchema, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Told {
    /// What is cached now, or where that is much, its beginning: `changed` goes on with it. What was told before is void.
    Known { block_size: u32, changes: Vec<Change> },
    /// In the order in which it happened.
    Changed { changes: Vec<Change> },
    /// The reader was too slow, and changes were not told. `known` comes next.
    Lost {},
}

#[derive(JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Change {
    Stored { block: String, after: Option<String> },
    Evicted { block: String },
    Cleared {},
}

impl From<&BlockChange> for Change {
    fn from(change: &BlockChange) -> Self {
        match change {
            BlockChange::Stored { block, after } => {
                Self::Stored { block: block.to_string(), after: after.map(|after| after.to_string()) }
            }
            BlockChange::Evicted { block } => Self::Evicted { block: block.to_string() },
            BlockChange::Cleared => Self::Cleared {},
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use penstock_core::scheduler::BlockHash;
    use serde_json::{Value, json};

    use super::*;
    use crate::http::state::BLOCK_READERS;

    fn evicted() -> BlockChange {
        BlockChange::Evicted { block: BlockHash::default() }
    }

    fn readers() -> (Arc<Shares>, Extensions) {
        let mut of = Extensions::new();
        of.insert(ClientAddress([192, 0, 2, 1].into()));
        (Shares::new(BLOCK_READERS), of)
    }

    /// What a reader is told of these.
    fn told(events: Vec<BlockEvent>) -> Vec<Value> {
        let (shares, of) = readers();
        let reading = Reading::begin(&shares, &of).unwrap_or_else(|error| panic!("{error}"));
        let events = stream::iter(events).boxed();
        let mut source = BlockEvents { events, rest: None, block_size: 16, _reading: reading };
        let mut context = Context::from_waker(std::task::Waker::noop());
        let (mut encoder, mut all) = (Encoder::default(), Vec::new());
        while let Poll::Ready(ControlFlow::Continue(())) = source.poll_encode(&mut context, &mut encoder) {
            let said = encoder.take();
            assert!(said.len() < 16 << 10, "{} bytes at once", said.len());
            let lines = said.split(|&byte| byte == b'\n').filter_map(|line| line.strip_prefix(b"data: "));
            all.extend(lines.map(|line| serde_json::from_slice::<Value>(line).expect("JSON")));
        }
        all
    }

    #[test]
    fn events_are_json() {
        let block = BlockHash::default();
        let changes = [
            BlockChange::Stored { block, after: None },
            BlockChange::Stored { block, after: Some(block) },
            evicted(),
            BlockChange::Cleared,
        ];
        let zero = "0".repeat(32);
        let all =
            vec![BlockEvent::Known(Arc::new([])), BlockEvent::Changed(changes.into()), BlockEvent::Lost];
        let expected = [
            json!({"type": "known", "block_size": 16, "changes": []}),
            json!({"type": "changed", "changes": [
                {"stored": {"block": zero, "after": null}}, {"stored": {"block": zero, "after": zero}},
                {"evicted": {"block": zero}}, {"cleared": {}},
            ]}),
            json!({"type": "lost"}),
        ];
        assert_eq!(told(all), expected);
    }

    #[test]
    fn much_is_told_in_several_events_and_in_its_order() {
        let block = BlockHash::default();
        for count in [CHANGES, CHANGES + 1, 10 * CHANGES + 7] {
            let mut changes = vec![BlockChange::Stored { block, after: Some(block) }; count];
            changes[count - 1] = BlockChange::Cleared;
            let changes: Arc<[_]> = changes.into();
            for event in [BlockEvent::Known(changes.clone()), BlockEvent::Changed(changes.clone())] {
                let all = told(vec![event.clone(), BlockEvent::Lost]);
                let (lost, all) = all.split_last().expect("two events at least");
                assert_eq!(lost["type"], "lost");
                assert_eq!(all[0]["type"] == "known", matches!(event, BlockEvent::Known(_)));
                assert!(all[1..].iter().all(|event| event["type"] == "changed"));
                let lists: Vec<_> = all.iter().filter_map(|event| event["changes"].as_array()).collect();
                assert_eq!(lists.iter().map(|list| list.len()).sum::<usize>(), count);
                assert_eq!(lists.len(), count.div_ceil(CHANGES));
                assert_eq!(lists.last().and_then(|list| list.last()), Some(&json!({"cleared": {}})));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_not_all_readers_and_one_that_leaves_at_once_counts_for_a_moment() {
        let (shares, of) = readers();
        let begin = || Reading::begin(&shares, &of);
        let mut held: Vec<_> = std::iter::from_fn(|| begin().ok()).take(20).collect();
        assert_eq!(held.len(), 14);
        let error = begin().err().expect("one too many");
        assert!(error.to_string().contains("16 readers"), "{error}");
        held.clear();
        tokio::time::sleep(COUNTED / 2).await;
        assert!(begin().is_err());
        tokio::time::sleep(COUNTED).await;
        held.extend(begin());
        tokio::time::sleep(2 * COUNTED).await;
        held.clear();
        // Nothing is left of one that has stayed.
        assert_eq!(std::iter::from_fn(|| begin().ok()).take(20).count(), 14);
    }
}
