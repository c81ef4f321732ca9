//! The queue, and whose turn it is. Each party (an API key, or a `user`) has an account of the tokens it was
//! served, and the party that was served least is next; within a party, who came first. A virtual token
//! counter as in "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024), with a clock so that
//! ever new parties cannot keep an older one waiting. Asked by `planning`; knows no slots and no blocks.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use slab::Slab;

use super::sequence::Party;
use crate::ids::SequenceId;

/// What a token costs its party: one that was generated took a step, one of a prompt a share of one. The
/// weights of the paper.
const PROMPT_TOKEN: u64 = 1;
const OUTPUT_TOKEN: u64 = 2;

/// Accounts are kept in fractions of a token, so that the clock can advance by a party's share of one.
const UNIT: u64 = 1 << 10;

/// Accounts of parties that have nothing here now, beyond which they are forgotten.
const REMEMBERED: usize = 4096;

/// What a party is charged for the positions `from..to` of a sequence with a prompt of `prompt_len`.
pub(super) fn cost(prompt_len: u32, from: u32, to: u32) -> u64 {
    let prompt = to.min(prompt_len).saturating_sub(from);
    let output = to.saturating_sub(from.max(prompt_len));
    u64::from(prompt) * PROMPT_TOKEN + u64::from(output) * OUTPUT_TOKEN
}

/// A party's account; good until `leave` was called as often as `enter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AccountId(usize);

struct Account {
    party: Party,
    /// Tokens that it was served, weighted, in `UNIT`s. Lifted to the clock when it comes to wait: what a
    /// party did not ask for in the past gives it no claim.
    served: u64,
    /// Sequences that wait or run.
    live: u32,
    waiting: BTreeSet<SequenceId>,
    /// Of the prompts that wait.
    waiting_tokens: u64,
    /// Where it stands in `order`.
    place: Option<(u64, SequenceId)>,
}

struct Waiting {
    key: usize,
    account: AccountId,
    tokens: u32,
}

/// Prompts that will be computed before another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ahead {
    pub sequences: u64,
    pub tokens: u64,
}

#[derive(Default)]
pub(super) struct FairQueue {
    waiting: BTreeMap<SequenceId, Waiting>,
    accounts: Slab<Account>,
    by_party: HashMap<Party, AccountId>,
    /// Sequences that wait or run.
    live: u32,
    tokens: u64,
    /// Parties with something waiting: the one served least first; among equals, whose sequence is older.
    order: BTreeSet<(u64, SequenceId, AccountId)>,
    /// Waiting parties that were charged since `order` was looked at.
    charged: Vec<AccountId>,
    /// What a party would have been served by now that always had its share.
    clock: u64,
}

impl FairQueue {
    /// A sequence of `party` begins to live.
    pub fn enter(&mut self, party: Party) -> AccountId {
        let known = self.by_party.get(&party).copied();
        let id = known.unwrap_or_else(|| {
            if self.accounts.len() >= REMEMBERED {
                self.forget_the_absent();
            }
            let account = Account {
                party,
                served: 0,
                live: 0,
                waiting: BTreeSet::new(),
                waiting_tokens: 0,
                place: None,
            };
            let id = AccountId(self.accounts.insert(account));
            self.by_party.insert(party, id);
            id
        });
        self.accounts[id.0].live += 1;
        self.live += 1;
        id
    }

    /// A sequence has ended; it does not wait any more.
    pub fn leave(&mut self, id: AccountId) {
        self.live -= 1;
        let account = &mut self.accounts[id.0];
        account.live -= 1;
        if self.live == 0 {
            // Nobody waits for anybody: all begin anew as equals.
            let most = self.accounts.iter().map(|(_, account)| account.served).max();
            self.clock = self.clock.max(most.unwrap_or(0));
            self.forget_the_absent();
        } else if account.live == 0 && account.served <= self.clock {
            self.by_party.remove(&account.party);
            self.accounts.remove(id.0);
        }
    }

    fn forget_the_absent(&mut self) {
        self.accounts.retain(|_, account| account.live > 0);
        self.by_party.retain(|_, id| self.accounts.contains(id.0));
    }

    /// Puts a sequence with so many tokens to compute into its party's queue, by its age.
    pub fn push(&mut self, account: AccountId, id: SequenceId, key: usize, tokens: u32) {
        self.settle();
        let entry = self.entry();
        let party = &mut self.accounts[account.0];
        if party.waiting.is_empty() {
            party.served = party.served.max(entry);
        }
        party.waiting.insert(id);
        party.waiting_tokens += u64::from(tokens);
        self.tokens += u64::from(tokens);
        self.waiting.insert(id, Waiting { key, account, tokens });
        self.place(account);
    }

    /// Takes a sequence out, wherever in the queue it is.
    pub fn remove(&mut self, id: SequenceId) {
        let Some(Waiting { account, tokens, .. }) = self.waiting.remove(&id) else { return };
        let party = &mut self.accounts[account.0];
        party.waiting.remove(&id);
        party.waiting_tokens -= u64::from(tokens);
        self.tokens -= u64::from(tokens);
        self.place(account);
    }

    /// Whose turn it is, with its key, and what its party was served.
    pub fn head(&mut self) -> Option<(SequenceId, usize, u64)> {
        self.settle();
        let &(served, id, _) = self.order.first()?;
        Some((id, self.waiting[&id].key, served))
    }

    pub fn get(&self, id: SequenceId) -> Option<usize> {
        self.waiting.get(&id).map(|waiting| waiting.key)
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Of all prompts that wait.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    pub fn served(&self, account: AccountId) -> u64 {
        self.accounts[account.0].served
    }

    /// `account` was served so much, by `cost`.
    pub fn charge(&mut self, account: AccountId, cost: u64) {
        let cost = cost * UNIT;
        let party = &mut self.accounts[account.0];
        let before = party.served;
        party.served += cost;
        if self.order.is_empty() {
            // Nobody waits: whatever a party takes now is taken from no one.
            self.clock = self.clock.max(party.served);
            return;
        }
        self.clock += cost / self.order.len() as u64;
        if party.place.is_some_and(|(served, _)| served == before) {
            self.charged.push(account);
        }
    }

    /// What would be served before a sequence of `tokens` that `account` submits now: all that its party has
    /// waiting, and of each other party as much as makes them even.
    pub fn ahead(&mut self, account: AccountId, tokens: u64) -> Ahead {
        self.settle();
        let entry = self.entry();
        let own = &self.accounts[account.0];
        let served = if own.waiting.is_empty() { own.served.max(entry) } else { own.served };
        let mut ahead = Ahead { sequences: own.waiting.len() as u64, tokens: own.waiting_tokens };
        let level = served + (own.waiting_tokens + tokens) * PROMPT_TOKEN * UNIT;
        for &(served, _, id) in &self.order {
            if id == account || served >= level {
                continue;
            }
            let other = &self.accounts[id.0];
            let share = ((level - served) / (PROMPT_TOKEN * UNIT)).min(other.waiting_tokens);
            ahead.tokens += share;
            let count = other.waiting.len() as u64;
            ahead.sequences += (share * count).div_ceil(other.waiting_tokens.max(1)).min(count);
        }
        ahead
    }

    /// Where a party begins that had nothing waiting: with those who wait, never before the one that was
    /// served least nor behind the one that was served most. The clock runs on between these two, so that
    /// who waits has newcomers behind it in the end.
    fn entry(&mut self) -> u64 {
        if let (Some(&(least, ..)), Some(&(most, ..))) = (self.order.first(), self.order.last()) {
            self.clock = self.clock.clamp(least, most);
        }
        self.clock
    }

    fn settle(&mut self) {
        while let Some(account) = self.charged.pop() {
            // It may have left meanwhile.
            if self.accounts.contains(account.0) {
                self.place(account);
            }
        }
    }

    fn place(&mut self, id: AccountId) {
        let account = &mut self.accounts[id.0];
        let place = account.waiting.first().map(|&head| (account.served, head));
        if place == account.place {
            return;
        }
        if let Some((served, head)) = std::mem::replace(&mut account.place, place) {
            self.order.remove(&(served, head, id));
        }
        if let Some((served, head)) = place {
            self.order.insert((served, head, id));
        }
    }
}

#[cfg(test)]
impl FairQueue {
    /// Everything that holds between two calls, beside `live` sequences.
    pub fn check(&self, live: usize) {
        assert_eq!(self.live as usize, live);
        assert_eq!(self.accounts.iter().map(|(_, account)| account.live).sum::<u32>(), self.live);
        assert_eq!(self.accounts.len(), self.by_party.len());
        let waiting: usize = self.accounts.iter().map(|(_, account)| account.waiting.len()).sum();
        assert_eq!(waiting, self.waiting.len());
        let parties = self.accounts.iter().filter(|(_, account)| !account.waiting.is_empty()).count();
        assert_eq!(self.order.len(), parties);
        for &(served, head, id) in &self.order {
            let account = &self.accounts[id.0];
            assert_eq!(account.place, Some((served, head)));
            assert_eq!(account.waiting.first(), Some(&head));
            assert!(served <= account.served);
        }
        assert_eq!(self.tokens, self.waiting.values().map(|waiting| u64::from(waiting.tokens)).sum::<u64>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Line {
        queue: FairQueue,
        next: u64,
    }

    impl Line {
        fn new() -> Self {
            Self { queue: FairQueue::default(), next: 0 }
        }

        fn push(&mut self, party: u32, tokens: u32) -> SequenceId {
            let id = SequenceId(self.next);
            self.next += 1;
            let account = self.queue.enter(Party::Key(party));
            self.queue.push(account, id, party as usize, tokens);
            id
        }

        /// Serves the head to its end; whose it was.
        fn serve(&mut self) -> Option<usize> {
            let (id, party, _) = self.queue.head()?;
            let Waiting { account, tokens, .. } = self.queue.waiting[&id];
            self.queue.remove(id);
            self.queue.charge(account, u64::from(tokens));
            self.queue.leave(account);
            self.queue.check(self.queue.live as usize);
            Some(party)
        }
    }

    #[test]
    fn one_party_is_served_in_the_order_of_arrival() {
        let mut line = Line::new();
        let ids: Vec<_> = [5, 1, 9, 2].map(|tokens| line.push(0, tokens)).into();
        for id in ids {
            assert_eq!(line.queue.head().map(|head| head.0), Some(id));
            line.serve();
        }
        assert_eq!(line.serve(), None);
    }

    #[test]
    fn who_was_served_least_is_next() {
        let mut line = Line::new();
        for _ in 0..6 {
            line.push(0, 10);
        }
        for _ in 0..3 {
            line.push(1, 20);
        }
        let served: Vec<_> = std::iter::from_fn(|| line.serve()).collect();
        assert_eq!(served, [0, 1, 0, 0, 1, 0, 0, 1, 0]);
    }

    #[test]
    fn what_was_taken_while_nobody_waited_is_held_against_no_one() {
        let mut line = Line::new();
        let alone = line.queue.enter(Party::Key(0));
        line.queue.charge(alone, 1_000_000);
        for _ in 0..4 {
            line.push(1, 10);
            line.push(0, 10);
        }
        let served: Vec<_> = std::iter::from_fn(|| line.serve()).collect();
        assert_eq!(served, [1, 0, 1, 0, 1, 0, 1, 0]);
    }

    #[test]
    fn silence_gives_no_claim() {
        let mut line = Line::new();
        line.push(1, 1);
        for _ in 0..100 {
            line.push(0, 10);
        }
        for _ in 0..50 {
            line.serve();
        }
        for _ in 0..20 {
            line.push(1, 10);
        }
        let first: usize = (0..20).filter_map(|_| line.serve()).sum();
        assert!((9..=11).contains(&first), "{first} of 20 went to the one that was silent");
    }

    #[test]
    fn ever_new_parties_cannot_keep_an_old_one_waiting() {
        let mut line = Line::new();
        // Served much beside another that waits, so that it is behind all newcomers at first.
        let busy = line.push(0, 1);
        line.push(1, 10);
        let account = line.queue.waiting[&busy].account;
        line.queue.charge(account, 500);
        let turn = (2..10_000).position(|newcomer| {
            line.push(newcomer, 10);
            line.serve() == Some(0)
        });
        assert!(turn.is_some_and(|turn| turn < 1000), "{turn:?}");
    }

    #[test]
    fn what_is_ahead_is_the_own_queue_and_the_others_share() {
        let mut line = Line::new();
        for _ in 0..64 {
            line.push(0, 100);
        }
        let own = line.queue.enter(Party::Key(0));
        assert_eq!(line.queue.ahead(own, 100), Ahead { sequences: 64, tokens: 6400 });
        let other = line.queue.enter(Party::Key(1));
        assert_eq!(line.queue.ahead(other, 100), Ahead { sequences: 1, tokens: 100 });
    }

    #[test]
    fn a_generated_token_counts_twice() {
        assert_eq!(cost(10, 0, 10), 10);
        assert_eq!(cost(10, 10, 11), 2);
        assert_eq!(cost(10, 8, 12), 6);
        assert_eq!(cost(10, 12, 12), 0);
    }
}
