//! How an output ended, without its picture: what answers are made of and what is kept of an open job. Pure, but for
//! the age of results, which is the broker's.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use protocol::{
    Ending, ErrorCode, JobError, JobRecord, OutputIndex, OutputResult, OutputTimings, PriorId,
    PriorUsage, UnixMillis, limits::RESULT_TTL, topology::in_time,
};

/// The end of one output.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ended {
    pub(crate) outcome: Result<(), JobError>,
    pub(crate) usage: Option<PriorUsage>,
    pub(crate) prior_id: Option<PriorId>,
    pub(crate) timings: OutputTimings,
}

impl From<&OutputResult> for Ended {
    fn from(result: &OutputResult) -> Self {
        let outcome = result.outcome.as_ref().map(|_| ()).map_err(Clone::clone);
        Self {
            outcome,
            usage: result.usage,
            prior_id: result.prior_id,
            timings: result.timings,
        }
    }
}

/// The outputs that ended so far.
pub(crate) type EndedByOutput = BTreeMap<OutputIndex, Ended>;

/// How long results are kept, as the broker has it; the constant until somebody has looked. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ResultTtl(Arc<AtomicU64>);

impl Default for ResultTtl {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(millis(RESULT_TTL))))
    }
}

impl ResultTtl {
    pub(crate) fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    /// An age of 0 is the broker's word for ever: the constant is a promise that holds too.
    pub(crate) fn set(&self, in_force: Duration) {
        let kept = if in_force.is_zero() {
            RESULT_TTL
        } else {
            in_force
        };
        self.0.store(millis(kept), Ordering::Relaxed);
    }
}

fn millis(duration: Duration) -> UnixMillis {
    UnixMillis::try_from(duration.as_millis()).unwrap_or(UnixMillis::MAX)
}

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
    pub(crate) fn at(now: UnixMillis, record: &JobRecord, result_ttl: Duration) -> Self {
        // No result is older than its job, and no job may take longer than results are kept.
        if in_time(record.deadline_at, now) {
            Self::Running
        } else if now < record.accepted_at.saturating_add(millis(result_ttl)) {
            Self::Overdue
        } else {
            Self::Gone
        }
    }
}

/// Why a gateway ends an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Its deadline has passed.
    Deadline,
    /// Its client does not want it any more.
    Cancel,
}

impl Cause {
    fn error(self, record: &JobRecord) -> JobError {
        match self {
            Self::Deadline => {
                let allowed = record.deadline_at.saturating_sub(record.accepted_at);
                let allowed_s = Duration::from_millis(allowed).as_secs_f64();
                let text = format!("the job did not finish within {allowed_s} s");
                JobError::new(ErrorCode::DeadlineExceeded, &text)
            }
            Self::Cancel => JobError::new(ErrorCode::Cancelled, "the job was cancelled"),
        }
    }

    /// The result of an output that is ended without a picture.
    pub(crate) fn result(
        self,
        record: &JobRecord,
        index: OutputIndex,
        now: UnixMillis,
    ) -> OutputResult {
        let mut outputs = record.outputs.iter();
        let output = outputs.find(|output| output.index == index);
        OutputResult {
            output: record.job.output(index),
            outcome: Err(self.error(record)),
            seed: output.map(|output| output.seed),
            usage: None,
            prior_id: None,
            timings: OutputTimings {
                accepted_at: record.accepted_at,
                finished_at: now,
                ..OutputTimings::default()
            },
            worker: None,
        }
    }
}

/// Whether it is known how an output ended. Not while the broker does not say: it may be a picture.
pub(crate) fn is_known<T>(outcome: &Result<T, JobError>) -> bool {
    let code = outcome.as_ref().err().map(|error| error.code);
    code != Some(ErrorCode::BusUnavailable)
}

/// How an ended output ended.
pub(crate) fn ending(ended: &Ended) -> Ending {
    Ending::of(&ended.outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_the_broker_does_not_tell_is_not_known() {
        for code in ErrorCode::ALL {
            let ended: Result<(), _> = Err(JobError::new(code, "text"));
            assert_eq!(
                is_known(&ended),
                code != ErrorCode::BusUnavailable,
                "{code}"
            );
        }
        assert!(is_known(&Ok(())));
    }
}
