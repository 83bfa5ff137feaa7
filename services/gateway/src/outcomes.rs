//! As what an end counts, by the label `outcome`: what the deployment answers for, apart from what its clients asked for.
//! Finer than [`Ending`], which is what clients are told. Pure.

use std::time::Duration;

use protocol::{Ending, JobError, JobRecord};

/// How an output counts, or a job: as the worst of its outputs does. Worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// With an error of ours; or nobody could tell how it ended at its deadline, since the broker did not.
    Failed,
    /// At the deadline that the deployment sets.
    Expired,
    /// At one that its client set, sooner than that: no promise of ours.
    ExpiredEarly,
    /// For what it asked: an engine does not take it.
    Refused,
    /// By a client or operator.
    Cancelled,
    /// With a picture.
    Done,
}

/// Who set a job's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// The deployment, by `--job-timeout-s`.
    Ours,
    /// Its client, sooner than that.
    Sooner,
}

impl Deadline {
    /// Of a job that was let in where one may take `job_timeout`.
    pub(crate) fn of(record: &JobRecord, job_timeout: Duration) -> Self {
        let allowed = record.deadline_at.saturating_sub(record.accepted_at);
        // Both are cut to whole milliseconds.
        if u128::from(allowed) < job_timeout.as_millis() {
            Self::Sooner
        } else {
            Self::Ours
        }
    }
}

impl Outcome {
    pub(crate) const ALL: [Self; 6] = [
        Self::Failed,
        Self::Expired,
        Self::ExpiredEarly,
        Self::Refused,
        Self::Cancelled,
        Self::Done,
    ];

    /// Of an output that ended so, in a job with this deadline.
    pub(crate) fn of<T>(outcome: &Result<T, JobError>, deadline: Deadline) -> Self {
        match (Ending::of(outcome), outcome) {
            (Ending::Done, _) => Self::Done,
            (Ending::Cancelled, _) => Self::Cancelled,
            (Ending::Expired, _) if deadline == Deadline::Sooner => Self::ExpiredEarly,
            (Ending::Expired, _) => Self::Expired,
            (Ending::Failed, Err(error)) if error.code.is_refusal() => Self::Refused,
            (Ending::Failed, _) => Self::Failed,
        }
    }

    /// As labels have it.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::ExpiredEarly => "expired_early",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Done => "done",
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::ErrorCode;

    use super::*;
    use crate::fixtures::record;

    #[test]
    fn a_code_counts_as_a_failure_only_where_it_is_ours() {
        for (code, outcome) in [
            (ErrorCode::ArFailed, Outcome::Failed),
            (ErrorCode::AttemptsExhausted, Outcome::Failed),
            // What nobody could tell at the deadline.
            (ErrorCode::BusUnavailable, Outcome::Failed),
            (ErrorCode::InvalidParameter, Outcome::Refused),
            (ErrorCode::NotFound, Outcome::Refused),
            (ErrorCode::Cancelled, Outcome::Cancelled),
            (ErrorCode::DeadlineExceeded, Outcome::Expired),
        ] {
            let ended: Result<(), _> = Err(JobError::new(code, "text"));
            assert_eq!(Outcome::of(&ended, Deadline::Ours), outcome, "{code}");
        }
        assert_eq!(Outcome::of(&Ok(()), Deadline::Ours), Outcome::Done);
    }

    #[test]
    fn a_deadline_that_a_client_set_sooner_is_no_promise() {
        let job_timeout = Duration::from_micros(600_000_900);
        for (allowed, deadline, outcome) in [
            (600_000, Deadline::Ours, Outcome::Expired),
            (599_999, Deadline::Sooner, Outcome::ExpiredEarly),
            (2_000, Deadline::Sooner, Outcome::ExpiredEarly),
        ] {
            let mut record = record(1);
            record.deadline_at = record.accepted_at + allowed;
            let set_by = Deadline::of(&record, job_timeout);
            assert_eq!(set_by, deadline, "{allowed}");
            let late: Result<(), _> = Err(JobError::new(ErrorCode::DeadlineExceeded, "late"));
            assert_eq!(Outcome::of(&late, set_by), outcome);
            let failed: Result<(), _> = Err(JobError::new(ErrorCode::DenoiseFailed, "no"));
            assert_eq!(Outcome::of(&failed, set_by), Outcome::Failed);
        }
    }

    #[test]
    fn a_job_counts_as_the_worst_of_its_outputs() {
        assert!(Outcome::ALL.is_sorted());
        let worst = |outcomes: &[Outcome]| outcomes.iter().min().copied();
        let mixed = [Outcome::Done, Outcome::Refused, Outcome::Expired];
        assert_eq!(worst(&mixed), Some(Outcome::Expired));
    }
}
