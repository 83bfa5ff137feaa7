//! What a failure costs: who may try an output once more, and when nobody is to.
//!
//! The attempts are ours, counted in the output's life when a worker starts. The server's own delivery count would
//! count every message that was given back, and drops what exceeds it without a word.

use std::collections::BTreeSet;

use protocol::{AttemptOutcome, ErrorCode, OutputLife, WorkStage, WorkerId};

/// Whether another worker of the stage takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// At least one.
    Some,
    /// None.
    None,
}

/// What the worker that holds an output does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Work on it.
    Go,
    /// Leave it to another worker: only this one has tried, and it may be this one's fault.
    PassOn,
    /// Nobody is to try again.
    GiveUp,
}

impl From<bool> for Others {
    fn from(any: bool) -> Self {
        if any { Self::Some } else { Self::None }
    }
}

/// Whether an output with this `life` may have used up its attempts at `stage`: only then [`may_start`] depends on
/// other workers, and is it worth asking for them.
pub fn is_tried(life: &OutputLife, stage: WorkStage, attempts_max: u32) -> bool {
    reaches(life.counted(stage).count(), attempts_max)
}

fn reaches(attempts: usize, attempts_max: u32) -> bool {
    u32::try_from(attempts).unwrap_or(u32::MAX) >= attempts_max.max(1)
}

/// Whether `worker` may start an output with this `life` at `stage`. After `attempts_max` attempts that failed or
/// vanished it is given up, if two different workers have tried or there is no second one.
pub fn may_start(
    life: &OutputLife,
    stage: WorkStage,
    worker: &WorkerId,
    others: Others,
    attempts_max: u32,
) -> Start {
    // Its own open attempt is one that it could not sign off: it did not vanish.
    let counted: Vec<_> = life
        .counted(stage)
        .filter(|attempt| attempt.outcome.is_some() || attempt.worker != *worker)
        .collect();
    if !reaches(counted.len(), attempts_max) {
        return Start::Go;
    }
    let workers: BTreeSet<&WorkerId> = counted.iter().map(|attempt| &attempt.worker).collect();
    if workers.len() >= 2 {
        return Start::GiveUp;
    }
    match (workers.contains(worker), others) {
        (false, _) => Start::Go,
        (true, Others::Some) => Start::PassOn,
        (true, Others::None) => Start::GiveUp,
    }
}

/// Why a message comes once more; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Redelivery {
    /// Who had it before was not heard of again.
    Lost,
    /// The engine failed.
    Failed,
    /// Who had it before gave it back.
    GivenBack,
    /// Nobody had begun with it.
    Untouched,
}

impl Redelivery {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::Lost, Self::Failed, Self::GivenBack, Self::Untouched];

    /// Of an output with this `life`, whose message comes again at `stage`. One whose last attempt is finished comes
    /// because only its ack was lost: that attempt's worker was not heard of again either.
    pub fn of(life: &OutputLife, stage: WorkStage) -> Self {
        let mut attempts = life.attempts.iter().rev();
        let last = attempts.find(|attempt| attempt.stage == stage);
        match last.map(|attempt| &attempt.outcome) {
            None => Self::Untouched,
            Some(Some(AttemptOutcome::Failed(_))) => Self::Failed,
            Some(Some(AttemptOutcome::GivenBack)) => Self::GivenBack,
            Some(None | Some(AttemptOutcome::Lost | AttemptOutcome::Finished)) => Self::Lost,
        }
    }

    /// As metrics call it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Failed => "failed",
            Self::GivenBack => "given_back",
            Self::Untouched => "untouched",
        }
    }
}

/// Whether another try may end better. A request that the model refuses fails everywhere alike.
pub const fn is_retried(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::ArFailed | ErrorCode::PriorTokensInvalid | ErrorCode::DenoiseFailed
    )
}

#[cfg(test)]
mod tests {
    use protocol::{Attempt, AttemptOutcome, JobError, JobId, OutputIndex, OutputState};

    use super::*;

    fn worker(name: &str) -> WorkerId {
        name.parse().expect("allowed characters")
    }

    /// `a!` failed, `a?` vanished unseen, `a-` gave back, `a+` finished; all at denoising.
    fn life(attempts: &str) -> OutputLife {
        let failed = || AttemptOutcome::Failed(JobError::new(ErrorCode::DenoiseFailed, ""));
        let attempt = |text: &str| {
            let (name, mark) = text.split_at(1);
            let outcome = match mark {
                "!" => Some(failed()),
                "-" => Some(AttemptOutcome::GivenBack),
                "+" => Some(AttemptOutcome::Finished),
                _ => None,
            };
            Attempt {
                stage: WorkStage::Denoise,
                worker: worker(name),
                started_at: 0,
                ended_at: outcome.as_ref().map(|_| 1),
                outcome,
            }
        };
        OutputLife {
            output: JobId::from_u128(1).output(OutputIndex::FIRST),
            state: OutputState::DenoiseWaiting,
            since: 0,
            attempts: attempts.split_whitespace().map(attempt).collect(),
        }
    }

    #[test]
    fn three_attempts_on_two_workers_are_enough() {
        use Start::{GiveUp, Go, PassOn};
        // attempts so far, who asks, other workers → what it does
        let table = [
            ("", "a", Others::Some, Go),
            ("a! a!", "a", Others::Some, Go),
            ("a! a! a!", "a", Others::Some, PassOn),
            ("a! a! a!", "b", Others::Some, Go),
            ("a! a! a!", "a", Others::None, GiveUp),
            ("a! a! a! b!", "c", Others::Some, GiveUp),
            ("a! b? c?", "d", Others::Some, GiveUp),
            ("a? b?", "c", Others::Some, Go),
            ("a- b- c- a+", "a", Others::Some, Go),
            // Its own attempt that is still open is no failure.
            ("b! c! a?", "a", Others::Some, Go),
        ];
        for (attempts, name, others, expected) in table {
            let start = may_start(
                &life(attempts),
                WorkStage::Denoise,
                &worker(name),
                others,
                3,
            );
            assert_eq!(start, expected, "{name} after {attempts:?}");
        }
    }

    #[test]
    fn a_message_comes_again_for_what_the_last_attempt_came_to() {
        use Redelivery::{Failed, GivenBack, Lost, Untouched};
        for (attempts, expected) in [
            ("", Untouched),
            ("a?", Lost),
            ("a! b-", GivenBack),
            ("a- b!", Failed),
            ("a! b+", Lost),
        ] {
            let life = life(attempts);
            assert_eq!(
                Redelivery::of(&life, WorkStage::Denoise),
                expected,
                "{attempts}"
            );
            assert_eq!(Redelivery::of(&life, WorkStage::Prior), Untouched);
        }
    }

    #[test]
    fn attempts_of_the_other_stage_do_not_count() {
        let start = may_start(
            &life("a! b! c!"),
            WorkStage::Prior,
            &worker("a"),
            Others::None,
            3,
        );
        assert_eq!(start, Start::Go);
    }
}
