//! Which child is started, restarted, signalled or given up on, and when: a pure state machine over events and
//! instants. It knows no process, no file and no runtime; `run.rs` carries its actions out.
//!
//! The order is the point. Start: the broker, then (once it holds the streams) all services, of the workers so many at
//! once as [`Limits`] lets load their models: a machine that reads sixteen checkpoints at a time reads none. Stop: whoever
//! takes requests, while the workers go on with what it has let in, for as long as [`Limits`] says; the other services,
//! which still need the broker to give back what they hold; then the broker. Each has a last instant after which it is
//! killed, so that the whole tree is gone within the drain and [`STOP_MAX`]. A child that cannot work (exit code 2) before the
//! fleet was ready ends everything: a restart loop would only hide its one line of explanation.

use std::time::Duration;

use tokio::time::Instant;

/// Pause before the first restart; doubles with every death.
pub const BACKOFF_MIN: Duration = Duration::from_millis(200);
/// Longest pause before a restart: someone who repairs the cause sees the child back within this.
pub const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A child that lived this long starts again from [`BACKOFF_MIN`].
pub const STABLE_AFTER: Duration = Duration::from_secs(60);
/// So many deaths of one child in a row, before the fleet was ever ready, end the start: 0.2 + 0.4 + 0.8 + 1.6 s.
pub const START_ATTEMPTS_MAX: u32 = 5;
/// A life shorter than this cannot have missed three probes 2 s apart: the one that hung was the one before it.
pub const HANG_MIN: Duration = Duration::from_secs(4);
/// From the wish to stop until services are killed; they are told a shorter grace period.
pub const SERVICES_STOP_MAX: Duration = Duration::from_millis(4_000);
/// From the wish to stop until everything left is killed; the promise to the user is 5 s.
pub const STOP_MAX: Duration = Duration::from_millis(4_500);

/// A second wish to stop this long after the first is an impatient one. An earlier one is the same wish twice: a
/// terminal's Ctrl-C reaches a script and us, and the script passes it on.
pub const IMPATIENT_AFTER: Duration = Duration::from_secs(1);

/// A child, by its place in the list that the supervisor was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChildId(pub usize);

/// What a child is to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// The message broker: starts first, stops last.
    Broker,
    /// Needs the broker and takes requests in: stops before those who work on them.
    Front,
    /// Needs the broker, and loads something before it works.
    Service,
}

/// How a fleet starts and stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Services that may load at once, after a death too.
    pub loading_max: usize,
    /// One that loads for longer keeps the others waiting no more.
    pub loading_time_max: Duration,
    /// From the wish to stop until the workers are to stop, if those who take requests are not done before.
    pub drain: Duration,
}

impl Default for Limits {
    /// All at once, as suits a few workers and a person who waits.
    fn default() -> Self {
        Self {
            loading_max: usize::MAX,
            loading_time_max: Duration::ZERO,
            drain: Duration::ZERO,
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// It was never there: the operating system refused to start it.
    NotStarted,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The supervisor has just been made.
    Begin,
    /// The broker answers and holds the streams.
    BrokerReady,
    /// Every child does its work for the first time.
    FleetReady,
    /// A child has loaded what it works with.
    Loaded(ChildId),
    /// A child ended.
    Exited(ChildId, Exit),
    /// A child does not answer any more.
    Hung(ChildId),
    /// Everything shall stop, for this reason.
    Stop(Ending),
    /// The instant of [`Supervisor::next_timer`] has come.
    Timer,
}

/// Why everything stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Someone asked for it.
    Asked,
    /// The surroundings cannot be used; whoever sent the event knows why.
    Unusable,
    /// This child cannot be made to work.
    GaveUp(ChildId, Exit),
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Start its process.
    Start(ChildId),
    /// Ask it to stop.
    Terminate(ChildId),
    /// End it.
    Kill(ChildId),
    /// Say that it died and is started again after the pause.
    ReportDeath(ChildId, Exit, Duration),
    /// Say that it cannot be made to work.
    ReportGivingUp(ChildId, Exit),
    /// Nothing is left: return.
    Finish(Ending),
}

/// The state of every child and of the whole.
#[derive(Debug)]
pub struct Supervisor {
    children: Vec<Child>,
    phase: Phase,
    limits: Limits,
    broker_ready: bool,
}

#[derive(Debug)]
struct Child {
    layer: Layer,
    life: Life,
    /// Deaths since it last lived for [`STABLE_AFTER`].
    deaths: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// For the broker, or for others to load.
    Waiting,
    Running {
        since: Instant,
        loaded: bool,
    },
    Backoff {
        until: Instant,
    },
    Ended,
}

#[derive(Debug)]
enum Phase {
    /// Until [`Event::FleetReady`].
    Starting,
    Serving,
    Stopping(Stopping),
    Finished,
}

/// The deadlines of a stop; each is taken when it has been acted on.
#[derive(Debug)]
struct Stopping {
    ending: Ending,
    since: Instant,
    /// Until then the workers go on; those who took requests are killed then.
    drain_until: Option<Instant>,
    services_kill_at: Option<Instant>,
    kill_at: Option<Instant>,
    broker_terminated: bool,
}

impl Supervisor {
    /// Of children in these layers.
    pub fn new(layers: impl IntoIterator<Item = Layer>, limits: Limits) -> Self {
        let child = |layer| Child {
            layer,
            life: Life::Waiting,
            deaths: 0,
        };
        Self {
            children: layers.into_iter().map(child).collect(),
            phase: Phase::Starting,
            limits,
            broker_ready: false,
        }
    }

    /// Takes note of `event` and says what follows from it.
    pub fn apply(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            // With the first look at who is due, below.
            Event::Begin => {}
            Event::BrokerReady => self.broker_ready = true,
            Event::Loaded(id) => self.loaded(id),
            Event::FleetReady => {
                if matches!(self.phase, Phase::Starting) {
                    self.phase = Phase::Serving;
                }
            }
            Event::Exited(id, exit) => self.exited(id, exit, now, &mut actions),
            Event::Hung(id) => self.hung(id, now, &mut actions),
            Event::Stop(ending) => self.stop(ending, now, &mut actions),
            Event::Timer => {}
        }
        self.start_due(now, &mut actions);
        self.advance_stop(now, &mut actions);
        actions
    }

    /// When [`Event::Timer`] is due next.
    pub fn next_timer(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Starting | Phase::Serving => self.next_start(),
            Phase::Stopping(stopping) => stopping
                .drain_until
                .into_iter()
                .chain(stopping.services_kill_at)
                .chain(stopping.kill_at)
                .min(),
            Phase::Finished => None,
        }
    }

    fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Starting | Phase::Serving)
    }

    /// When somebody may start next: after its pause, or when one that loads has done so for too long.
    fn next_start(&self) -> Option<Instant> {
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

    fn loaded(&mut self, id: ChildId) {
        if let Life::Running { loaded, .. } = &mut self.children[id.0].life {
            *loaded = true;
        }
    }

    /// Starts who is due and may: a service only while few enough others load.
    fn start_due(&mut self, now: Instant, actions: &mut Vec<Action>) {
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

    fn exited(&mut self, id: ChildId, exit: Exit, now: Instant, actions: &mut Vec<Action>) {
        let starting = matches!(self.phase, Phase::Starting);
        let up = self.is_up();
        let child = &mut self.children[id.0];
        let Life::Running { since, .. } = child.life else {
            return;
        };
        child.life = Life::Ended;
        if !up {
            return;
        }
        if now.duration_since(since) >= STABLE_AFTER {
            child.deaths = 0;
        }
        child.deaths += 1;
        let unusable = exit == Exit::Code(i32::from(service::exit::UNUSABLE));
        if starting && (unusable || child.deaths >= START_ATTEMPTS_MAX) {
            actions.push(Action::ReportGivingUp(id, exit));
            self.stop(Ending::GaveUp(id, exit), now, actions);
            return;
        }
        let pause = backoff(child.deaths);
        child.life = Life::Backoff { until: now + pause };
        actions.push(Action::ReportDeath(id, exit, pause));
    }

    /// Its end is an exit like any other: it is started again.
    fn hung(&self, id: ChildId, now: Instant, actions: &mut Vec<Action>) {
        let Life::Running { since, .. } = self.children[id.0].life else {
            return;
        };
        if self.is_up() && now.duration_since(since) >= HANG_MIN {
            actions.push(Action::Kill(id));
        }
    }

    fn stop(&mut self, ending: Ending, now: Instant, actions: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Starting | Phase::Serving => {}
            Phase::Stopping(stopping) => {
                if now.duration_since(stopping.since) < IMPATIENT_AFTER {
                    return;
                }
                stopping.drain_until = stopping.drain_until.map(|at| at.min(now));
                stopping.services_kill_at = stopping.services_kill_at.map(|at| at.min(now));
                stopping.kill_at = stopping.kill_at.map(|at| at.min(now));
                return;
            }
            Phase::Finished => return,
        }
        self.phase = Phase::Stopping(Stopping {
            ending,
            since: now,
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

    fn running(&self, layer: Layer) -> Vec<ChildId> {
        let running =
            |child: &Child| child.layer == layer && matches!(child.life, Life::Running { .. });
        let ids = self
            .children
            .iter()
            .enumerate()
            .filter(|(_, child)| running(child));
        ids.map(|(index, _)| ChildId(index)).collect()
    }

    /// What a stop has come to: lets the workers go when nobody waits for them, kills what is late, lets the broker go when
    /// nobody needs it, ends when all are gone.
    fn advance_stop(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let (fronts, workers) = (self.running(Layer::Front), self.running(Layer::Service));
        let broker = self.running(Layer::Broker);
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

impl Child {
    /// Until when it counts as one that loads, if it does.
    fn loads_until(&self, limits: Limits) -> Option<Instant> {
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
fn backoff(deaths: u32) -> Duration {
    let doublings = deaths.saturating_sub(1).min(16);
    (BACKOFF_MIN * 2u32.pow(doublings)).min(BACKOFF_MAX)
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;
