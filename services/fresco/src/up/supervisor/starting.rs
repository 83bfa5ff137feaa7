//! Who may start when: so many at once, and the dead after a pause.

use std::time::Duration;

use tokio::time::Instant;

use super::{Action, Child, ChildId, Layer, Life, Loading, Supervisor};

/// Pause before the first restart; doubles with every death.
pub const BACKOFF_MIN: Duration = Duration::from_millis(200);
/// Longest pause before a restart: someone who repairs the cause sees the child back within this.
pub const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A child that worked for this long starts again from [`BACKOFF_MIN`].
pub const STABLE_AFTER: Duration = Duration::from_secs(60);
/// So many deaths of one child in a row, and it cannot be made to work, as long as the fleet starts: 0.2 + 0.4 + 0.8 + 1.6 s.
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
                .any(|child| child.life == Life::Waiting && child.layer.loads());
        let slots = self.children.iter().filter_map(Child::placed_until);
        let slots = slots.filter(|_| queued);
        pauses.chain(slots).min()
    }

    pub(super) fn loaded(&mut self, id: ChildId, now: Instant) {
        let child = &mut self.children[id.0];
        if let Life::Running { loading, .. } = &mut child.life {
            child.hopeless = false;
            *loading = Loading::Done { since: now };
        }
    }

    /// Takes their places from those who are late; says how many have one. Who is late is never looked at again: an
    /// instant that has passed would be the next timer for ever.
    fn take_places(&mut self, now: Instant) -> usize {
        let mut placed = 0;
        for child in &mut self.children {
            if let Life::Running { loading, .. } = &mut child.life
                && let Loading::Placed { until } = *loading
            {
                if until <= now {
                    *loading = Loading::Late;
                } else {
                    placed += 1;
                }
            }
        }
        placed
    }

    /// When somebody has loaded for too long to be believed.
    pub(super) fn next_hung_load(&self) -> Option<Instant> {
        let hang = self.limits.loading_hang?;
        let children = self.children.iter();
        let loading = children.filter_map(|child| child.loading_since(self.unseen));
        loading.map(|since| since + hang).min()
    }

    /// Ends who hangs while it loads; its end is an exit like any other. Nobody else finds it: it has never shown up. Its time
    /// begins anew when those who show up can be seen again.
    pub(super) fn end_hung_loads(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let Some(hang) = self
            .limits
            .loading_hang
            .filter(|_| self.keeps(Layer::Broker))
        else {
            return;
        };
        for (index, child) in self.children.iter_mut().enumerate() {
            let hangs = |since: Instant| since + hang <= now;
            if child.loading_since(self.unseen).is_some_and(hangs)
                && let Life::Running { loading, .. } = &mut child.life
            {
                *loading = Loading::Hung;
                let id = ChildId(index);
                actions.extend([Action::ReportLoadingHang(id), Action::Kill(id)]);
            }
        }
    }

    /// Starts who is due and may: a service only while few enough others load.
    pub(super) fn start_due(&mut self, now: Instant, actions: &mut Vec<Action>) {
        // The broker is kept for as long as anybody.
        if !self.keeps(Layer::Broker) {
            return;
        }
        let placed = self.take_places(now);
        let mut slots = self.limits.loading_max.saturating_sub(placed);
        for (index, child) in self.children.iter_mut().enumerate() {
            let due = match child.life {
                Life::Waiting => child.layer == Layer::Broker || self.broker_ready,
                Life::Backoff { until } => until <= now,
                Life::Running { .. } | Life::Ended => false,
            };
            if !due {
                continue;
            }
            let mut loading = Loading::Done { since: now };
            if child.layer.loads() {
                if slots == 0 {
                    child.life = Life::Waiting;
                    continue;
                }
                slots -= 1;
                let until = now + self.limits.loading_time_max;
                loading = Loading::Placed { until };
            }
            child.life = Life::Running {
                since: now,
                loading,
            };
            actions.push(Action::Start(ChildId(index)));
        }
    }
}

impl Child {
    /// Since when it loads and could be seen to have loaded, if it does and nobody has ended it for that. `unseen` is when that
    /// last could not be seen of those whom the broker lists: a server is asked itself.
    fn loading_since(&self, unseen: Option<Instant>) -> Option<Instant> {
        let unseen = unseen.filter(|_| self.layer != Layer::Server);
        match self.life {
            Life::Running {
                since,
                loading: Loading::Placed { .. } | Loading::Late,
            } => Some(unseen.map_or(since, |unseen| unseen.max(since))),
            Life::Running { .. } | Life::Waiting | Life::Backoff { .. } | Life::Ended => None,
        }
    }

    /// Until when it has a place of those who load, if it has one.
    fn placed_until(&self) -> Option<Instant> {
        match self.life {
            Life::Running {
                loading: Loading::Placed { until },
                ..
            } => Some(until),
            Life::Running { .. } | Life::Waiting | Life::Backoff { .. } | Life::Ended => None,
        }
    }
}

/// The pause after so many deaths in a row.
pub(super) fn backoff(deaths: u32) -> Duration {
    let doublings = deaths.saturating_sub(1).min(16);
    (BACKOFF_MIN * 2u32.pow(doublings)).min(BACKOFF_MAX)
}
