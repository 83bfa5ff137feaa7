//! A batch goes to an engine.

use std::sync::Arc;

use batching::{BatchId, Row};
use protocol::{
    ImageSize,
    trace::{attribute, span},
};
use service::{clock::unix_millis, telemetry::spans::is_sampled};
use tracing::{Instrument, Span};

use super::{Driver, Running, hands::News};
use crate::{batch::Batch, request::Doing};

impl Driver {
    /// Starts those of `rows` that still need it; says whether there were any.
    pub(super) fn start(&mut self, id: BatchId, engine: usize, rows: &[Row]) -> bool {
        let now = unix_millis();
        let Some(first) = rows.first() else {
            return false;
        };
        let (mut outputs, mut run, mut spans) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let Some(held) = self.held.get_mut(&row.output.job) else {
                continue;
            };
            if !held.needs(row.output) || !held.request.in_time(now) {
                continue;
            }
            let request = Arc::clone(&held.request);
            let (Some(prior_row), Some(open)) =
                (request.prior_row(row.output), held.output(row.output))
            else {
                continue;
            };
            open.now(Doing::Running(id), &request.span);
            spans.push((request.span.clone(), open.stage().clone()));
            outputs.push(row.output);
            run.push((prior_row, open.known.clone()));
        }
        if run.is_empty() {
            return false;
        }
        let span = batch_span(&spans, first.size);
        tracing::debug!(parent: &span, "batch started");
        let stop = self.stop.child_token();
        let batch = Batch {
            bench: Arc::clone(&self.bench),
            id,
            engine: self.engines.engine(engine),
            size: first.size,
            running: self.running_outputs() + run.len(),
            rows: run,
            stop: stop.clone(),
            stall_max: self.retry.stall_max,
        };
        let run = async move { News::Ran(batch.run().await) };
        self.hands.task(run.instrument(span));
        let running = Running {
            engine,
            outputs,
            started_at: now,
            stop,
            unneeded: false,
        };
        self.running.insert(id, running);
        self.changed();
        true
    }
}

/// The span of a batch of rows, each with its request's span and its own: linked to each of them. A span has one parent
/// only; it is the oldest request that a collector is to hear of, so that a batch is seen where a job of it is.
fn batch_span(rows: &[(Span, Span)], size: ImageSize) -> Span {
    let requests = || rows.iter().map(|(request, _)| request);
    let parent = requests().find(|request| is_sampled(request));
    let parent = parent.or(requests().next()).and_then(Span::id);
    let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    let batch = tracing::info_span!(
        parent: parent,
        span::AR_BATCH,
        { attribute::MESSAGING_BATCH_MESSAGE_COUNT } = count,
        { attribute::SIZE } = %size,
    );
    for (_, row) in rows {
        batch.follows_from(row);
    }
    batch
}
