//! Connections below the routes: accepted and limited (`listener`, `limiter`), decrypted (`tls`), guarded against
//! request smuggling (`header_guard`), and closed when their client does not read (`write_timeout`, `backpressure`). Events go
//! to their sockets without hyper (`direct`). Their parts are polled when they were woken (`wake_gate`).

pub mod backpressure;
pub mod direct;
mod header_guard;
mod limiter;
mod listener;
mod tls;
pub mod wake_gate;
mod write_timeout;

pub use limiter::{ConnectionLimiter, RESERVE};
pub use listener::{ClientAddress, ConnectionLimits, MAX_UNSENT, answer_not_taken, serve};
pub use tls::acceptor as tls;
