//! The seam between serving outputs and painting them: a job in, a picture out, no queue on one side and no tensor on
//! the other.

use protocol::{
    DenoiseJob, EncodedImage, ErrorCode, JobError, Progress, Stage, UnixMillis,
    limits::IMAGE_BYTES_MAX,
};
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

/// Paints, one output at a time, on the device's thread, which it never leaves. Implementations:
/// [`crate::torch::TorchEngine`] and [`crate::replay::ReplayEngine`].
pub trait DenoiseEngine {
    /// Paints and encodes `job`. `stop` is heard before each step and no more once the last one is done: what is left
    /// is short, and whether the picture still counts is for the fence to say.
    fn paint(
        &self,
        job: &DenoiseJob,
        progress: &watch::Sender<Progress>,
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
