//! What the server tells those who run it. Log lines go through `tracing`, which the launcher sets up.
//! Nothing leaves the machine.

pub mod metrics;
