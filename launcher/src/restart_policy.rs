//! When a worker group is started again, and when that is pointless. Pure bookkeeping; `workers` does what
//! it says.

use std::time::Duration;

/// A group that served for this long starts with a clean record.
const STABLE: Duration = Duration::from_secs(3);
const FIRST_DELAY: Duration = Duration::from_millis(200);
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// Failed starts in a row.
const MAX_FAILED_STARTS: u32 = 5;
/// Of a server that has never served, which is more likely misconfigured than unlucky.
const MAX_FAILED_FIRST_STARTS: u32 = 3;

#[derive(Debug, Default)]
pub struct RestartPolicy {
    has_served: bool,
    failed_starts: u32,
    short_lives: u32,
}

/// What to do after a group has ended.
#[derive(Debug, PartialEq)]
pub enum RestartDecision {
    StartAfter(Duration),
    /// So many starts in a row have failed.
    GiveUp {
        starts: u32,
    },
}

/// How a group ended.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Before it answered. `explained`: it said itself why it cannot start, and would say the same again.
    AtStart { explained: bool },
    /// After it had answered for this long.
    After(Duration),
}

impl RestartPolicy {
    pub fn on_end(&mut self, end: End) -> RestartDecision {
        match end {
            End::After(lived) => {
                self.has_served = true;
                self.failed_starts = 0;
                self.short_lives = if lived >= STABLE { 1 } else { self.short_lives + 1 };
            }
            End::AtStart { explained } => {
                self.failed_starts += 1;
                self.short_lives += 1;
                let most = match (self.has_served, explained) {
                    // Right after a crash even an explained failure may pass: memory not yet given back.
                    (true, _) => MAX_FAILED_STARTS,
                    (false, true) => 1,
                    (false, false) => MAX_FAILED_FIRST_STARTS,
                };
                if self.failed_starts >= most {
                    return RestartDecision::GiveUp { starts: self.failed_starts };
                }
            }
        }
        RestartDecision::StartAfter(match self.short_lives {
            0 | 1 => Duration::ZERO,
            n => LONGEST_DELAY.min(FIRST_DELAY * 2u32.saturating_pow(n - 2)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIED: End = End::AtStart { explained: false };

    #[test]
    fn the_first_restart_is_immediate_and_short_lives_wait_longer_and_longer() {
        let mut policy = RestartPolicy::default();
        let delays: Vec<u128> = (0..8)
            .map(|_| match policy.on_end(End::After(Duration::from_millis(10))) {
                RestartDecision::StartAfter(delay) => delay.as_millis(),
                RestartDecision::GiveUp { .. } => panic!("gave up on a group that had served"),
            })
            .collect();
        assert_eq!(delays, [0, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[test]
    fn a_stable_life_clears_the_record() {
        let mut policy = RestartPolicy::default();
        for _ in 0..4 {
            policy.on_end(End::After(Duration::ZERO));
        }
        assert_eq!(policy.on_end(End::After(STABLE)), RestartDecision::StartAfter(Duration::ZERO));
        assert_eq!(policy.on_end(End::After(Duration::ZERO)), RestartDecision::StartAfter(FIRST_DELAY));
    }

    #[test]
    fn an_explained_failure_of_the_first_start_is_final() {
        assert_eq!(
            RestartPolicy::default().on_end(End::AtStart { explained: true }),
            RestartDecision::GiveUp { starts: 1 }
        );
    }

    #[test]
    fn unexplained_failures_at_start_are_tried_again_and_then_given_up() {
        let mut policy = RestartPolicy::default();
        assert_eq!(policy.on_end(DIED), RestartDecision::StartAfter(Duration::ZERO));
        assert_eq!(policy.on_end(DIED), RestartDecision::StartAfter(FIRST_DELAY));
        assert_eq!(policy.on_end(DIED), RestartDecision::GiveUp { starts: 3 });
    }

    #[test]
    fn a_server_that_has_served_gets_more_tries() {
        let mut policy = RestartPolicy::default();
        policy.on_end(End::After(STABLE));
        for _ in 0..4 {
            assert!(matches!(
                policy.on_end(End::AtStart { explained: true }),
                RestartDecision::StartAfter(_)
            ));
        }
        assert_eq!(policy.on_end(DIED), RestartDecision::GiveUp { starts: 5 });
    }
}
