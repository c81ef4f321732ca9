//! How far one generation has come, for whoever answers for its request: they also have to tell of one that
//! broke off half way, or whose client left. Written where the generation is read, and read by `http`.

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use crate::clock;

#[derive(Debug)]
pub struct Progress(Mutex<State>);

#[derive(Debug)]
struct State {
    timeline: Timeline,
    /// What comes after the reckoning counts nowhere, so that all counts agree.
    reckoned: bool,
}

/// What happened when, and how many tokens there are.
#[derive(Clone, Copy, Debug)]
pub struct Timeline {
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    /// How many may be generated.
    pub max_new_tokens: u32,
    pub generated_tokens: u32,
    /// Those of them that were accepted drafts.
    pub skipped_tokens: u32,
    pub queued: Instant,
    /// First scheduled.
    pub admitted: Option<Instant>,
    pub first_token: Option<Instant>,
    pub last_token: Option<Instant>,
    pub ended: Option<Instant>,
}

impl Progress {
    pub fn new(prompt_tokens: u32, max_new_tokens: u32) -> Self {
        let timeline = Timeline {
            prompt_tokens,
            cached_tokens: 0,
            max_new_tokens,
            generated_tokens: 0,
            skipped_tokens: 0,
            queued: clock::now(),
            admitted: None,
            first_token: None,
            last_token: None,
            ended: None,
        };
        Self(Mutex::new(State { timeline, reckoned: false }))
    }

    pub fn admitted(&self, cached_tokens: u32, at: Instant) {
        let mut state = self.state();
        // The scheduler took up its step before it took up this.
        state.timeline.admitted = Some(at.max(state.timeline.queued));
        state.timeline.cached_tokens = cached_tokens;
    }

    /// One more token, perhaps an accepted draft. Says since when the last one was there; `None` when nobody counts any more.
    pub fn token(&self, is_draft: bool, at: Instant) -> Option<Option<Instant>> {
        let mut state = self.state();
        if state.reckoned {
            return None;
        }
        let timeline = &mut state.timeline;
        timeline.generated_tokens += 1;
        timeline.skipped_tokens += u32::from(is_draft);
        timeline.first_token.get_or_insert(at);
        Some(timeline.last_token.replace(at))
    }

    /// The last token is there.
    pub fn ended(&self, at: Instant) -> Timeline {
        let mut state = self.state();
        state.timeline.ended = Some(at.max(state.timeline.queued));
        state.timeline
    }

    pub fn so_far(&self) -> Timeline {
        self.state().timeline
    }

    /// As it stands; nothing is counted after this.
    pub fn reckon(&self) -> Timeline {
        let mut state = self.state();
        state.reckoned = true;
        state.timeline
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_after_the_reckoning_is_not_counted() {
        let progress = Progress::new(3, 10);
        let now = clock::now();
        assert_eq!(progress.token(false, now), Some(None));
        assert_eq!(progress.token(false, now), Some(Some(now)));
        assert_eq!(progress.reckon().generated_tokens, 2);
        assert_eq!(progress.token(false, now), None);
        assert_eq!(progress.so_far().generated_tokens, 2);
    }
}
