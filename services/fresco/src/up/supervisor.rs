//! Which child is started, restarted, signalled or given up on, and when: a pure state machine over events and
//! instants. It knows no process, no file and no runtime; `run.rs` carries its actions out.
//!
//! The order is the point. Start: the broker, then (once it holds the streams) all services, of the workers so many at
//! once as [`Limits`] lets load their models: a machine that reads sixteen checkpoints at a time reads none. Stop: whoever
//! takes requests, while the workers go on with what it has let in, for as long as [`Limits`] says; the workers, which still
//! need the broker to give back what they hold; then the broker, and the servers that workers called. Each has a last
//! instant after which it is killed, so that the whole tree is gone within the drain and [`STOP_MAX`], but for what the kernel
//! does not let go. What cannot work (exit code 2) before the fleet has started ends everything, or not, by its [`StartRule`].

mod starting;
mod stopping;

use std::time::Duration;

use tokio::time::Instant;

use self::{starting::backoff, stopping::Stopping};
pub use self::{
    starting::{BACKOFF_MAX, BACKOFF_MIN, STABLE_AFTER, START_ATTEMPTS_MAX},
    stopping::{LEAVE_AFTER, SERVICES_STOP_MAX, STOP_MAX},
};

/// A life shorter than this cannot have missed three probes 2 s apart: the one that hung was the one before it.
pub const HANG_MIN: Duration = Duration::from_secs(4);

/// A child, by its place in the list that the supervisor was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChildId(pub usize);

/// What a child is to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// The message broker: starts first, stops last.
    Broker,
    /// Somebody else's program that a worker calls: loads as workers do, knows no broker, and stops when they have.
    Server,
    /// Needs the broker and takes requests in: stops before those who work on them.
    Front,
    /// Needs the broker, and loads something before it works; nobody else does what it does.
    Sole,
    /// The same, and others do the same.
    Service,
}

impl Layer {
    /// Whether it loads a model before it works.
    pub(crate) fn loads(self) -> bool {
        self == Self::Server || self.is_worker()
    }

    fn is_worker(self) -> bool {
        matches!(self, Self::Sole | Self::Service)
    }

    /// Whether others need it until they have ended. It holds nothing, and ends as it likes when told.
    fn is_needed(self) -> bool {
        matches!(self, Self::Broker | Self::Server)
    }
}

/// What it takes to have started, and what ends a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartRule {
    /// Everyone works. One that cannot ends everything: a person waits, and its line of explanation is what they need.
    All,
    /// One of each kind works. Only when a kind has none left that might work, everything ends: a broken device is no
    /// reason to leave the other fifteen idle.
    OneOfEach,
}

/// How a fleet starts and stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Services that may load at once, after a death too.
    pub loading_max: usize,
    /// One that loads for longer keeps the others waiting no more.
    pub loading_time_max: Duration,
    /// One that loads for this long hangs in it, in a driver for example, and is ended. `None` where nobody has said how long
    /// that takes.
    pub loading_hang: Option<Duration>,
    /// From the wish to stop until the workers are to stop, if those who take requests are not done before.
    pub drain: Duration,
    /// When it has started.
    pub start: StartRule,
}

impl Default for Limits {
    /// All at once, as suits a few workers and a person who waits.
    fn default() -> Self {
        Self {
            loading_max: usize::MAX,
            loading_time_max: Duration::ZERO,
            loading_hang: None,
            drain: Duration::ZERO,
            start: StartRule::All,
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
    /// The fleet has started, by its [`StartRule`].
    FleetReady,
    /// A child has loaded what it works with.
    Loaded(ChildId),
    /// Which worker has loaded cannot be seen: the broker does not tell who is there.
    Unseen,
    /// A child ended.
    Exited(ChildId, Exit),
    /// A child works no more: it does not answer, or never with yes.
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
    /// Say that it died, and is not started again.
    ReportEnd(ChildId, Exit),
    /// Say that it hangs.
    ReportHang(ChildId),
    /// Say that it never came to work.
    ReportLoadingHang(ChildId),
    /// Say that it cannot be made to work.
    ReportGivingUp(ChildId, Exit),
    /// Say that it was killed in vain: something in the kernel holds it.
    ReportLeft(ChildId),
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
    /// When last no worker could be seen to have loaded.
    unseen: Option<Instant>,
}

#[derive(Debug)]
struct Child {
    layer: Layer,
    life: Life,
    /// Deaths since it last worked for [`STABLE_AFTER`].
    deaths: u32,
    /// It could not be made to work, and has not worked since.
    hopeless: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// For the broker, or for others to load.
    Waiting,
    Running {
        since: Instant,
        loading: Loading,
    },
    Backoff {
        until: Instant,
    },
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loading {
    /// It does, and until then has one of the places of those who may.
    Placed { until: Instant },
    /// It has taken too long: its place is another's.
    Late,
    /// It has taken so long that it was ended.
    Hung,
    /// Since then it works.
    Done { since: Instant },
}

#[derive(Debug)]
enum Phase {
    /// Until [`Event::FleetReady`].
    Starting,
    Serving,
    Stopping(Stopping),
    Finished,
}

impl Supervisor {
    /// Of children in these layers.
    pub fn new(layers: impl IntoIterator<Item = Layer>, limits: Limits) -> Self {
        let child = |layer| Child {
            layer,
            life: Life::Waiting,
            deaths: 0,
            hopeless: false,
        };
        Self {
            children: layers.into_iter().map(child).collect(),
            phase: Phase::Starting,
            limits,
            broker_ready: false,
            unseen: None,
        }
    }

    /// Takes note of `event` and says what follows from it.
    pub fn apply(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            // With the first look at who is due, below.
            Event::Begin => {}
            Event::BrokerReady => self.broker_ready = true,
            Event::Loaded(id) => self.loaded(id, now),
            Event::Unseen => self.unseen = Some(now),
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
        self.advance_stop(now, &mut actions);
        self.end_hung_loads(now, &mut actions);
        self.start_due(now, &mut actions);
        actions
    }

    /// When [`Event::Timer`] is due next.
    pub fn next_timer(&self) -> Option<Instant> {
        let next = || {
            self.next_start()
                .into_iter()
                .chain(self.next_hung_load())
                .min()
        };
        match &self.phase {
            Phase::Starting | Phase::Serving => next(),
            Phase::Stopping(stopping) => {
                let next = next().filter(|_| stopping.drains());
                stopping.next_timer().into_iter().chain(next).min()
            }
            Phase::Finished => None,
        }
    }

    /// Whether one of `layer` is started again when it dies: while somebody waits for what it does.
    fn keeps(&self, layer: Layer) -> bool {
        match &self.phase {
            Phase::Starting | Phase::Serving => true,
            Phase::Stopping(stopping) => stopping.drains() && layer != Layer::Front,
            Phase::Finished => false,
        }
    }

    fn exited(&mut self, id: ChildId, exit: Exit, now: Instant, actions: &mut Vec<Action>) {
        let starting = matches!(self.phase, Phase::Starting);
        let kept = self.keeps(self.children[id.0].layer);
        let child = &mut self.children[id.0];
        let Life::Running { loading, .. } = child.life else {
            return;
        };
        child.life = Life::Ended;
        if !kept {
            // Who ends as it was told has given back what it held. A broker ends with 1 when told.
            if !child.layer.is_needed() && exit != Exit::Code(0) {
                actions.push(Action::ReportEnd(id, exit));
            }
            return;
        }
        // From when it worked: a model that loads for minutes and then dies at once is read again and again otherwise.
        if let Loading::Done { since } = loading
            && now.duration_since(since) >= STABLE_AFTER
        {
            child.deaths = 0;
        }
        child.deaths += 1;
        let unusable = exit == Exit::Code(i32::from(service::exit::UNUSABLE));
        child.hopeless |= unusable || child.deaths >= START_ATTEMPTS_MAX;
        // Starting it again soon cannot help, and would take a place of those who load.
        let pause = if unusable {
            BACKOFF_MAX
        } else {
            backoff(child.deaths)
        };
        child.life = Life::Backoff { until: now + pause };
        if starting && self.is_lost(id) {
            actions.push(Action::ReportGivingUp(id, exit));
            self.stop(Ending::GaveUp(id, exit), now, actions);
            return;
        }
        actions.push(Action::ReportDeath(id, exit, pause));
    }

    /// Whether the start is over for everyone because of `id`.
    fn is_lost(&self, id: ChildId) -> bool {
        let child = &self.children[id.0];
        let mut alike = self.children.iter();
        match self.limits.start {
            StartRule::All => child.hopeless,
            StartRule::OneOfEach => alike.all(|other| other.layer != child.layer || other.hopeless),
        }
    }

    /// Its end is an exit like any other: it is started again.
    fn hung(&self, id: ChildId, now: Instant, actions: &mut Vec<Action>) {
        let child = &self.children[id.0];
        let Life::Running { since, .. } = child.life else {
            return;
        };
        if self.keeps(child.layer) && now.duration_since(since) >= HANG_MIN {
            actions.extend([Action::ReportHang(id), Action::Kill(id)]);
        }
    }
}

#[cfg(test)]
mod tests;
