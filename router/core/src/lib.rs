//! Below the wire: text in, text events out, with the workers in between. Knows neither HTTP nor a dialect's names.
//!
//! - `prompt` renders chats and tokenizes;
//! - `generation` is one request's life, from its prompt to its text events;
//! - `scheduler` owns every sequence and every KV block, and is alone in talking to `worker`;
//! - `worker` is the client of the worker contract, which the crate `penstock-proto` holds;
//! - `adapter` is which changes of the model's weights the workers have loaded;
//! - `constraint` is what a text has to be, whoever compiles it;
//! - `blocking` has the threads for what takes time in proportion to a request's size;
//! - `tenant` is between whom all of these are fair;
//! - `health` is what the server can say of itself, and `clock` the time.

pub mod adapter;
pub mod blocking;
mod clock;
pub mod constraint;
pub mod generation;
pub mod health;
pub mod prompt;
pub mod scheduler;
pub mod tenant;
pub mod worker;
