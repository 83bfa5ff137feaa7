//! The worker's loop: take one, decide, paint, store, ack. An ack is the last step and follows a stored result.

use std::{convert::Infallible, sync::Arc, time::Duration};

use messaging::{Delivery, Fence, Lease, Membership, PublishError, WorkQueue};
use protocol::{
    CurrentWork, DenoiseJob, EncodedImage, ErrorCode, JobError, OutputId, OutputResult,
    OutputTimings, Progress, Stage, Subject, UnixMillis, WorkerState, decode, topology::in_time,
};
use service::{
    DeviceThread, DeviceThreadDied,
    clock::unix_millis,
    metrics::{metrics::counter::Counter, registry::Registry},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::engine::{DenoiseEngine, NotPainted, Painted};

/// Between two tries to store a result that the broker did not take. Each try has its own retries; this only keeps a
/// refusing broker from being hammered.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// What the worker did, for `/metrics`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    painted: Counter,
    failed: Counter,
    given_back: Counter,
    suppressed: Counter,
}

impl Counters {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let counters = Self::default();
        let mut counter =
            |name, help, counter: &Counter| registry.register(name, help, counter.clone());
        counter(
            "fresco_outputs_painted",
            "Pictures painted and stored",
            &counters.painted,
        );
        counter(
            "fresco_outputs_failed",
            "Outputs that ended with an error",
            &counters.failed,
        );
        counter(
            "fresco_outputs_given_back",
            "Outputs given back unfinished",
            &counters.given_back,
        );
        counter(
            "fresco_results_suppressed",
            "Results that were second and dropped",
            &counters.suppressed,
        );
        counters
    }
}

pub(crate) struct Worker<'a> {
    pub(crate) member: &'a Membership,
    pub(crate) engine: DeviceThread<Box<dyn DenoiseEngine>>,
    pub(crate) counters: Counters,
    pub(crate) stop: CancellationToken,
}

/// What to do with a message that came.
#[derive(Debug, PartialEq)]
enum Decision {
    /// Nobody has answered for it yet.
    Paint,
    /// It has a result: only the ack was lost.
    AlreadyAnswered,
    /// It ends here.
    Refuse(JobError),
}

fn decide(job: &DenoiseJob, answered: bool, now: UnixMillis) -> Decision {
    if answered {
        return Decision::AlreadyAnswered;
    }
    if !in_time(job.deadline_at, now) {
        let error = JobError::new(
            ErrorCode::DeadlineExceeded,
            "the deadline passed before a denoiser was free",
        );
        return Decision::Refuse(error);
    }
    if !job.prior.fits(job.size) {
        let error = JobError::new(
            ErrorCode::PriorTokensInvalid,
            "the prior tokens do not fit the picture's size",
        );
        return Decision::Refuse(error);
    }
    Decision::Paint
}

impl Worker<'_> {
    /// Works until told to stop; an error means that the device is gone.
    pub(crate) async fn run(&self, mut queue: WorkQueue) -> Result<(), DeviceThreadDied> {
        let mut outcome = Ok(());
        while let Some(delivery) = self.stop.run_until_cancelled(queue.next()).await {
            let span = delivery.span();
            outcome = self.serve(delivery).instrument(span).await;
            if outcome.is_err() {
                break;
            }
            self.show(WorkerState::Idle, Vec::new());
        }
        self.show(WorkerState::Draining, Vec::new());
        queue.close().await;
        outcome
    }

    fn show(&self, state: WorkerState, held: Vec<CurrentWork>) {
        self.member
            .presence
            .update(|now| (now.state, now.held) = (state, held));
    }

    async fn serve(&self, delivery: Delivery) -> Result<(), DeviceThreadDied> {
        let Delivery {
            subject,
            payload,
            lease,
            ..
        } = delivery;
        let Subject::Denoise(_, output) = subject else {
            tracing::error!(%subject, "message under a subject of another queue");
            lease.term("not a denoise subject");
            return Ok(());
        };
        let job = match decode::<DenoiseJob>(&payload) {
            Ok(job) if job.output == output => job,
            Ok(_) => {
                let error = JobError::new(
                    ErrorCode::MessageInvalid,
                    "denoise message names another output",
                );
                return self.refuse(unreadable(output, error), lease).await;
            }
            Err(error) => {
                let error = JobError::new(ErrorCode::MessageInvalid, &error.to_string());
                return self.refuse(unreadable(output, error), lease).await;
            }
        };
        // A bus that does not answer says nothing about the output; the fence decides later.
        let answered = self.member.bus.has_result(output).await.unwrap_or(false);
        match decide(&job, answered, unix_millis()) {
            Decision::AlreadyAnswered => {
                tracing::info!(%output, "already answered, acking");
                lease.ack().await;
                Ok(())
            }
            Decision::Refuse(error) => {
                self.refuse(self.result(&job, Err(error), Instants::default()), lease)
                    .await
            }
            Decision::Paint => self.paint(job, lease).await,
        }
    }

    async fn refuse(&self, result: OutputResult, lease: Lease) -> Result<(), DeviceThreadDied> {
        self.finish(result, lease).await;
        Ok(())
    }

    async fn paint(&self, job: DenoiseJob, lease: Lease) -> Result<(), DeviceThreadDied> {
        let (output, started_at) = (job.output, unix_millis());
        let current = CurrentWork {
            output,
            ack_subject: lease.ack_subject(),
            since: started_at,
        };
        self.show(WorkerState::Busy, vec![current]);

        let steps = u32::from(job.denoise.steps());
        let (progress, watched) = watch::channel(Progress {
            output,
            stage: Stage::Denoise,
            step: 0,
            steps,
        });
        let job = Arc::new(job);
        let call = {
            let (job, stop, span) = (Arc::clone(&job), self.stop.clone(), Span::current());
            self.engine
                .call(move |engine| span.in_scope(|| engine.paint(&job, &progress, &stop)))
        };
        let painted = tokio::select! {
            painted = call => painted?,
            // Given back at once: the step that is running may take longer than the grace period.
            () = self.stop.cancelled() => Err(NotPainted::Stopped),
            never = self.report(watched) => match never {},
        };

        let mut instants = Instants {
            started_at: Some(started_at),
            denoised_at: None,
        };
        let outcome = match painted {
            Ok(Painted {
                image,
                denoise_finished_at,
            }) => {
                instants.denoised_at = Some(denoise_finished_at);
                Ok(image)
            }
            Err(NotPainted::Failed(error)) => Err(error),
            Err(NotPainted::Stopped) => {
                tracing::info!(%output, "stopped, giving the output back");
                self.counters.given_back.inc();
                lease.nak(None);
                return Ok(());
            }
        };
        self.finish(self.result(&job, outcome, instants), lease)
            .await;
        Ok(())
    }

    /// Tells every step; ends never, so that the painting decides when the output is done.
    async fn report(&self, mut watched: watch::Receiver<Progress>) -> Infallible {
        while watched.changed().await.is_ok() {
            let progress = *watched.borrow_and_update();
            self.member.bus.report_progress(&progress).await;
        }
        std::future::pending().await
    }

    /// Stores the result, then acks: the only ack of an output that was worked on.
    async fn finish(&self, result: OutputResult, lease: Lease) {
        let (output, failed) = (result.output, result.outcome.is_err());
        match self.store(result).await {
            Some(Fence::First) => {
                let counter = if failed {
                    &self.counters.failed
                } else {
                    &self.counters.painted
                };
                counter.inc();
                tracing::debug!(%output, failed, "result stored");
            }
            Some(Fence::Taken) => {
                self.counters.suppressed.inc();
                tracing::info!(%output, "another result was first, dropping this one");
            }
            None => {
                self.counters.given_back.inc();
                return lease.nak(None);
            }
        }
        lease.ack().await;
    }

    /// Tries until the broker has a result for this output, or the worker is to stop.
    async fn store(&self, mut result: OutputResult) -> Option<Fence> {
        loop {
            // When stopped in the middle, the result may be stored all the same: whoever gets the output next sees it.
            let put = self.member.bus.put_result(&result);
            match self.stop.run_until_cancelled(put).await? {
                Ok(fence) => return Some(fence),
                Err(error @ (PublishError::TooLarge { .. } | PublishError::Encode(_))) => {
                    result.outcome =
                        Err(JobError::new(error.code(), &service::exit::chain(&error)));
                }
                Err(error) => {
                    tracing::warn!(output = %result.output, error = %service::exit::chain(&error), "result not stored, trying again");
                    self.stop
                        .run_until_cancelled(tokio::time::sleep(STORE_PAUSE))
                        .await?;
                }
            }
        }
    }

    fn result(
        &self,
        job: &DenoiseJob,
        outcome: Result<EncodedImage, JobError>,
        instants: Instants,
    ) -> OutputResult {
        OutputResult {
            output: job.output,
            outcome,
            seed: Some(job.seed),
            usage: Some(job.usage),
            timings: OutputTimings {
                accepted_at: job.accepted_at,
                ar_started_at: Some(job.ar_started_at),
                ar_finished_at: Some(job.ar_finished_at),
                denoise_started_at: instants.started_at,
                denoise_finished_at: instants.denoised_at,
                finished_at: unix_millis(),
            },
            worker: Some(self.member.id.clone()),
        }
    }
}

/// When this worker's own stages began and ended.
#[derive(Debug, Clone, Copy, Default)]
struct Instants {
    started_at: Option<UnixMillis>,
    denoised_at: Option<UnixMillis>,
}

/// The result of a message that cannot be read: its subject is all that is known of it.
fn unreadable(output: OutputId, error: JobError) -> OutputResult {
    let now = unix_millis();
    let timings = OutputTimings {
        accepted_at: now,
        finished_at: now,
        ..OutputTimings::default()
    };
    OutputResult {
        output,
        outcome: Err(error),
        seed: None,
        usage: None,
        timings,
        worker: None,
    }
}

#[cfg(test)]
mod tests {
    use protocol::{
        DenoiseParameters, ImageFormat, ImageSize, JobId, OutputIndex, PriorTokens, PriorUsage,
        Seed,
    };

    use super::*;

    const DEADLINE: UnixMillis = 1_000;

    fn job(prior_columns: u16) -> DenoiseJob {
        let ids = vec![0; usize::from(prior_columns)];
        DenoiseJob {
            output: JobId::from_u128(1).output(OutputIndex::new(0).expect("0 is an index")),
            prompt: "p".into(),
            seed: Seed::new(7).expect("small"),
            size: ImageSize::new(64, 32).expect("multiples of 32"),
            format: ImageFormat::Png,
            denoise: DenoiseParameters::new(4, 1.5).expect("in range"),
            prior: PriorTokens::new(1, prior_columns, ids).expect("fills the grid"),
            usage: PriorUsage {
                prompt_tokens: 1,
                generated_tokens: 1,
            },
            accepted_at: 0,
            ar_started_at: 0,
            ar_finished_at: 0,
            deadline_at: DEADLINE,
        }
    }

    fn refusal(decision: Decision) -> Option<ErrorCode> {
        match decision {
            Decision::Refuse(error) => Some(error.code),
            Decision::Paint | Decision::AlreadyAnswered => None,
        }
    }

    #[test]
    fn an_output_in_time_and_unanswered_is_painted() {
        assert_eq!(decide(&job(2), false, DEADLINE - 1), Decision::Paint);
    }

    #[test]
    fn an_answered_output_is_only_acked_even_when_it_is_late() {
        for now in [0, DEADLINE, DEADLINE + 1] {
            assert_eq!(decide(&job(2), true, now), Decision::AlreadyAnswered);
        }
    }

    #[test]
    fn a_late_output_is_refused() {
        let refused = refusal(decide(&job(2), false, DEADLINE));
        assert_eq!(refused, Some(ErrorCode::DeadlineExceeded));
    }

    #[test]
    fn a_grid_of_another_size_is_refused() {
        let refused = refusal(decide(&job(3), false, 0));
        assert_eq!(refused, Some(ErrorCode::PriorTokensInvalid));
    }
}
