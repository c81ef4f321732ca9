//! The order in which sequences are served: the highest priority first; there, whose tenant was served least; of those, the
//! oldest. What a tenant was served changes all the time, so sequences that have a slot stand by priority and age alone,
//! which is also who gives up blocks for whom.

use penstock_proto::ids::SequenceId;

use super::submission::Priority;

/// Who gets blocks and rows before whom: the lesser one. The last one that runs is preempted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Precedence {
    pub priority: Priority,
    /// Ids are given out in the order of arrival.
    pub id: SequenceId,
}

/// Whose prompt is computed before whose: the lesser one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    pub priority: Priority,
    /// By the account of its tenant.
    pub served: u64,
    pub id: SequenceId,
}

impl Turn {
    /// Whether one that waits goes before `running`, which has begun: between equals that one goes on.
    pub fn overtakes(self, running: Turn) -> bool {
        (self.priority, self.served) < (running.priority, running.served)
    }
}
