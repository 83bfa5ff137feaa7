//! One painting: from a started attempt to its end, whatever interrupts it.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use batching::is_retried;
use messaging::Lease;
use protocol::{
    CurrentWork, DenoiseJob, JobError, LifeEvent, Progress, Stage, Tenant, UnixMillis, WorkStage,
    WorkerState, trace::value,
};
use service::{DeviceThreadDied, clock::unix_millis, metrics::DeviceClock, telemetry::spans};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::{Worker, ended_as};
use crate::{
    decide::too_late,
    engine::{NotPainted, Painted, Reporter},
    results::{Instants, result},
};

type Outcome = Result<Painted, NotPainted>;

/// Between two progress messages: a person's eye follows no more. A picture that is painted within it tells of none,
/// its result does.
const REPORT_PERIOD: Duration = Duration::from_millis(100);

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
        tenant: Option<&Tenant>,
        lease: Lease,
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
            let (job, stop) = (Arc::clone(&job), stop.clone());
            // The attempt may end, and is to be told of, while the device still works on it.
            let place = spans::Place::below(&Span::current());
            let step = self.counters.step.clone();
            // The device's time is somebody's, whatever comes of the attempt.
            let busy = [self.counters.busy.clone(), self.tenants.of(tenant)];
            self.engine.call(move |engine| {
                let report = Reporter::new(progress, step, DeviceClock::start(busy));
                place.run(|| engine.paint(&job, &report, &stop))
            })
        };
        tokio::pin!(call);
        let painting = Painting {
            job,
            started_at,
            progress: watched.clone(),
        };
        let interruption = tokio::select! {
            painted = &mut call => {
                self.painted(&painting, painted?, lease).await;
                return Ok(());
            }
            // Its attempt stays open: the output, or the device, has to answer for it.
            () = self.stalled(&painting) => {
                spans::fail_as(&Span::current(), value::DEVICE_HANGS);
                return Err(DeviceThreadDied);
            }
            interruption = self.interruption(&painting.job, &lease) => interruption,
            never = self.report(watched) => match never {},
        };
        stop.cancel();
        tracing::info!(output = %painting.job.output, ?interruption, "painting is stopped");
        self.interrupted(interruption, &painting, lease, call).await
    }

    async fn interruption(&self, job: &DenoiseJob, lease: &Lease) -> Interruption {
        let left = Duration::from_millis(job.deadline_at.saturating_sub(unix_millis()));
        tokio::select! {
            () = self.member.bus.ended(job.output) => Interruption::Ended,
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
        let (output, told_at) = (painting.job.output, Instant::now());
        let (mut kept, mut acking) = (None, None);
        match interruption {
            Interruption::Draining => {
                // At once: the step that is running may take longer than the grace period.
                self.gives_back();
                self.note_given_back(output).await;
                lease.nak(None);
                return Ok(());
            }
            Interruption::Ended => {
                self.counters.stopped.inc();
                ended_as(value::ENDED_ELSEWHERE);
                // Beside the device: how long the broker takes is not how long the device does.
                acking = Some(self.tracker.spawn(lease.ack()));
            }
            // It ends here, and counts as what it ends with.
            Interruption::Expired => {
                self.refuse(&painting.job, too_late(), lease).await;
            }
            Interruption::Lost => {
                spans::fail_as(&Span::current(), value::LEASE_LOST);
                self.sign_off(output);
                kept = Some(lease);
            }
        }
        self.member.presence.update(|now| now.held = Vec::new());
        let outcome = tokio::select! {
            outcome = call => outcome,
            () = self.stop.cancelled() => return Ok(()),
            () = self.stalled(painting) => return Err(DeviceThreadDied),
        };
        if let Some(acking) = acking {
            let to_free = told_at.elapsed().as_secs_f64();
            self.counters.cancel_to_free.observe(to_free);
            // A task that fails has panicked, and said so.
            acking.await.ok();
        }
        match (outcome?, kept) {
            // Its last step was done when it was stopped: the fence says what it is worth.
            (Ok(painted), Some(lease)) => self.painted(painting, Ok(painted), lease).await,
            (Ok(_), None) => {
                self.counters.worker.suppressed.inc();
            }
            // A lost message is not given back: that would take it from its new worker.
            (Err(NotPainted::Stopped), Some(lease)) => lease.abandon(),
            (Err(NotPainted::Stopped), None) => {}
            (Err(NotPainted::Failed(error)), _) => {
                tracing::info!(%output, %error, "a stopped painting failed");
            }
        }
        Ok(())
    }

    async fn painted(&mut self, painting: &Painting, outcome: Outcome, lease: Lease) {
        let Painting {
            job, started_at, ..
        } = painting;
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
            Err(NotPainted::Stopped) => {
                self.gives_back();
                return lease.nak(None);
            }
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
        spans::fail(&Span::current(), error.code);
        self.breaker.failed(job.output);
        self.counters.attempts_failed.inc();
        let failed = LifeEvent::AttemptFailed {
            stage: WorkStage::Denoise,
            worker: self.member.id.clone(),
            error,
        };
        let stop = self.stop.clone();
        match stop
            .run_until_cancelled(self.advance(job.output, failed))
            .await
        {
            // Somebody else has started on it: the message is theirs.
            Some(Ok(false)) => return lease.abandon(),
            Some(Ok(true)) | None => {}
            // Its attempt stays open and is found lost: it counts either way.
            Some(Err(error)) => {
                tracing::warn!(output = %job.output, %error, "failed attempt is not written down");
            }
        }
        lease.nak(None);
    }

    /// Returns when the device has said nothing for too long. Steps of a stopped painting count as well.
    async fn stalled(&self, painting: &Painting) {
        let mut progress = painting.progress.clone();
        progress.mark_unchanged();
        while let Ok(changed) = timeout(self.retry.stall_max, progress.changed()).await {
            if changed.is_err() {
                // The painting has ended, and is about to say how.
                sleep(self.retry.stall_max).await;
                break;
            }
        }
        let stall_max_s = self.retry.stall_max.as_secs_f64();
        tracing::error!(output = %painting.job.output, stall_max_s, "the device hangs");
    }

    /// Tells how far it is; ends never, so that the painting decides when the output is done.
    async fn report(&self, mut watched: watch::Receiver<Progress>) -> Infallible {
        while watched.changed().await.is_ok() {
            sleep(REPORT_PERIOD).await;
            let progress = *watched.borrow_and_update();
            self.member.bus.report_progress(&progress).await;
        }
        std::future::pending().await
    }
}

/// What is being painted, since when, and how far it is.
struct Painting {
    job: Arc<DenoiseJob>,
    started_at: UnixMillis,
    progress: watch::Receiver<Progress>,
}
