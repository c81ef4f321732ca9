//! Who holds the places of `--max-concurrent-requests`. A party alone may hold them all; once another was
//! seen, the last eighth is only for parties that hold less than an eighth, so that a flood does not shut
//! the door behind it. Asked by `handle` for every submission, at once.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::sequence::Party;

/// How long a party that holds nothing is reckoned with.
const REMEMBERED: Duration = Duration::from_secs(60);

/// One in so many places is kept for those who hold few.
const SHARE: u32 = 8;

pub(super) struct Places {
    most: u32,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    all: u32,
    parties: HashMap<Party, Holder>,
    /// So many parties were left when the absent were last forgotten.
    left: usize,
}

struct Holder {
    places: u32,
    seen: Instant,
}

impl Places {
    pub fn new(most: u32) -> Self {
        Self { most, held: Mutex::default() }
    }

    /// Takes a place, to be given back by `leave`; false when there is none for `party`.
    pub fn take(&self, party: Party, now: Instant) -> bool {
        let held = &mut *self.held.lock().expect("nothing panics while it holds this lock");
        let kept = self.most / SHARE;
        // Only a full house, and a long list, is worth the walk.
        if held.all.saturating_add(kept) >= self.most || held.parties.len() > 2 * held.left + 1024 {
            let recent = |holder: &Holder| {
                holder.places > 0 || now.saturating_duration_since(holder.seen) < REMEMBERED
            };
            held.parties.retain(|_, holder| recent(holder));
            held.left = held.parties.len();
        }
        let others = held.parties.len() > usize::from(held.parties.contains_key(&party));
        let all = held.all;
        let holder = held.parties.entry(party).or_insert(Holder { places: 0, seen: now });
        holder.seen = now;
        let most = if others && holder.places >= kept { self.most - kept } else { self.most };
        if all >= most {
            return false;
        }
        holder.places += 1;
        held.all += 1;
        true
    }

    pub fn leave(&self, party: Party) {
        let mut held = self.held.lock().expect("nothing panics while it holds this lock");
        held.all -= 1;
        if let Some(holder) = held.parties.get_mut(&party) {
            holder.places -= 1;
        }
    }

    pub fn taken(&self) -> u32 {
        self.held.lock().expect("nothing panics while it holds this lock").all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(places: &Places, party: Party, now: Instant) -> u32 {
        (0..1000).take_while(|_| places.take(party, now)).count() as u32
    }

    #[test]
    fn a_party_alone_holds_all_places() {
        let places = Places::new(128);
        assert_eq!(fill(&places, Party::Anonymous, Instant::now()), 128);
        assert_eq!(places.taken(), 128);
        places.leave(Party::Anonymous);
        assert_eq!(fill(&places, Party::Anonymous, Instant::now()), 1);
    }

    #[test]
    fn a_flood_leaves_places_for_those_who_were_seen() {
        let (places, now) = (Places::new(128), Instant::now());
        assert!(places.take(Party::Key(1), now));
        places.leave(Party::Key(1));
        assert_eq!(fill(&places, Party::Key(0), now), 112);
        assert_eq!(fill(&places, Party::Key(1), now), 16);
        assert_eq!(places.taken(), 128);
    }

    #[test]
    fn who_came_to_a_full_house_finds_a_place_soon() {
        let (places, now) = (Places::new(16), Instant::now());
        assert_eq!(fill(&places, Party::Key(0), now), 16);
        assert!(!places.take(Party::Key(1), now));
        for _ in 0..3 {
            places.leave(Party::Key(0));
            assert!(!places.take(Party::Key(0), now) || places.taken() <= 14, "the last places are kept");
        }
        assert!(places.take(Party::Key(1), now));
    }

    #[test]
    fn who_stayed_away_is_reckoned_with_no_longer() {
        let (places, now) = (Places::new(16), Instant::now());
        assert!(places.take(Party::Key(1), now));
        places.leave(Party::Key(1));
        assert_eq!(fill(&places, Party::Key(0), now + 2 * REMEMBERED), 16);
    }

    #[test]
    fn a_server_of_few_places_keeps_none() {
        let (places, now) = (Places::new(4), Instant::now());
        assert!(places.take(Party::Key(1), now));
        assert_eq!(fill(&places, Party::Key(0), now), 3);
    }
}
