//! Who stops when, and what ends those who do not.

use super::*;

/// So many workers that have loaded, in a fleet that serves and has 20 s to drain.
fn draining(workers: usize) -> Fleet {
    let mut fleet = staggered(workers);
    fleet.at(0, Event::BrokerReady);
    for number in 0..workers {
        fleet.at(1, Event::Loaded(worker(number)));
    }
    fleet.at(2, Event::FleetReady);
    fleet
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
    let ended = fleet.at(4_001, Event::Exited(DENOISER, KILLED));
    assert_eq!(ended, [Action::ReportEnd(DENOISER, KILLED)]);
    assert_eq!(fleet.at(4_500, Event::Timer), [Action::Kill(BROKER)]);
    let ended = fleet.at(4_501, Event::Exited(BROKER, KILLED));
    assert_eq!(ended, [Action::Finish(Ending::Asked)]);
    assert_eq!(fleet.next_timer_millis(), None);
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
    assert_eq!(fleet.next_timer_millis(), Some(3_000));
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
        fleet.at(300, Event::Exited(GATEWAY, Exit::Code(0))),
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
fn who_takes_requests_stops_first_and_the_workers_when_they_are_done_or_late() {
    for (done_at, workers_stop_at) in [(Some(8_000), 8_000), (None, 21_000)] {
        let mut fleet = draining(4);
        let asked = fleet.at(1_000, Event::Stop(Ending::Asked));
        assert_eq!(asked, [Action::Terminate(GATEWAY)]);
        assert_eq!(fleet.next_timer_millis(), Some(21_000));
        let died = Action::ReportDeath(worker(3), KILLED, BACKOFF_MIN);
        assert_eq!(fleet.at(2_000, Event::Exited(worker(3), KILLED)), [died]);
        let stopped = match done_at {
            Some(at) => fleet.at(at, Event::Exited(GATEWAY, Exit::Code(0))),
            None => fleet.at(workers_stop_at, Event::Timer),
        };
        let mut wanted = vec![worker(0), worker(1), worker(2)];
        if done_at.is_none() {
            wanted.insert(0, GATEWAY);
        }
        let wanted: Vec<_> = wanted.into_iter().map(Action::Terminate).collect();
        assert_eq!(stopped, wanted, "who takes requests is told to answer now");
        let kills_at = u128::from(workers_stop_at) + SERVICES_STOP_MAX.as_millis();
        assert_eq!(fleet.next_timer_millis(), Some(kills_at));
    }
}

#[test]
fn a_gateway_whose_workers_are_elsewhere_answers_what_it_has_let_in() {
    let mut fleet = draining(0);
    let asked = fleet.at(1_000, Event::Stop(Ending::Asked));
    assert_eq!(asked, [Action::Terminate(GATEWAY)]);
    assert_eq!(fleet.next_timer_millis(), Some(21_000));
    let ended = fleet.at(9_000, Event::Exited(GATEWAY, Exit::Code(0)));
    assert_eq!(ended, [Action::Terminate(BROKER)]);
}

#[test]
fn nobody_is_ended_for_loading_once_the_workers_stop() {
    let mut fleet = draining(1);
    fleet.supervisor.limits.loading_hang = Some(Duration::from_secs(1));
    fleet.at(900, Event::Exited(worker(0), KILLED));
    fleet.at(1_100, Event::Timer);
    fleet.at(1_200, Event::Stop(Ending::Asked));
    let ended = fleet.at(1_300, Event::Exited(GATEWAY, Exit::Code(0)));
    assert_eq!(ended, [Action::Terminate(worker(0))]);
    assert_eq!(fleet.at(2_100, Event::Timer), []);
    assert_eq!(fleet.next_timer_millis(), Some(5_300));
}

#[test]
fn an_impatient_user_ends_the_drain_and_then_everything() {
    let asked = || Event::Stop(Ending::Asked);
    let workers = || [worker(0), worker(1)];
    let terminated = [GATEWAY, worker(0), worker(1)].map(Action::Terminate);
    let terminated = terminated.to_vec();
    let mut killed = [GATEWAY].map(Action::Kill).to_vec();
    killed.extend(workers().map(Action::Kill));
    killed.extend([Action::Terminate(BROKER), Action::Kill(BROKER)]);
    // Each wish may come twice: by the terminal, and by whoever passes it on.
    let table = [
        (1_000, vec![Action::Terminate(GATEWAY)]),
        (1_500, vec![]),
        (3_000, terminated),
        (3_001, vec![]),
        (4_000, killed),
        (4_001, vec![]),
    ];
    let mut fleet = draining(2);
    for (now, wanted) in table {
        assert_eq!(fleet.at(now, asked()), wanted, "{now}");
    }
    let mut fleet = draining(2);
    fleet.at(1_000, asked());
    let unusable = fleet.at(3_000, Event::Stop(Ending::Unusable));
    assert_eq!(unusable, [], "nobody is impatient");
}

#[test]
fn who_dies_in_a_drain_is_started_again_but_for_who_takes_requests() {
    // The one AR-batcher, or the broker, would be missed to its end.
    for id in [BROKER, worker(0)] {
        let mut fleet = draining(2);
        fleet.at(900, Event::Exited(worker(1), KILLED));
        fleet.at(1_000, Event::Stop(Ending::Asked));
        let died = Action::ReportDeath(id, KILLED, BACKOFF_MIN);
        assert_eq!(fleet.at(1_050, Event::Exited(id, KILLED)), [died]);
        assert_eq!(fleet.next_timer_millis(), Some(1_100));
        let again = [Action::Start(worker(1))];
        assert_eq!(fleet.at(1_100, Event::Timer), again, "it had died before");
        assert_eq!(fleet.at(1_250, Event::Timer), [Action::Start(id)]);
        assert_eq!(
            fleet.at(9_000, Event::Hung(id)),
            [Action::ReportHang(id), Action::Kill(id)]
        );
    }
    let mut fleet = draining(2);
    fleet.at(1_000, Event::Stop(Ending::Asked));
    let ended = fleet.at(9_000, Event::Exited(GATEWAY, KILLED));
    let mut wanted = vec![Action::ReportEnd(GATEWAY, KILLED)];
    wanted.extend([worker(0), worker(1)].map(Action::Terminate));
    assert_eq!(ended, wanted, "nobody waits for the workers any more");
    let ended = fleet.at(9_500, Event::Exited(worker(0), KILLED));
    assert_eq!(ended, [Action::ReportEnd(worker(0), KILLED)]);
    assert_eq!(fleet.at(9_700, Event::Timer), []);
}

#[test]
fn who_waits_for_a_restart_when_the_drain_ends_is_not_waited_for() {
    let mut fleet = draining(1);
    fleet.at(1_000, Event::Stop(Ending::Asked));
    fleet.at(20_950, Event::Exited(worker(0), KILLED));
    let told = fleet.at(21_000, Event::Timer);
    assert_eq!(told, [Action::Terminate(GATEWAY)]);
    assert_eq!(fleet.next_timer_millis(), Some(25_000));
    let last = fleet.at(21_300, Event::Exited(GATEWAY, Exit::Code(0)));
    assert_eq!(last, [Action::Terminate(BROKER)]);
}

#[test]
fn a_fleet_that_never_served_has_nothing_to_drain() {
    let mut fleet = staggered(2);
    fleet.at(0, Event::BrokerReady);
    let all = [GATEWAY, worker(0), worker(1)].map(Action::Terminate);
    assert_eq!(fleet.at(1_000, Event::Stop(Ending::Asked)), all);
}

#[test]
fn who_outlives_its_kill_is_named_and_left() {
    let mut fleet = Fleet::serving();
    fleet.at(0, Event::Stop(Ending::Asked));
    fleet.at(10, Event::Exited(GATEWAY, Exit::Code(0)));
    fleet.at(4_000, Event::Timer);
    fleet.at(4_100, Event::Exited(BROKER, Exit::Code(0)));
    assert_eq!(fleet.at(4_500, Event::Timer), []);
    assert_eq!(fleet.next_timer_millis(), Some(6_500));
    let left = [Action::ReportLeft(DENOISER), Action::Finish(Ending::Asked)];
    assert_eq!(fleet.at(6_500, Event::Timer), left);
    assert_eq!(fleet.next_timer_millis(), None);
}

#[test]
fn a_server_that_workers_call_stops_after_them_and_is_started_again_until_then() {
    let layers = [Layer::Front, Layer::Sole, Layer::Server];
    let (batcher, server) = (ChildId(1), ChildId(2));
    let limits = Limits {
        drain: Duration::from_secs(20),
        ..Limits::default()
    };
    let mut fleet = Fleet {
        supervisor: Supervisor::new(layers, limits),
        started_at: Instant::now(),
    };
    fleet.at(0, Event::BrokerReady);
    fleet.at(0, Event::FleetReady);
    let stop = Event::Stop(Ending::Asked);
    let table = [
        (1_000, stop, vec![Action::Terminate(ChildId(0))]),
        (
            1_100,
            Event::Exited(server, KILLED),
            vec![Action::ReportDeath(server, KILLED, BACKOFF_MIN)],
        ),
        (1_300, Event::Timer, vec![Action::Start(server)]),
        (
            9_000,
            Event::Exited(ChildId(0), Exit::Code(0)),
            vec![Action::Terminate(batcher)],
        ),
        (
            9_100,
            Event::Exited(batcher, Exit::Code(0)),
            vec![Action::Terminate(server)],
        ),
        // However it ends: it held nothing.
        (
            9_200,
            Event::Exited(server, Exit::Signal(15)),
            vec![Action::Finish(Ending::Asked)],
        ),
    ];
    for (millis, event, wanted) in table {
        assert_eq!(fleet.at(millis, event), wanted, "{millis}");
    }
}
