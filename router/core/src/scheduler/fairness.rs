//! The queue, and whose turn it is, by virtual token counters as in "Fairness in Serving Large Language Models" (Sheng
//! et al., OSDI 2024). Each tenant (an API key, or a `user` of an address) has an account of the tokens it was served,
//! and among sequences of the highest priority that waits the tenant that was served least is next; within a tenant, the
//! oldest sequence. The users of one address, which can be made up, divide the share of one tenant: a token costs each of
//! them as many times as there are of them, and a new one begins where its address stands. A clock keeps ever new tenants
//! from delaying an older one of the same priority for ever; a lower priority may wait as long as a higher one has anything
//! waiting. A tenant has one account, whatever the priorities of its sequences. Asked by `planning`; knows no slots and no
//! blocks.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map};

use penstock_proto::ids::SequenceId;
use slab::Slab;

use super::order::{Precedence, Turn};
use super::submission::Priority;
use crate::tenant::Tenant;

/// What a token costs its tenant: one that was generated took a step, one of a prompt a share of one. The
/// weights of the paper.
const PROMPT_TOKEN: u64 = 1;
const OUTPUT_TOKEN: u64 = 2;

/// Accounts are kept in fractions of a token, so that the clock can advance by a tenant's share of one.
const UNIT: u64 = 1 << 10;

/// Accounts of tenants that have nothing here now, beyond which they are forgotten.
const REMEMBERED: usize = 4096;

/// What a tenant is charged for the positions `from..to` of a sequence with a prompt of `prompt_len`. A token of a prompt whose
/// log probability `is_told` has logits of its own, as one that was generated.
pub(super) fn cost(prompt_len: u32, is_told: bool, from: u32, to: u32) -> u64 {
    let prompt = to.min(prompt_len).saturating_sub(from);
    let output = to.saturating_sub(from.max(prompt_len));
    u64::from(prompt) * if is_told { OUTPUT_TOKEN } else { PROMPT_TOKEN } + u64::from(output) * OUTPUT_TOKEN
}

/// A tenant's account; good until `leave` was called as often as `enter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AccountId(usize);

struct Account {
    tenant: Tenant,
    /// Tokens that it was served, weighted, in `UNIT`s. Lifted to the clock when it comes to wait: what a
    /// tenant did not ask for in the past gives it no claim.
    served: u64,
    /// Sequences that wait or run.
    live: u32,
    /// Its sequences that wait, by priority; none is empty.
    lines: BTreeMap<Priority, Line>,
    /// Where it stands in `order`.
    position: Option<Turn>,
}

/// What a tenant has waiting of one priority.
#[derive(Default)]
struct Line {
    ids: BTreeSet<SequenceId>,
    /// Of their prompts.
    tokens: u64,
}

impl Account {
    /// The turn of its next sequence.
    fn turn(&self) -> Option<Turn> {
        let (&priority, line) = self.lines.first_key_value()?;
        let &id = line.ids.first()?;
        Some(Turn { priority, served: self.served, id })
    }

    /// What it has waiting of these priorities.
    fn waiting(&self, priorities: impl std::ops::RangeBounds<Priority>) -> Ahead {
        let mut sum = Ahead::default();
        for line in self.lines.range(priorities).map(|(_, line)| line) {
            sum.sequences += line.ids.len() as u64;
            sum.tokens += line.tokens;
        }
        sum
    }
}

/// What the users of an address are together.
#[derive(Default)]
struct Origin {
    /// Tenants of it that have sequences here.
    present: u32,
    /// As of an account, had they all been one tenant.
    served: u64,
}

struct Waiting {
    key: usize,
    account: AccountId,
    priority: Priority,
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
    by_tenant: HashMap<Tenant, AccountId>,
    /// Addresses, whose users are tenants.
    origins: HashMap<Tenant, Origin>,
    /// Sequences that wait or run.
    live: u32,
    tokens: u64,
    /// Tenants with something waiting, by the turns of what they have next.
    order: BTreeSet<(Turn, AccountId)>,
    /// Waiting tenants that were charged since `order` was looked at.
    charged: Vec<AccountId>,
    /// What a tenant would have been served by now that always had its share.
    clock: u64,
}

impl FairQueue {
    /// A sequence of `tenant` begins to live.
    pub fn enter(&mut self, tenant: Tenant) -> AccountId {
        let known = self.by_tenant.get(&tenant).copied();
        let id = known.unwrap_or_else(|| {
            if self.accounts.len() >= REMEMBERED {
                self.forget_the_absent();
            }
            let account = Account { tenant, served: 0, live: 0, lines: BTreeMap::new(), position: None };
            let id = AccountId(self.accounts.insert(account));
            self.by_tenant.insert(tenant, id);
            id
        });
        let account = &mut self.accounts[id.0];
        account.live += 1;
        if account.live == 1
            && let Some(origin) = tenant.shared_origin()
        {
            self.origins.entry(origin).or_default().present += 1;
        }
        self.live += 1;
        id
    }

    /// A sequence has ended; it does not wait any more.
    pub fn leave(&mut self, id: AccountId) {
        self.live -= 1;
        let account = &mut self.accounts[id.0];
        account.live -= 1;
        if account.live == 0
            && let Some(origin) = account.tenant.shared_origin()
            && let Entry::Occupied(mut origin) = self.origins.entry(origin)
        {
            origin.get_mut().present -= 1;
            if origin.get().present == 0 && origin.get().served <= self.clock {
                origin.remove();
            }
        }
        if self.live == 0 {
            // Nobody waits for anybody: all begin anew as equals.
            let most = self.accounts.iter().map(|(_, account)| account.served).max();
            self.clock = self.clock.max(most.unwrap_or(0));
            self.forget_the_absent();
        } else if account.live == 0 && account.served <= self.clock {
            self.by_tenant.remove(&account.tenant);
            self.accounts.remove(id.0);
        }
    }

    fn forget_the_absent(&mut self) {
        self.accounts.retain(|_, account| account.live > 0);
        self.by_tenant.retain(|_, id| self.accounts.contains(id.0));
        self.origins.retain(|_, origin| origin.present > 0);
    }

    /// Puts a sequence with so many tokens to compute into its tenant's queue, by its priority and age.
    pub fn push(&mut self, account: AccountId, sequence: Precedence, key: usize, tokens: u32) {
        self.settle();
        let entry = self.entry_of(account);
        let tenant = &mut self.accounts[account.0];
        if tenant.lines.is_empty() {
            tenant.served = tenant.served.max(entry);
            if let Some(origin) =
                tenant.tenant.shared_origin().and_then(|origin| self.origins.get_mut(&origin))
            {
                origin.served = entry;
            }
        }
        let Precedence { priority, id } = sequence;
        let line = tenant.lines.entry(priority).or_default();
        line.ids.insert(id);
        line.tokens += u64::from(tokens);
        self.tokens += u64::from(tokens);
        self.waiting.insert(id, Waiting { key, account, priority, tokens });
        self.reorder(account);
    }

    /// Takes a sequence out, wherever in the queue it is.
    pub fn remove(&mut self, id: SequenceId) {
        let Some(Waiting { account, priority, tokens, .. }) = self.waiting.remove(&id) else { return };
        self.tokens -= u64::from(tokens);
        if let btree_map::Entry::Occupied(mut line) = self.accounts[account.0].lines.entry(priority) {
            line.get_mut().ids.remove(&id);
            line.get_mut().tokens -= u64::from(tokens);
            if line.get().ids.is_empty() {
                line.remove();
            }
        }
        self.reorder(account);
    }

    /// Whose turn it is, with its key.
    pub fn head(&mut self) -> Option<(Turn, usize)> {
        self.settle();
        let &(turn, _) = self.order.first()?;
        Some((turn, self.waiting[&turn.id].key))
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
        let origin = self.accounts[account.0].tenant.shared_origin();
        let origin = origin.and_then(|origin| self.origins.get_mut(&origin));
        let cost = origin.map_or(cost, |origin| {
            origin.served += cost;
            cost * u64::from(origin.present.max(1))
        });
        let tenant = &mut self.accounts[account.0];
        let before = tenant.served;
        tenant.served += cost;
        if self.order.is_empty() {
            // Nobody waits: whatever a tenant takes now is taken from no one.
            self.clock = self.clock.max(tenant.served);
            return;
        }
        self.clock += cost / self.order.len() as u64;
        if tenant.position.is_some_and(|position| position.served == before) {
            self.charged.push(account);
        }
    }

    fn origin_of(&self, account: AccountId) -> Option<&Origin> {
        self.origins.get(&self.accounts[account.0].tenant.shared_origin()?)
    }

    /// Between how many tenants the share of this one's origin is divided.
    fn divided_by(&self, account: AccountId) -> u64 {
        self.origin_of(account).map_or(1, |origin| origin.present.max(1).into())
    }

    /// Where this tenant begins if it has nothing waiting: not before what its origin was served.
    fn entry_of(&mut self, account: AccountId) -> u64 {
        let entry = self.entry();
        self.origin_of(account).map_or(entry, |origin| origin.served.max(entry))
    }

    /// What would be served before a sequence of `tokens` that `account` submits now with this priority: all that waits
    /// with a higher one; of the same one, all that its tenant has, and of each other tenant as much as makes them even.
    pub fn ahead(&mut self, account: AccountId, priority: Priority, tokens: u64) -> Ahead {
        self.settle();
        let entry = self.entry_of(account);
        let own = &self.accounts[account.0];
        let served = if own.lines.is_empty() { own.served.max(entry) } else { own.served };
        let mut ahead = own.waiting(..=priority);
        let level = served + (ahead.tokens + tokens) * PROMPT_TOKEN * UNIT * self.divided_by(account);
        for &(turn, id) in &self.order {
            if turn.priority > priority {
                break;
            }
            if id == account {
                continue;
            }
            let other = &self.accounts[id.0];
            let price = PROMPT_TOKEN * UNIT * self.divided_by(id);
            let (higher, same) = (other.waiting(..priority), other.waiting(priority..=priority));
            ahead.sequences += higher.sequences;
            ahead.tokens += higher.tokens;
            let share = level.saturating_sub(turn.served + higher.tokens * price) / price;
            let share = share.min(same.tokens);
            ahead.tokens += share;
            ahead.sequences += (share * same.sequences).div_ceil(same.tokens.max(1)).min(same.sequences);
        }
        ahead
    }

    /// Where a tenant begins that had nothing waiting: with those who wait, never before the one that was
    /// served least nor behind the one that was served most. The clock runs on between these two, so that
    /// who waits has newcomers behind it in the end.
    fn entry(&mut self) -> u64 {
        if let Some((least, most)) = self.served_least_and_most() {
            self.clock = self.clock.clamp(least, most);
        }
        self.clock
    }

    /// Among those who wait, of all priorities.
    fn served_least_and_most(&self) -> Option<(u64, u64)> {
        let mut rest = self.order.first();
        let (mut least, mut most) = (rest?.0.served, 0);
        while let Some(&(Turn { priority, served, .. }, _)) = rest {
            least = least.min(served);
            let end = Turn { priority, served: u64::MAX, id: SequenceId(u64::MAX) };
            let mut from_here = self.order.range(..=(end, AccountId(usize::MAX)));
            most = most.max(from_here.next_back().map_or(0, |(turn, _)| turn.served));
            rest = self.order.range((end, AccountId(usize::MAX))..).next();
        }
        Some((least, most))
    }

    fn settle(&mut self) {
        while let Some(account) = self.charged.pop() {
            // It may have left meanwhile.
            if self.accounts.contains(account.0) {
                self.reorder(account);
            }
        }
    }

    fn reorder(&mut self, id: AccountId) {
        let account = &mut self.accounts[id.0];
        let position = account.turn();
        if position == account.position {
            return;
        }
        if let Some(before) = std::mem::replace(&mut account.position, position) {
            self.order.remove(&(before, id));
        }
        if let Some(turn) = position {
            self.order.insert((turn, id));
        }
    }
}

#[cfg(test)]
impl FairQueue {
    /// Everything that holds between two calls, beside `live` sequences.
    pub fn check(&self, live: usize) {
        assert_eq!(self.live as usize, live);
        assert_eq!(self.accounts.iter().map(|(_, account)| account.live).sum::<u32>(), self.live);
        assert_eq!(self.accounts.len(), self.by_tenant.len());
        let shared = |account: &Account| account.live > 0 && account.tenant.shared_origin().is_some();
        let present = self.accounts.iter().filter(|(_, account)| shared(account)).count() as u32;
        assert_eq!(self.origins.values().map(|origin| origin.present).sum::<u32>(), present);
        let waiting: u64 = self.accounts.iter().map(|(_, account)| account.waiting(..).sequences).sum();
        assert_eq!(waiting, self.waiting.len() as u64);
        let tenants = self.accounts.iter().filter(|(_, account)| !account.lines.is_empty()).count();
        assert_eq!(self.order.len(), tenants);
        for &(turn, id) in &self.order {
            let account = &self.accounts[id.0];
            assert_eq!(account.position, Some(turn));
            let now = account.turn().expect("it has something waiting");
            assert_eq!((now.priority, now.id), (turn.priority, turn.id));
            assert!(turn.served <= now.served);
        }
        let lines = self.accounts.iter().flat_map(|(_, account)| account.lines.values());
        assert_eq!(self.tokens, lines.map(|line| line.tokens).sum::<u64>());
        assert_eq!(self.tokens, self.waiting.values().map(|waiting| u64::from(waiting.tokens)).sum::<u64>());
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    struct Line {
        queue: FairQueue,
        next: u64,
    }

    impl Line {
        fn new() -> Self {
            Self { queue: FairQueue::default(), next: 0 }
        }

        fn push(&mut self, tenant: u32, tokens: u32) -> SequenceId {
            self.push_as(Tenant::Key(tenant), tenant as usize, tokens)
        }

        fn push_as(&mut self, tenant: Tenant, key: usize, tokens: u32) -> SequenceId {
            self.push_with(Priority::default(), tenant, key, tokens)
        }

        fn push_with(&mut self, priority: Priority, tenant: Tenant, key: usize, tokens: u32) -> SequenceId {
            let id = SequenceId(self.next);
            self.next += 1;
            let account = self.queue.enter(tenant);
            self.queue.push(account, Precedence { priority, id }, key, tokens);
            id
        }

        /// Serves the head to its end; whose it was.
        fn serve(&mut self) -> Option<usize> {
            let (turn, tenant) = self.queue.head()?;
            let Waiting { account, tokens, .. } = self.queue.waiting[&turn.id];
            self.queue.remove(turn.id);
            self.queue.charge(account, u64::from(tokens));
            self.queue.leave(account);
            self.queue.check(self.queue.live as usize);
            Some(tenant)
        }
    }

    #[test]
    fn one_tenant_is_served_in_the_order_of_arrival() {
        let mut line = Line::new();
        let ids: Vec<_> = [5, 1, 9, 2].map(|tokens| line.push(0, tokens)).into();
        for id in ids {
            assert_eq!(line.queue.head().map(|(turn, _)| turn.id), Some(id));
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
        let alone = line.queue.enter(Tenant::Key(0));
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
    fn ever_new_tenants_cannot_keep_an_old_one_waiting() {
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

    const FLOOD: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const HONEST: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn the_users_of_an_address_divide_its_share() {
        let mut line = Line::new();
        for _ in 0..10 {
            for user in 0..32 {
                line.push_as(Tenant::User(FLOOD, user), 0, 10);
            }
        }
        for _ in 0..50 {
            line.push_as(Tenant::Address(HONEST), 1, 10);
        }
        let honest: usize = (0..100).filter_map(|_| line.serve()).sum();
        assert!((35..=50).contains(&honest), "{honest} of 100 went to the one beside 32 made-up users");
        let account = line.queue.enter(Tenant::Address(HONEST));
        let ahead = line.queue.ahead(account, Priority::default(), 10);
        assert!(ahead.sequences < 50, "{ahead:?}");
    }

    #[test]
    fn ever_new_users_get_no_more_than_the_share_of_their_address() {
        let mut line = Line::new();
        let mut user = 0;
        let mut flood = |line: &mut Line| {
            user += 1;
            line.push_as(Tenant::User(FLOOD, user), 0, 10);
        };
        for _ in 0..32 {
            flood(&mut line);
        }
        for _ in 0..200 {
            line.push_as(Tenant::Address(HONEST), 1, 10);
        }
        let mut honest = 0;
        // Those that waited at the beginning were equals.
        for turn in 0..250 {
            match line.serve() {
                Some(1) => honest += u32::from(turn >= 50),
                _ => flood(&mut line),
            }
        }
        assert!((80..=120).contains(&honest), "{honest} of 200");
    }

    #[test]
    fn users_of_one_address_are_equals() {
        let mut line = Line::new();
        for _ in 0..100 {
            line.push_as(Tenant::User(FLOOD, 0), 0, 10);
        }
        for _ in 0..10 {
            line.push_as(Tenant::User(FLOOD, 1), 1, 10);
        }
        let other: usize = (0..20).filter_map(|_| line.serve()).sum();
        assert!((9..=11).contains(&other), "{other} of 20");
    }

    #[test]
    fn what_is_ahead_is_the_own_queue_and_the_others_share() {
        let mut line = Line::new();
        for _ in 0..64 {
            line.push(0, 100);
        }
        let usual = Priority::default();
        let own = line.queue.enter(Tenant::Key(0));
        assert_eq!(line.queue.ahead(own, usual, 100), Ahead { sequences: 64, tokens: 6400 });
        let other = line.queue.enter(Tenant::Key(1));
        assert_eq!(line.queue.ahead(other, usual, 100), Ahead { sequences: 1, tokens: 100 });
        // Before a lower priority goes all that waits, before a higher one nothing.
        assert_eq!(line.queue.ahead(other, Priority(1), 100), Ahead { sequences: 64, tokens: 6400 });
        assert_eq!(line.queue.ahead(own, Priority(-1), 100), Ahead::default());
    }

    #[test]
    fn a_higher_priority_goes_first_and_fairness_holds_within_one() {
        let mut line = Line::new();
        let push = |line: &mut Line, priority, tenant: u32| {
            line.push_with(Priority(priority), Tenant::Key(tenant), tenant as usize, 10)
        };
        push(&mut line, 0, 3);
        for _ in 0..3 {
            push(&mut line, 0, 0);
            push(&mut line, 5, 1);
        }
        // Of another tenant, and later.
        for _ in 0..2 {
            push(&mut line, -3, 2);
            push(&mut line, -3, 3);
        }
        let served: Vec<_> = std::iter::from_fn(|| line.serve()).collect();
        // What tenant 3 had by its higher priority counts when it waits with the others.
        assert_eq!(served, [2, 3, 2, 3, 0, 0, 3, 0, 1, 1, 1]);
    }

    #[test]
    fn within_a_tenant_a_higher_priority_goes_first() {
        let mut line = Line::new();
        let own = Tenant::Key(0);
        let [low, high, usual] = [7, -7, 0].map(|priority| line.push_with(Priority(priority), own, 0, 10));
        let mut order = Vec::new();
        while let Some((turn, _)) = line.queue.head() {
            order.push(turn.id);
            line.serve();
        }
        assert_eq!(order, [high, usual, low]);
    }

    #[test]
    fn newcomers_begin_between_those_who_wait_whatever_the_priorities() {
        let mut line = Line::new();
        let spread = |line: &Line| line.queue.served_least_and_most();
        assert_eq!(spread(&line), None);
        for (priority, tenant, served) in [(3, 0, 5), (-2, 1, 9), (0, 2, 1), (0, 3, 7)] {
            line.push_with(Priority(priority), Tenant::Key(tenant), 0, 10);
            let account = line.queue.by_tenant[&Tenant::Key(tenant)];
            line.queue.accounts[account.0].served = served;
            line.queue.reorder(account);
        }
        assert_eq!(spread(&line), Some((1, 9)));
    }

    #[test]
    fn a_generated_token_counts_twice() {
        assert_eq!(cost(10, false, 0, 10), 10);
        assert_eq!(cost(10, false, 10, 11), 2);
        assert_eq!(cost(10, false, 8, 12), 6);
        assert_eq!(cost(10, false, 12, 12), 0);
        assert_eq!(cost(10, true, 8, 12), 8, "so does one of a prompt whose log probability is told");
    }
}
