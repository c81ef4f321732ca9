//! The scheduler's core against a model that notices every wrong plan, without async and without a clock;
//! and in `served` the whole of it, against mock workers behind real sockets.

mod adapters;
mod blocks;
mod client;
mod copies;
mod core;
mod corpus;
mod draft_model;
mod encoder;
mod fair;
mod harness;
mod masks;
mod pages;
mod priorities;
mod random;
mod recorded;
mod remote;
mod served;
mod simulation;
mod speculation;
mod states;
