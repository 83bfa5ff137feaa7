//! The order of a stop: who takes requests, the workers, the broker; each with a last instant.

use std::time::Duration;

use tokio::time::Instant;

use super::{Action, Child, ChildId, Ending, Layer, Life, Phase, Supervisor};

/// From the wish to stop until services are killed; they are told a shorter grace period.
pub const SERVICES_STOP_MAX: Duration = Duration::from_millis(4_000);
/// From the wish to stop until everything left is killed; the promise to the user is 5 s.
pub const STOP_MAX: Duration = Duration::from_millis(4_500);

/// A wish to stop this long after the last one is an impatient one. An earlier one is the same wish twice: a
/// terminal's Ctrl-C reaches a script and us, and the script passes it on.
pub const IMPATIENT_AFTER: Duration = Duration::from_secs(1);

/// The deadlines of a stop; each is taken when it has been acted on.
#[derive(Debug)]
pub(super) struct Stopping {
    ending: Ending,
    /// Of the last wish that was acted on.
    wished_at: Instant,
    /// Until then the workers go on; those who took requests are killed then.
    pub(super) drain_until: Option<Instant>,
    pub(super) services_kill_at: Option<Instant>,
    pub(super) kill_at: Option<Instant>,
    broker_terminated: bool,
}

impl Supervisor {
    pub(super) fn stop(&mut self, ending: Ending, now: Instant, actions: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Starting | Phase::Serving => {}
            Phase::Stopping(stopping) => {
                let impatient = now.duration_since(stopping.wished_at) >= IMPATIENT_AFTER;
                if ending != Ending::Asked || !impatient {
                    return;
                }
                stopping.wished_at = now;
                stopping.drain_until = stopping.drain_until.map(|at| at.min(now));
                stopping.services_kill_at = stopping.services_kill_at.map(|at| at.min(now));
                stopping.kill_at = stopping.kill_at.map(|at| at.min(now));
                return;
            }
            Phase::Finished => return,
        }
        self.phase = Phase::Stopping(Stopping {
            ending,
            wished_at: now,
            drain_until: Some(now + self.limits.drain),
            services_kill_at: None,
            kill_at: None,
            broker_terminated: false,
        });
        for (index, child) in self.children.iter_mut().enumerate() {
            match child.life {
                Life::Running { .. } if child.layer == Layer::Front => {
                    actions.push(Action::Terminate(ChildId(index)))
                }
                Life::Running { .. } => {}
                Life::Waiting | Life::Backoff { .. } | Life::Ended => child.life = Life::Ended,
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

    /// What a stop has come to: lets the workers go when nobody waits for them, kills what is late, lets the broker go when
    /// nobody needs it, ends when all are gone.
    pub(super) fn advance_stop(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let fronts = self.running(|layer| layer == Layer::Front);
        let workers = self.running(Layer::loads);
        let broker = self.running(|layer| layer == Layer::Broker);
        let Phase::Stopping(stopping) = &mut self.phase else {
            return;
        };
        if let Some(until) = stopping.drain_until {
            if until > now && !fronts.is_empty() && !workers.is_empty() {
                return;
            }
            stopping.drain_until = None;
            stopping.services_kill_at = Some(now + SERVICES_STOP_MAX);
            stopping.kill_at = Some(now + STOP_MAX);
            actions.extend(workers.iter().copied().map(Action::Terminate));
        }
        let services = [fronts, workers].concat();
        let services_late = stopping.services_kill_at.is_none_or(|at| at <= now);
        if services_late && stopping.services_kill_at.take().is_some() {
            actions.extend(services.iter().copied().map(Action::Kill));
        }
        if (services.is_empty() || services_late) && !stopping.broker_terminated {
            stopping.broker_terminated = true;
            actions.extend(broker.iter().copied().map(Action::Terminate));
        }
        if stopping.kill_at.is_some_and(|at| at <= now) {
            stopping.kill_at = None;
            actions.extend(broker.iter().copied().map(Action::Kill));
        }
        if services.is_empty() && broker.is_empty() {
            actions.push(Action::Finish(stopping.ending));
            self.phase = Phase::Finished;
        }
    }
}
