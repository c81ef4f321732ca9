//! Limits how many sequences are live at once: the permits of `--max-concurrent-requests`, by tenant. A tenant alone
//! may hold them all. Once another was seen, the last eighth is only for tenants that hold less than an eighth, so that
//! a flood leaves room for those who come after it. This holds between origins (a key, or an address), and within what
//! an address may have between the users that it names: users can be made up, and get no more than their address.
//! Asked by `handle` for every submission, synchronously.

use crate::tenant::Tenant;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a tenant without a permit still counts as present.
const REMEMBERED: Duration = Duration::from_secs(60);

/// How long after a walk over all tenants the next one waits where their number calls for none.
const BETWEEN_WALKS: Duration = Duration::from_secs(1);

/// One in so many permits is kept for tenants that hold few.
const SHARE: u32 = 8;

pub(super) struct ConcurrencyLimiter {
    limit: u32,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    all: u32,
    tenants: HashMap<Tenant, Holder>,
    origins: HashMap<Tenant, Origin>,
    /// Tenants that were left when absent ones were last forgotten, and when that was.
    left: usize,
    walked: Option<Instant>,
}

struct Holder {
    permits: u32,
    seen: Instant,
}

#[derive(Default)]
struct Origin {
    permits: u32,
    /// Of `tenants`.
    tenants: usize,
}

impl ConcurrencyLimiter {
    pub fn new(limit: u32) -> Self {
        Self { limit, held: Mutex::default() }
    }

    /// Takes a permit, to be given back by `release`; false when there is none for `tenant`.
    pub fn try_acquire(&self, tenant: Tenant, now: Instant) -> bool {
        let held = &mut *self.held.lock().expect("nothing panics while it holds this lock");
        let kept = self.limit / SHARE;
        // The walk over all tenants is worth it only when permits run out or the list is long, and takes no longer than
        // what made the list: who is refused is in it, too.
        let is_due = held.walked.is_none_or(|at| now.saturating_duration_since(at) >= BETWEEN_WALKS);
        let runs_out = is_due && held.all.saturating_add(kept) >= self.limit;
        if runs_out || held.tenants.len() > 2 * held.left + 1024 {
            held.walked = Some(now);
            let recent = |holder: &Holder| {
                holder.permits > 0 || now.saturating_duration_since(holder.seen) < REMEMBERED
            };
            held.tenants.retain(|tenant, holder| {
                let kept = recent(holder);
                if !kept && let Entry::Occupied(mut origin) = held.origins.entry(tenant.origin()) {
                    origin.get_mut().tenants -= 1;
                    if origin.get().tenants == 0 {
                        origin.remove();
                    }
                }
                kept
            });
            held.left = held.tenants.len();
        }
        let all = held.all;
        let origins = held.origins.len();
        let known = held.origins.contains_key(&tenant.origin());
        let origin = held.origins.entry(tenant.origin()).or_default();
        let holder = held.tenants.entry(tenant).or_insert_with(|| {
            origin.tenants += 1;
            Holder { permits: 0, seen: now }
        });
        holder.seen = now;
        let mut limit = self.limit;
        if origins > usize::from(known) && origin.permits >= kept {
            limit -= limit / SHARE;
        }
        if origin.tenants > 1 && holder.permits >= kept {
            limit -= limit / SHARE;
        }
        if all >= limit {
            return false;
        }
        holder.permits += 1;
        origin.permits += 1;
        held.all += 1;
        true
    }

    pub fn release(&self, tenant: Tenant) {
        let mut held = self.held.lock().expect("nothing panics while it holds this lock");
        held.all -= 1;
        if let Some(holder) = held.tenants.get_mut(&tenant) {
            holder.permits -= 1;
        }
        if let Some(origin) = held.origins.get_mut(&tenant.origin()) {
            origin.permits -= 1;
        }
    }

    pub fn in_use(&self) -> u32 {
        self.held.lock().expect("nothing panics while it holds this lock").all
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    impl ConcurrencyLimiter {
        fn held(&self, tenant: Tenant) -> u32 {
            let held = self.held.lock().expect("nothing panics while it holds this lock");
            held.tenants.get(&tenant).map_or(0, |holder| holder.permits)
        }
    }

    fn fill(limiter: &ConcurrencyLimiter, tenant: Tenant, now: Instant) -> u32 {
        (0..1000).take_while(|_| limiter.try_acquire(tenant, now)).count() as u32
    }

    #[test]
    fn a_tenant_alone_holds_all_permits() {
        let limiter = ConcurrencyLimiter::new(128);
        assert_eq!(fill(&limiter, Tenant::Anonymous, Instant::now()), 128);
        assert_eq!(limiter.in_use(), 128);
        limiter.release(Tenant::Anonymous);
        assert_eq!(fill(&limiter, Tenant::Anonymous, Instant::now()), 1);
    }

    #[test]
    fn a_flood_leaves_permits_for_tenants_that_were_seen() {
        let (limiter, now) = (ConcurrencyLimiter::new(128), Instant::now());
        assert!(limiter.try_acquire(Tenant::Key(1), now));
        limiter.release(Tenant::Key(1));
        assert_eq!(fill(&limiter, Tenant::Key(0), now), 112);
        assert_eq!(fill(&limiter, Tenant::Key(1), now), 16);
        assert_eq!(limiter.in_use(), 128);
    }

    #[test]
    fn a_tenant_that_came_when_all_permits_were_taken_gets_one_soon() {
        let (limiter, now) = (ConcurrencyLimiter::new(16), Instant::now());
        assert_eq!(fill(&limiter, Tenant::Key(0), now), 16);
        assert!(!limiter.try_acquire(Tenant::Key(1), now));
        for _ in 0..3 {
            limiter.release(Tenant::Key(0));
            assert!(
                !limiter.try_acquire(Tenant::Key(0), now) || limiter.in_use() <= 14,
                "the last permits are kept"
            );
        }
        assert!(limiter.try_acquire(Tenant::Key(1), now));
    }

    #[test]
    fn who_stayed_away_is_reckoned_with_no_longer() {
        let (limiter, now) = (ConcurrencyLimiter::new(16), Instant::now());
        assert!(limiter.try_acquire(Tenant::Key(1), now));
        limiter.release(Tenant::Key(1));
        assert_eq!(fill(&limiter, Tenant::Key(0), now + 2 * REMEMBERED), 16);
    }

    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn made_up_users_get_no_more_than_their_address() {
        let (limiter, now) = (ConcurrencyLimiter::new(128), Instant::now());
        assert!(limiter.try_acquire(Tenant::Address(OTHER), now));
        limiter.release(Tenant::Address(OTHER));
        let taken = (0..1000).filter(|user| limiter.try_acquire(Tenant::User(ONE, user % 32), now)).count();
        assert_eq!(taken, 112);
        assert_eq!(fill(&limiter, Tenant::User(OTHER, 7), now), 16);
        assert_eq!(limiter.in_use(), 128);
    }

    #[test]
    fn users_of_one_address_leave_each_other_room() {
        let (limiter, now) = (ConcurrencyLimiter::new(128), Instant::now());
        let (flood, other) = (Tenant::User(ONE, 0), Tenant::User(ONE, 1));
        assert!(limiter.try_acquire(other, now));
        limiter.release(other);
        assert_eq!(fill(&limiter, flood, now), 112);
        assert_eq!(fill(&limiter, other, now), 16);
        for tenant in [flood, other] {
            while limiter.held(tenant) > 0 {
                limiter.release(tenant);
            }
        }
        // And within what the address has, once another one was seen.
        assert!(limiter.try_acquire(Tenant::Address(OTHER), now));
        assert_eq!(fill(&limiter, flood, now), 97);
        assert_eq!(fill(&limiter, other, now), 14);
        assert_eq!(fill(&limiter, Tenant::Address(OTHER), now), 15);
    }

    #[test]
    fn an_address_that_stayed_away_is_reckoned_with_no_longer() {
        let (limiter, now) = (ConcurrencyLimiter::new(16), Instant::now());
        assert!(limiter.try_acquire(Tenant::User(OTHER, 1), now));
        limiter.release(Tenant::User(OTHER, 1));
        assert_eq!(fill(&limiter, Tenant::User(ONE, 1), now + 2 * REMEMBERED), 16);
    }

    #[test]
    fn a_flood_of_refused_users_is_walked_over_once_a_second() {
        let (limiter, now) = (ConcurrencyLimiter::new(16), Instant::now());
        fill(&limiter, Tenant::User(ONE, 0), now);
        let mut walks = 0;
        let mut last = None;
        for user in 1..3000 {
            limiter.try_acquire(Tenant::User(ONE, user), now + Duration::from_millis(user));
            let walked = limiter.held.lock().expect("no panic").walked;
            walks += u32::from(walked != last);
            last = walked;
        }
        assert!(walks < 8, "{walks} walks");
    }

    #[test]
    fn a_server_of_few_permits_keeps_none() {
        let (limiter, now) = (ConcurrencyLimiter::new(4), Instant::now());
        assert!(limiter.try_acquire(Tenant::Key(1), now));
        assert_eq!(fill(&limiter, Tenant::Key(0), now), 3);
    }
}
