//! Ends that a gateway makes: of outputs whose time is over, and of jobs that nobody wants any more. Both are
//! results like any other, through the same fence: whatever a worker stored before stays.

use futures::future::join_all;
use messaging::{BusError, Fence};
use protocol::{ErrorCode, JobError, JobRecord, OutputIndex, OutputResult};
use service::{clock::unix_millis, exit::chain};

use crate::{
    jobs::{Jobs, OpenJob},
    outcome::{Absence, Cause, Ended, EndedByOutput},
    reply::ApiError,
};

impl Jobs {
    /// Ends `output`, unless it has a result already. Returns the result it has in the end; while that is not known,
    /// because the broker does not answer, it says so instead of guessing: it may be a picture.
    pub(crate) async fn end(
        &self,
        record: &JobRecord,
        index: OutputIndex,
        cause: Cause,
    ) -> OutputResult {
        let mut made = cause.result(record, index, unix_millis());
        let unknown = match self.bus.put_result(&made).await {
            Ok(Fence::First) => {
                if cause == Cause::Deadline {
                    self.counters.outputs_expired.inc();
                }
                return made;
            }
            Ok(Fence::Taken) => match self.bus.result(made.output).await {
                Ok(Some(result)) => return result,
                Ok(None) => "not to be found".to_owned(),
                Err(error) => chain(&error),
            },
            Err(error) => chain(&error),
        };
        tracing::warn!(error = unknown, output = %made.output, ?cause, "the end of an output is not known");
        made.outcome = Err(JobError::new(ErrorCode::BusUnavailable, END_UNKNOWN));
        made
    }

    /// Ends every output that is not in `ended`.
    pub(crate) async fn end_missing(
        &self,
        record: &JobRecord,
        ended: &EndedByOutput,
        cause: Cause,
    ) -> Vec<OutputResult> {
        let missing = record
            .outputs
            .iter()
            .map(|output| output.index)
            .filter(|index| !ended.contains_key(index));
        join_all(missing.map(|index| self.end(record, index, cause))).await
    }

    /// What the bus knows about a job, open here or not; `None` when its results have run out.
    pub(crate) async fn stored(
        &self,
        record: &JobRecord,
    ) -> Result<Option<EndedByOutput>, BusError> {
        let mut ended = EndedByOutput::new();
        // One by one, so that one picture at a time is in memory.
        for output in &record.outputs {
            if let Some(result) = self.bus.result(record.job.output(output.index)).await? {
                ended.insert(output.index, Ended::from(&result));
            }
        }
        if ended.len() == record.outputs.len() {
            return Ok(Some(ended));
        }
        match Absence::at(unix_millis(), record, self.result_ttl.get()) {
            Absence::Running => {}
            Absence::Overdue => {
                let late = self.end_missing(record, &ended, Cause::Deadline).await;
                ended.extend(late.iter().map(by_output));
            }
            Absence::Gone => return Ok(None),
        }
        Ok(Some(ended))
    }

    /// Ends what has not ended of a job, and takes it out of the queues. Returns how its outputs ended, all of them;
    /// `None` when its results have run out.
    pub(crate) async fn cancel(
        &self,
        record: &JobRecord,
    ) -> Result<Option<EndedByOutput>, ApiError> {
        let Some(mut ended) = self.stored(record).await? else {
            return Ok(None);
        };
        let made = self.end_missing(record, &ended, Cause::Cancel).await;
        let codes = || {
            let errors = made
                .iter()
                .filter_map(|result| result.outcome.as_ref().err());
            errors.map(|error| error.code)
        };
        if codes().any(|code| code == ErrorCode::Cancelled) {
            tracing::info!(job = %record.job, "job is cancelled");
            self.counters.jobs_cancelled.inc();
        }
        if codes().any(|code| code == ErrorCode::BusUnavailable) {
            return Err(ApiError::new(ErrorCode::BusUnavailable, END_UNKNOWN).of_job(record.job));
        }
        ended.extend(made.iter().map(by_output));
        // The results are the end; without them it would only be found out by whoever takes the message next.
        if let Err(error) = self.bus.withdraw(record.job).await {
            tracing::warn!(error = chain(&error), job = %record.job, "a cancelled job stays in its queue");
        }
        Ok(Some(ended))
    }

    /// Cancels a job whose client has left, once it is queued.
    pub(crate) fn abandon(&self, mut open: OpenJob) {
        let jobs = self.clone();
        let cancel = async move {
            if open.queued().await.is_err() {
                return;
            }
            tracing::debug!(job = %open.record.job, "client left; its job is cancelled");
            if let Err(error) = jobs.cancel(&open.record).await {
                tracing::warn!(code = %error.error().code, job = %open.record.job, "the job of a client that left is not cancelled");
            }
        };
        let stop = self.stop.clone();
        self.tracker.spawn(async move {
            stop.run_until_cancelled(cancel).await;
        });
    }
}

const END_UNKNOWN: &str =
    "the job was to end, and how an output ended is not known yet: ask for the job again";

fn by_output(result: &OutputResult) -> (OutputIndex, Ended) {
    (result.output.index, Ended::from(result))
}
