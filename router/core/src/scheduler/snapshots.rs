//! The places in which workers keep copies of recurrent states: which are free, which holds the state behind which node
//! of the prefix cache, and which is given up for another. Used by `blocks` alone; knows no tokens.
//!
//! Nobody holds a snapshot: it is read by the plan that names it, before any row of that plan runs, and plans run in
//! the order they were built. So a place may be given up, and written again, as soon as the plan that reads it is being
//! built. But one that the plan being built writes is *fresh*: no row of the same plan can begin with it, and it is not
//! given up before that plan is finished, since a place is written once in a plan.

use std::collections::BTreeSet;

use penstock_proto::ids::SequenceId;

use super::prefix_cache::NodeId;

/// What a place was given out for. Stale once the place is another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub place: u32,
    stamp: u64,
}

/// After how many tokens copies are kept; see `policy`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotDistances {
    pub prompt: u32,
    pub output: u32,
}

impl SnapshotDistances {
    /// Whole blocks: only their ends have nodes.
    pub fn of_blocks(self, block_size: u32) -> Self {
        let whole = |distance: u32| distance.next_multiple_of(block_size);
        Self { prompt: whole(self.prompt), output: whole(self.output) }
    }
}

/// What is known of a sequence's state in its slot; nothing, once it has left it.
#[derive(Clone, Debug, Default)]
pub(super) struct StateRecord {
    /// The snapshot that its state went through at a position, while no later sample has vouched for it.
    pub unvouched: Vec<(u32, Snapshot)>,
    /// Saved at a position up to which not all tokens are known.
    pub reserved: Option<(u32, Snapshot)>,
    /// The last one that it saved while it decoded.
    pub decoded: Option<Snapshot>,
    /// It is off the tree up to this position, or what others hold from here on is known up to there: its next row ends
    /// there and saves its state, to begin again with the others' blocks.
    pub rejoins: Option<u32>,
    /// Here prompts part.
    pub branch: Option<u32>,
    /// Places in which the workers keep the states in front of the drafts of its latest row.
    pub before_drafts: u32,
    /// The copy that was due it could not keep: it keeps one at the next block.
    pub owes_copy: bool,
}

impl StateRecord {
    /// The row that feeds from `position` on ends here at the latest.
    pub fn cut(&self, position: u32, count: u32) -> u32 {
        match self.rejoins {
            Some(at) if at > position => count.min(at - position),
            _ => count,
        }
    }

    /// Where the copy is kept that is due to a sequence that decodes from `position` to `end`, every `distance` tokens.
    pub fn due(&self, position: u32, end: u32, distance: u32, block_size: u32) -> Option<u32> {
        let distance = if self.owes_copy { block_size } else { distance };
        let at = (position + 1).next_multiple_of(distance);
        (at <= end).then_some(at)
    }

    /// Nobody wants a copy at a place that is still to come.
    pub fn wants_no_branch(&self, position: u32) -> bool {
        self.branch.is_none_or(|at| at <= position)
    }

    #[cfg(test)]
    pub fn reserved(&self) -> Option<Snapshot> {
        self.reserved.map(|(_, snapshot)| snapshot)
    }
}

/// What is given up for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// Saved in passing, for prompts that part from this one: the first to go, and for nothing but its like if that is
    /// all that there are.
    Passing,
    /// Where a sequence was while it decoded. Replaced by its next one, unless somebody began with it meanwhile.
    Decoding,
    /// Where a prompt ends, or where prompts part; or somebody began with it.
    Kept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    /// A sequence that decodes: its tokens up to there are not all known yet.
    Sequence,
    Node(NodeId),
}

struct Place {
    owner: Owner,
    /// How often it was given out.
    stamp: u64,
    worth: Worth,
    /// When it was saved, or began a sequence, last.
    last_used: u64,
    writer: SequenceId,
    /// Whose state went through it has sampled.
    sound: bool,
    fresh: bool,
}

pub(super) struct Snapshots {
    places: Vec<Place>,
    free: Vec<u32>,
    /// Written by the plan that is being built.
    fresh: Vec<u32>,
    /// Those of nodes that can be given up, the least recently used first.
    passing: BTreeSet<(u64, u32)>,
    kept: BTreeSet<(u64, u32)>,
    clock: u64,
}

impl Snapshots {
    pub fn new(places: u32) -> Self {
        let empty = |_| Place {
            owner: Owner::Nobody,
            stamp: 0,
            worth: Worth::Passing,
            last_used: 0,
            writer: SequenceId::default(),
            sound: false,
            fresh: false,
        };
        Self {
            places: (0..places).map(empty).collect(),
            // Popped from the end: low ids first.
            free: (0..places).rev().collect(),
            fresh: Vec::new(),
            passing: BTreeSet::new(),
            kept: BTreeSet::new(),
            clock: 0,
        }
    }

    pub fn total(&self) -> u32 {
        self.places.len() as u32
    }

    pub fn used(&self) -> u32 {
        self.total() - self.free.len() as u32
    }

    /// A place that the plan being built writes, and the node that lost its snapshot for it, if one did.
    pub fn take(&mut self, worth: Worth, writer: SequenceId) -> Option<(Snapshot, Option<NodeId>)> {
        let mut lost = None;
        if self.free.is_empty() {
            let oldest = match worth {
                Worth::Passing => self.passing.first(),
                _ => self.passing.first().or(self.kept.first()),
            };
            let place = oldest?.1;
            let Owner::Node(node) = self.places[place as usize].owner else {
                unreachable!("only nodes' snapshots can be given up")
            };
            lost = Some(node);
            self.release(place);
        }
        let place = self.free.pop()?;
        let it = &mut self.places[place as usize];
        let stamp = it.stamp + 1;
        *it = Place { owner: Owner::Sequence, stamp, worth, last_used: 0, writer, sound: false, fresh: true };
        self.fresh.push(place);
        Some((Snapshot { place, stamp }, lost))
    }

    /// The tokens of a snapshot are those of `node`, which has none yet.
    pub fn attach(&mut self, snapshot: Snapshot, node: NodeId) {
        debug_assert!(self.is_of_sequence(snapshot));
        self.places[snapshot.place as usize].owner = Owner::Node(node);
        self.age(snapshot.place);
    }

    /// Whether a sequence still has it, for tokens that are not all known.
    pub fn is_of_sequence(&self, snapshot: Snapshot) -> bool {
        let place = &self.places[snapshot.place as usize];
        place.stamp == snapshot.stamp && place.owner == Owner::Sequence
    }

    /// The node of a snapshot that a sequence saved while it decoded, unless it has another use by now.
    pub fn replaceable(&self, snapshot: Snapshot) -> Option<NodeId> {
        let place = &self.places[snapshot.place as usize];
        match place.owner {
            Owner::Node(node) if place.stamp == snapshot.stamp && place.worth == Worth::Decoding => {
                Some(node)
            }
            _ => None,
        }
    }

    /// Nobody needs what is there any more.
    pub fn release(&mut self, place: u32) {
        self.forget_age(place);
        let it = &mut self.places[place as usize];
        it.owner = Owner::Nobody;
        if !it.fresh {
            self.free.push(place);
        }
    }

    /// A row begins with it.
    pub fn begin(&mut self, place: u32) -> Snapshot {
        self.forget_age(place);
        self.places[place as usize].worth = Worth::Kept;
        self.age(place);
        Snapshot { place, stamp: self.places[place as usize].stamp }
    }

    /// The plan that was being built is finished.
    pub fn plan_finished(&mut self) {
        for place in std::mem::take(&mut self.fresh) {
            self.places[place as usize].fresh = false;
            match self.places[place as usize].owner {
                Owner::Nobody => self.free.push(place),
                Owner::Sequence => {}
                Owner::Node(_) => self.age(place),
            }
        }
    }

    pub fn is_fresh(&self, place: u32) -> bool {
        self.places[place as usize].fresh
    }

    pub fn is_sound(&self, place: u32) -> bool {
        self.places[place as usize].sound
    }

    /// A row whose state went through it has sampled.
    pub fn vouch(&mut self, snapshot: Snapshot) {
        let place = &mut self.places[snapshot.place as usize];
        place.sound |= place.stamp == snapshot.stamp;
    }

    /// The nodes of what `writer` saved and nobody has vouched for.
    pub fn doubtful_of(&self, writer: SequenceId) -> Vec<NodeId> {
        let doubtful = |place: &Place| match place.owner {
            Owner::Node(node) if place.writer == writer && !place.sound => Some(node),
            _ => None,
        };
        self.places.iter().filter_map(doubtful).collect()
    }

    /// It is the youngest of those that can be given up, if it can.
    fn age(&mut self, place: u32) {
        self.clock += 1;
        let it = &mut self.places[place as usize];
        it.last_used = self.clock;
        if !it.fresh {
            let entry = (it.last_used, place);
            match it.worth {
                Worth::Passing => self.passing.insert(entry),
                Worth::Decoding | Worth::Kept => self.kept.insert(entry),
            };
        }
    }

    fn forget_age(&mut self, place: u32) {
        let entry = (self.places[place as usize].last_used, place);
        self.passing.remove(&entry);
        self.kept.remove(&entry);
    }

    /// Every place is at one place: free, fresh and given up, a sequence's, or the node's that `of_nodes` says; and no
    /// place is a sequence's but `of_sequences`.
    #[cfg(test)]
    pub fn check(&self, mut of_nodes: Vec<(u32, NodeId)>, of_sequences: &[Snapshot]) {
        let mut nodes = Vec::new();
        let mut sequences = 0;
        for (at, place) in (0..).zip(&self.places) {
            assert_eq!(place.fresh, self.fresh.contains(&at));
            // What was given up is free with the plan's end.
            let is_free = place.owner == Owner::Nobody && !place.fresh;
            assert_eq!(self.free.iter().filter(|free| **free == at).count(), usize::from(is_free));
            let can_go =
                self.passing.contains(&(place.last_used, at)) || self.kept.contains(&(place.last_used, at));
            match place.owner {
                Owner::Nobody => assert!(!can_go),
                Owner::Sequence => {
                    sequences += 1;
                    assert!(!can_go && of_sequences.contains(&Snapshot { place: at, stamp: place.stamp }));
                }
                Owner::Node(node) => {
                    nodes.push((at, node));
                    assert_eq!(can_go, !place.fresh);
                }
            }
        }
        assert_eq!(sequences, of_sequences.len(), "no place is lost");
        of_nodes.sort_unstable();
        assert_eq!(nodes, of_nodes, "a snapshot is of the node that has it");
        assert_eq!(
            self.passing.len() + self.kept.len(),
            nodes.iter().filter(|(at, _)| !self.is_fresh(*at)).count()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITER: SequenceId = SequenceId(1);

    /// A place with a snapshot of its own node.
    fn save(snapshots: &mut Snapshots, worth: Worth) -> Option<(Snapshot, Option<NodeId>)> {
        let (snapshot, lost) = snapshots.take(worth, WRITER)?;
        snapshots.attach(snapshot, NodeId::test(100 + snapshot.stamp as u32 * 10 + snapshot.place));
        Some((snapshot, lost))
    }

    #[test]
    fn a_place_that_the_plan_being_built_writes_is_not_written_twice() {
        let mut snapshots = Snapshots::new(1);
        let (first, _) = save(&mut snapshots, Worth::Kept).expect("it is free");
        assert!(save(&mut snapshots, Worth::Kept).is_none(), "it is fresh");
        snapshots.release(first.place);
        assert!(save(&mut snapshots, Worth::Kept).is_none(), "it is still written by this plan");
        snapshots.plan_finished();
        assert!(save(&mut snapshots, Worth::Kept).is_some());
    }

    #[test]
    fn what_was_saved_in_passing_goes_first_and_takes_only_from_its_like() {
        let mut snapshots = Snapshots::new(3);
        let (end, _) = save(&mut snapshots, Worth::Kept).expect("free");
        let (passing, _) = save(&mut snapshots, Worth::Passing).expect("free");
        let (decoding, _) = save(&mut snapshots, Worth::Decoding).expect("free");
        snapshots.plan_finished();
        let (next, lost) = save(&mut snapshots, Worth::Passing).expect("for its like");
        assert_eq!((next.place, lost.is_some()), (passing.place, true));
        snapshots.plan_finished();
        let (kept, _) = save(&mut snapshots, Worth::Kept).expect("for what is worth more");
        assert_eq!(kept.place, passing.place);
        snapshots.plan_finished();
        assert!(save(&mut snapshots, Worth::Passing).is_none(), "nothing is worth as little");
        // The oldest goes, unless somebody began with it.
        assert!(snapshots.replaceable(decoding).is_some());
        snapshots.begin(end.place);
        assert_eq!(save(&mut snapshots, Worth::Decoding).expect("there are two").0.place, decoding.place);
        assert!(snapshots.replaceable(decoding).is_none(), "the place is another's");
    }

    #[test]
    fn nobody_vouches_for_what_is_another_by_now() {
        let mut snapshots = Snapshots::new(1);
        let (old, _) = save(&mut snapshots, Worth::Kept).expect("free");
        snapshots.plan_finished();
        let (new, _) = save(&mut snapshots, Worth::Kept).expect("the old one goes");
        snapshots.vouch(old);
        assert!(!snapshots.is_sound(new.place) && snapshots.doubtful_of(WRITER).len() == 1);
        snapshots.vouch(new);
        assert!(snapshots.is_sound(new.place) && snapshots.doubtful_of(WRITER).is_empty());
    }
}
