//! What to do with a message that came, as a plain function of what is known about its output.

use batching::{Others, Start, may_start};
use protocol::{
    DenoiseJob, ErrorCode, JobError, OutputLife, UnixMillis, WorkStage, WorkerId, topology::in_time,
};

/// What is known about an output.
#[derive(Debug)]
pub(crate) struct Facts {
    /// It has a result.
    pub(crate) answered: bool,
    pub(crate) life: OutputLife,
    pub(crate) others: Others,
}

/// Who asks, and by which rule.
#[derive(Debug)]
pub(crate) struct Asking<'a> {
    pub(crate) worker: &'a WorkerId,
    pub(crate) attempts_max: u32,
    pub(crate) now: UnixMillis,
}

/// What to do with a message that came.
#[derive(Debug, PartialEq)]
pub(crate) enum Decision {
    /// Nobody has answered for it yet.
    Paint,
    /// It has a result: only the ack was lost, or it was cancelled.
    AlreadyAnswered,
    /// It ends here.
    Refuse(JobError),
    /// Another worker is to try.
    PassOn,
    /// Nobody is to try again.
    GiveUp,
}

pub(crate) fn decide(job: &DenoiseJob, facts: &Facts, asking: &Asking<'_>) -> Decision {
    if facts.answered {
        return Decision::AlreadyAnswered;
    }
    if !in_time(job.deadline_at, asking.now) {
        return Decision::Refuse(too_late());
    }
    if !job.prior.fits(job.size) {
        let error = JobError::new(
            ErrorCode::PriorTokensInvalid,
            "the prior tokens do not fit the picture's size",
        );
        return Decision::Refuse(error);
    }
    let start = may_start(
        &facts.life,
        WorkStage::Denoise,
        asking.worker,
        facts.others,
        asking.attempts_max,
    );
    match start {
        Start::Go => Decision::Paint,
        Start::PassOn => Decision::PassOn,
        Start::GiveUp => Decision::GiveUp,
    }
}

/// The end of an output whose time is over.
pub(crate) fn too_late() -> JobError {
    JobError::new(
        ErrorCode::DeadlineExceeded,
        "the deadline passed before the picture was finished",
    )
}

#[cfg(test)]
mod tests {
    use protocol::{ImageSize, LifeEvent, PriorTokens};

    use super::*;
    use crate::fixtures;

    const DEADLINE: UnixMillis = 1_000;

    fn job(prior_columns: u16) -> DenoiseJob {
        let ids = vec![0; usize::from(prior_columns)];
        DenoiseJob {
            size: ImageSize::new(64, 32).expect("multiples of 32"),
            prior: PriorTokens::new(1, prior_columns, ids).expect("fills the grid"),
            deadline_at: DEADLINE,
            ..fixtures::job("p", 4)
        }
    }

    fn facts(answered: bool) -> Facts {
        Facts {
            answered,
            life: OutputLife::queued(job(2).output, 0),
            others: Others::Some,
        }
    }

    fn decided(job: &DenoiseJob, facts: &Facts, now: UnixMillis) -> Decision {
        let worker = "a".parse().expect("allowed characters");
        let asking = Asking {
            worker: &worker,
            attempts_max: 2,
            now,
        };
        decide(job, facts, &asking)
    }

    fn refusal(decision: Decision) -> Option<ErrorCode> {
        match decision {
            Decision::Refuse(error) => Some(error.code),
            _ => None,
        }
    }

    #[test]
    fn an_output_in_time_and_unanswered_is_painted() {
        assert_eq!(
            decided(&job(2), &facts(false), DEADLINE - 1),
            Decision::Paint
        );
    }

    #[test]
    fn an_answered_output_is_only_acked_even_when_it_is_late() {
        for now in [0, DEADLINE, DEADLINE + 1] {
            assert_eq!(
                decided(&job(2), &facts(true), now),
                Decision::AlreadyAnswered
            );
        }
    }

    #[test]
    fn a_late_output_is_refused() {
        let refused = refusal(decided(&job(2), &facts(false), DEADLINE));
        assert_eq!(refused, Some(ErrorCode::DeadlineExceeded));
    }

    #[test]
    fn a_grid_of_another_size_is_refused() {
        let refused = refusal(decided(&job(3), &facts(false), 0));
        assert_eq!(refused, Some(ErrorCode::PriorTokensInvalid));
    }

    #[test]
    fn an_output_that_took_its_workers_down_is_given_up() {
        let mut facts = facts(false);
        for (worker, expected) in [("b", Decision::Paint), ("c", Decision::Paint)] {
            assert_eq!(decided(&job(2), &facts, 0), expected, "before {worker}");
            let started = LifeEvent::Started {
                stage: WorkStage::Denoise,
                worker: worker.parse().expect("allowed characters"),
            };
            facts.life = facts.life.apply(started, 1).expect("follows");
        }
        assert_eq!(decided(&job(2), &facts, 0), Decision::GiveUp);
    }
}
