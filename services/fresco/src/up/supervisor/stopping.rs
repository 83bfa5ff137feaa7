//! The order of a stop: who takes requests, the workers, the broker; each with a last instant.

use std::time::Duration;

use service::IMPATIENT_AFTER;
use tokio::time::Instant;

use super::{Action, Child, ChildId, Ending, Layer, Life, Phase, Supervisor};

/// From the wish to stop until services are killed; they are told a shorter grace period.
pub const SERVICES_STOP_MAX: Duration = Duration::from_millis(4_000);
/// From the wish to stop until everything left is killed; the promise to the user is 5 s.
pub const STOP_MAX: Duration = Duration::from_millis(4_500);

/// From the last kill until whoever is still there is left: a process that a hung driver holds ends with it, not with us.
pub const LEAVE_AFTER: Duration = Duration::from_secs(2);

/// The deadlines of a stop; each is taken when it has been acted on.
#[derive(Debug)]
pub(super) struct Stopping {
    ending: Ending,
    begun_at: Instant,
    /// Of the last wish that was acted on.
    wished_at: Instant,
    /// Until then the workers go on; those who took requests are killed then.
    drain_until: Option<Instant>,
    services_kill_at: Option<Instant>,
    kill_at: Option<Instant>,
    leave_at: Option<Instant>,
    needed_terminated: bool,
}

impl Stopping {
    /// Whether the workers still go on.
    pub(super) fn drains(&self) -> bool {
        self.drain_until.is_some()
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        let deadlines = [
            self.drain_until,
            self.services_kill_at,
            self.kill_at,
            self.leave_at,
        ];
        deadlines.into_iter().flatten().min()
    }

    /// A second wish: what the stop waits for next has been waited for long enough.
    fn hurry(&mut self, now: Instant) {
        if now.duration_since(self.wished_at) < IMPATIENT_AFTER {
            return;
        }
        self.wished_at = now;
        for deadline in [
            &mut self.drain_until,
            &mut self.services_kill_at,
            &mut self.kill_at,
            &mut self.leave_at,
        ] {
            *deadline = deadline.map(|at| at.min(now));
        }
    }
}

impl Supervisor {
    pub(super) fn stop(&mut self, ending: Ending, now: Instant, actions: &mut Vec<Action>) {
        let drain = match &mut self.phase {
            // Nobody waits for an answer of a fleet that never served.
            Phase::Starting => Duration::ZERO,
            Phase::Serving => self.limits.drain,
            Phase::Stopping(stopping) => {
                if ending == Ending::Asked {
                    stopping.hurry(now);
                }
                return;
            }
            Phase::Finished => return,
        };
        self.phase = Phase::Stopping(Stopping {
            ending,
            begun_at: now,
            wished_at: now,
            drain_until: Some(now + drain),
            services_kill_at: None,
            kill_at: None,
            leave_at: None,
            needed_terminated: false,
        });
        let fronts = self.children.iter_mut().enumerate();
        for (index, front) in fronts.filter(|(_, child)| child.layer == Layer::Front) {
            match front.life {
                Life::Running { .. } => actions.push(Action::Terminate(ChildId(index))),
                Life::Waiting | Life::Backoff { .. } | Life::Ended => front.life = Life::Ended,
            }
        }
    }

    fn running(&self, is_of: impl Fn(Layer) -> bool) -> Vec<ChildId> {
        let running =
            |child: &Child| is_of(child.layer) && matches!(child.life, Life::Running { .. });
        let ids = self
            .children
            .iter()
            .enumerate()
            .filter(|(_, child)| running(child));
        ids.map(|(index, _)| ChildId(index)).collect()
    }

    /// What a stop has come to: lets the workers go when nobody waits for them, kills what is late, lets go of whom they need
    /// when none is left, ends when all are gone.
    pub(super) fn advance_stop(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let fronts = self.running(|layer| layer == Layer::Front);
        let workers = self.running(Layer::is_worker);
        let needed = self.running(Layer::is_needed);
        let Phase::Stopping(stopping) = &mut self.phase else {
            return;
        };
        if let Some(until) = stopping.drain_until {
            // Those who work on what it has let in may be on other machines.
            if until > now && !fronts.is_empty() {
                return;
            }
            stopping.drain_until = None;
            if now.duration_since(stopping.begun_at) >= IMPATIENT_AFTER {
                // Once more, so that clients who still wait are answered and not cut off.
                actions.extend(fronts.iter().copied().map(Action::Terminate));
            }
            stopping.services_kill_at = Some(now + SERVICES_STOP_MAX);
            stopping.kill_at = Some(now + STOP_MAX);
            actions.extend(workers.iter().copied().map(Action::Terminate));
            for child in &mut self.children {
                if matches!(child.life, Life::Waiting | Life::Backoff { .. }) {
                    child.life = Life::Ended;
                }
            }
        }
        let services = [fronts, workers].concat();
        let services_late = stopping.services_kill_at.is_none_or(|at| at <= now);
        if services_late && stopping.services_kill_at.take().is_some() {
            actions.extend(services.iter().copied().map(Action::Kill));
        }
        if (services.is_empty() || services_late) && !stopping.needed_terminated {
            stopping.needed_terminated = true;
            actions.extend(needed.iter().copied().map(Action::Terminate));
        }
        if stopping.kill_at.take_if(|at| *at <= now).is_some() {
            stopping.leave_at = Some(now + LEAVE_AFTER);
            actions.extend(needed.iter().copied().map(Action::Kill));
        }
        let left = [services, needed].concat();
        if left.is_empty() || stopping.leave_at.is_some_and(|at| at <= now) {
            actions.extend(left.into_iter().map(Action::ReportLeft));
            actions.push(Action::Finish(stopping.ending));
            self.phase = Phase::Finished;
        }
    }
}
