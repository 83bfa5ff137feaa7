//! What holds for any load and any fate of its batches.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;
use protocol::{JobId, OutputIndex};

use super::*;
use crate::AGING;

/// What happens next to the world outside the former; numbers choose among what there is.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Arrive {
        outputs: u8,
        side: u32,
        class: usize,
        deadline: u32,
        alone: bool,
    },
    Finish(usize),
    Full(usize),
    Withdraw(usize),
    Down(usize),
    Up(usize),
    Room(usize),
    Pass(u64),
}

fn turn() -> impl Strategy<Value = Turn> {
    let arrive = (1u8..=4, 1u32..4, 0usize..3, 1u32..4, any::<bool>());
    prop_oneof![
        4 => arrive.prop_map(|(outputs, side, class, deadline, alone)| Turn::Arrive { outputs, side, class, deadline, alone }),
        4 => any::<usize>().prop_map(Turn::Finish),
        1 => any::<usize>().prop_map(Turn::Full),
        1 => any::<usize>().prop_map(Turn::Withdraw),
        1 => (0usize..3).prop_map(Turn::Down),
        1 => (0usize..3).prop_map(Turn::Up),
        1 => prop_oneof![0usize..4, Just(usize::MAX)].prop_map(Turn::Room),
        2 => (0u64..60_000).prop_map(Turn::Pass),
    ]
}

/// The order of the continuous policy, written down once more: class less agings, deadline, age, name.
fn turn_of(row: &Row, now: Instant) -> (i64, Instant, Instant, OutputId) {
    let class = match row.class {
        PriorityClass::High => 0,
        PriorityClass::Standard => 1,
        PriorityClass::Low => 2,
    };
    let agings = (now - row.arrived).as_secs() / AGING.as_secs();
    let agings = i64::try_from(agings).expect("a test is short");
    (class - agings, row.deadline, row.arrived, row.output)
}

fn policy() -> impl Strategy<Value = Policy> {
    let delay = Duration::from_millis(20);
    prop_oneof![Just(Policy::Continuous), Just(Policy::Batched { delay })]
}

/// The world: what runs, what came, what became of it.
struct World {
    former: BatchFormer,
    policy: Policy,
    slots: Vec<usize>,
    now: Instant,
    jobs: u128,
    running: BTreeMap<BatchId, (usize, Vec<Row>)>,
    came: BTreeSet<OutputId>,
    /// Neither running nor done nor withdrawn.
    waiting: BTreeMap<OutputId, Row>,
    withdrawn: BTreeSet<OutputId>,
    /// Rows that an engine took and finished.
    done: BTreeSet<OutputId>,
    down: BTreeSet<usize>,
    room: usize,
    wake_at: Option<Instant>,
    /// Everything that was decided, for comparison.
    actions: Vec<Action>,
}

impl World {
    fn new(policy: Policy, slots: &[usize], now: Instant) -> Self {
        let limits = Limits {
            policy,
            slots: slots.to_vec(),
            waiting_max: 4,
        };
        Self {
            former: BatchFormer::new(limits),
            policy,
            slots: slots.to_vec(),
            now,
            jobs: 0,
            running: BTreeMap::new(),
            came: BTreeSet::new(),
            waiting: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            done: BTreeSet::new(),
            down: BTreeSet::new(),
            room: usize::MAX,
            wake_at: None,
            actions: Vec::new(),
        }
    }

    fn chosen(&self, number: usize) -> Option<BatchId> {
        let place = number.checked_rem(self.running.len())?;
        self.running.keys().nth(place).copied()
    }

    fn event(&mut self, turn: Turn) -> Option<Event> {
        Some(match turn {
            Turn::Arrive {
                outputs,
                side,
                class,
                deadline,
                alone,
            } => {
                self.jobs += 1;
                let job = JobId::from_u128(self.jobs);
                let rows: Vec<Row> = OutputIndex::first(outputs)
                    .map(|index| Row {
                        output: job.output(index),
                        size: ImageSize::new(side * 32, 32).expect("multiples of 32"),
                        class: PriorityClass::ALL[class],
                        arrived: self.now,
                        deadline: self.now + AGING * deadline,
                        alone,
                    })
                    .collect();
                self.came.extend(rows.iter().map(|row| row.output));
                self.waiting
                    .extend(rows.iter().map(|row| (row.output, *row)));
                Event::Arrived(rows)
            }
            Turn::Finish(number) => {
                let batch = self.chosen(number)?;
                let (_, rows) = self.running.remove(&batch)?;
                self.done.extend(rows.iter().map(|row| row.output));
                Event::Finished(batch)
            }
            Turn::Full(number) => {
                let batch = self.chosen(number)?;
                let (_, rows) = self.running.remove(&batch)?;
                let back = rows.iter().map(|row| (row.output, *row));
                let needed = back.filter(|(output, _)| !self.withdrawn.contains(output));
                self.waiting.extend(needed);
                Event::Full(batch)
            }
            Turn::Withdraw(number) => {
                let open: Vec<OutputId> = self.came.difference(&self.done).copied().collect();
                let output = *open.get(number.checked_rem(open.len())?)?;
                self.withdrawn.insert(output);
                self.waiting.remove(&output);
                Event::Withdrawn(vec![output])
            }
            Turn::Down(engine) => {
                self.down.insert(engine);
                Event::Down { engine }
            }
            Turn::Up(engine) => {
                self.down.remove(&engine);
                Event::Up { engine }
            }
            Turn::Room(room) => {
                self.room = room;
                Event::Room(room)
            }
            Turn::Pass(ms) => {
                self.now += Duration::from_millis(ms);
                Event::Woken
            }
        })
    }

    fn turn(&mut self, turn: Turn) -> Result<(), TestCaseError> {
        let Some(event) = self.event(turn) else {
            return Ok(());
        };
        let actions = self.former.apply(event, self.now);
        self.wake_at = None;
        for action in &actions {
            match action {
                Action::Run {
                    batch,
                    engine,
                    rows,
                } => self.started(*batch, *engine, rows)?,
                Action::WakeAt(at) => {
                    prop_assert!(*at > self.now, "an alarm that has rung already");
                    self.wake_at = Some(*at);
                }
            }
        }
        self.actions.extend(actions);
        Ok(())
    }

    fn started(
        &mut self,
        batch: BatchId,
        engine: usize,
        rows: &[Row],
    ) -> Result<(), TestCaseError> {
        prop_assert!(!rows.is_empty());
        prop_assert!(self.room > 0, "a batch starts without room");
        self.room = self.room.saturating_sub(rows.len());
        prop_assert!(
            !self.down.contains(&engine),
            "a batch starts on engine {engine}"
        );
        for row in rows {
            self.waiting.remove(&row.output);
            prop_assert!(
                !self.withdrawn.contains(&row.output),
                "a withdrawn row runs"
            );
            prop_assert!(!self.done.contains(&row.output), "a row runs again");
        }
        if matches!(self.policy, Policy::Continuous) {
            prop_assert_eq!(rows.len(), 1);
            let turn = turn_of(&rows[0], self.now);
            // Suspects may have to wait for each other.
            let before = self.waiting.values().filter(|row| !row.alone);
            let before = before.filter(|row| turn_of(row, self.now) < turn);
            prop_assert_eq!(before.count(), 0, "a row is overtaken");
            let there = self.running.values().filter(|(at, _)| *at == engine);
            let suspects = there.flat_map(|(_, rows)| rows).filter(|row| row.alone);
            prop_assert!(
                !rows[0].alone || suspects.count() == 0,
                "two suspects together"
            );
        } else {
            let there = self.running.values().filter(|(at, _)| *at == engine);
            prop_assert_eq!(there.count(), 0, "two batches on one engine");
            prop_assert!(rows.iter().all(|row| row.size == rows[0].size));
            prop_assert!(rows.len() == 1 || rows.iter().all(|row| !row.alone));
        }
        let before = self.running.insert(batch, (engine, rows.to_vec()));
        prop_assert!(before.is_none(), "a batch's name is used twice");
        let there = self.running.values().filter(|(at, _)| *at == engine);
        let in_flight: usize = there.map(|(_, rows)| rows.len()).sum();
        prop_assert!(in_flight <= self.slots[engine]);
        let running = self.running.values().flat_map(|(_, rows)| rows);
        let outputs: BTreeSet<OutputId> = running.clone().map(|row| row.output).collect();
        prop_assert_eq!(outputs.len(), running.count(), "a row runs twice at once");
        Ok(())
    }

    /// Lets everything that is left run to its end.
    fn finish(&mut self) -> Result<(), TestCaseError> {
        for engine in 0..self.slots.len() {
            self.turn(Turn::Up(engine))?;
        }
        self.turn(Turn::Room(usize::MAX))?;
        for _ in 0..10_000 {
            match (self.running.is_empty(), self.wake_at) {
                (false, _) => self.turn(Turn::Finish(0))?,
                (true, Some(at)) => {
                    self.now = self.now.max(at);
                    self.turn(Turn::Pass(0))?;
                }
                (true, None) => return Ok(()),
            }
        }
        Err(TestCaseError::fail("it never ends"))
    }
}

proptest! {
    #[test]
    fn every_row_runs_to_its_end_once_within_the_slots(
        policy in policy(),
        slots in prop::collection::vec(1usize..5, 1..=3),
        turns in prop::collection::vec(turn(), 1..60),
    ) {
        let mut world = World::new(policy, &slots, Instant::now());
        for turn in turns {
            world.turn(turn)?;
        }
        world.finish()?;
        let ended: BTreeSet<OutputId> = world.done.union(&world.withdrawn).copied().collect();
        prop_assert_eq!(ended, world.came);
    }

    #[test]
    fn the_same_events_give_the_same_actions(
        policy in policy(),
        turns in prop::collection::vec(turn(), 1..40),
    ) {
        let now = Instant::now();
        let [first, second] = [(); 2].map(|()| {
            let mut world = World::new(policy, &[2, 3], now);
            for turn in &turns {
                world.turn(*turn).expect("holds, by the other property");
            }
            world.actions
        });
        prop_assert_eq!(first, second);
    }

    /// With one slot, one row in it at a time and a new row of the highest class whenever it is free: the lowest row
    /// runs after at most the rows that came before it had waited three times [`AGING`].
    #[test]
    fn nothing_that_comes_three_agings_later_overtakes_a_row(
        policy in policy(),
        row_ms in 1_000u64..20_000,
        sides in prop::collection::vec(1u32..4, 1..8),
        per_row in 1usize..4,
    ) {
        let start = Instant::now();
        let limits = Limits { policy, slots: vec![1], waiting_max: 4 };
        let (mut former, mut now) = (BatchFormer::new(limits), start);
        let row = |job: usize, class, side: u32, arrived: Instant, deadline| Row {
            output: JobId::from_u128(job as u128).output(OutputIndex::FIRST),
            size: ImageSize::new(side * 32, 32).expect("multiples of 32"),
            class,
            arrived,
            deadline,
            alone: false,
        };
        let low = row(0, PriorityClass::Low, 4, start, start + AGING * 1_000);
        let (mut sides, mut jobs) = (sides.iter().cycle(), 0);
        let mut high = |now: Instant| {
            jobs += 1;
            // As urgent as can be.
            row(jobs, PriorityClass::High, *sides.next().expect("endless"), now, now)
        };
        let mut actions = former.apply(Event::Arrived(vec![high(start), low]), now);
        loop {
            let ran = actions.iter().find_map(|action| match action {
                Action::Run { batch, rows, .. } => Some((*batch, rows[0])),
                Action::WakeAt(_) => None,
            });
            let Some((batch, ran)) = ran else {
                now += Duration::from_millis(20);
                actions = former.apply(Event::Woken, now);
                continue;
            };
            if ran.output == low.output {
                break;
            }
            prop_assert!(ran.arrived < start + AGING * 3, "a row of {:?} later overtakes", ran.arrived - start);
            now += Duration::from_millis(row_ms);
            let came = (0..per_row).map(|_| high(now)).collect();
            former.apply(Event::Arrived(came), now);
            actions = former.apply(Event::Finished(batch), now);
        }
    }
}
