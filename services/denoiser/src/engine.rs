//! The seam between serving outputs and painting them: a job in, a picture out, no queue on one side and no tensor on
//! the other.

use std::{cell::Cell, time::Instant};

use protocol::{
    DenoiseJob, EncodedImage, ErrorCode, JobError, Progress, Stage, UnixMillis,
    limits::IMAGE_BYTES_MAX,
};
use service::metrics::{DeviceClock, Histogram};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A painted picture and when its stages ended.
#[derive(Debug)]
pub struct Painted {
    /// The result's.
    pub image: EncodedImage,
    /// When the last step was done.
    pub denoise_finished_at: UnixMillis,
}

/// Why there is no picture.
#[derive(Debug)]
pub enum NotPainted {
    /// The worker is to stop: nobody's fault, another worker paints it.
    Stopped,
    /// The output ends with this error.
    Failed(JobError),
}

/// What an engine tells while it paints: how far it is, and with that how long a step takes and that the device is busy.
/// It stays on the device's thread, from the start of a painting to its end.
#[derive(Debug)]
pub struct Reporter {
    progress: watch::Sender<Progress>,
    step: Histogram,
    step_began: Cell<Option<Instant>>,
    clock: DeviceClock<2>,
}

impl Reporter {
    /// Tells `progress` of each step, `step` how many seconds it took, and `clock` that the device works.
    pub fn new(progress: watch::Sender<Progress>, step: Histogram, clock: DeviceClock<2>) -> Self {
        Self {
            progress,
            step,
            step_began: Cell::new(None),
            clock,
        }
    }

    /// It has come so far. A step began when the one before it was told of.
    pub fn tell(&self, progress: Progress) {
        let now = self.clock.worked();
        if progress.stage == Stage::Denoise {
            let began = self.step_began.replace(Some(now));
            if let Some(began) = began.filter(|_| progress.step > 0) {
                self.step.observe(now.duration_since(began).as_secs_f64());
            }
        }
        self.progress.send_replace(progress);
    }
}

/// Paints, one output at a time, on the device's thread, which it never leaves. Implementations:
/// [`crate::torch::TorchEngine`] and [`crate::replay::ReplayEngine`].
pub trait DenoiseEngine {
    /// Paints and encodes `job`. `stop` is heard before each step and no more once the last one is done: what is left
    /// is short, and whether the picture still counts is for the fence to say.
    fn paint(
        &self,
        job: &DenoiseJob,
        report: &Reporter,
        stop: &CancellationToken,
    ) -> Result<Painted, NotPainted>;

    /// Paints the smallest picture in one step, for nobody: whether the device still works.
    fn self_test(&self) -> Result<(), JobError>;

    /// Which model this is: equal for workers that paint alike.
    fn revision(&self) -> String;
}

/// How far `job` is.
pub(crate) fn progress(job: &DenoiseJob, stage: Stage, step: u32, steps: u32) -> Progress {
    Progress {
        output: job.output,
        stage,
        step,
        steps,
    }
}

/// What every engine's picture is held to: it has to fit into a result.
pub(crate) fn encoded(job: &DenoiseJob, bytes: Vec<u8>) -> Result<EncodedImage, NotPainted> {
    if bytes.len() > IMAGE_BYTES_MAX {
        let text = format!(
            "the picture has {} bytes, a result holds {IMAGE_BYTES_MAX}",
            bytes.len()
        );
        let error = JobError::new(ErrorCode::ImageTooLarge, &text);
        return Err(NotPainted::Failed(error));
    }
    Ok(EncodedImage {
        format: job.format,
        size: job.size,
        bytes,
    })
}
