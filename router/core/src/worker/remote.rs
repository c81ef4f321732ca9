//! Workers that somebody else starts, on other hosts mostly. They cannot be ended or started from here: when the group is lost, it is
//! connected to again, for as long as the flag says. What they held for the last connection they give up with the next `Run`.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::try_join_all;
use penstock_proto::{CONTRACT, ModelDescription};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tracing::{info, warn};

use super::connection::probe;
use super::endpoint::Endpoint;
use super::source::{GiveUp, Loss, LossKind, WorkerSource};

/// Between two attempts, at first and at most.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// A group that served for this long is connected to at once when it is lost.
const STABLE: Duration = Duration::from_secs(3);
/// While nothing changes the log says so this often.
const STILL_WAITING: Duration = Duration::from_secs(15);

pub struct RemoteWorkers {
    /// Rank 0 first.
    endpoints: Vec<Endpoint>,
    /// How long workers may be out of reach.
    patience: Duration,
    /// `model_type` of the model whose tokenizer is here, if it is known.
    model_type: Option<String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When all answered last.
    answered: Option<Instant>,
    /// Of the attempt that comes next.
    delay: Duration,
}

impl RemoteWorkers {
    pub fn new(endpoints: Vec<Endpoint>, patience: Duration, model_type: Option<String>) -> Self {
        Self { endpoints, patience, model_type, state: Mutex::default() }
    }

    async fn probe(&self) -> Result<Vec<ModelDescription>, Loss> {
        try_join_all((0..).zip(&self.endpoints).map(|(rank, endpoint)| probe(rank, endpoint))).await
    }

    /// Whoever starts workers may have given them another model. What else has to be the same `Group` sees.
    fn check(&self, models: &[ModelDescription]) -> Result<(), GiveUp> {
        let Some(here) = &self.model_type else { return Ok(()) };
        match self
            .endpoints
            .iter()
            .zip(models)
            .find(|(_, model)| model.contract == CONTRACT && model.model_type != *here)
        {
            Some((endpoint, model)) => Err(GiveUp(format!(
                "{endpoint} holds a model of type {}, and --model-id names one of type {here}",
                model.model_type
            ))),
            None => Ok(()),
        }
    }

    fn name(&self, loss: &Loss) -> String {
        let endpoint = loss.rank.and_then(|rank| self.endpoints.get(rank as usize));
        match (loss.rank, endpoint) {
            (Some(rank), Some(endpoint)) => format!("worker {rank} at {endpoint}"),
            _ => "a worker".into(),
        }
    }
}

#[async_trait]
impl WorkerSource for RemoteWorkers {
    async fn fresh(&self, lost: Option<&Loss>) -> Result<Vec<Endpoint>, GiveUp> {
        let mut state = self.state.lock().await;
        if let Some(loss) = lost {
            warn!("{loss}; {} is not ours to start: connecting to it again", self.name(loss));
            if state.answered.is_some_and(|at| at.elapsed() >= STABLE) {
                state.delay = Duration::ZERO;
            }
        }
        let began = Instant::now();
        let mut told: Option<(String, Instant)> = None;
        loop {
            if !state.delay.is_zero() {
                sleep(state.delay).await;
            }
            state.delay = LONGEST_DELAY.min(FIRST_DELAY.max(state.delay * 2));
            let loss = match self.probe().await {
                Ok(models) => {
                    self.check(&models)?;
                    if told.is_some() {
                        info!("every worker answers after {:.1} s", began.elapsed().as_secs_f64());
                    }
                    state.answered = Some(Instant::now());
                    return Ok(self.endpoints.clone());
                }
                Err(loss) => loss,
            };
            let (who, why) = (self.name(&loss), loss.cause);
            // Who has never been let in has the wrong files; later somebody may be renewing them.
            if loss.kind == LossKind::Untrusted && state.answered.is_none() {
                return Err(GiveUp(why));
            }
            let waited = began.elapsed();
            if waited >= self.patience {
                let limit = self.patience.as_secs();
                return Err(GiveUp(format!("{who} was out of reach for {limit} s (--load-timeout): {why}")));
            }
            let is_news =
                told.as_ref().is_none_or(|(last, at)| *last != why || at.elapsed() >= STILL_WAITING);
            if is_news {
                warn!("{who} is out of reach since {:.0} s: {why}", waited.as_secs_f64());
                told = Some((why, Instant::now()));
            }
        }
    }
}
