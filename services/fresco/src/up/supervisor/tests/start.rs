//! Who starts when, and what a start ends with.

use super::*;

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
fn so_many_workers_load_at_once_and_the_gateway_waits_for_none() {
    let mut fleet = staggered(4);
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
fn who_waits_behind_slow_loaders_wakes_nobody_before_there_is_a_place() {
    let mut fleet = staggered(6);
    fleet.at(0, Event::BrokerReady);
    let next = [worker(2), worker(3)].map(Action::Start);
    assert_eq!(fleet.at(60_000, Event::Timer), next);
    // The first two still load, and hold no place any more: the next place is free when the next two are late.
    assert_eq!(fleet.next_timer_millis(), Some(120_000));
    let loaded = fleet.at(61_000, Event::Loaded(worker(0)));
    assert_eq!(loaded, [], "it held no place");
    let last = [worker(4), worker(5)].map(Action::Start);
    assert_eq!(fleet.at(120_000, Event::Timer), last);
}

#[test]
fn a_load_that_hangs_is_ended_once_and_started_again() {
    let mut fleet = staggered(3);
    fleet.supervisor.limits.loading_hang = Some(Duration::from_secs(100));
    fleet.at(0, Event::BrokerReady);
    fleet.at(5_000, Event::Loaded(worker(1)));
    assert_eq!(fleet.next_timer_millis(), Some(100_000), "of worker 0");
    let hangs = |number| {
        vec![
            Action::ReportLoadingHang(worker(number)),
            Action::Kill(worker(number)),
        ]
    };
    let died = Action::ReportDeath(worker(0), KILLED, BACKOFF_MIN);
    let table = [
        (60_000, Event::Timer, vec![]),
        (99_999, Event::FleetReady, vec![]),
        (100_000, Event::Timer, hangs(0)),
        // The kernel has not let go of it yet.
        (104_999, Event::Timer, vec![]),
        (105_000, Event::Timer, hangs(2)),
        (106_000, Event::Exited(worker(0), KILLED), vec![died]),
        (106_200, Event::Timer, vec![Action::Start(worker(0))]),
        (150_000, Event::Loaded(worker(0)), vec![]),
        (999_000, Event::Timer, vec![]),
        (
            999_001,
            Event::Exited(worker(0), KILLED),
            vec![Action::ReportDeath(worker(0), KILLED, BACKOFF_MIN)],
        ),
        (999_201, Event::Timer, vec![Action::Start(worker(0))]),
        // Nobody could see it load until now.
        (1_090_000, Event::Unseen, vec![]),
        (1_099_201, Event::Timer, vec![]),
        (1_190_000, Event::Timer, hangs(0)),
    ];
    for (millis, event, wanted) in table {
        assert_eq!(fleet.at(millis, event), wanted, "{millis} {event:?}");
    }
    assert_eq!(fleet.next_timer_millis(), None, "nobody loads");
}

#[test]
fn a_server_has_a_place_of_those_who_load_until_it_is_up() {
    let layers = [Layer::Server, Layer::Sole, Layer::Service, Layer::Service];
    let limits = Limits {
        loading_max: 2,
        loading_time_max: Duration::from_secs(60),
        start: StartRule::OneOfEach,
        ..Limits::default()
    };
    let mut fleet = Fleet {
        supervisor: Supervisor::new(layers, limits),
        started_at: Instant::now(),
    };
    let first = [0, 1].map(|id| Action::Start(ChildId(id)));
    assert_eq!(fleet.at(0, Event::BrokerReady), first);
    let second = [Action::Start(ChildId(2))];
    assert_eq!(fleet.at(1_000, Event::Loaded(ChildId(1))), second);
    let third = [Action::Start(ChildId(3))];
    assert_eq!(fleet.at(9_000, Event::Loaded(ChildId(0))), third);
    // The only one, and it cannot work.
    let exit = Exit::Code(2);
    let actions = fleet.at(9_001, Event::Exited(ChildId(0), exit));
    assert_eq!(actions[0], Action::ReportGivingUp(ChildId(0), exit));
}

#[test]
fn a_server_that_is_never_up_is_ended_also_while_the_broker_lists_nobody() {
    let limits = Limits {
        loading_hang: Some(Duration::from_secs(100)),
        ..Limits::default()
    };
    let mut fleet = Fleet {
        supervisor: Supervisor::new([Layer::Server, Layer::Sole], limits),
        started_at: Instant::now(),
    };
    fleet.at(0, Event::BrokerReady);
    fleet.at(90_000, Event::Unseen);
    let hangs = |id| {
        vec![
            Action::ReportLoadingHang(ChildId(id)),
            Action::Kill(ChildId(id)),
        ]
    };
    assert_eq!(fleet.next_timer_millis(), Some(100_000));
    assert_eq!(fleet.at(100_000, Event::Timer), hangs(0));
    assert_eq!(fleet.at(190_000, Event::Timer), hangs(1));
}

/// What a service is asked to do that cannot work, in a fleet that is content with one of each.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Verdict {
    /// It is started again after this many milliseconds.
    Again(u64),
    /// Everything stops.
    End,
}

#[test]
fn a_fleet_is_given_up_when_none_of_a_kind_can_work() {
    use Verdict::{Again, End};
    let table: [(&str, &[(usize, Verdict)]); 5] = [
        ("one device", &[(2, Again(10_000))]),
        (
            "the same one twice",
            &[(2, Again(10_000)), (2, Again(10_000))],
        ),
        (
            "every denoiser",
            &[(2, Again(10_000)), (3, Again(10_000)), (4, End)],
        ),
        ("the one AR-batcher", &[(1, End)]),
        ("the gateway", &[(0, End)]),
    ];
    for (name, exits) in table {
        let mut fleet = content_with_one_of_each();
        let mut now = 0;
        for (number, verdict) in exits {
            let (id, exit) = (ChildId(*number), Exit::Code(2));
            let actions = fleet.at(now, Event::Exited(id, exit));
            let wanted = match verdict {
                Again(pause) => Action::ReportDeath(id, exit, Duration::from_millis(*pause)),
                End => Action::ReportGivingUp(id, exit),
            };
            assert_eq!(actions[0], wanted, "{name}");
            now += 10_000;
            fleet.at(now, Event::Timer);
        }
    }
}

#[test]
fn one_that_was_given_up_and_then_works_counts_again() {
    let mut fleet = content_with_one_of_each();
    for (number, now) in [(2, 0), (3, 1)] {
        fleet.at(now, Event::Exited(ChildId(number), Exit::Code(2)));
    }
    fleet.at(10_000, Event::Timer);
    fleet.at(11_000, Event::Loaded(ChildId(2)));
    let died = fleet.at(11_001, Event::Exited(ChildId(4), Exit::Code(2)));
    let report = Action::ReportDeath(ChildId(4), Exit::Code(2), BACKOFF_MAX);
    assert_eq!(died, [report]);
}

#[test]
fn quick_deaths_end_nobody_elses_start() {
    let mut fleet = content_with_one_of_each();
    let mut now = 0;
    for deaths in 1..3 * START_ATTEMPTS_MAX {
        let died = fleet.at(now, Event::Exited(ChildId(2), KILLED));
        let report = Action::ReportDeath(ChildId(2), KILLED, backoff(deaths));
        assert_eq!(died, [report]);
        now += 10_000;
        assert_eq!(fleet.at(now, Event::Timer), [Action::Start(ChildId(2))]);
    }
}

/// A gateway, an AR-batcher and three denoisers.
fn content_with_one_of_each() -> Fleet {
    let limits = Limits {
        start: StartRule::OneOfEach,
        ..Limits::default()
    };
    let layers = [Layer::Front, Layer::Sole].into_iter();
    let supervisor = Supervisor::new(layers.chain([Layer::Service; 3]), limits);
    let mut fleet = Fleet {
        supervisor,
        started_at: Instant::now(),
    };
    fleet.at(0, Event::BrokerReady);
    fleet
}
