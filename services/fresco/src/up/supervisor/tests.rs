//! Tables of [`Supervisor`]: what follows from which event, when.

mod restart;
mod start;
mod stop;

use super::*;

const BROKER: ChildId = ChildId(0);
const GATEWAY: ChildId = ChildId(1);
const DENOISER: ChildId = ChildId(2);
const KILLED: Exit = Exit::Signal(9);

/// A fleet, its clock and what it did last.
struct Fleet {
    supervisor: Supervisor,
    started_at: Instant,
}

impl Fleet {
    fn new() -> Self {
        let supervisor = Supervisor::new(
            [Layer::Broker, Layer::Front, Layer::Service],
            Limits::default(),
        );
        Self {
            supervisor,
            started_at: Instant::now(),
        }
    }

    fn starting() -> Self {
        let mut fleet = Self::new();
        fleet.at(0, Event::Begin);
        fleet.at(0, Event::BrokerReady);
        fleet
    }

    fn serving() -> Self {
        let mut fleet = Self::starting();
        fleet.at(0, Event::FleetReady);
        fleet
    }

    fn at(&mut self, millis: u64, event: Event) -> Vec<Action> {
        self.supervisor
            .apply(event, self.started_at + Duration::from_millis(millis))
    }

    fn next_timer_millis(&self) -> Option<u128> {
        self.supervisor
            .next_timer()
            .map(|at| at.duration_since(self.started_at).as_millis())
    }
}

/// A broker, a gateway and so many workers, of which two may load at once.
fn staggered(workers: usize) -> Fleet {
    let layers = [Layer::Broker, Layer::Front].into_iter();
    let limits = Limits {
        loading_max: 2,
        loading_time_max: Duration::from_secs(60),
        loading_hang: None,
        drain: Duration::from_secs(20),
        start: StartRule::OneOfEach,
    };
    let supervisor = Supervisor::new(
        layers.chain(std::iter::repeat_n(Layer::Service, workers)),
        limits,
    );
    let mut fleet = Fleet {
        supervisor,
        started_at: Instant::now(),
    };
    fleet.at(0, Event::Begin);
    fleet
}

fn worker(number: usize) -> ChildId {
    ChildId(2 + number)
}
