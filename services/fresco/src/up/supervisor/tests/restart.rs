//! What becomes of those who die or hang.

use super::*;

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
fn a_child_that_worked_long_starts_again_from_the_shortest_pause() {
    let long = u64::try_from(STABLE_AFTER.as_millis()).expect("a minute");
    // When it has loaded after the start, if ever; when it dies; the pause after its second death.
    let table = [
        (Some(0), long, BACKOFF_MIN),
        (Some(9_000), 9_000 + long, BACKOFF_MIN),
        (Some(240_000), 240_001, 2 * BACKOFF_MIN),
        (None, 10 * long, 2 * BACKOFF_MIN),
    ];
    for (loaded_at, died_at, pause) in table {
        let mut fleet = Fleet::serving();
        fleet.at(0, Event::Exited(DENOISER, KILLED));
        fleet.at(200, Event::Timer);
        if let Some(loaded_at) = loaded_at {
            fleet.at(200 + loaded_at, Event::Loaded(DENOISER));
        }
        let report = Action::ReportDeath(DENOISER, KILLED, pause);
        let died = fleet.at(200 + died_at, Event::Exited(DENOISER, KILLED));
        assert_eq!(died, [report], "{loaded_at:?} {died_at}");
    }
    let mut fleet = Fleet::serving();
    fleet.at(0, Event::Exited(GATEWAY, KILLED));
    fleet.at(200, Event::Timer);
    let report = Action::ReportDeath(GATEWAY, KILLED, BACKOFF_MIN);
    let died = fleet.at(200 + long, Event::Exited(GATEWAY, KILLED));
    assert_eq!(died, [report], "it loads nothing");
}

#[test]
fn an_unusable_child_later_is_only_restarted() {
    let mut fleet = Fleet::serving();
    let report = Action::ReportDeath(DENOISER, Exit::Code(2), BACKOFF_MAX);
    assert_eq!(
        fleet.at(0, Event::Exited(DENOISER, Exit::Code(2))),
        [report]
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
        [Action::ReportHang(DENOISER), Action::Kill(DENOISER)]
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

#[test]
fn workers_that_die_together_load_so_many_at_once_again() {
    let mut fleet = staggered(4);
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
