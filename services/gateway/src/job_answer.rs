//! What is known of a job → the job object. Pure.

use std::{collections::BTreeMap, time::Duration};

use messaging::ProgressByOutput;
use protocol::{
    Attempt, AttemptOutcome, ImageFormat, ImageSize, JobId, JobRecord, OutputId, OutputIndex,
    OutputLife, OutputRequest, OutputState, PriorId, Progress, Seed, Stage, TraceId, UnixMillis,
    WorkStage, WorkerId,
};
use serde::Serialize;

use crate::{
    answer::{ImagesAnswer, Pictures, Timings, content_path},
    outcome::{Ended, EndedByOutput, ending},
    reply::ErrorFields,
};

/// The lives of the outputs that a worker has touched.
pub(crate) type LifeByOutput = BTreeMap<OutputIndex, OutputLife>;

/// What a job object is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobView<'a> {
    pub(crate) record: &'a JobRecord,
    pub(crate) ended: &'a EndedByOutput,
    pub(crate) progress: &'a ProgressByOutput,
    pub(crate) lives: &'a LifeByOutput,
    /// Addresses start with it.
    pub(crate) base: &'a str,
    pub(crate) result_ttl: Duration,
}

/// How far a job or an output is, in the words of OpenAI's other job objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Queued,
    InProgress,
    Completed,
    Failed,
    Cancelled,
    Expired,
}

impl Status {
    const fn of(state: OutputState) -> Self {
        match state {
            OutputState::Queued => Self::Queued,
            OutputState::ArWaiting
            | OutputState::ArRunning
            | OutputState::DenoiseWaiting
            | OutputState::DenoiseRunning => Self::InProgress,
            OutputState::Done => Self::Completed,
            OutputState::Failed => Self::Failed,
            OutputState::Cancelled => Self::Cancelled,
            OutputState::Expired => Self::Expired,
        }
    }
}

/// The job object.
#[derive(Debug, Serialize)]
pub(crate) struct JobAnswer<'a> {
    id: JobId,
    object: &'static str,
    status: Status,
    created_at: u64,
    deadline_at: u64,
    completed_at: Option<u64>,
    expires_at: Option<u64>,
    size: ImageSize,
    output_format: ImageFormat,
    outputs: Vec<OutputAnswer<'a>>,
    /// Where to look for what became of it; null of a job that an older gateway accepted.
    trace_id: Option<TraceId>,
    /// Of the first output that ended as the job did, once all have ended.
    error: Option<ErrorFields<'a>>,
    /// The images response, once every output is a picture.
    response: Option<ImagesAnswer>,
}

#[derive(Debug, Serialize)]
struct OutputAnswer<'a> {
    id: OutputId,
    seed: Seed,
    /// Under which variations of its picture can be asked for.
    prior_id: Option<PriorId>,
    status: Status,
    /// The same in our own words.
    state: OutputState,
    /// Where its picture is, when it has one, whatever became of the others.
    url: Option<String>,
    /// What is being done for it, and how far that is; null before it starts and after it ended.
    stage: Option<Stage>,
    step: Option<u32>,
    steps: Option<u32>,
    /// What workers tried, oldest first.
    attempts: Vec<AttemptAnswer<'a>>,
    error: Option<ErrorFields<'a>>,
    timings: Option<Timings>,
}

#[derive(Debug, Serialize)]
struct AttemptAnswer<'a> {
    stage: WorkStage,
    worker: &'a WorkerId,
    /// Seconds, as every instant here, but with their fraction: attempts are short.
    started_at: f64,
    ended_at: Option<f64>,
    outcome: Option<&'static str>,
    error: Option<ErrorFields<'a>>,
}

impl<'a> From<&'a Attempt> for AttemptAnswer<'a> {
    fn from(attempt: &'a Attempt) -> Self {
        let (outcome, error) = match &attempt.outcome {
            None => (None, None),
            Some(AttemptOutcome::Finished) => (Some("finished"), None),
            Some(AttemptOutcome::GivenBack) => (Some("given_back"), None),
            Some(AttemptOutcome::Lost) => (Some("lost"), None),
            Some(AttemptOutcome::Failed(error)) => (Some("failed"), Some(error)),
        };
        Self {
            stage: attempt.stage,
            worker: &attempt.worker,
            started_at: seconds(attempt.started_at),
            ended_at: attempt.ended_at.map(seconds),
            outcome,
            error: error.map(|error| ErrorFields::new(error, None)),
        }
    }
}

/// An instant as the API writes it where a whole second says too little.
pub(crate) fn seconds(at: UnixMillis) -> f64 {
    at as f64 / 1_000.0
}

impl<'a> JobAnswer<'a> {
    pub(crate) fn new(view: JobView<'a>) -> Self {
        let JobView { record, ended, .. } = view;
        let outputs: Vec<_> = record
            .outputs
            .iter()
            .map(|output| output_answer(view, output))
            .collect();
        let states: Vec<_> = outputs.iter().map(|output| output.state).collect();
        let started = outputs.iter().any(|output| output.status != Status::Queued);
        let status = overall(&states, started);
        let has_ended = ended.len() == record.outputs.len();
        let finished_at = ended.values().map(|ended| ended.timings.finished_at).max();
        let completed_at = finished_at.filter(|_| has_ended).map(|at| at / 1_000);
        // The first result to run out takes the whole answer with it.
        let expires_at = completed_at.and_then(|_| {
            let first = ended
                .values()
                .map(|ended| ended.timings.finished_at)
                .min()?;
            Some(first / 1_000 + view.result_ttl.as_secs())
        });
        let cause = ended
            .values()
            .filter(|ended| Status::of(ending(ended).state()) == status)
            .find_map(|ended| ended.outcome.as_ref().err());
        let response = (status == Status::Completed)
            .then(|| ImagesAnswer::new(record, ended, Pictures::Addresses(view.base)).ok());
        Self {
            id: record.job,
            object: "image.job",
            status,
            created_at: record.accepted_at / 1_000,
            deadline_at: record.deadline_at / 1_000,
            completed_at,
            expires_at,
            size: record.size,
            output_format: record.format,
            outputs,
            trace_id: record.trace_id,
            error: cause.map(|error| ErrorFields::new(error, None)),
            response: response.flatten(),
        }
    }
}

fn output_answer<'a>(
    view: JobView<'a>,
    OutputRequest { index, seed }: &OutputRequest,
) -> OutputAnswer<'a> {
    let id = view.record.job.output(*index);
    let life = view.lives.get(index);
    let attempts = life.map(|life| life.attempts.iter().map(AttemptAnswer::from).collect());
    let waiting = OutputAnswer {
        id,
        seed: *seed,
        prior_id: None,
        status: Status::Queued,
        state: OutputState::Queued,
        url: None,
        stage: None,
        step: None,
        steps: None,
        attempts: attempts.unwrap_or_default(),
        error: None,
        timings: None,
    };
    if let Some(ended) = view.ended.get(index) {
        return ended_answer(waiting, ended, view.base);
    }
    let state = life.map_or(OutputState::Queued, |life| life.state);
    let waiting = OutputAnswer {
        status: Status::of(state),
        state,
        ..waiting
    };
    match view.progress.get(index) {
        Some(&Progress {
            stage, step, steps, ..
        }) => OutputAnswer {
            status: Status::InProgress,
            stage: Some(stage),
            step: Some(step),
            steps: Some(steps),
            ..waiting
        },
        None => waiting,
    }
}

fn ended_answer<'a>(output: OutputAnswer<'a>, ended: &'a Ended, base: &str) -> OutputAnswer<'a> {
    let state = ending(ended).state();
    let painted = state == OutputState::Done;
    let error = ended.outcome.as_ref().err();
    OutputAnswer {
        status: Status::of(state),
        state,
        url: painted.then(|| format!("{base}{}", content_path(output.id))),
        error: error.map(|error| ErrorFields::new(error, None)),
        prior_id: ended.prior_id,
        timings: Some(ended.timings.into()),
        ..output
    }
}

/// A job has ended when all its outputs have, as the worst of them did; it is under way once one of them is.
fn overall(states: &[OutputState], started: bool) -> Status {
    let state = OutputState::of_request(states);
    match (state.is_final(), started) {
        (true, _) => Status::of(state),
        (false, true) => Status::InProgress,
        (false, false) => Status::Queued,
    }
}

#[cfg(test)]
#[path = "job_answer_tests.rs"]
mod tests;
