//! The rule of admission by table, and a simulation of clients that do as they are told.

use proptest::prelude::*;

use super::*;

/// A deployment that is loaded and finishes `per_second`, seen for a minute. Returns it with its clock.
fn measured(outputs_max: u64, per_second: f64) -> (Admission, Instant) {
    let start = Instant::now();
    let mut admission = Admission::new(outputs_max, start);
    let mut now = start;
    for second in 0..=60_u64 {
        now = start + Duration::from_secs(second);
        admission.look(loaded((second as f64 * per_second) as u64), now);
    }
    // From here on what is open is what the test lets in.
    admission.look(
        Look {
            finished: (60.0 * per_second) as u64,
            ..Look::default()
        },
        now,
    );
    (admission, now)
}

fn loaded(finished: u64) -> Look {
    Look {
        waiting: 1,
        in_queues: 1,
        gateways: 1,
        finished,
        ..Look::default()
    }
}

#[test]
fn what_is_open_anywhere_takes_room() {
    // Here, elsewhere, in the queues; asked for; let in.
    let cases = [
        (0, 0, 0, 10, true),
        (9, 0, 0, 1, true),
        (9, 0, 0, 2, false),
        (4, 5, 0, 1, true),
        (4, 6, 0, 1, false),
        (4, 5, 9, 1, true),
        (4, 5, 10, 1, false),
        (0, 0, 10, 1, false),
        // Larger than the limit: only when nothing is open.
        (0, 0, 0, 11, true),
        (1, 0, 0, 10, false),
    ];
    for (here, elsewhere, in_queues, asked, let_in) in cases {
        let now = Instant::now();
        let mut admission = Admission::new(10, now);
        if here > 0 {
            admission.admit(here, now).expect("there is room");
        }
        let look = Look {
            open_elsewhere: elsewhere,
            in_queues,
            gateways: 2,
            ..Look::default()
        };
        admission.look(look, now);
        let answer = admission.admit(asked, now);
        let case = (here, elsewhere, in_queues, asked);
        assert_eq!(answer.is_ok(), let_in, "{case:?}");
        let open = if let_in { here + asked } else { here };
        assert_eq!(admission.open_here(), open, "{case:?}");
    }
}

#[test]
fn what_has_ended_leaves_room() {
    let now = Instant::now();
    let mut admission = Admission::new(2, now);
    assert_eq!(admission.admit(2, now), Ok(()));
    assert_eq!(admission.admit(1, now), Err(RETRY_AFTER_UNMEASURED));
    admission.release(1);
    assert_eq!(admission.admit(1, now), Ok(()));
    // What the queues held a second ago they do not hold now.
    let look = Look {
        in_queues: 2,
        ..Look::default()
    };
    admission.look(look, now);
    admission.release(1);
    assert_eq!(admission.admit(1, now), Ok(()));
}

#[test]
fn the_k_th_refused_comes_when_k_places_were_free() {
    let (mut admission, now) = measured(4, 0.5);
    admission.admit(4, now).expect("there is room");
    let told: Vec<u64> = (0..5).map(|_| admission.refuse(1, now).as_secs()).collect();
    assert_eq!(told, [2, 4, 6, 8, 10]);
    // Ten seconds later five places were free, and the five are back.
    let later = now + Duration::from_secs(10);
    assert_eq!(admission.refuse(1, later).as_secs(), 2);
}

#[test]
fn who_came_when_told_and_found_no_room_is_not_sent_to_the_back() {
    // Plenty of room for outputs: something else is full.
    let (mut admission, now) = measured(1_000, 0.5);
    let told: Vec<u64> = (0..4).map(|_| admission.refuse(1, now).as_secs()).collect();
    assert_eq!(told, [2, 4, 6, 8]);
    let look = Look {
        finished: 30,
        ..Look::default()
    };
    admission.look(look, now);
    // The first is back, nothing has ended in time: it is the next one all the same. Others are behind the rest.
    let later = now + Duration::from_secs(2);
    assert_eq!(admission.refuse(1, later).as_secs(), 2);
    assert_eq!(admission.refuse(1, later).as_secs(), 10);
}

#[test]
fn half_a_place_is_no_place() {
    let (mut admission, now) = measured(4, 1.0);
    admission.admit(3, now).expect("there is room");
    // Three of the four are short by two; the next is behind all three.
    assert_eq!(admission.refuse(3, now).as_secs(), 2);
    assert_eq!(admission.refuse(1, now).as_secs(), 4);
}

#[test]
fn nobody_is_told_less_than_a_second_or_more_than_ten_minutes() {
    let (mut admission, now) = measured(4, 20.0);
    admission.admit(4, now).expect("there is room");
    assert_eq!(admission.refuse(1, now), RETRY_AFTER_MIN);
    let (mut admission, now) = measured(4, 0.1);
    admission.admit(4, now).expect("there is room");
    for _ in 0..1_000 {
        admission.refuse(1, now);
    }
    assert_eq!(admission.refuse(1, now), RETRY_AFTER_MAX);
    // A thousand tries of one client are forgotten as soon as they would have been served.
    let later = now + RETRY_AFTER_MAX;
    assert!(admission.refuse(1, later) <= Duration::from_secs(20));
}

#[test]
fn gateways_share_the_places_that_become_free() {
    let (mut admission, now) = measured(4, 1.0);
    let look = Look {
        open_elsewhere: 4,
        gateways: 2,
        finished: 60,
        ..Look::default()
    };
    admission.look(look, now);
    let told: Vec<u64> = (0..3).map(|_| admission.refuse(1, now).as_secs()).collect();
    assert_eq!(told, [1, 3, 5]);
}

#[test]
fn idle_time_and_blind_time_say_nothing_about_the_rate() {
    let (mut admission, now) = measured(4, 2.0);
    let before = admission.per_second().expect("measured");
    assert!((before - 2.0).abs() < 0.05, "{before}");
    // An hour without work, looked at all the time.
    let mut at = now;
    for _ in 0..3_600 {
        at += Duration::from_secs(1);
        let look = Look {
            gateways: 1,
            finished: 120,
            ..Look::default()
        };
        admission.look(look, at);
    }
    assert_eq!(admission.per_second(), Some(before));
    // A minute with work that nobody could look at.
    admission.look(loaded(120), at);
    at += Duration::from_secs(60);
    admission.look(loaded(121), at);
    assert_eq!(admission.per_second(), Some(before));
}

#[test]
fn workers_that_hang_or_multiply_change_the_rate() {
    let (mut admission, now) = measured(4, 2.0);
    let mut at = now;
    admission.look(loaded(120), at);
    for _ in 0..120 {
        at += Duration::from_secs(1);
        admission.look(loaded(120), at);
    }
    let stuck = admission.per_second().expect("measured once");
    assert!(stuck < 0.7, "{stuck}");
    for second in 1..=180 {
        at += Duration::from_secs(1);
        admission.look(loaded(120 + 8 * second), at);
    }
    let quick = admission.per_second().expect("measured");
    assert!((7.0..=8.0).contains(&quick), "{quick}");
}

/// A client of the simulation: what it wants, and when it asks next.
#[derive(Debug, Clone, Copy)]
struct Client {
    outputs: u64,
    asks_at: f64,
    told_first: Option<f64>,
    refused: u32,
}

/// What came of the clients, in their order: the first Retry-After, when there was room, refusals.
fn simulate(outputs_max: u64, per_second: f64, wants: &[u64]) -> Vec<(f64, f64, u32)> {
    let (mut admission, start) = measured(outputs_max, per_second);
    admission.admit(outputs_max, start).expect("there is room");
    let (mut open, mut ended) = (outputs_max, 0_u64);
    let mut clients: Vec<Client> = wants
        .iter()
        .map(|&outputs| Client {
            outputs,
            asks_at: 0.0,
            told_first: None,
            refused: 0,
        })
        .collect();
    let mut results = vec![None; clients.len()];
    let step = 0.05;
    for tick in 0..400_000_u32 {
        let time = f64::from(tick) * step;
        let now = start + Duration::from_secs_f64(time);
        // What has ended by now; there is always more to do than workers.
        while open > 0 && (ended + 1) as f64 <= time * per_second {
            (open, ended) = (open - 1, ended + 1);
            admission.release(1);
        }
        if tick % 20 == 0 {
            let mut look = loaded((60.0 * per_second) as u64 + ended);
            look.in_queues = open;
            admission.look(look, now);
        }
        for (client, result) in clients.iter_mut().zip(&mut results) {
            if result.is_some() || client.asks_at > time {
                continue;
            }
            match admission.admit(client.outputs, now) {
                Ok(()) => {
                    open += client.outputs;
                    let told = client.told_first.unwrap_or(0.0);
                    *result = Some((told, time, client.refused));
                }
                Err(after) => {
                    client.told_first.get_or_insert(after.as_secs_f64());
                    client.refused += 1;
                    client.asks_at = time + after.as_secs_f64();
                }
            }
        }
        if results.iter().all(Option::is_some) {
            break;
        }
    }
    results
        .into_iter()
        .map(|result| result.expect("everybody finds room in the end"))
        .collect()
}

/// When the k-th client's places are free, if everybody before it took theirs.
fn truth(per_second: f64, wants: &[u64]) -> Vec<f64> {
    let mut before = 0;
    wants
        .iter()
        .map(|outputs| {
            before += outputs;
            before as f64 / per_second
        })
        .collect()
}

#[test]
fn twenty_clients_that_come_back_when_told_find_room() {
    for per_second in [0.1, 0.4, 1.0, 3.0, 10.0] {
        for wants in [
            [1; 20],
            [4; 20],
            std::array::from_fn(|i| 1 + (i as u64 * 7) % 4),
        ] {
            let found = simulate(40, per_second, &wants);
            let truth = truth(per_second, &wants);
            let errors = found.iter().zip(&truth).map(|((told, ..), free)| {
                // The header counts whole seconds: what is due sooner cannot be told.
                (told - free.max(1.0)).abs() / free.max(1.0)
            });
            let mean = errors.sum::<f64>() / 20.0;
            assert!(mean < 0.3, "{per_second} {wants:?}: {mean}");
            let most = found.iter().map(|(.., refused)| *refused).max();
            assert!(most <= Some(3), "{per_second} {wants:?}: {found:?}");
            let mean = found
                .iter()
                .map(|(.., refused)| f64::from(*refused))
                .sum::<f64>()
                / 20.0;
            assert!(mean < 1.6, "{per_second} {wants:?}: {mean}");
        }
    }
}

proptest! {
    #[test]
    fn the_limit_holds_and_every_refusal_is_within_bounds(
        outputs_max in 1_u64..50,
        calls in proptest::collection::vec((0_u8..3, 1_u64..11, 0_u64..5_000), 1..200),
    ) {
        let start = Instant::now();
        let (mut admission, mut now, mut finished) = (Admission::new(outputs_max, start), start, 0);
        for (call, outputs, ms) in calls {
            now += Duration::from_millis(ms);
            match call {
                0 => {
                    let open = admission.open_here();
                    match admission.admit(outputs, now) {
                        Ok(()) => prop_assert!(open == 0 || open + outputs <= outputs_max),
                        Err(after) => {
                            prop_assert!((RETRY_AFTER_MIN..=RETRY_AFTER_MAX).contains(&after));
                            prop_assert_eq!(after.subsec_nanos(), 0);
                            prop_assert_eq!(admission.open_here(), open);
                        }
                    }
                }
                1 => admission.release(outputs),
                _ => {
                    finished += outputs;
                    admission.look(loaded(finished), now);
                }
            }
        }
    }
}
