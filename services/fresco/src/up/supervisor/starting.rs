//! Who may start when: so many at once, and the dead after a pause.

use std::time::Duration;

use tokio::time::Instant;

use super::{Action, Child, ChildId, Layer, Life, Limits, Supervisor};

/// Pause before the first restart; doubles with every death.
pub const BACKOFF_MIN: Duration = Duration::from_millis(200);
/// Longest pause before a restart: someone who repairs the cause sees the child back within this.
pub const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A child that lived this long starts again from [`BACKOFF_MIN`].
pub const STABLE_AFTER: Duration = Duration::from_secs(60);
/// So many deaths of one child in a row, before the fleet was ever ready, end the start: 0.2 + 0.4 + 0.8 + 1.6 s.
pub const START_ATTEMPTS_MAX: u32 = 5;

impl Supervisor {
    /// When somebody may start next: after its pause, or when one that loads has done so for too long.
    pub(super) fn next_start(&self) -> Option<Instant> {
        let pauses = self.children.iter().filter_map(|child| match child.life {
            Life::Backoff { until } => Some(until),
            Life::Waiting | Life::Running { .. } | Life::Ended => None,
        });
        let queued = self.broker_ready
            && self
                .children
                .iter()
                .any(|child| child.life == Life::Waiting && child.layer == Layer::Service);
        let slots = self
            .children
            .iter()
            .filter_map(|child| child.loads_until(self.limits));
        let slots = slots.filter(|_| queued);
        pauses.chain(slots).min()
    }

    pub(super) fn loaded(&mut self, id: ChildId) {
        if let Life::Running { loaded, .. } = &mut self.children[id.0].life {
            *loaded = true;
        }
    }

    /// Starts who is due and may: a service only while few enough others load.
    pub(super) fn start_due(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if !self.is_up() {
            return;
        }
        let loading = |child: &&Child| {
            child
                .loads_until(self.limits)
                .is_some_and(|until| until > now)
        };
        let loading = self.children.iter().filter(loading).count();
        let mut slots = self.limits.loading_max.saturating_sub(loading);
        for (index, child) in self.children.iter_mut().enumerate() {
            let due = match child.life {
                Life::Waiting => child.layer == Layer::Broker || self.broker_ready,
                Life::Backoff { until } => until <= now,
                Life::Running { .. } | Life::Ended => false,
            };
            if !due {
                continue;
            }
            if child.layer == Layer::Service {
                if slots == 0 {
                    child.life = Life::Waiting;
                    continue;
                }
                slots -= 1;
            }
            child.life = Life::Running {
                since: now,
                loaded: false,
            };
            actions.push(Action::Start(ChildId(index)));
        }
    }
}

impl Child {
    /// Until when it counts as one that loads, if it does.
    pub(super) fn loads_until(&self, limits: Limits) -> Option<Instant> {
        match self.life {
            Life::Running {
                since,
                loaded: false,
            } if self.layer == Layer::Service => Some(since + limits.loading_time_max),
            Life::Waiting | Life::Running { .. } | Life::Backoff { .. } | Life::Ended => None,
        }
    }
}

/// The pause after so many deaths in a row.
pub(super) fn backoff(deaths: u32) -> Duration {
    let doublings = deaths.saturating_sub(1).min(16);
    (BACKOFF_MIN * 2u32.pow(doublings)).min(BACKOFF_MAX)
}
