//! What the server tells those who run it. Log lines go through `tracing`, which the launcher sets up.
//! Nothing leaves the machine, but for traces where `--otlp-endpoint` asks for them.

pub mod metrics;
pub mod traces;
