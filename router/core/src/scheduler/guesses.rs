//! What the next tokens of a sequence are guessed to be, from its own text (`prompt_lookup`) or from what its tenant was answered lately
//! (`corpus`), whichever is the better guess; and where the guess itself says that the text ends: behind that nothing is guessed. Asked by
//! `speculation` for what drafts are worth, and by `planning` for the drafts.

use penstock_proto::ids::TokenId;

use super::core::Core;
use super::prompt_lookup::{GRAMS, Guess, MOST_BRANCHES};
use super::sequence::Sequence;
use super::speculation::INDEXED_AT_ONCE;

impl Core {
    /// A sequence's indexes take in what is new of its tokens.
    pub(super) fn follow_text(&mut self, key: usize) {
        let sequence = &mut self.sequences[key];
        sequence.look_up();
        let sure = sequence.sure_tokens().len();
        if let (Some(corpora), Some(recall)) = (&self.corpora, &mut sequence.recall) {
            // What an encoder reads nobody was answered.
            let begins = sequence.encoder.positions as usize;
            corpora.follow(recall, &sequence.tokens[begins..sure], sequence.prompt_len as usize - begins);
        }
        self.sequences[key].may_have_guess = self.best_guess(&self.sequences[key]).is_some();
    }

    /// How many tokens a sequence's grammar forces next, which has this guess. `None` where nothing is to be guessed behind them: the guess
    /// is another, or the text ends with them.
    pub(super) fn forced_as_guessed(&self, sequence: &Sequence, guess: Guess<'_>) -> Option<u32> {
        let (forced, ends) = sequence.forced();
        let mut count = 0;
        let mut guess = self.to_its_end(sequence, guess);
        let is_guessed = forced.inspect(|_| count += 1).all(|token| guess.next() == Some(token));
        (is_guessed && !ends).then_some(count)
    }

    /// Guesses for what comes behind the next `skip` tokens of a sequence, to the end of its text at most.
    pub(super) fn guessed(&self, key: usize, skip: u32) -> impl Iterator<Item = TokenId> {
        let sequence = &self.sequences[key];
        let guess = self.best_guess(sequence).into_iter();
        guess.flat_map(|guess| self.to_its_end(sequence, guess)).skip(skip as usize)
    }

    /// Its tokens, to the end of the text at most.
    pub(super) fn to_its_end<'a>(
        &'a self,
        sequence: &'a Sequence,
        guess: Guess<'a>,
    ) -> impl Iterator<Item = TokenId> + 'a {
        let mut has_ended = false;
        guess.tokens().take_while(move |&token| {
            let goes_on = !has_ended;
            has_ended |= self.ends(sequence, token);
            goes_on
        })
    }

    /// How likely each branch beside a sequence's guess begins right, as far as there are any. None where the guess is from what its tenant
    /// was answered.
    pub(super) fn branch_chances(&self, sequence: &Sequence, guess: Guess<'_>) -> [f64; MOST_BRANCHES] {
        let may_branch = self.capacity.draft_trees && sequence.constraint.is_none() && !guess.is_recalled;
        let own = sequence.lookup.as_ref().filter(|_| may_branch);
        own.map_or([0.0; MOST_BRANCHES], |lookup| {
            let is_wrong = 1.0 - f64::from(guess.accuracy());
            lookup.branch_chances().map(|chance| is_wrong * f64::from(chance))
        })
    }

    /// The branches beside a sequence's guess where that is `ahead` tokens on, each to the end of its text at most.
    pub(super) fn branches(
        &self,
        key: usize,
        ahead: u32,
    ) -> impl Iterator<Item = impl Iterator<Item = TokenId>> {
        let sequence = &self.sequences[key];
        let branches = sequence.lookup.iter();
        let branches = branches.flat_map(move |lookup| lookup.branches(&sequence.tokens, ahead as usize));
        branches.map(|guess| self.to_its_end(sequence, guess))
    }

    /// Whether a sequence's guesses are from what its tenant was answered, and not from its own text.
    pub(super) fn recalls(&self, key: usize) -> bool {
        self.best_guess(&self.sequences[key]).is_some_and(|guess| guess.is_recalled)
    }

    /// What is expected to follow the tokens of a sequence.
    pub(super) fn best_guess<'a>(&'a self, sequence: &'a Sequence) -> Option<Guess<'a>> {
        let own = sequence.lookup.as_ref().and_then(|lookup| lookup.guess(&sequence.tokens));
        let recall = self.corpora.as_ref().zip(sequence.recall.as_ref());
        let recalled = recall.and_then(|(corpora, recall)| corpora.guess(recall, sequence.said()));
        // Of two that are as good, its own.
        match (own, recalled) {
            (Some(own), Some(recalled)) if recalled.accuracy() > own.accuracy() => Some(recalled),
            (own, recalled) => own.or(recalled),
        }
    }

    /// Whether a sequence ends when it samples this token.
    fn ends(&self, sequence: &Sequence, token: TokenId) -> bool {
        (!sequence.ignore_eos && self.rules.eos.contains(&token)) || sequence.stop_token_ids.contains(&token)
    }

    /// What a sequence was answered may be guessed from for its tenant's next ones.
    pub(super) fn remember(&mut self, sequence: &Sequence) {
        if let (Some(corpora), Some(recall)) = (&mut self.corpora, &sequence.recall) {
            // With what the answer followed, so that its beginning can be found.
            let from = (sequence.prompt_len as usize).saturating_sub(GRAMS[0]);
            corpora.add(recall.corpus(), &sequence.tokens[from.max(sequence.encoder.positions as usize)..]);
        }
    }

    /// A step's share of the work that answers leave behind.
    pub(super) fn index_answers(&mut self) {
        if let Some(corpora) = &mut self.corpora {
            corpora.advance(INDEXED_AT_ONCE);
        }
    }
}
