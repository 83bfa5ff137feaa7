//! A fleet in virtual time: the AR-batcher's own rules ([`BatchFormer`], [`Backlog`]), the step-rate model of its
//! engine ([`Flight`]), and denoisers that take one output at a time, the oldest first. What is left out is what the
//! real one is measured for: the broker, HTTP, and everybody's overhead.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    time::{Duration, Instant},
};

use batching::{Action, Backlog, BatchFormer, BatchId, Ends, Event, Limits, Look, Policy, Row};
use protocol::{JobId, OutputId, OutputIndex, PriorityClass};
use replay::{Flight, Times, generated_tokens};

use crate::bench::{
    load::Load,
    summary::{Answered, Busy, Record, Recorder, Stages},
};

/// Long after everything. Equal for all, so that it decides nothing.
const DEADLINE: Duration = Duration::from_secs(86_400);

/// What `load` would see of a fleet with these stages.
pub(crate) fn simulate(times: &Times, load: &Load, stages: Stages, policy: Policy) -> Record {
    let start = Instant::now();
    let mut simulation = Simulation::new(times, load, stages, policy, start);
    for _ in 0..load.at_once() {
        simulation.send(start);
    }
    while let Some(now) = simulation.step() {
        simulation.recorder.edge(now - start);
    }
    simulation.recorder.finish()
}

/// A request whose pictures are not all there.
struct Open {
    request: usize,
    sent_at: Instant,
    left: u8,
    busy: Busy,
}

struct Simulation<'a> {
    load: &'a Load,
    picture: Duration,
    start: Instant,
    recorder: Recorder<'a>,
    /// Of an open load, those to come.
    arrivals: VecDeque<Duration>,
    open: BTreeMap<JobId, Open>,
    former: BatchFormer,
    wake_at: Option<Instant>,
    flight: Flight<BatchId>,
    /// What runs on the AR engine: since when, and how many rows have not finished.
    batches: BTreeMap<BatchId, (Instant, Vec<OutputId>, usize)>,
    backlog: Backlog,
    /// What the rules know.
    room: usize,
    /// Written, and not with a denoiser yet.
    written: VecDeque<OutputId>,
    idle_denoisers: usize,
    painting: BinaryHeap<Reverse<(Instant, OutputId)>>,
}

/// What happens next.
#[derive(Clone, Copy)]
enum Next {
    Arrival,
    Wake,
    Row,
    Picture,
}

impl<'a> Simulation<'a> {
    fn new(times: &Times, load: &'a Load, stages: Stages, policy: Policy, start: Instant) -> Self {
        let mut backlog = Backlog::new(None);
        let look = Look {
            outputs: 0,
            denoisers: stages.denoisers as u64,
            batchers: 1,
        };
        backlog.looked(backlog.mark(), look);
        Self {
            load,
            picture: times.picture(load.steps),
            start,
            recorder: Recorder::new(load),
            arrivals: load.schedule().into(),
            open: BTreeMap::new(),
            former: BatchFormer::new(Limits {
                policy,
                slots: vec![stages.ar_slots],
                waiting_max: usize::MAX,
            }),
            wake_at: None,
            flight: Flight::new(times.clone()),
            batches: BTreeMap::new(),
            backlog,
            room: usize::MAX,
            written: VecDeque::new(),
            idle_denoisers: stages.denoisers,
            painting: BinaryHeap::new(),
        }
    }

    /// Lets the next thing happen; says when. None when nothing is left to happen.
    fn step(&mut self) -> Option<Instant> {
        let arrival = self.arrivals.front().map(|at| self.start + *at);
        let picture = self.painting.peek().map(|Reverse((at, _))| *at);
        let candidates = [
            (arrival, Next::Arrival),
            (self.wake_at, Next::Wake),
            (self.flight.next_finish(), Next::Row),
            (picture, Next::Picture),
        ];
        let candidates = candidates
            .into_iter()
            .filter_map(|(at, next)| Some((at?, next)));
        let (now, next) = candidates.min_by_key(|(at, _)| *at)?;
        match next {
            Next::Arrival => {
                self.arrivals.pop_front();
                self.send(now);
            }
            Next::Wake => self.form(Event::Woken, now),
            Next::Row => {
                for batch in self.flight.finished(now) {
                    self.row_finished(batch, now);
                }
            }
            Next::Picture => {
                if let Some(Reverse((_, output))) = self.painting.pop() {
                    self.painted(output, now);
                }
            }
        }
        Some(now)
    }

    fn send(&mut self, now: Instant) {
        let Some(request) = self.recorder.send() else {
            return;
        };
        let job = JobId::from_u128(request as u128);
        let size = self.load.size(request);
        let row = |index| Row {
            output: job.output(index),
            size,
            class: PriorityClass::Standard,
            arrived: now,
            deadline: now + DEADLINE,
            alone: false,
        };
        let open = Open {
            request,
            sent_at: now,
            left: self.load.n,
            busy: Busy::default(),
        };
        self.open.insert(job, open);
        self.form(
            Event::Arrived(OutputIndex::first(self.load.n).map(row).collect()),
            now,
        );
    }

    /// Does what the rules answer to `event`.
    fn form(&mut self, event: Event, now: Instant) {
        self.wake_at = None;
        for action in self.former.apply(event, now) {
            match action {
                Action::WakeAt(at) => self.wake_at = Some(at),
                Action::Run { batch, rows, .. } => {
                    self.room = self.room.saturating_sub(rows.len());
                    for row in &rows {
                        self.flight.join(batch, generated_tokens(row.size), now);
                    }
                    let outputs: Vec<_> = rows.iter().map(|row| row.output).collect();
                    let left = outputs.len();
                    self.batches.insert(batch, (now, outputs, left));
                }
            }
        }
    }

    fn row_finished(&mut self, batch: BatchId, now: Instant) {
        let Some((.., left)) = self.batches.get_mut(&batch) else {
            return;
        };
        *left -= 1;
        if *left > 0 {
            return;
        }
        if let Some((since, outputs, _)) = self.batches.remove(&batch) {
            for output in &outputs {
                if let Some(open) = self.open.get_mut(&output.job) {
                    open.busy.ar += now - since;
                }
            }
            self.backlog.ran(now - since);
            self.backlog.fanned_out(outputs.len() as u64);
            self.written.extend(outputs);
            self.paint(now);
            self.look_for_room(now);
            self.form(Event::Finished(batch), now);
        }
    }

    /// Every idle denoiser takes an output.
    fn paint(&mut self, now: Instant) {
        while self.idle_denoisers > 0
            && let Some(output) = self.written.pop_front()
        {
            self.idle_denoisers -= 1;
            self.painting.push(Reverse((now + self.picture, output)));
        }
    }

    fn painted(&mut self, output: OutputId, now: Instant) {
        self.idle_denoisers += 1;
        let painted = Ends {
            outputs: 1,
            pictures: 1,
        };
        self.backlog.ended(painted, now);
        self.paint(now);
        self.look_for_room(now);
        let Some(open) = self.open.get_mut(&output.job) else {
            return;
        };
        open.busy.denoise += self.picture;
        open.left -= 1;
        if open.left == 0
            && let Some(open) = self.open.remove(&output.job)
        {
            self.recorder.answer(Answered {
                request: open.request,
                sent_at: open.sent_at - self.start,
                at: now - self.start,
                outcome: Ok(open.busy),
            });
            if self.load.at_once() > 0 {
                self.send(now);
            }
        }
    }

    /// Tells the rules what room there is, if that is news.
    fn look_for_room(&mut self, now: Instant) {
        let running = self.batches.values();
        let running = running.map(|(_, outputs, _)| outputs.len()).sum();
        let room = self.backlog.rows_room(0, running);
        if room != self.room {
            self.room = room;
            self.form(Event::Room(room), now);
        }
    }
}

#[cfg(test)]
#[path = "simulation_tests.rs"]
mod tests;
