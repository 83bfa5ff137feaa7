//! A batch goes to an engine.

use std::sync::Arc;

use batching::{BatchId, Row};
use service::clock::unix_millis;
use tracing::Instrument;

use super::{Driver, Running, hands::News};
use crate::{batch::Batch, request::Doing};

impl Driver {
    /// Starts those of `rows` that still need it; says whether there were any.
    pub(super) fn start(&mut self, id: BatchId, engine: usize, rows: &[Row]) -> bool {
        let now = unix_millis();
        let Some(first) = rows.first() else {
            return false;
        };
        // The batch is one span; it follows from every request in it.
        let span = tracing::info_span!("ar batch", rows = rows.len(), size = %first.size);
        let (mut outputs, mut run) = (Vec::new(), Vec::new());
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
            open.doing = Doing::Running(id);
            span.follows_from(&request.span);
            outputs.push(row.output);
            run.push((prior_row, open.known.clone()));
        }
        if run.is_empty() {
            return false;
        }
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
