//! Outputs that nobody is to try again by themselves: what they were, what was tried, and how to try once more.

use serde::{Deserialize, Serialize};

use crate::{
    ArJob, Attempt, AttemptOutcome, DenoiseJob, ErrorCode, JobError, JobId, JobRecord, Message,
    OutputId, OutputIndex, OutputLife, OutputRequest, UnixMillis, WorkStage,
};

/// The message that could not be worked on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadMessage {
    /// The AR stage's, with the dead output only.
    Ar(ArJob),
    /// The denoise stage's, prior tokens included.
    Denoise(DenoiseJob),
}

/// An output that used up its attempts. Its result is the error `attempts_exhausted`, which names this letter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadLetter {
    /// Whose.
    pub output: OutputId,
    /// Where it failed.
    pub stage: WorkStage,
    /// The last failure; for workers that vanished, that they did.
    pub reason: JobError,
    /// What was tried, oldest first.
    pub attempts: Vec<Attempt>,
    /// Holds the prompt: not for logs.
    pub message: DeadMessage,
    /// When it was given up.
    pub dead_at: UnixMillis,
}

impl Message for DeadLetter {
    const KIND: &'static str = "dead_letter";
    /// Version 1 held version 1 of the messages.
    const VERSION: u16 = 2;
}

/// A dead letter as a new job of one output: what to store and what to queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Revival {
    /// Of the new job.
    pub record: JobRecord,
    /// To queue.
    pub message: DeadMessage,
}

impl DeadLetter {
    /// Of an output with this `life` that is given up at `stage`.
    pub fn new(life: OutputLife, stage: WorkStage, message: DeadMessage, now: UnixMillis) -> Self {
        let vanished = || {
            let code = match stage {
                WorkStage::Prior => ErrorCode::ArFailed,
                WorkStage::Denoise => ErrorCode::DenoiseFailed,
            };
            JobError::new(code, "the worker vanished while it worked on the output")
        };
        let last = life.counted(stage).last();
        let reason = match last.and_then(|attempt| attempt.outcome.clone()) {
            Some(AttemptOutcome::Failed(error)) => error,
            _ => vanished(),
        };
        Self {
            output: life.output,
            stage,
            reason,
            attempts: life.attempts,
            message,
            dead_at: now,
        }
    }

    /// The error that its output ends with. It names the letter, which has the output's name.
    pub fn result(&self) -> JobError {
        let counted = self
            .attempts
            .iter()
            .filter(|attempt| attempt.stage == self.stage && attempt.counts())
            .count();
        let text = format!(
            "given up after {counted} failed attempts, kept as dead letter {}; the last failure: {}",
            self.output, self.reason.text
        );
        JobError::new(ErrorCode::AttemptsExhausted, &text)
    }

    /// The same picture under a new job id: the old output has its result, and a result is never taken back.
    pub fn revive(&self, job: JobId, now: UnixMillis) -> Revival {
        let index = OutputIndex::FIRST;
        let (mut message, seed) = (self.message.clone(), self.seed());
        let outputs = seed
            .map(|seed| vec![OutputRequest { index, seed }])
            .unwrap_or_default();
        let (size, format, denoise, deadline_at) = match &mut message {
            DeadMessage::Ar(ar) => {
                ar.deadline_at = now.saturating_add(allowed(ar.accepted_at, ar.deadline_at));
                (ar.job, ar.accepted_at) = (job, now);
                ar.outputs.clone_from(&outputs);
                (ar.size, ar.format, ar.denoise, ar.deadline_at)
            }
            DeadMessage::Denoise(dn) => {
                dn.deadline_at = now.saturating_add(allowed(dn.accepted_at, dn.deadline_at));
                (dn.output, dn.accepted_at) = (job.output(index), now);
                // It is the old output's.
                dn.life = None;
                // Its prior was written long ago; the new job waits for a denoiser only.
                (dn.ar_started_at, dn.ar_finished_at) = (now, now);
                (dn.size, dn.format, dn.denoise, dn.deadline_at)
            }
        };
        let record = JobRecord {
            job,
            outputs,
            size,
            format,
            denoise,
            accepted_at: now,
            deadline_at,
            // The letter does not say.
            tenant: None,
            trace_id: None,
        };
        Revival { record, message }
    }

    fn seed(&self) -> Option<crate::Seed> {
        match &self.message {
            DeadMessage::Denoise(job) => Some(job.seed),
            DeadMessage::Ar(job) => job
                .outputs
                .iter()
                .find(|output| output.index == self.output.index)
                .map(|output| output.seed),
        }
    }
}

/// The time that the job had, in milliseconds.
const fn allowed(accepted_at: UnixMillis, deadline_at: UnixMillis) -> UnixMillis {
    deadline_at.saturating_sub(accepted_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DenoiseParameters, ImageFormat, ImageSize, Seed};

    fn letter() -> DeadLetter {
        let index = OutputIndex::new(2).expect("below 10");
        let job = JobId::from_u128(1);
        let seed = Seed::new(9).expect("small");
        let message = DeadMessage::Ar(ArJob {
            job,
            prompt: "p".into(),
            outputs: vec![OutputRequest { index, seed }],
            size: ImageSize::new(64, 32).expect("multiples of 32"),
            format: ImageFormat::Png,
            denoise: DenoiseParameters::new(8, 1.5).expect("in range"),
            prior: None,
            accepted_at: 1_000,
            deadline_at: 61_000,
        });
        DeadLetter {
            output: job.output(index),
            stage: WorkStage::Prior,
            reason: JobError::new(ErrorCode::ArFailed, "no"),
            attempts: Vec::new(),
            message,
            dead_at: 5_000,
        }
    }

    #[test]
    fn a_revived_output_is_a_new_job_with_the_old_seed_and_the_time_it_had() {
        let id = JobId::from_u128(2);
        let Revival { record, message } = letter().revive(id, 100_000);
        assert_eq!((record.job, record.deadline_at), (id, 160_000));
        let outputs: Vec<_> = record
            .outputs
            .iter()
            .map(|output| (output.index.get(), output.seed.get()))
            .collect();
        assert_eq!(outputs, [(0, 9)]);
        let DeadMessage::Ar(ar) = message else {
            panic!("another stage: {message:?}")
        };
        assert_eq!((ar.job, ar.outputs), (id, record.outputs));
        assert_eq!((ar.accepted_at, ar.deadline_at), (100_000, 160_000));
    }
}
