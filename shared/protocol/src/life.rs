//! The life of an output, as a pure rule: state and event in, next state out, or a refusal.
//!
//! ```text
//! queued → ar_waiting → ar_running → denoise_waiting ⇄ denoise_running → done | failed | cancelled | expired
//! ```
//!
//! Workers store an [`OutputLife`] by compare-and-set at each step, so that it survives every process. It tells what
//! is being done for an output and what was tried; it is no lock. **The stored result is the end**: the four final
//! states follow from it ([`Ending::of`]) and are never stored here, so that there is one truth about how an output
//! ended. A worker's death leaves the state where it was and its attempt open; whoever gets the message next closes
//! that attempt as lost.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ErrorCode, JobError, Message, OutputId, UnixMillis, WorkerId};

/// Attempts that a life remembers. Those that count towards the limit of attempts go last: give-backs of rolling
/// restarts are forgotten first.
pub const ATTEMPTS_KEPT_MAX: usize = 16;

/// Where an output, or a request, is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputState {
    /// Its request waits in the AR queue.
    Queued,
    /// An AR-batcher holds it and forms its batch.
    ArWaiting,
    /// The AR engine writes its prior tokens.
    ArRunning,
    /// Its denoise message waits in the queue.
    DenoiseWaiting,
    /// A denoiser paints it.
    DenoiseRunning,
    /// It has a picture.
    Done,
    /// It has an error.
    Failed,
    /// A client or operator ended it.
    Cancelled,
    /// Its deadline passed.
    Expired,
}

impl OutputState {
    /// Every state, in order.
    pub const ALL: [Self; 9] = [
        Self::Queued,
        Self::ArWaiting,
        Self::ArRunning,
        Self::DenoiseWaiting,
        Self::DenoiseRunning,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
        Self::Expired,
    ];

    /// Whether nothing can follow.
    pub const fn is_final(self) -> bool {
        matches!(
            self,
            Self::Done | Self::Failed | Self::Cancelled | Self::Expired
        )
    }

    /// The state of a request with outputs in `states`: where its least advanced output is; once all have ended,
    /// the worst end of them (`failed`, then `expired`, then `cancelled`). A request without outputs is `queued`.
    pub fn of_request(states: &[Self]) -> Self {
        let open = states.iter().filter(|state| !state.is_final());
        if let Some(state) = open.min() {
            return *state;
        }
        let worst = [Self::Failed, Self::Expired, Self::Cancelled, Self::Done];
        worst
            .into_iter()
            .find(|state| states.contains(state))
            .unwrap_or(Self::Queued)
    }
}

/// How an output ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// With a picture.
    Done,
    /// With an error.
    Failed,
    /// By a client or operator.
    Cancelled,
    /// By its deadline.
    Expired,
}

impl Ending {
    /// The ending that a stored result is.
    pub fn of<T>(outcome: &Result<T, JobError>) -> Self {
        match outcome.as_ref().map_err(|error| error.code) {
            Ok(_) => Self::Done,
            Err(ErrorCode::Cancelled) => Self::Cancelled,
            Err(ErrorCode::DeadlineExceeded) => Self::Expired,
            Err(_) => Self::Failed,
        }
    }

    /// The final state.
    pub const fn state(self) -> OutputState {
        match self {
            Self::Done => OutputState::Done,
            Self::Failed => OutputState::Failed,
            Self::Cancelled => OutputState::Cancelled,
            Self::Expired => OutputState::Expired,
        }
    }
}

/// The two stages that work on an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkStage {
    /// The AR stage writes prior tokens.
    Prior,
    /// The denoiser paints.
    Denoise,
}

impl fmt::Display for WorkStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prior => "prior",
            Self::Denoise => "denoise",
        })
    }
}

/// How a worker's try ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// Its effect is stored.
    Finished,
    /// The worker gave it back unfinished, for no fault of the output: a drain, a cancelled batch.
    GivenBack,
    /// Nobody heard of the worker again.
    Lost,
    /// The engine failed.
    Failed(JobError),
}

/// One try of one worker at one stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// Of what.
    pub stage: WorkStage,
    /// By whom.
    pub worker: WorkerId,
    /// When it began.
    pub started_at: UnixMillis,
    /// When it ended or was found to have ended; absent while it runs, or while nobody knows better.
    pub ended_at: Option<UnixMillis>,
    /// How; absent with `ended_at`.
    pub outcome: Option<AttemptOutcome>,
}

impl Attempt {
    /// Whether it counts towards the limit of attempts: it failed or vanished, or may yet have.
    pub const fn counts(&self) -> bool {
        matches!(
            self.outcome,
            None | Some(AttemptOutcome::Lost | AttemptOutcome::Failed(_))
        )
    }
}

/// What an output has been through. Absent until a worker first touches the output: then it is `queued`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputLife {
    /// Whose.
    pub output: OutputId,
    /// Never a final state when stored.
    pub state: OutputState,
    /// When that state began.
    pub since: UnixMillis,
    /// Oldest first, at most [`ATTEMPTS_KEPT_MAX`].
    pub attempts: Vec<Attempt>,
}

impl Message for OutputLife {
    const KIND: &'static str = "output_life";
    const VERSION: u16 = 1;
}

/// What happened to an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LifeEvent {
    /// An AR-batcher holds its request.
    Admitted,
    /// `worker` starts on it. The message it holds is the proof that it may: an attempt of somebody else that is
    /// still open is lost.
    Started {
        /// At what.
        stage: WorkStage,
        /// Who.
        worker: WorkerId,
    },
    /// `worker` gives it back unfinished.
    GivenBack {
        /// From what.
        stage: WorkStage,
        /// Who.
        worker: WorkerId,
    },
    /// `worker`'s engine failed and somebody is to try again.
    AttemptFailed {
        /// At what.
        stage: WorkStage,
        /// Who.
        worker: WorkerId,
        /// Why.
        error: JobError,
    },
    /// Its denoise message is stored.
    PriorStored,
    /// Its result is stored.
    Ended(Ending),
}

/// Why an event cannot follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The output has ended.
    #[error("the output has ended")]
    Ended,
    /// Its denoise message is stored already: the AR stage has nothing to do for it.
    #[error("the output's prior tokens are stored already")]
    PriorStored,
    /// The worker does not have it: somebody else does, or nobody.
    #[error("the output is not this worker's")]
    NotHeld,
}

impl OutputLife {
    /// Of an output that no worker has touched.
    pub const fn queued(output: OutputId, since: UnixMillis) -> Self {
        Self {
            output,
            state: OutputState::Queued,
            since,
            attempts: Vec::new(),
        }
    }

    /// The life after `event`, or why it cannot follow.
    pub fn apply(mut self, event: LifeEvent, now: UnixMillis) -> Result<Self, Refusal> {
        use OutputState::{ArRunning, ArWaiting, DenoiseRunning, DenoiseWaiting, Queued};
        let state = match (self.state, event) {
            (state, _) if state.is_final() => return Err(Refusal::Ended),
            (_, LifeEvent::Ended(ending)) => {
                self.close_open(AttemptOutcome::Finished, now);
                ending.state()
            }
            (Queued | ArWaiting, LifeEvent::Admitted) => ArWaiting,
            (ArRunning, LifeEvent::Admitted) => {
                self.close_open(AttemptOutcome::Lost, now);
                ArWaiting
            }
            (Queued | ArWaiting | ArRunning, LifeEvent::PriorStored) => {
                self.close_open(AttemptOutcome::Finished, now);
                DenoiseWaiting
            }
            (state, LifeEvent::Started { stage, worker }) => {
                self.start(state, stage, worker, now)?
            }
            (state, LifeEvent::GivenBack { stage, worker }) => {
                self.close_own(state, stage, &worker, AttemptOutcome::GivenBack, now)?
            }
            (
                state,
                LifeEvent::AttemptFailed {
                    stage,
                    worker,
                    error,
                },
            ) => self.close_own(state, stage, &worker, AttemptOutcome::Failed(error), now)?,
            (DenoiseWaiting | DenoiseRunning, LifeEvent::Admitted | LifeEvent::PriorStored) => {
                return Err(Refusal::PriorStored);
            }
            // Final states were refused above.
            (_, LifeEvent::Admitted | LifeEvent::PriorStored) => return Err(Refusal::Ended),
        };
        if state != self.state {
            self.since = now;
        }
        self.state = state;
        Ok(self)
    }

    /// The attempts at `stage` that count towards the limit.
    pub fn counted(&self, stage: WorkStage) -> impl Iterator<Item = &Attempt> {
        self.attempts
            .iter()
            .filter(move |attempt| attempt.stage == stage && attempt.counts())
    }

    fn start(
        &mut self,
        state: OutputState,
        stage: WorkStage,
        worker: WorkerId,
        now: UnixMillis,
    ) -> Result<OutputState, Refusal> {
        let denoising = matches!(
            state,
            OutputState::DenoiseWaiting | OutputState::DenoiseRunning
        );
        let running = match stage {
            WorkStage::Prior if denoising => return Err(Refusal::PriorStored),
            WorkStage::Prior => OutputState::ArRunning,
            WorkStage::Denoise => OutputState::DenoiseRunning,
        };
        let own = |attempt: &Attempt| attempt.stage == stage && attempt.worker == worker;
        // Said twice, because the answer to the first was lost: one attempt.
        if self.open().is_some_and(own) {
            return Ok(running);
        }
        let ended = match (stage, self.open().map(|open| open.stage)) {
            // A denoise message is the proof that the AR stage was done.
            (WorkStage::Denoise, Some(WorkStage::Prior)) => AttemptOutcome::Finished,
            _ => AttemptOutcome::Lost,
        };
        self.close_open(ended, now);
        self.make_room();
        self.attempts.push(Attempt {
            stage,
            worker,
            started_at: now,
            ended_at: None,
            outcome: None,
        });
        Ok(running)
    }

    /// Ends the attempt of `worker`, which has to be the open one.
    fn close_own(
        &mut self,
        state: OutputState,
        stage: WorkStage,
        worker: &WorkerId,
        outcome: AttemptOutcome,
        now: UnixMillis,
    ) -> Result<OutputState, Refusal> {
        let own = |open: &Attempt| open.stage == stage && open.worker == *worker;
        if !self.open().is_some_and(own) {
            return Err(Refusal::NotHeld);
        }
        self.close_open(outcome, now);
        Ok(match (stage, state) {
            (WorkStage::Prior, _) => OutputState::Queued,
            (WorkStage::Denoise, _) => OutputState::DenoiseWaiting,
        })
    }

    /// The attempt that runs: only ever the last one.
    fn open(&self) -> Option<&Attempt> {
        self.attempts
            .last()
            .filter(|attempt| attempt.outcome.is_none())
    }

    fn close_open(&mut self, outcome: AttemptOutcome, now: UnixMillis) {
        if let Some(last) = self.attempts.last_mut()
            && last.outcome.is_none()
        {
            last.outcome = Some(outcome);
            last.ended_at = Some(now);
        }
    }

    fn make_room(&mut self) {
        if self.attempts.len() >= ATTEMPTS_KEPT_MAX {
            let least = self.attempts.iter().position(|attempt| !attempt.counts());
            self.attempts.remove(least.unwrap_or(0));
        }
    }
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
