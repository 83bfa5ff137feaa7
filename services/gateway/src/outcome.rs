//! How an output ended, without its picture: what answers are made of and what is kept of an open job. Pure.

use std::collections::BTreeMap;

use protocol::{
    ErrorCode, JobError, JobRecord, OutputIndex, OutputResult, OutputTimings, PriorUsage,
    UnixMillis, limits::RESULT_TTL, topology::in_time,
};

/// The end of one output.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ended {
    pub(crate) outcome: Result<(), JobError>,
    pub(crate) usage: Option<PriorUsage>,
    pub(crate) timings: OutputTimings,
}

impl From<&OutputResult> for Ended {
    fn from(result: &OutputResult) -> Self {
        let outcome = result.outcome.as_ref().map(|_| ()).map_err(Clone::clone);
        Self {
            outcome,
            usage: result.usage,
            timings: result.timings,
        }
    }
}

/// The outputs that ended so far.
pub(crate) type EndedByOutput = BTreeMap<OutputIndex, Ended>;

/// Why an output has no stored result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absence {
    /// It has not ended yet.
    Running,
    /// Its time is over and nobody ended it: the gateway that followed it is gone.
    Overdue,
    /// It may have ended so long ago that its result ran out.
    Gone,
}

impl Absence {
    pub(crate) fn at(now: UnixMillis, record: &JobRecord) -> Self {
        let kept_ms = UnixMillis::try_from(RESULT_TTL.as_millis()).unwrap_or(UnixMillis::MAX);
        // No result is older than its job, and no job may take longer than results are kept.
        if in_time(record.deadline_at, now) {
            Self::Running
        } else if now < record.accepted_at.saturating_add(kept_ms) {
            Self::Overdue
        } else {
            Self::Gone
        }
    }
}

/// The result of an output whose time is over.
pub(crate) fn too_late(record: &JobRecord, index: OutputIndex, now: UnixMillis) -> OutputResult {
    let allowed_s = record.deadline_at.saturating_sub(record.accepted_at) / 1_000;
    let error = JobError::new(
        ErrorCode::DeadlineExceeded,
        &format!("the job did not finish within {allowed_s} s"),
    );
    OutputResult {
        output: record.job.output(index),
        outcome: Err(error),
        seed: record
            .outputs
            .iter()
            .find(|output| output.index == index)
            .map(|output| output.seed),
        usage: None,
        timings: OutputTimings {
            accepted_at: record.accepted_at,
            finished_at: now,
            ..OutputTimings::default()
        },
        worker: None,
    }
}
