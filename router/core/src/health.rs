//! What the server can truthfully say of itself. Written by whoever changes it (start-up, scheduler,
//! shutdown), read by the health routes and by every route that takes new work.

use tokio::sync::watch;

/// The state of the whole server. Only `Ready` takes new requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not served yet; the text says what is under way ("loading the model", "warming up").
    Starting(String),
    Ready,
    /// The workers were lost and are being replaced; running streams pause. The text says why, in words fit for clients.
    Recovering(String),
    /// Shutting down: running requests finish, new ones are refused.
    Draining,
    /// Will not recover. The text says why.
    Failed(String),
}

impl Health {
    /// Why new requests are refused now, for a 503 body; `None` when they are not.
    pub fn refusal(&self) -> Option<String> {
        match self {
            Health::Ready => None,
            Health::Starting(what) => Some(format!("the server is starting: {what}")),
            Health::Recovering(why) => Some(format!("the workers are being restarted: {why}")),
            Health::Draining => Some("the server is shutting down".into()),
            Health::Failed(why) => Some(format!("the server has failed: {why}")),
        }
    }
}

pub type HealthSender = watch::Sender<Health>;
pub type HealthReceiver = watch::Receiver<Health>;
