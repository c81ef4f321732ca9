//! Grammars as callers of the crate meet them. One binary, for linking each of these files with the crate takes longer than
//! compiling it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

mod behaviour;
mod bounds;
mod calls;
mod cases;
mod clients;
mod forced;
mod instances;
mod keywords;
mod limits;
#[path = "../examples/order/mod.rs"]
mod order;
mod parts;
mod schemas;
#[path = "../examples/synthetic/mod.rs"]
mod synthetic;
mod walks;
mod ways;

/// Where it is not the limit on time that is tested: whatever else the machine does, nothing ends for that.
fn patient() -> penstock_constraint::Limits {
    let long = Duration::from_secs(120);
    penstock_constraint::Limits { timeout: long, wait: long, ..Default::default() }
}
