//! `/block_events`, with `--block-events`: what the prefix cache gains and loses, as server-sent events, for a router of several
//! servers that sends a request to where its beginning is cached. `docs/block-events.md` describes them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use futures::StreamExt;
use futures::stream::BoxStream;
use penstock_core::health::Health;
use penstock_core::scheduler::{BlockChange, BlockEvent};
use schemars::JsonSchema;
use serde::Serialize;
use tokio_stream::wrappers::ReceiverStream;

use crate::http::error::Family;
use crate::http::sse::{self, Encoder, EventSource};
use crate::http::state::Server;

pub async fn block_events(State(server): State<Arc<Server>>) -> Response<Body> {
    let loaded = match server.loaded() {
        Ok(loaded) => loaded,
        Err(error) => return error.response(Family::Tgi),
    };
    let block_size = loaded.model.block_size;
    let events = ReceiverStream::new(loaded.serving.scheduler.read_blocks());
    // A reader must not keep a server that is to stop.
    let mut health = server.health.clone();
    let stops = async move {
        drop(health.wait_for(|health| matches!(health, Health::Draining | Health::Failed(_))).await);
    };
    sse::answer(BlockEvents { events: events.take_until(stops).boxed(), block_size })
}

struct BlockEvents {
    events: BoxStream<'static, BlockEvent>,
    block_size: u32,
}

impl EventSource for BlockEvents {
    fn poll_encode(&mut self, context: &mut Context<'_>, encoder: &mut Encoder) -> Poll<ControlFlow<()>> {
        Poll::Ready(match ready!(self.events.poll_next_unpin(context)) {
            None => ControlFlow::Break(()),
            Some(event) => {
                encode(&event, self.block_size, encoder);
                ControlFlow::Continue(())
            }
        })
    }
}

/// One event.
#[derive(JsonSchema, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Told {
    /// All that is cached now; what was told before is void.
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

fn encode(event: &BlockEvent, block_size: u32, encoder: &mut Encoder) {
    let of = |changes: &[BlockChange]| changes.iter().map(Change::from).collect();
    encoder.event(&match event {
        BlockEvent::Known(changes) => Told::Known { block_size, changes: of(changes) },
        BlockEvent::Changed(changes) => Told::Changed { changes: of(changes) },
        BlockEvent::Lost => Told::Lost {},
    });
}

#[cfg(test)]
mod tests {
    use penstock_core::scheduler::BlockHash;

    use super::*;

    #[test]
    fn events_are_json() {
        let block = BlockHash::default();
        let changes = [
            BlockChange::Stored { block, after: None },
            BlockChange::Stored { block, after: Some(block) },
            BlockChange::Evicted { block },
            BlockChange::Cleared,
        ];
        let mut encoder = Encoder::default();
        let zero = "0".repeat(32);
        encode(&BlockEvent::Changed(changes.into()), 16, &mut encoder);
        let expected = serde_json::json!({"type": "changed", "changes": [
            {"stored": {"block": zero, "after": null}}, {"stored": {"block": zero, "after": zero}},
            {"evicted": {"block": zero}}, {"cleared": {}},
        ]});
        let said = encoder.take();
        let json = said.strip_prefix(b"data: ").expect("an event");
        assert_eq!(serde_json::from_slice::<serde_json::Value>(json).expect("JSON"), expected);
        encode(&BlockEvent::Known(Arc::new([])), 16, &mut encoder);
        assert_eq!(encoder.take(), "data: {\"type\":\"known\",\"block_size\":16,\"changes\":[]}\n\n");
    }
}
