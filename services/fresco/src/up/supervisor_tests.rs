//! Tables of [`Supervisor`]: what follows from which event, when.

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
            [Layer::Broker, Layer::Service, Layer::Service],
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

#[test]
fn services_start_when_the_broker_is_ready() {
    let mut fleet = Fleet::new();
    assert_eq!(fleet.at(0, Event::Begin), [Action::Start(BROKER)]);
    assert_eq!(
        fleet.at(5, Event::BrokerReady),
        [Action::Start(GATEWAY), Action::Start(DENOISER)]
    );
    assert_eq!(
        fleet.at(9, Event::BrokerReady),
        [],
        "a broker that came back starts nobody twice"
    );
    assert_eq!(fleet.next_timer_millis(), None);
}

#[test]
fn a_fleet_on_someone_elses_broker_has_only_services() {
    let mut supervisor = Supervisor::new([Layer::Service], Limits::default());
    let now = Instant::now();
    assert_eq!(supervisor.apply(Event::Begin, now), []);
    assert_eq!(
        supervisor.apply(Event::BrokerReady, now),
        [Action::Start(ChildId(0))]
    );
    assert_eq!(
        supervisor.apply(Event::Stop(Ending::Asked), now),
        [Action::Terminate(ChildId(0))]
    );
    let exited = Event::Exited(ChildId(0), Exit::Code(0));
    assert_eq!(
        supervisor.apply(exited, now),
        [Action::Finish(Ending::Asked)]
    );
}

#[test]
fn the_pause_before_a_restart_doubles_up_to_its_limit() {
    let mut fleet = Fleet::serving();
    let mut now = 0;
    for pause in [200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000] {
        let report = Action::ReportDeath(DENOISER, KILLED, Duration::from_millis(pause));
        assert_eq!(fleet.at(now, Event::Exited(DENOISER, KILLED)), [report]);
        assert_eq!(fleet.next_timer_millis(), Some(u128::from(now + pause)));
        assert_eq!(fleet.at(now + pause - 1, Event::Timer), []);
        now += pause;
        assert_eq!(fleet.at(now, Event::Timer), [Action::Start(DENOISER)]);
    }
}

#[test]
fn a_child_that_lived_long_starts_again_from_the_shortest_pause() {
    let mut fleet = Fleet::serving();
    fleet.at(0, Event::Exited(DENOISER, KILLED));
    fleet.at(200, Event::Timer);
    let long = 200 + u64::try_from(STABLE_AFTER.as_millis()).expect("a minute");
    let report = Action::ReportDeath(DENOISER, KILLED, BACKOFF_MIN);
    assert_eq!(fleet.at(long, Event::Exited(DENOISER, KILLED)), [report]);
}

#[test]
fn an_unusable_child_at_start_ends_everything() {
    let mut fleet = Fleet::starting();
    let exit = Exit::Code(2);
    let expected = [
        Action::ReportGivingUp(DENOISER, exit),
        Action::Terminate(GATEWAY),
    ];
    assert_eq!(fleet.at(100, Event::Exited(DENOISER, exit)), expected);
    assert_eq!(
        fleet.at(200, Event::Exited(GATEWAY, Exit::Code(0))),
        [Action::Terminate(BROKER)]
    );
    let finish = [Action::Finish(Ending::GaveUp(DENOISER, exit))];
    assert_eq!(fleet.at(300, Event::Exited(BROKER, Exit::Code(0))), finish);
    assert_eq!(fleet.next_timer_millis(), None);
}

#[test]
fn an_unusable_child_later_is_only_restarted() {
    let mut fleet = Fleet::serving();
    let report = Action::ReportDeath(DENOISER, Exit::Code(2), BACKOFF_MIN);
    assert_eq!(
        fleet.at(0, Event::Exited(DENOISER, Exit::Code(2))),
        [report]
    );
}

#[test]
fn a_child_that_keeps_dying_at_start_is_given_up() {
    let mut fleet = Fleet::starting();
    let mut now = 0;
    for _ in 1..START_ATTEMPTS_MAX {
        fleet.at(now, Event::Exited(GATEWAY, Exit::Code(1)));
        now += 10_000;
        assert_eq!(fleet.at(now, Event::Timer), [Action::Start(GATEWAY)]);
    }
    let expected = [
        Action::ReportGivingUp(GATEWAY, Exit::Code(1)),
        Action::Terminate(DENOISER),
    ];
    assert_eq!(
        fleet.at(now, Event::Exited(GATEWAY, Exit::Code(1))),
        expected
    );
}

#[test]
fn a_stop_ends_services_before_the_broker() {
    let mut fleet = Fleet::serving();
    let stop = Event::Stop(Ending::Asked);
    assert_eq!(
        fleet.at(0, stop),
        [Action::Terminate(GATEWAY), Action::Terminate(DENOISER)]
    );
    assert_eq!(fleet.at(10, Event::Exited(DENOISER, Exit::Code(0))), []);
    assert_eq!(
        fleet.at(20, Event::Exited(GATEWAY, Exit::Code(0))),
        [Action::Terminate(BROKER)]
    );
    assert_eq!(
        fleet.at(30, Event::Exited(BROKER, Exit::Code(0))),
        [Action::Finish(Ending::Asked)]
    );
}

#[test]
fn what_does_not_stop_in_time_is_killed() {
    let mut fleet = Fleet::serving();
    fleet.at(0, Event::Stop(Ending::Asked));
    fleet.at(10, Event::Exited(GATEWAY, Exit::Code(0)));
    assert_eq!(fleet.next_timer_millis(), Some(4_000));
    assert_eq!(
        fleet.at(4_000, Event::Timer),
        [Action::Kill(DENOISER), Action::Terminate(BROKER)]
    );
    assert_eq!(fleet.next_timer_millis(), Some(4_500));
    assert_eq!(fleet.at(4_001, Event::Exited(DENOISER, KILLED)), []);
    assert_eq!(fleet.at(4_500, Event::Timer), [Action::Kill(BROKER)]);
    assert_eq!(fleet.next_timer_millis(), None);
    assert_eq!(
        fleet.at(4_501, Event::Exited(BROKER, KILLED)),
        [Action::Finish(Ending::Asked)]
    );
}

#[test]
fn an_impatient_second_wish_to_stop_kills_at_once() {
    let mut fleet = Fleet::serving();
    fleet.at(0, Event::Stop(Ending::Asked));
    assert_eq!(
        fleet.at(10, Event::Stop(Ending::Asked)),
        [],
        "the same wish by another way"
    );
    let kills = [
        Action::Kill(GATEWAY),
        Action::Kill(DENOISER),
        Action::Terminate(BROKER),
        Action::Kill(BROKER),
    ];
    assert_eq!(fleet.at(1_000, Event::Stop(Ending::Asked)), kills);
    assert_eq!(fleet.next_timer_millis(), None);
}

#[test]
fn nothing_is_restarted_once_stopping() {
    let mut fleet = Fleet::serving();
    fleet.at(0, Event::Exited(DENOISER, KILLED));
    assert_eq!(
        fleet.at(100, Event::Stop(Ending::Asked)),
        [Action::Terminate(GATEWAY)]
    );
    assert_eq!(fleet.at(200, Event::Timer), []);
    assert_eq!(fleet.at(200, Event::BrokerReady), []);
    assert_eq!(
        fleet.at(300, Event::Exited(GATEWAY, KILLED)),
        [Action::Terminate(BROKER)]
    );
}

#[test]
fn a_stop_before_anything_ran_finishes_at_once() {
    let mut fleet = Fleet::new();
    assert_eq!(
        fleet.at(0, Event::Stop(Ending::Unusable)),
        [Action::Finish(Ending::Unusable)]
    );
}

#[test]
fn a_broker_that_dies_is_restarted_like_any_other() {
    let mut fleet = Fleet::serving();
    fleet.at(0, Event::Exited(BROKER, KILLED));
    assert_eq!(fleet.at(200, Event::Timer), [Action::Start(BROKER)]);
}

#[test]
fn a_child_that_hangs_is_killed_and_started_again() {
    let mut fleet = Fleet::serving();
    assert_eq!(
        fleet.at(9_000, Event::Hung(DENOISER)),
        [Action::Kill(DENOISER)]
    );
    let report = Action::ReportDeath(DENOISER, KILLED, BACKOFF_MIN);
    assert_eq!(fleet.at(9_010, Event::Exited(DENOISER, KILLED)), [report]);
    assert_eq!(
        fleet.at(9_100, Event::Hung(DENOISER)),
        [],
        "it does not run"
    );
    assert_eq!(fleet.at(9_210, Event::Timer), [Action::Start(DENOISER)]);
    assert_eq!(
        fleet.at(9_300, Event::Hung(DENOISER)),
        [],
        "the one before it hung"
    );
    fleet.at(20_000, Event::Stop(Ending::Asked));
    assert_eq!(
        fleet.at(20_010, Event::Hung(GATEWAY)),
        [],
        "a stop has deadlines of its own"
    );
}

/// A broker, a gateway and four workers, of which two may load at once.
fn staggered() -> Fleet {
    let layers = [Layer::Broker, Layer::Front].into_iter();
    let limits = Limits {
        loading_max: 2,
        loading_time_max: Duration::from_secs(60),
        drain: Duration::from_secs(20),
    };
    let supervisor = Supervisor::new(layers.chain([Layer::Service; 4]), limits);
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

#[test]
fn so_many_workers_load_at_once_and_the_gateway_waits_for_none() {
    let mut fleet = staggered();
    let first = [GATEWAY, worker(0), worker(1)].map(Action::Start);
    assert_eq!(fleet.at(0, Event::BrokerReady), first);
    assert_eq!(fleet.next_timer_millis(), Some(60_000));
    let table = [
        (
            5_000,
            Event::Loaded(worker(1)),
            vec![Action::Start(worker(2))],
        ),
        (5_001, Event::Loaded(worker(1)), vec![]),
        // The first loads for too long, and is waited for no more.
        (60_000, Event::Timer, vec![Action::Start(worker(3))]),
        (60_001, Event::Loaded(worker(0)), vec![]),
    ];
    for (millis, event, wanted) in table {
        assert_eq!(fleet.at(millis, event), wanted, "{millis} {event:?}");
    }
    assert_eq!(fleet.next_timer_millis(), None, "nobody waits");
}

#[test]
fn workers_that_die_together_load_so_many_at_once_again() {
    let mut fleet = staggered();
    fleet.at(0, Event::BrokerReady);
    for number in 0..4 {
        fleet.at(1, Event::Loaded(worker(number)));
    }
    fleet.at(2, Event::Loaded(worker(2)));
    fleet.at(2, Event::Loaded(worker(3)));
    fleet.at(3, Event::FleetReady);
    for number in 0..4 {
        let actions = fleet.at(70_000, Event::Exited(worker(number), KILLED));
        assert_eq!(actions.len(), 1, "told, not started: {actions:?}");
    }
    assert_eq!(fleet.next_timer_millis(), Some(70_200));
    let started = fleet.at(70_200, Event::Timer);
    assert_eq!(started, [worker(0), worker(1)].map(Action::Start));
    // No timer for those who are due and have no place: that would be a busy loop.
    assert_eq!(fleet.next_timer_millis(), Some(130_200));
    // One that dies while it loads gives its place away, and waits for its own pause.
    let actions = fleet.at(71_000, Event::Exited(worker(0), KILLED));
    assert!(actions.contains(&Action::Start(worker(2))), "{actions:?}");
}

#[test]
fn who_takes_requests_stops_first_and_the_workers_when_they_are_done_or_late() {
    for (done_at, workers_stop_at) in [(Some(8_000), 8_000), (None, 21_000)] {
        let mut fleet = staggered();
        fleet.at(0, Event::BrokerReady);
        for number in 0..4 {
            fleet.at(1, Event::Loaded(worker(number)));
        }
        fleet.at(2, Event::FleetReady);
        let asked = fleet.at(1_000, Event::Stop(Ending::Asked));
        assert_eq!(asked, [Action::Terminate(GATEWAY)]);
        assert_eq!(fleet.next_timer_millis(), Some(21_000));
        // Nobody is started again meanwhile.
        assert_eq!(fleet.at(2_000, Event::Exited(worker(3), KILLED)), []);
        let stopped = match done_at {
            Some(at) => fleet.at(at, Event::Exited(GATEWAY, Exit::Code(0))),
            None => fleet.at(workers_stop_at, Event::Timer),
        };
        assert_eq!(
            stopped,
            [worker(0), worker(1), worker(2)].map(Action::Terminate)
        );
        let kills_at = u128::from(workers_stop_at) + SERVICES_STOP_MAX.as_millis();
        assert_eq!(fleet.next_timer_millis(), Some(kills_at));
    }
}

#[test]
fn an_impatient_user_ends_the_drain() {
    let mut fleet = staggered();
    fleet.at(0, Event::BrokerReady);
    fleet.at(1_000, Event::Stop(Ending::Asked));
    assert_eq!(fleet.at(1_500, Event::Stop(Ending::Asked)), []);
    let hurried = fleet.at(3_000, Event::Stop(Ending::Asked));
    assert_eq!(hurried, [worker(0), worker(1)].map(Action::Terminate));
}
