use std::time::Duration;

use protocol::{JobId, OutputIndex};

use super::*;
use crate::{AGING, FULL_PAUSE};

const DELAY: Duration = Duration::from_millis(20);
const HOUR: Duration = Duration::from_secs(3_600);

fn former(policy: Policy, slots: &[usize]) -> BatchFormer {
    BatchFormer::new(Limits {
        policy,
        slots: slots.to_vec(),
        waiting_max: 4,
    })
}

fn batched(slots: usize) -> BatchFormer {
    former(Policy::Batched { delay: DELAY }, &[slots])
}

fn rows(job: u128, outputs: u8, side: u32, arrived: Instant) -> Vec<Row> {
    let size = ImageSize::new(side, side).expect("a multiple of 32");
    OutputIndex::first(outputs)
        .map(|index| Row {
            output: JobId::from_u128(job).output(index),
            size,
            class: PriorityClass::Standard,
            arrived,
            deadline: arrived + HOUR,
            alone: false,
        })
        .collect()
}

fn run(batch: u64, rows: &[Row]) -> Action {
    run_on(0, batch, rows)
}

fn run_on(engine: usize, batch: u64, rows: &[Row]) -> Action {
    let (batch, rows) = (BatchId(batch), rows.to_vec());
    Action::Run {
        batch,
        engine,
        rows,
    }
}

/// The first outputs of the jobs that start.
fn started(actions: &[Action]) -> Vec<OutputId> {
    let rows = actions.iter().filter_map(|action| match action {
        Action::Run { rows, .. } => Some(rows.iter().map(|row| row.output)),
        Action::WakeAt(_) => None,
    });
    rows.flatten().collect()
}

mod batches {
    use super::*;

    #[test]
    fn a_lone_row_waits_for_company_and_then_runs_a14() {
        let (mut former, start) = (batched(4), Instant::now());
        let row = rows(1, 1, 64, start);
        let wake = [Action::WakeAt(start + DELAY)];
        assert_eq!(former.apply(Event::Arrived(row.clone()), start), wake);
        assert_eq!(former.apply(Event::Woken, start + DELAY / 2), wake);
        let ran = former.apply(Event::Woken, start + DELAY);
        assert_eq!(ran, [run(1, &row)]);
        assert_eq!(former.apply(Event::Woken, start + DELAY * 2), []);
    }

    #[test]
    fn a_row_that_waited_in_the_queue_still_waits_for_company() {
        let (mut former, start) = (batched(4), Instant::now());
        let now = start + HOUR;
        let actions = former.apply(Event::Arrived(rows(1, 1, 64, start)), now);
        assert_eq!(actions, [Action::WakeAt(now + DELAY)]);
    }

    #[test]
    fn a_full_batch_runs_at_once() {
        let (mut former, start) = (batched(2), Instant::now());
        let two = rows(1, 2, 64, start);
        assert_eq!(
            former.apply(Event::Arrived(two.clone()), start),
            [run(1, &two)]
        );
    }

    #[test]
    fn n_outputs_take_n_slots_and_may_be_split() {
        let (mut former, start) = (batched(3), Instant::now());
        let five = rows(1, 5, 64, start);
        let first = former.apply(Event::Arrived(five.clone()), start);
        assert_eq!(first, [run(1, &five[..3])]);
        let finished = former.apply(Event::Finished(BatchId(1)), start);
        assert_eq!(finished, [Action::WakeAt(start + DELAY)]);
        let second = former.apply(Event::Woken, start + DELAY);
        assert_eq!(second, [run(2, &five[3..])]);
    }

    #[test]
    fn other_sizes_do_not_join_and_the_oldest_goes_first_a15() {
        let (mut former, start) = (batched(2), Instant::now());
        let (small, large) = (
            rows(1, 1, 64, start),
            rows(2, 2, 96, start + Duration::from_millis(1)),
        );
        former.apply(Event::Arrived(small.clone()), start);
        // A full batch of another size does not overtake.
        let arrived = former.apply(Event::Arrived(large.clone()), start);
        assert_eq!(arrived, [Action::WakeAt(start + DELAY)]);
        let first = former.apply(Event::Woken, start + DELAY);
        assert_eq!(first, [run(1, &small)]);
        let second = former.apply(Event::Finished(BatchId(1)), start + DELAY);
        assert_eq!(second, [run(2, &large)]);
    }

    #[test]
    fn a_suspect_row_runs_alone_and_joins_nobody() {
        let (mut former, start) = (batched(4), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let (before, after) = (rows(1, 1, 64, at(0)), rows(3, 1, 64, at(2)));
        let mut suspect = rows(2, 1, 64, at(1));
        suspect[0].alone = true;
        for rows in [&before, &suspect, &after] {
            former.apply(Event::Arrived(rows.clone()), start);
        }
        let company = [before, after].concat();
        let first = former.apply(Event::Woken, start + DELAY);
        assert_eq!(first, [run(1, &company)]);
        let second = former.apply(Event::Finished(BatchId(1)), start + DELAY);
        assert_eq!(second, [run(2, &suspect)]);
    }

    #[test]
    fn one_batch_runs_at_a_time() {
        let (mut former, start) = (batched(2), Instant::now());
        let (first, second) = (rows(1, 2, 64, start), rows(2, 1, 64, start));
        former.apply(Event::Arrived(first), start);
        assert_eq!(
            former.apply(Event::Arrived(second.clone()), start + DELAY),
            []
        );
        let finished = former.apply(Event::Finished(BatchId(1)), start + DELAY * 2);
        assert_eq!(finished, [run(2, &second)]);
    }

    #[test]
    fn each_engine_runs_a_batch_of_its_own() {
        let start = Instant::now();
        let mut former = former(Policy::Batched { delay: DELAY }, &[2, 3]);
        let six = rows(1, 6, 64, start);
        // The one with more slots first.
        let actions = former.apply(Event::Arrived(six.clone()), start);
        assert_eq!(actions, [run_on(1, 1, &six[..3]), run_on(0, 2, &six[3..5])]);
    }

    #[test]
    fn a_higher_class_decides_the_size() {
        let (mut former, start) = (batched(4), Instant::now());
        let (standard, mut high) = (rows(1, 1, 64, start), rows(2, 1, 96, start + DELAY));
        high[0].class = PriorityClass::High;
        former.apply(Event::Arrived(standard.clone()), start);
        former.apply(Event::Room(0), start);
        former.apply(Event::Arrived(high.clone()), start);
        let first = former.apply(Event::Room(usize::MAX), start + DELAY);
        assert_eq!(first, [run(1, &high)]);
        let second = former.apply(Event::Finished(BatchId(1)), start + DELAY);
        assert_eq!(second, [run(2, &standard)]);
    }
}

mod continuous {
    use super::*;

    fn continuous(slots: &[usize]) -> BatchFormer {
        former(Policy::Continuous, slots)
    }

    #[test]
    fn every_row_is_a_call_of_its_own_in_any_mix_of_sizes() {
        let (mut former, start) = (continuous(&[3]), Instant::now());
        let (small, large) = (rows(1, 1, 64, start), rows(2, 3, 96, start));
        assert_eq!(
            former.apply(Event::Arrived(small.clone()), start),
            [run(1, &small)]
        );
        assert_eq!(
            former.apply(Event::Arrived(large.clone()), start),
            [run(2, &large[..1]), run(3, &large[1..2])]
        );
        assert_eq!(
            former.apply(Event::Finished(BatchId(2)), start),
            [run(4, &large[2..])]
        );
    }

    #[test]
    fn rows_go_where_most_slots_are_free() {
        let (mut former, start) = (continuous(&[2, 3]), Instant::now());
        let rows = rows(1, 6, 64, start);
        let engines: Vec<usize> = former
            .apply(Event::Arrived(rows), start)
            .iter()
            .filter_map(|action| match action {
                Action::Run { engine, .. } => Some(*engine),
                Action::WakeAt(_) => None,
            })
            .collect();
        assert_eq!(engines, [1, 0, 1, 0, 1]);
    }

    #[test]
    fn two_suspects_never_run_on_one_engine() {
        let (mut former, start) = (continuous(&[3, 1]), Instant::now());
        let mut four = rows(1, 4, 64, start);
        (four[0].alone, four[1].alone, four[2].alone) = (true, true, true);
        let actions = former.apply(Event::Arrived(four.clone()), start);
        // The third suspect waits, and the row behind it does not.
        let expected = [
            run_on(0, 1, &four[..1]),
            run_on(0, 2, &four[3..]),
            run_on(1, 3, &four[1..2]),
        ];
        assert_eq!(actions, expected);
        let actions = former.apply(Event::Finished(BatchId(1)), start);
        assert_eq!(actions, [run_on(0, 4, &four[2..3])]);
    }

    #[test]
    fn class_goes_before_deadline_and_deadline_before_age() {
        let (mut former, start) = (continuous(&[1]), Instant::now());
        former.apply(Event::Room(0), start);
        let at = |job, class, arrived_ms, deadline_s| {
            let arrived = start + Duration::from_millis(arrived_ms);
            let mut row = rows(job, 1, 64, arrived)[0];
            row.class = class;
            row.deadline = start + Duration::from_secs(deadline_s);
            row
        };
        let (high, standard) = (PriorityClass::High, PriorityClass::Standard);
        let waiting = [
            at(1, PriorityClass::Low, 0, 1),
            at(2, standard, 1, 20),
            at(3, standard, 0, 20),
            at(4, standard, 2, 10),
            at(5, high, 3, 99),
            at(6, standard, 1, 20),
        ];
        former.apply(Event::Arrived(waiting.to_vec()), start);
        let mut order = started(&former.apply(Event::Room(usize::MAX), start));
        for batch in 1..6 {
            order.extend(started(
                &former.apply(Event::Finished(BatchId(batch)), start),
            ));
        }
        let jobs = [5, 4, 3, 2, 6, 1].map(|job| rows(job, 1, 64, start)[0].output);
        assert_eq!(order, jobs);
    }

    #[test]
    fn waiting_raises_a_row_above_a_higher_class() {
        let start = Instant::now();
        for (waited, first) in [(AGING * 2, 2), (AGING * 3, 1)] {
            let mut former = continuous(&[1]);
            let now = start + waited;
            let (mut low, mut high) = (rows(1, 1, 64, start)[0], rows(2, 1, 64, now)[0]);
            (low.class, high.class) = (PriorityClass::Low, PriorityClass::High);
            // The deadline speaks for the young one at equal classes.
            high.deadline = low.deadline - DELAY;
            former.apply(Event::Room(0), now);
            former.apply(Event::Arrived(vec![low, high]), now);
            let ran = started(&former.apply(Event::Room(usize::MAX), now));
            assert_eq!(ran, [rows(first, 1, 64, start)[0].output], "{waited:?}");
        }
    }
}

#[test]
fn a_withdrawn_row_does_not_run() {
    let (mut former, start) = (batched(4), Instant::now());
    let (gone, kept) = (rows(1, 2, 64, start), rows(2, 1, 64, start));
    former.apply(Event::Arrived(gone.clone()), start);
    former.apply(Event::Arrived(kept.clone()), start);
    let outputs = gone.iter().map(|row| row.output).collect();
    former.apply(Event::Withdrawn(outputs), start);
    let ran = former.apply(Event::Woken, start + DELAY);
    assert_eq!(ran, [run(1, &kept)]);
}

#[test]
fn a_full_engine_brings_no_withdrawn_row_back() {
    let (mut former, start) = (batched(2), Instant::now());
    let two = rows(1, 2, 64, start);
    former.apply(Event::Arrived(two.clone()), start);
    former.apply(Event::Withdrawn(vec![two[0].output]), start);
    former.apply(Event::Full(BatchId(1)), start);
    let ran = former.apply(Event::Woken, start + FULL_PAUSE);
    assert_eq!(ran, [run(2, &two[1..])]);
}

#[test]
fn no_more_of_a_class_is_wanted_once_enough_of_it_waits() {
    let (mut former, start) = (former(Policy::Continuous, &[2]), Instant::now());
    let wanted = |former: &BatchFormer| PriorityClass::ALL.map(|class| former.wanted(class));
    former.apply(Event::Arrived(rows(1, 2, 64, start)), start);
    assert_eq!(wanted(&former), [4, 4, 4], "rows that run do not count");
    former.apply(Event::Arrived(rows(2, 3, 64, start)), start);
    assert_eq!(wanted(&former), [4, 1, 4]);
    former.apply(Event::Arrived(rows(3, 10, 64, start)), start);
    assert_eq!(wanted(&former), [4, 0, 4]);
}

#[test]
fn a_full_engine_gets_what_it_holds_and_one_more_with_each_end() {
    let (mut former, start) = (former(Policy::Continuous, &[4]), Instant::now());
    let six = rows(1, 6, 64, start);
    former.apply(Event::Arrived(six.clone()), start);
    // Two are refused while two others run: two is what it takes.
    assert_eq!(former.apply(Event::Full(BatchId(3)), start), []);
    assert_eq!(former.apply(Event::Full(BatchId(4)), start), []);
    // One ends: the refused rows are next, in their places, up to three in flight.
    let next = former.apply(Event::Finished(BatchId(1)), start);
    assert_eq!(next, [run(5, &six[2..3]), run(6, &six[3..4])]);
    let next = former.apply(Event::Finished(BatchId(2)), start);
    assert_eq!(next, [run(7, &six[4..5]), run(8, &six[5..])]);
}

#[test]
fn an_engine_that_is_full_with_nothing_of_ours_rests_before_the_next_try() {
    let (mut former, start) = (former(Policy::Continuous, &[2]), Instant::now());
    let one = rows(1, 1, 64, start);
    former.apply(Event::Arrived(one.clone()), start);
    let refused = former.apply(Event::Full(BatchId(1)), start);
    assert_eq!(refused, [Action::WakeAt(start + FULL_PAUSE)]);
    let early = former.apply(Event::Woken, start + FULL_PAUSE / 2);
    assert_eq!(early, [Action::WakeAt(start + FULL_PAUSE)]);
    let again = former.apply(Event::Woken, start + FULL_PAUSE);
    assert_eq!(again, [run(2, &one)]);
}

#[test]
fn an_engine_that_is_down_gets_nothing() {
    let (mut former, start) = (former(Policy::Continuous, &[2, 1]), Instant::now());
    former.apply(Event::Down { engine: 0 }, start);
    let three = rows(1, 3, 64, start);
    let ran = former.apply(Event::Arrived(three.clone()), start);
    assert_eq!(ran, [run_on(1, 1, &three[..1])]);
    let ran = former.apply(Event::Up { engine: 0 }, start);
    assert_eq!(ran, [run_on(0, 2, &three[1..2]), run_on(0, 3, &three[2..])]);
}

#[test]
fn without_room_nothing_starts_and_what_runs_goes_on() {
    let (mut former, start) = (batched(1), Instant::now());
    let (running, waiting) = (rows(1, 1, 64, start), rows(2, 1, 64, start));
    former.apply(Event::Arrived(running), start);
    former.apply(Event::Room(0), start);
    assert_eq!(
        former.apply(Event::Arrived(waiting.clone()), start + DELAY),
        []
    );
    assert_eq!(
        former.apply(Event::Finished(BatchId(1)), start + DELAY * 2),
        []
    );
    let ran = former.apply(Event::Room(usize::MAX), start + DELAY * 3);
    assert_eq!(ran, [run(2, &waiting)]);
}

#[test]
fn as_many_rows_start_as_there_is_room_for_and_a_batch_whole() {
    let start = Instant::now();
    let five = rows(1, 5, 64, start);
    let mut former = former(Policy::Continuous, &[8]);
    former.apply(Event::Room(2), start);
    let first = former.apply(Event::Arrived(five.clone()), start);
    assert_eq!(first, [run(1, &five[..1]), run(2, &five[1..2])]);
    assert_eq!(former.apply(Event::Finished(BatchId(1)), start), []);
    let second = former.apply(Event::Room(1), start);
    assert_eq!(second, [run(3, &five[2..3])]);

    let mut former = batched(8);
    former.apply(Event::Room(1), start);
    former.apply(Event::Arrived(five.clone()), start);
    let whole = former.apply(Event::Woken, start + DELAY);
    assert_eq!(whole, [run(1, &five)]);
}
