//! One painting: from a started attempt to its end, whatever interrupts it.

use std::{convert::Infallible, sync::Arc, time::Duration};

use batching::is_retried;
use messaging::{EndWatch, Lease};
use protocol::{
    CurrentWork, DenoiseJob, JobError, LifeEvent, Progress, Stage, UnixMillis, WorkStage,
    WorkerState,
};
use service::{DeviceThreadDied, clock::unix_millis};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::Worker;
use crate::{
    decide::too_late,
    engine::{NotPainted, Painted},
    results::{Instants, result},
};

type Outcome = Result<Painted, NotPainted>;

/// Why a painting is to stop before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interruption {
    /// The output has a result: it was cancelled, or another worker was faster.
    Ended,
    /// The message is probably another worker's by now.
    Lost,
    /// Its time is over.
    Expired,
    /// This worker is to stop.
    Draining,
}

impl Worker<'_> {
    pub(super) async fn paint(
        &mut self,
        job: Arc<DenoiseJob>,
        lease: Lease,
        watch: &EndWatch,
    ) -> Result<(), DeviceThreadDied> {
        let started_at = unix_millis();
        let current = CurrentWork {
            output: job.output,
            ack_subject: lease.ack_subject(),
            since: started_at,
        };
        self.show(WorkerState::Busy, vec![current]);
        let (progress, watched) = watch::channel(Progress {
            output: job.output,
            stage: Stage::Denoise,
            step: 0,
            steps: u32::from(job.denoise.steps()),
        });
        // Of this painting alone: a worker that goes on must not be stopped for good.
        let stop = CancellationToken::new();
        let call = {
            let (job, stop, span) = (Arc::clone(&job), stop.clone(), Span::current());
            self.engine
                .call(move |engine| span.in_scope(|| engine.paint(&job, &progress, &stop)))
        };
        tokio::pin!(call);
        let painting = Painting { job, started_at };
        let interruption = tokio::select! {
            painted = &mut call => {
                self.painted(&painting, painted?, lease).await;
                return Ok(());
            }
            interruption = self.interruption(&painting.job, &lease, watch) => interruption,
            never = self.report(watched) => match never {},
        };
        stop.cancel();
        tracing::info!(output = %painting.job.output, ?interruption, "painting is stopped");
        self.interrupted(interruption, &painting, lease, call).await
    }

    async fn interruption(
        &self,
        job: &DenoiseJob,
        lease: &Lease,
        watch: &EndWatch,
    ) -> Interruption {
        let left = Duration::from_millis(job.deadline_at.saturating_sub(unix_millis()));
        tokio::select! {
            () = watch.ended() => Interruption::Ended,
            () = lease.lost() => Interruption::Lost,
            () = sleep(left) => Interruption::Expired,
            () = self.stop.cancelled() => Interruption::Draining,
        }
    }

    /// What is left to do for a painting that was told to stop: the output first, then the device, which is free at
    /// the end of its step.
    async fn interrupted(
        &mut self,
        interruption: Interruption,
        painting: &Painting,
        lease: Lease,
        call: impl Future<Output = Result<Outcome, DeviceThreadDied>>,
    ) -> Result<(), DeviceThreadDied> {
        let output = painting.job.output;
        let mut kept = None;
        match interruption {
            Interruption::Draining => {
                // At once: the step that is running may take longer than the grace period.
                self.counters.given_back.inc();
                let worker = self.member.id.clone();
                let stage = WorkStage::Denoise;
                self.note(output, LifeEvent::GivenBack { stage, worker })
                    .await;
                lease.nak(None);
                return Ok(());
            }
            Interruption::Ended => {
                self.counters.stopped.inc();
                lease.ack().await;
            }
            Interruption::Expired => {
                self.counters.stopped.inc();
                self.refuse(&painting.job, too_late(), lease).await;
            }
            Interruption::Lost => kept = Some(lease),
        }
        let member = self.member;
        member.presence.update(|now| now.held = Vec::new());
        let stop = self.stop.clone();
        let Some(outcome) = stop.run_until_cancelled(call).await else {
            return Ok(());
        };
        match (outcome?, kept) {
            // Its last step was done when it was stopped: the fence says what it is worth.
            (Ok(painted), Some(lease)) => self.painted(painting, Ok(painted), lease).await,
            (Ok(_), None) => {
                self.counters.suppressed.inc();
            }
            // A lost message is not given back: that would take it from its new worker.
            (Err(NotPainted::Stopped), kept) => drop(kept),
            (Err(NotPainted::Failed(error)), _) => {
                tracing::info!(%output, %error, "a stopped painting failed");
            }
        }
        Ok(())
    }

    async fn painted(&mut self, painting: &Painting, outcome: Outcome, lease: Lease) {
        let Painting { job, started_at } = painting;
        let mut instants = Instants {
            started_at: Some(*started_at),
            denoised_at: None,
        };
        let outcome = match outcome {
            Ok(Painted {
                image,
                denoise_finished_at,
            }) => {
                self.breaker.succeeded();
                instants.denoised_at = Some(denoise_finished_at);
                Ok(image)
            }
            Err(NotPainted::Stopped) => return lease.nak(None),
            Err(NotPainted::Failed(error)) if is_retried(error.code) => {
                return self.attempt_failed(job, error, lease).await;
            }
            Err(NotPainted::Failed(error)) => Err(error),
        };
        self.finish(result(&self.member.id, job, outcome, instants), lease)
            .await;
    }

    /// Another worker tries, or the next one to start gives the output up.
    async fn attempt_failed(&mut self, job: &DenoiseJob, error: JobError, lease: Lease) {
        tracing::warn!(output = %job.output, code = %error.code, error = error.text, "attempt failed");
        self.breaker.failed();
        self.counters.attempts_failed.inc();
        let failed = LifeEvent::AttemptFailed {
            stage: WorkStage::Denoise,
            worker: self.member.id.clone(),
            error,
        };
        if let Err(error) = self.advance(job.output, failed).await {
            // Its attempt stays open and is found lost: it counts either way.
            tracing::warn!(output = %job.output, %error, "failed attempt is not written down");
        }
        lease.nak(None);
    }

    /// Tells every step; ends never, so that the painting decides when the output is done.
    async fn report(&self, mut watched: watch::Receiver<Progress>) -> Infallible {
        while watched.changed().await.is_ok() {
            let progress = *watched.borrow_and_update();
            self.member.bus.report_progress(&progress).await;
        }
        std::future::pending().await
    }
}

/// What is being painted, and since when.
struct Painting {
    job: Arc<DenoiseJob>,
    started_at: UnixMillis,
}
