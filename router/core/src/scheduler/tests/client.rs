//! What the client of one sequence saw, against what it would have seen alone and undisturbed.

use penstock_proto::ids::{SequenceId, TokenId};

use crate::scheduler::mailbox::SequenceEvents;
use crate::scheduler::submission::{
    Finish, PromptLogprob, SampledToken, SequenceEvent, SequenceFailure, SequenceSpec,
};
use crate::worker::mock::{MockConfig, MockModel};

pub struct Client {
    id: SequenceId,
    pub spec: SequenceSpec,
    pub events: SequenceEvents,
    pub admitted: Option<u32>,
    pub prompt_logprobs: Option<Vec<PromptLogprob>>,
    pub tokens: Vec<SampledToken>,
    pub end: Option<Result<Finish, SequenceFailure>>,
    /// Its owner let go of it.
    pub released: bool,
}

impl Client {
    pub fn new(id: SequenceId, spec: SequenceSpec, events: SequenceEvents) -> Self {
        Self {
            id,
            spec,
            events,
            admitted: None,
            prompt_logprobs: None,
            tokens: Vec::new(),
            end: None,
            released: false,
        }
    }

    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id.0).collect()
    }

    pub fn take(&mut self, event: SequenceEvent) {
        let id = self.id;
        assert!(self.end.is_none(), "{id:?} got {event:?} after its end");
        assert!(!self.released, "{id:?} got {event:?} after it was released");
        match event {
            SequenceEvent::Admitted { cached_tokens } => {
                assert!(self.admitted.is_none(), "{id:?} was admitted twice");
                self.admitted = Some(cached_tokens);
            }
            SequenceEvent::PromptLogprobs(logprobs) => {
                assert!(self.prompt_logprobs.is_none() && self.tokens.is_empty());
                self.prompt_logprobs = Some(logprobs);
            }
            SequenceEvent::Token(token) => {
                assert!(self.admitted.is_some());
                self.tokens.push(token);
            }
            SequenceEvent::Finished { last, finish } => {
                self.tokens.push(last);
                self.end = Some(Ok(finish));
            }
            SequenceEvent::TimeUp => {
                assert!(self.spec.stop_at.is_some() && !self.tokens.is_empty());
                self.end = Some(Ok(Finish::Length));
            }
            SequenceEvent::Failed(failure) => self.end = Some(Err(failure)),
        }
    }

    /// All of its text if it finished, the beginning of it if it did not.
    pub fn check_against_reference(&self, config: &MockConfig) {
        let (id, spec) = (self.id, &self.spec);
        let reference = MockModel::reference(config, spec);
        let got = self.ids();
        match &self.end {
            Some(Ok(Finish::Length)) if spec.stop_at.is_some() => {
                assert!(
                    !got.is_empty() && reference.starts_with(&got),
                    "{id:?} got {got:?} of {reference:?}"
                );
            }
            Some(Ok(finish)) => {
                assert_eq!(got, reference, "{id:?}");
                let mut matcher = spec.constraint.as_ref().map(|grammar| grammar.matcher());
                let completed = matcher.as_mut().is_some_and(|matcher| {
                    got.iter().for_each(|&id| matcher.advance(TokenId(id)).expect("it was allowed"));
                    matcher.is_complete()
                });
                let goes_on = spec.ignore_eos && spec.constraint.is_none();
                let stopped = got.last().is_some_and(|last| {
                    (config.eos_ids.contains(last) && !goes_on)
                        || spec.stop_token_ids.contains(&TokenId(*last))
                });
                let expected = match (stopped, completed) {
                    (true, _) => Finish::Eos,
                    (false, true) => Finish::Complete,
                    (false, false) => Finish::Length,
                };
                assert_eq!(*finish, expected, "{id:?}");
            }
            _ => assert!(reference.starts_with(&got), "{id:?} got {got:?} of {reference:?}"),
        }
        if spec.prompt_logprobs && !self.tokens.is_empty() {
            let logprobs = self.prompt_logprobs.as_ref().expect("came before the first token");
            assert_eq!(logprobs, &MockModel::reference_prompt(config, spec), "{id:?}");
        }
    }
}
