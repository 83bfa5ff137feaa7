//! What a batch came to, row by row: fanned out, tried again, left to another batcher, or answered for.

use std::{sync::Arc, time::Duration};

use batching::{BatchId, Event, is_retried};
use messaging::KnownLife;
use protocol::{JobId, OutputId};
use service::{clock::unix_millis, telemetry::spans};
use tracing::Instrument;

use super::{Driver, Running, hands::News};
use crate::{
    batch::{BatchEnd, How, RowEnd},
    engine::EngineError,
    request::{BatchTimes, Doing, Request, Rest},
    settle::{self, Fate},
};

impl Driver {
    /// The engine's slots are free before the batch's outputs are stored.
    pub(super) fn ran(&mut self, end: BatchEnd) -> Result<(), EngineError> {
        let BatchEnd { id, how, rows } = end;
        let Some(running) = self.running.remove(&id) else {
            return Ok(());
        };
        if let How::Gone(error) = how {
            self.leave_open(running);
            return Err(error);
        }
        self.judge_engine(running.engine, &rows);
        if matches!(how, How::Full) {
            self.full(id, &rows);
            self.apply(Event::Full(id));
        } else {
            let wrote =
                |(_, end): &(_, RowEnd)| matches!(end, RowEnd::Ran(Ok(_), _) | RowEnd::Cached(_));
            if rows.iter().any(wrote) {
                let took_ms = unix_millis().saturating_sub(running.started_at);
                self.ahead.ran(Duration::from_millis(took_ms));
            }
            self.apply(Event::Finished(id));
        }
        let times = BatchTimes {
            started_at: running.started_at,
            finished_at: unix_millis(),
        };
        for (known, row) in rows {
            let output = known.output();
            let open = self.held_of(output).and_then(|held| held.output(output));
            if let Some(open) = open
                && open.doing() == Doing::Running(id)
            {
                if let RowEnd::Ran(Err(error), _) = &row {
                    spans::fail(open.stage(), error.code);
                }
                self.settle(known, row, times);
            }
        }
        // Rows that did not start, or that the engine refused, had taken room.
        self.see_room();
        self.changed();
        Ok(())
    }

    /// Any row of a dead engine may be what took it down: their attempts stay open, and count.
    fn leave_open(&mut self, dead: Running) {
        let engine = dead.engine;
        let there = self.running.extract_if(|_, other| other.engine == engine);
        let there: Vec<Running> = there.map(|(_, running)| running).collect();
        for output in there
            .into_iter()
            .chain([dead])
            .flat_map(|dead| dead.outputs)
        {
            if let Some(held) = self.held_of(output) {
                held.park(output);
            }
        }
    }

    /// Rows that the full engine would have run wait again; the batch's others do not.
    fn full(&mut self, id: BatchId, rows: &[(KnownLife, RowEnd)]) {
        let mut gone = Vec::new();
        for (known, row) in rows {
            let output = known.output();
            let held = self.held_of(output).filter(|held| {
                held.needs(output) && held.doing(output) == Some(Doing::Running(id))
            });
            match (row, held) {
                (RowEnd::Stopped, Some(held)) => drop(held.again(output, known.clone())),
                _ => gone.push(output),
            }
        }
        if !gone.is_empty() {
            self.apply(Event::Withdrawn(gone));
        }
    }

    /// A batch of which nothing came back is one failure, however many rows it had.
    fn judge_engine(&mut self, engine: usize, rows: &[(KnownLife, RowEnd)]) {
        let failed =
            |end: &RowEnd| matches!(end, RowEnd::Ran(Err(error), _) if is_retried(error.code));
        let fine = |end: &RowEnd| matches!(end, RowEnd::Ran(outcome, _) if outcome.is_ok());
        if rows.iter().any(|(_, end)| fine(end)) {
            self.engines.succeeded(engine);
        } else if let Some((known, _)) = rows.iter().find(|(_, end)| failed(end)) {
            self.failed(engine, known.output());
        }
    }

    fn settle(&mut self, known: KnownLife, row: RowEnd, times: BatchTimes) {
        let output = known.output();
        let Some(held) = self.held_of(output) else {
            return;
        };
        if !held.needs(output) {
            held.settle(output);
            self.bench.counters.withdrawn.inc();
            return self.close_if_done(output.job);
        }
        let bench = Arc::clone(&self.bench);
        self.hand_over(output, Doing::Settling, async move |request| {
            settle::settle(&bench, &request, known, row, times).await
        });
    }

    /// Lets a task do the rest for `output`.
    pub(super) fn hand_over<F: Future<Output = Fate> + Send + 'static>(
        &mut self,
        output: OutputId,
        doing: Doing,
        work: impl FnOnce(Arc<Request>) -> F,
    ) {
        let Some(held) = self.held_of(output) else {
            return;
        };
        let request = Arc::clone(&held.request);
        if let Some(open) = held.output(output) {
            open.now(doing, &request.span);
        }
        let span = request.span.clone();
        let passed = match doing {
            Doing::Passing(batch) => Some(batch),
            _ => None,
        };
        let work = work(request);
        let task = async move {
            let fate = work.await;
            News::Settled {
                output,
                passed,
                fate,
            }
        };
        self.settling += 1;
        self.hands.task(task.instrument(span));
    }

    pub(super) fn settled(&mut self, output: OutputId, passed: Option<BatchId>, fate: Fate) {
        self.settling -= 1;
        if matches!(fate, Fate::FannedOut(_)) {
            self.ahead.fanned_out();
        }
        self.see_room();
        if let Some(batch) = passed {
            self.pass(Event::Finished(batch));
        }
        // Given back meanwhile, it may even be held again: then it is in no task's hands.
        let doing = self.held_of(output).and_then(|held| held.doing(output));
        if let Some(held) = self.held.get_mut(&output.job)
            && doing.is_some_and(Doing::tells)
        {
            let row = match fate {
                Fate::FannedOut(known) => {
                    if let Some(open) = held.settle(output) {
                        self.tell_written(known, open.watch);
                    }
                    None
                }
                Fate::Answered => {
                    held.settle(output);
                    None
                }
                Fate::Retry { known, suspect } => held.retry(output, known, suspect),
                Fate::Again(known) => held.again(output, known),
                Fate::Park => {
                    held.park(output);
                    None
                }
                Fate::ParkForAnother => {
                    held.park_for_another(output);
                    None
                }
            };
            if let Some(row) = row {
                self.apply(Event::Arrived(vec![row]));
            }
            self.close_if_done(output.job);
        }
        self.changed();
    }

    /// Lets the message go when nothing of it is left here.
    pub(super) fn close_if_done(&mut self, job: JobId) {
        let Some(rest) = self.held.get(&job).map(|held| held.rest()) else {
            return;
        };
        if rest == Rest::Keep {
            return;
        }
        let Some(held) = self.held.remove(&job) else {
            return;
        };
        if let Some(lease) = held.close(rest) {
            self.hands.ack(lease);
        }
    }
}
