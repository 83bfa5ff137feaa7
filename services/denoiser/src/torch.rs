//! A denoise job as the model sees it, on the device thread.

use std::ops::ControlFlow;

use model::{ModelError, PaintProgress, PaintRequest, Painter, PriorGrid};
use protocol::{
    DenoiseJob, EncodedImage, ErrorCode, ImageFormat, JobError, Progress, Stage, UnixMillis,
    limits::IMAGE_BYTES_MAX,
};
use service::clock::unix_millis;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A painted picture and when its stages ended.
#[derive(Debug)]
pub(crate) struct Painted {
    pub(crate) image: EncodedImage,
    pub(crate) denoise_finished_at: UnixMillis,
}

/// Why there is no picture.
#[derive(Debug)]
pub(crate) enum NotPainted {
    /// The worker is to stop: nobody's fault, another worker paints it.
    Stopped,
    /// The output ends with this error.
    Failed(JobError),
}

/// Paints and encodes `job`; stops between two steps once `stop` is cancelled.
pub(crate) fn paint(
    painter: &Painter,
    job: &DenoiseJob,
    progress: &watch::Sender<Progress>,
    stop: &CancellationToken,
) -> Result<Painted, NotPainted> {
    let steps = u32::from(job.denoise.steps());
    let mut denoise_finished_at = 0;
    let mut observe = |done: PaintProgress| {
        let (stage, step, steps) = match done {
            PaintProgress::GlyphEncoded => (Stage::Denoise, 0, steps),
            PaintProgress::Step { step, steps } => (Stage::Denoise, step, steps),
            PaintProgress::Decoded => (Stage::Decode, 1, 1),
        };
        if stage == Stage::Denoise {
            denoise_finished_at = unix_millis();
        }
        progress.send_replace(Progress {
            output: job.output,
            stage,
            step,
            steps,
        });
        if stop.is_cancelled() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let picture = painter
        .paint(&request(job), &mut observe)
        .map_err(not_painted)?;
    let bytes = match job.format {
        ImageFormat::Png => picture.to_png().map_err(not_painted)?,
    };
    if bytes.len() > IMAGE_BYTES_MAX {
        let text = format!(
            "the picture has {} bytes, a result holds {IMAGE_BYTES_MAX}",
            bytes.len()
        );
        return Err(NotPainted::Failed(JobError::new(
            ErrorCode::ImageTooLarge,
            &text,
        )));
    }
    Ok(Painted {
        image: EncodedImage {
            format: job.format,
            size: job.size,
            bytes,
        },
        denoise_finished_at,
    })
}

fn request(job: &DenoiseJob) -> PaintRequest<'_> {
    PaintRequest {
        prompt: &job.prompt,
        height: job.size.height(),
        width: job.size.width(),
        seed: job.seed.get(),
        steps: u32::from(job.denoise.steps()),
        guidance_scale: job.denoise.guidance_scale(),
        prior: PriorGrid {
            h: u32::from(job.prior.rows()),
            w: u32::from(job.prior.columns()),
            ids: job.prior.ids(),
        },
    }
}

fn not_painted(error: ModelError) -> NotPainted {
    match error {
        ModelError::Interrupted => NotPainted::Stopped,
        error => {
            let text = service::exit::chain(&error);
            NotPainted::Failed(JobError::new(ErrorCode::DenoiseFailed, &text))
        }
    }
}
