//! Grammars as callers of the crate meet them. One binary, for linking each of these files with the crate takes longer than
//! compiling it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod behaviour;
mod bounds;
mod calls;
mod cases;
mod forced;
mod instances;
mod keywords;
#[path = "../examples/order/mod.rs"]
mod order;
mod parts;
mod schemas;
#[path = "../examples/synthetic/mod.rs"]
mod synthetic;
mod walks;
mod ways;
