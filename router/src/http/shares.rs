//! What clients share and none may take alone: memory before a request has a place, readers of block events. A client may take all but
//! the last eighth, which is for those that hold less than an eighth: as with places (`penstock_core::scheduler`), so that a
//! flood leaves room for those who come after it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::http::keys::KeyIndex;

/// One in so many units is kept for clients that hold few.
const KEPT: usize = 8;

/// Who is counted together: as with places, but for the users that a client names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    Key(KeyIndex),
    /// Of IPv6 a network (`address::holder`).
    Address(IpAddr),
}

/// So much of it there is, in units of whoever made it.
#[derive(Debug)]
pub struct Shares {
    most: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    holders: HashMap<Holder, usize>,
}

/// There is no more for this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

impl Shares {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, held: Mutex::default() })
    }

    pub fn most(&self) -> usize {
        self.most
    }

    /// A share that is given back when it is dropped.
    pub fn take(self: &Arc<Self>, holder: Holder, units: usize) -> Result<Share, Exhausted> {
        let mut share = Share { shares: self.clone(), holder, units: 0 };
        share.grow(units)?;
        Ok(share)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("nothing panics while it holds this lock")
    }
}

impl Held {
    fn add(&mut self, most: usize, holder: Holder, units: usize) -> Result<(), Exhausted> {
        let kept = most / KEPT;
        let all = self.all.saturating_add(units);
        let own = self.holders.get(&holder).map_or(0, |own| *own).saturating_add(units);
        if all > if own > kept { most - kept } else { most } {
            return Err(Exhausted);
        }
        self.all = all;
        self.holders.insert(holder, own);
        Ok(())
    }

    fn remove(&mut self, holder: Holder, units: usize) {
        self.all -= units;
        if let Entry::Occupied(mut own) = self.holders.entry(holder) {
            *own.get_mut() -= units;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    holder: Holder,
    units: usize,
}

impl Share {
    pub fn grow(&mut self, units: usize) -> Result<(), Exhausted> {
        self.shares.held().add(self.shares.most, self.holder, units)?;
        self.units += units;
        Ok(())
    }

    /// Gives back all but so much.
    pub fn shrink_to(&mut self, units: usize) {
        let back = self.units.saturating_sub(units);
        self.shares.held().remove(self.holder, back);
        self.units -= back;
    }

    /// It counts as `holder`'s from now on, if there is as much for that one.
    pub fn give_to(&mut self, holder: Holder) -> Result<(), Exhausted> {
        let mut held = self.shares.held();
        held.remove(self.holder, self.units);
        let given = held.add(self.shares.most, holder, self.units);
        match given {
            Ok(()) => self.holder = holder,
            Err(Exhausted) => self.units = 0,
        }
        given
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shares.held().remove(self.holder, self.units);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: u32) -> Holder {
        Holder::Key(KeyIndex(index))
    }

    fn fill(shares: &Arc<Shares>, holder: Holder, units: usize) -> Vec<Share> {
        std::iter::from_fn(|| shares.take(holder, units).ok()).take(1000).collect()
    }

    #[test]
    fn a_flood_leaves_an_eighth_for_those_who_hold_little() {
        let shares = Shares::new(128);
        let flood = fill(&shares, key(0), 1);
        assert_eq!(flood.len(), 112);
        let other = fill(&shares, key(1), 1);
        assert_eq!(other.len(), 16);
        assert_eq!(fill(&shares, key(2), 1).len(), 0);
        drop(flood);
        assert_eq!(fill(&shares, key(1), 1).len(), 96);
        drop(other);
        assert!(shares.held().holders.is_empty() && shares.held().all == 0);
    }

    #[test]
    fn a_share_grows_until_there_is_no_more_and_keeps_what_it_has() {
        let shares = Shares::new(64);
        let mut share = shares.take(key(0), 50).expect("room");
        assert_eq!(share.grow(7), Err(Exhausted));
        assert_eq!((share.grow(6), share.grow(1)), (Ok(()), Err(Exhausted)));
        assert!(shares.take(key(1), 9).is_err() && shares.take(key(1), usize::MAX).is_err());
        assert!(shares.take(key(1), 8).is_ok());
        share.shrink_to(20);
        assert_eq!((share.grow(36), share.grow(1)), (Ok(()), Err(Exhausted)));
        drop(share);
        assert_eq!(shares.held().all, 0);
    }

    #[test]
    fn a_share_is_another_holders_only_where_that_one_may_have_it() {
        let address = Holder::Address([192, 0, 2, 1].into());
        let shares = Shares::new(64);
        let flood = fill(&shares, key(0), 8);
        assert_eq!(flood.len(), 7);
        let mut one = shares.take(address, 4).expect("the eighth that is kept");
        assert_eq!(one.give_to(key(1)), Ok(()));
        let mut other = shares.take(address, 4).expect("the eighth that is kept");
        assert_eq!(other.give_to(key(0)), Err(Exhausted));
        drop((one, other, flood));
        assert!(shares.held().holders.is_empty() && shares.held().all == 0);
    }
}
