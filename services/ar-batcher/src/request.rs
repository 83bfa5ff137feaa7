//! A request in the batcher's hands: taken when its message comes, settled when each of its outputs is on its way.

use std::sync::Arc;

use batching::Row;
use messaging::Lease;
use protocol::{
    ArJob, DenoiseJob, OutputId, OutputIndex, OutputRequest, PriorityClass, UnixMillis,
};

use crate::engine::{Prior, PriorRow};

/// A held request.
pub(crate) struct Held {
    job: ArJob,
    prompt: Arc<str>,
    pub(crate) class: PriorityClass,
    /// Its span: the parent of everything published for it.
    pub(crate) span: tracing::Span,
    pub(crate) lease: Lease,
    /// Outputs not yet fanned out or answered.
    open: Vec<OutputIndex>,
}

/// When a batch ran.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchTimes {
    pub(crate) started_at: UnixMillis,
    pub(crate) finished_at: UnixMillis,
}

impl Held {
    /// A request of which the outputs `open` still need prior tokens.
    pub(crate) fn new(
        job: ArJob,
        open: Vec<OutputIndex>,
        class: PriorityClass,
        lease: Lease,
    ) -> Self {
        let prompt = Arc::from(job.prompt.as_str());
        Self {
            job,
            prompt,
            class,
            span: tracing::Span::current(),
            lease,
            open,
        }
    }

    /// The rows to run.
    pub(crate) fn rows(&self) -> Vec<Row> {
        self.open
            .iter()
            .map(|index| Row {
                output: self.job.job.output(*index),
                size: self.job.size,
                alone: false,
            })
            .collect()
    }

    fn output(&self, index: OutputIndex) -> Option<&OutputRequest> {
        self.job.outputs.iter().find(|output| output.index == index)
    }

    /// The engine's row of `output`; `None` for an output that is not this request's.
    pub(crate) fn prior_row(&self, output: OutputId) -> Option<PriorRow> {
        let request = self.output(output.index)?;
        Some(PriorRow {
            output,
            prompt: Arc::clone(&self.prompt),
            seed: request.seed,
        })
    }

    /// The denoise message of `output`.
    pub(crate) fn denoise_job(
        &self,
        output: OutputId,
        prior: Prior,
        times: BatchTimes,
    ) -> Option<DenoiseJob> {
        let request = self.output(output.index)?;
        Some(DenoiseJob {
            output,
            prompt: self.job.prompt.clone(),
            seed: request.seed,
            size: self.job.size,
            format: self.job.format,
            denoise: self.job.denoise,
            prior: prior.tokens,
            usage: prior.usage,
            accepted_at: self.job.accepted_at,
            ar_started_at: times.started_at,
            ar_finished_at: times.finished_at,
            deadline_at: self.job.deadline_at,
        })
    }

    /// When the gateway accepted it.
    pub(crate) fn accepted_at(&self) -> UnixMillis {
        self.job.accepted_at
    }

    /// `output` is on its way or answered; says whether all are.
    pub(crate) fn settle(&mut self, output: OutputId) -> bool {
        self.open.retain(|index| *index != output.index);
        self.open.is_empty()
    }
}
