//! `POST /profile`: which operators the next steps of this worker's engine spend their time in.
//!
//! Whoever asks leaves a wish; the device's thread finds it between two steps, records so many of them and answers. A
//! wish that is not found in time is taken back. Without one nothing is recorded, and between steps it costs a look at
//! a lock that nobody else holds.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, time::timeout};
use tokio_util::sync::CancellationToken;
use warp::{Filter, Reply, filters::BoxedFilter, http::StatusCode, reply::Response};

use crate::{
    AdminKey, exit,
    health::keyed::{NoKey, keyed},
    metrics::LibtorchMemory,
};

/// Steps of one capture: more say the same, and a recorded step is slower than others.
pub const STEPS_MAX: u32 = 16;

/// How long a client may wait for a job to come.
pub const WAIT_S_MAX: u32 = 600;

/// How long a capture may take once its first step has begun: its steps are one job's, and a job may take as long by
/// default.
pub const CAPTURE_TIME_MAX: Duration = Duration::from_secs(600);

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// How many steps, one after the other, of one job: fewer where it ends before.
    pub steps: u32,
    /// How long to wait for the first of them to begin, in seconds.
    pub wait_s: u32,
}

/// An operator, all its calls together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    /// As the engine's library calls it.
    pub name: String,
    /// How often it was called, by the engine or by another operator.
    pub calls: u64,
    /// Without the operators that it called.
    pub self_ns: u64,
    /// With them.
    pub total_ns: u64,
}

/// What came of a wish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Steps that were recorded.
    pub steps: u32,
    /// What they took by the clock on the wall.
    pub wall_ns: u64,
    /// The longest by itself first.
    pub operators: Vec<Operator>,
}

/// The wishes of a process: one at a time. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Profiles(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// What the steps are called, once there is an engine that can be asked.
    steps: Option<&'static str>,
    asking: bool,
    wish: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    steps: u32,
    found: oneshot::Sender<()>,
    answer: oneshot::Sender<Report>,
}

/// Why there is no report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("the query must be steps=COUNT&wait_s=SECONDS and nothing else")]
    Unreadable,
    #[error("{field} must be from 1 to {max}")]
    OutOfRange { field: &'static str, max: u32 },
    #[error(
        "this process has no engine that runs on libtorch, or has not loaded it yet: there are no operators to show"
    )]
    NoOperators,
    #[error("another capture is going on: one at a time")]
    Busy,
    #[error("no {steps} began within {wait_s} s: a worker without a job has nothing to show")]
    TooLate { steps: &'static str, wait_s: u32 },
    #[error("the {steps}s were not done within {} s: ask for fewer", CAPTURE_TIME_MAX.as_secs())]
    TooLong { steps: &'static str },
    #[error("the job ended before its {steps} did: ask again")]
    Interrupted { steps: &'static str },
    #[error("the process stops")]
    Stopping,
}

impl Refusal {
    const fn status(&self) -> StatusCode {
        match self {
            Self::Unreadable | Self::OutOfRange { .. } => StatusCode::BAD_REQUEST,
            Self::NoOperators => StatusCode::NOT_IMPLEMENTED,
            Self::Busy => StatusCode::CONFLICT,
            Self::TooLate { .. } | Self::TooLong { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::Interrupted { .. } | Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl Profiles {
    /// From now on there is an engine that looks for wishes between its `steps`.
    pub fn offer(&self, steps: &'static str) {
        self.lock().steps = Some(steps);
    }

    async fn ask(&self, wish: Wish) -> Result<Report, Refusal> {
        for (field, value, max) in [
            ("steps", wish.steps, STEPS_MAX),
            ("wait_s", wish.wait_s, WAIT_S_MAX),
        ] {
            if value == 0 || value > max {
                return Err(Refusal::OutOfRange { field, max });
            }
        }
        let (found, begun) = oneshot::channel();
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            steps: wish.steps,
            found,
            answer,
        };
        let asking = Asking::begin(self, waiting)?;
        let (steps, wait_s) = (asking.steps, wish.wait_s);
        let waited = timeout(Duration::from_secs(wait_s.into()), begun).await;
        // One that is found in the same moment is not to be taken back.
        if waited.is_err() && self.lock().wish.take().is_some() {
            return Err(Refusal::TooLate { steps, wait_s });
        }
        match timeout(CAPTURE_TIME_MAX, answered).await {
            Ok(Ok(report)) => Ok(report),
            Ok(Err(_)) => Err(Refusal::Interrupted { steps }),
            Err(_) => Err(Refusal::TooLong { steps }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody asks, until this is dropped: also by a client that is gone.
struct Asking<'a> {
    profiles: &'a Profiles,
    steps: &'static str,
}

impl<'a> Asking<'a> {
    fn begin(profiles: &'a Profiles, waiting: Waiting) -> Result<Self, Refusal> {
        let mut state = profiles.lock();
        let steps = state.steps.ok_or(Refusal::NoOperators)?;
        if state.asking {
            return Err(Refusal::Busy);
        }
        (state.asking, state.wish) = (true, Some(waiting));
        Ok(Self { profiles, steps })
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = self.profiles.lock();
        (state.asking, state.wish) = (false, None);
    }
}

/// Who looks inside an engine on libtorch.
#[derive(Debug)]
pub struct Probes {
    /// Gauges.
    pub memory: LibtorchMemory,
    /// Who asks for operators.
    pub profiles: Profiles,
}

/// How an engine records: `begin` and `finish` are called on its thread, between its steps.
#[derive(Debug)]
pub struct Recorder<R, E> {
    /// Where it cannot, nobody is answered.
    pub begin: fn() -> Result<R, E>,
    /// What was called since.
    pub finish: fn(R) -> Vec<Operator>,
}

/// The steps of one job, on the thread of its engine.
#[derive(Debug)]
pub struct Steps<'a, R, E> {
    profiles: &'a Profiles,
    recorder: Recorder<R, E>,
    running: Option<Running<R>>,
}

#[derive(Debug)]
struct Running<R> {
    recording: R,
    began: Instant,
    done: u32,
    steps: u32,
    answer: oneshot::Sender<Report>,
}

impl<'a, R, E: std::error::Error + 'static> Steps<'a, R, E> {
    /// None of them has begun.
    pub const fn new(profiles: &'a Profiles, recorder: Recorder<R, E>) -> Self {
        Self {
            profiles,
            recorder,
            running: None,
        }
    }

    /// Between two steps, before the first and after the last: whether another one follows.
    pub fn between(&mut self, another_follows: bool) {
        if let Some(mut running) = self.running.take() {
            running.done += 1;
            if another_follows && running.done < running.steps {
                self.running = Some(running);
                return;
            }
            running.answer(self.recorder.finish);
        }
        if another_follows {
            self.running = self.begin();
        }
    }

    /// Where somebody wishes it.
    fn begin(&self) -> Option<Running<R>> {
        let wish = self.profiles.lock().wish.take();
        let Waiting {
            steps,
            found,
            answer,
        } = wish?;
        // Who asked may be gone.
        found.send(()).ok();
        let recording = (self.recorder.begin)().inspect_err(|error| {
            tracing::warn!(error = %exit::chain(error), "operators are not recorded");
        });
        let recording = recording.ok()?;
        Some(Running {
            recording,
            began: Instant::now(),
            done: 0,
            steps,
            answer,
        })
    }
}

impl<R> Running<R> {
    fn answer(self, finish: fn(R) -> Vec<Operator>) {
        let wall_ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let report = Report {
            steps: self.done,
            wall_ns,
            operators: finish(self.recording),
        };
        // Who asked may be gone.
        self.answer.send(report).ok();
    }
}

/// The route; with no key there is none.
pub(crate) fn routes(
    profiles: Profiles,
    key: Option<AdminKey>,
    stop: CancellationToken,
) -> BoxedFilter<(Response,)> {
    let wish = warp::query::<Wish>().map(Ok);
    let no_wish = warp::any().map(|| Err(Refusal::Unreadable));
    warp::path!("profile")
        .and(warp::post())
        .and(keyed(key))
        .and(wish.or(no_wish).unify())
        .then(move |admitted: Result<(), NoKey>, wish| {
            let (profiles, stop) = (profiles.clone(), stop.clone());
            async move {
                match admitted {
                    Ok(()) => answer(profiles, wish, stop).await,
                    Err(no_key) => no_key.into_response(),
                }
            }
        })
        .boxed()
}

async fn answer(
    profiles: Profiles,
    wish: Result<Wish, Refusal>,
    stop: CancellationToken,
) -> Response {
    let report = async { profiles.ask(wish?).await };
    let report = stop.run_until_cancelled(report).await;
    match report.unwrap_or(Err(Refusal::Stopping)) {
        Ok(report) => warp::reply::json(&report).into_response(),
        Err(refusal) => {
            let text = format!("{refusal}\n");
            warp::reply::with_status(text, refusal.status()).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// One that records nothing.
    const RECORDER: Recorder<(), Refusal> = Recorder {
        begin: || Ok(()),
        finish: |()| Vec::new(),
    };

    const WISH: Wish = Wish {
        steps: 2,
        wait_s: 1,
    };

    /// The answer to `wish` of a process whose engine makes `steps` steps of one job once it was asked.
    async fn asked(wish: Wish, steps: u32) -> Result<u32, Refusal> {
        let profiles = Profiles::default();
        profiles.offer("step");
        let mut asked = Box::pin(profiles.ask(wish));
        let first = poll_fn(|context| std::task::Poll::Ready(asked.as_mut().poll(context)));
        if let std::task::Poll::Ready(answer) = first.await {
            return answer.map(|report| report.steps);
        }
        let mut job = Steps::new(&profiles, RECORDER);
        for step in 0..=steps {
            job.between(step < steps);
        }
        drop(job);
        asked.await.map(|report| report.steps)
    }

    #[tokio::test(start_paused = true)]
    async fn a_wish_is_answered_with_its_steps_or_with_those_that_the_job_had() {
        assert_eq!(asked(WISH, 5).await, Ok(2));
        assert_eq!(asked(WISH, 1).await, Ok(1));
        let (steps, wait_s) = ("step", 1);
        assert_eq!(
            asked(WISH, 0).await,
            Err(Refusal::TooLate { steps, wait_s })
        );
        for (field, max, wish) in [
            ("steps", STEPS_MAX, Wish { steps: 0, ..WISH }),
            ("steps", STEPS_MAX, Wish { steps: 17, ..WISH }),
            (
                "wait_s",
                WAIT_S_MAX,
                Wish {
                    wait_s: 601,
                    ..WISH
                },
            ),
        ] {
            assert_eq!(
                asked(wish, 5).await,
                Err(Refusal::OutOfRange { field, max })
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_asks_at_a_time_and_one_who_is_gone_keeps_nobody_out() {
        let profiles = Profiles::default();
        assert_eq!(profiles.ask(WISH).await, Err(Refusal::NoOperators));
        profiles.offer("step");
        let late = Err(Refusal::TooLate {
            steps: "step",
            wait_s: 1,
        });
        let both = tokio::join!(profiles.ask(WISH), profiles.ask(WISH));
        assert_eq!(both, (late.clone(), Err(Refusal::Busy)));
        assert_eq!(profiles.ask(WISH).await, late, "free again");
        assert!(profiles.lock().wish.is_none(), "and its wish is taken back");
    }

    /// The answer to [`WISH`] of an engine that takes so long for each of its steps.
    async fn answered(step: Duration) -> Result<u32, Refusal> {
        let profiles = Profiles::default();
        profiles.offer("step");
        let job = async {
            let mut job = Steps::new(&profiles, RECORDER);
            for another_follows in [true, true, false] {
                job.between(another_follows);
                tokio::time::sleep(step).await;
            }
        };
        let (answer, ()) = tokio::join!(profiles.ask(WISH), job);
        answer.map(|report| report.steps)
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_job_does_not_wait_for_its_steps() {
        assert_eq!(answered(Duration::from_secs(70)).await, Ok(2));
        assert_eq!(
            answered(CAPTURE_TIME_MAX).await,
            Err(Refusal::TooLong { steps: "step" })
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_is_stopped_in_a_step_says_so() {
        let profiles = Profiles::default();
        profiles.offer("step");
        let job = async {
            let mut job = Steps::new(&profiles, RECORDER);
            job.between(true);
        };
        let (answer, ()) = tokio::join!(profiles.ask(WISH), job);
        assert_eq!(answer, Err(Refusal::Interrupted { steps: "step" }));
    }
}
