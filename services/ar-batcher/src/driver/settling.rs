//! What a batch came to, row by row: fanned out, tried again, left to another batcher, or answered for.

use batching::{Event, Row, Start, is_retried, may_start};
use protocol::{JobError, LifeEvent, OutputId, WorkStage};
use service::clock::unix_millis;
use tracing::Instrument;

use super::{Driver, Running};
use crate::{
    batch::RowEnd,
    engine::RowOutcome,
    request::{BatchTimes, Held},
    settle,
};

impl Driver<'_> {
    /// The next batch is on the device before this one's outputs are stored. When the broker takes longer than that
    /// batch, the engine waits: the back-pressure that keeps a batcher from running ahead of a full queue.
    pub(super) async fn finished(&mut self, ends: Vec<(OutputId, RowEnd)>) {
        let Some(Running { id, started_at, .. }) = self.running.take() else {
            return;
        };
        let times = BatchTimes {
            started_at,
            finished_at: unix_millis(),
        };
        self.judge_engine(&ends);
        self.unsettled = ends.iter().map(|(output, _)| *output).collect();
        self.apply(Event::Finished(id));
        for (output, end) in ends {
            self.settle(output, end, times).await;
            self.unsettled.retain(|unsettled| *unsettled != output);
        }
        self.show_work();
    }

    /// A batch of which nothing came back is one failure, however many rows it had.
    fn judge_engine(&mut self, ends: &[(OutputId, RowEnd)]) {
        let failed =
            |end: &RowEnd| matches!(end, RowEnd::Ran(Err(error)) if is_retried(error.code));
        let fine = |end: &RowEnd| matches!(end, RowEnd::Ran(outcome) if outcome.is_ok());
        if ends.iter().any(|(_, end)| fine(end)) {
            self.breaker.succeeded();
        } else if let Some((output, _)) = ends.iter().find(|(_, end)| failed(end)) {
            self.breaker.failed(*output);
        }
    }

    async fn settle(&mut self, output: OutputId, end: RowEnd, times: BatchTimes) {
        let Some(mut held) = self.held.remove(&output.job) else {
            return;
        };
        let span = held.span.clone();
        let again = self
            .settle_row(&mut held, output, end, times)
            .instrument(span)
            .await;
        if let Some(held) = self.parts.bench.keep(held).await {
            self.held.insert(output.job, held);
        }
        if let Some(row) = again {
            self.apply(Event::Arrived(vec![row]));
        }
    }

    /// What a row came to; a row that is to run again is returned.
    async fn settle_row(
        &self,
        held: &mut Held,
        output: OutputId,
        end: RowEnd,
        times: BatchTimes,
    ) -> Option<Row> {
        let bench = &self.parts.bench;
        match end {
            _ if !held.needs(output) => bench.counters.withdrawn.inc(),
            RowEnd::Refused => bench.counters.withdrawn.inc(),
            RowEnd::Unrecorded => {
                held.park(output);
                return None;
            }
            RowEnd::Ran(outcome) => return self.ran(held, output, outcome, times).await,
        };
        held.settle(output);
        None
    }

    async fn ran(
        &self,
        held: &mut Held,
        output: OutputId,
        outcome: RowOutcome,
        times: BatchTimes,
    ) -> Option<Row> {
        let bench = &self.parts.bench;
        bench.counters.row(outcome.is_ok());
        match outcome {
            Ok(prior) => settle::fan_out(bench, held, output, prior, times).await,
            Err(error) if is_retried(error.code) => return self.retry(held, output, error).await,
            Err(error) => settle::refuse(bench, held, output, error).await,
        }
        held.settle(output);
        None
    }

    /// A row that failed runs again, alone; or elsewhere; or never.
    async fn retry(&self, held: &mut Held, output: OutputId, error: JobError) -> Option<Row> {
        let bench = &self.parts.bench;
        tracing::warn!(%output, code = %error.code, error = error.text, "attempt failed");
        let (stage, worker) = (WorkStage::Prior, bench.member.id.clone());
        let failed = LifeEvent::AttemptFailed {
            stage,
            worker,
            error,
        };
        let known = async {
            let life = bench.advanced(output, failed).await?;
            let others = bench.others_if_tried(life.as_slice()).await?;
            Ok::<_, messaging::BusError>(life.map(|life| (life, others)))
        };
        let (life, others) = match known.await {
            Ok(Some(known)) => known,
            Ok(None) => {
                held.park_for_another(output);
                return None;
            }
            // Nothing is known: it is not ours to try.
            Err(_) => {
                held.park(output);
                return None;
            }
        };
        match may_start(&life, stage, &bench.member.id, others, bench.attempts_max) {
            Start::Go => return held.suspect(output),
            Start::PassOn => held.park(output),
            Start::GiveUp => bench.give_up(held, life).await,
        }
        None
    }
}
