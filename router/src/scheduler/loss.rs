//! What a loss of the workers means for the sequences: all go back to the queue with what they have, to be
//! started again from their token ids; and who was in the unfinished steps of two losses, with no progress
//! between, is suspected of causing them. A suspect runs alone until it is past the point of the crash. If
//! the workers are lost then too, it fails, and the others go on.

use super::core::Core;
use super::sequence::SequenceFailure;

/// Crashes that make a suspect.
const CRASHES: u32 = 2;

/// A sequence that got this much further than the unfinished steps would have taken it is past the point
/// of the crash.
const PAST: u32 = 4;

impl Core {
    /// The workers are gone. What they had not answered is forgotten, and will be computed again; what they
    /// had answered is in the sequences.
    pub fn lose(&mut self) {
        let unfinished: Vec<_> = self.in_flight.drain(..).flat_map(|step| step.rows).collect();
        for row in unfinished {
            let Some(live) = self.sequences.get_mut(row.key).filter(|live| live.id == row.id) else {
                continue;
            };
            if live.rows_in_flight == 0 {
                // Was in both unfinished steps, and is judged already.
                continue;
            }
            live.rows_in_flight = 0;
            live.samples_in_flight = 0;
            live.tokens_in_flight = 0;
            let suspicion = &mut live.suspicion;
            if suspicion.alone {
                let why =
                    "the workers crashed three times while running this request, the last time it was alone";
                self.fail(row.key, SequenceFailure::Poisonous(why.into()));
                continue;
            }
            if live.answered >= suspicion.cleared_at {
                suspicion.crashes = 0;
            }
            suspicion.crashes += 1;
            // One that was preempted meanwhile has nothing planned, and got as far as this row.
            suspicion.cleared_at = live.planned.max(row.end) + PAST;
            if suspicion.crashes >= CRASHES {
                suspicion.alone = true;
                self.suspects.insert(row.id);
            }
        }
        for key in std::mem::take(&mut self.running) {
            let live = &mut self.sequences[key];
            live.table.blocks.clear();
            live.unplace();
            self.wait(key);
        }
    }
}
