//! Our own DiT and VAE on libtorch.

use std::ops::ControlFlow;

use model::{
    Checkpoint, LoadOptions, ModelError, PaintProgress, PaintRequest, Painter, PriorGrid,
    probe::{MemoryWatch, OperatorRecording},
};
use protocol::{
    DenoiseJob, DenoiseParameters, ErrorCode, ImageFormat, JobError, Stage,
    limits::SIDE_PIXELS_MULTIPLE, trace::span,
};
use service::{
    ModelArgs,
    clock::unix_millis,
    profile::{Operator, Probes, Recorder, Steps},
};
use tokio_util::sync::CancellationToken;

use crate::{
    engine::{DenoiseEngine, NotPainted, Painted, Reporter, encoded, progress},
    stages::Stages,
};

/// A loaded checkpoint's denoising half.
#[derive(Debug)]
pub struct TorchEngine {
    painter: Painter,
    revision: String,
    memory: MemoryWatch,
    probes: Probes,
}

impl TorchEngine {
    /// Loads the model; to be called on the thread that will own the device.
    pub fn load(args: &ModelArgs, probes: Probes) -> Result<Self, ModelError> {
        model::set_threads(args.threads);
        let options = LoadOptions::from_text(&args.device, &args.dtype)?;
        // Before the weights, which are part of it.
        let memory = MemoryWatch::begin(options.device)?;
        let checkpoint = Checkpoint::open(args.folder())?;
        let engine = Self {
            painter: Painter::load(&checkpoint, options)?,
            revision: checkpoint.revision()?,
            memory,
            probes,
        };
        engine.probes.profiles.offer("denoising step");
        Ok(engine)
    }

    /// The stage that ends with `done` ends with this memory.
    fn tell_memory(&self, done: PaintProgress) {
        let stage = match done {
            PaintProgress::GlyphEncoded => span::PREPARE,
            PaintProgress::Step { step, steps, .. } if step == steps => span::DENOISE,
            PaintProgress::Step { .. } => return,
            PaintProgress::Decoded => span::VAE_DECODE,
        };
        let used = self.memory.take();
        self.probes.memory.ended(stage, used.live, used.peak);
    }
}

/// Records libtorch's operators.
const OPERATORS: Recorder<OperatorRecording, ModelError> = Recorder {
    begin: OperatorRecording::begin,
    finish: |recording| {
        let operators = recording.finish().into_iter();
        let operators = operators.map(|operator| Operator {
            name: operator.name,
            calls: operator.calls,
            self_ns: operator.self_ns,
            total_ns: operator.total_ns,
        });
        operators.collect()
    },
};

impl DenoiseEngine for TorchEngine {
    fn paint(
        &self,
        job: &DenoiseJob,
        report: &Reporter,
        stop: &CancellationToken,
    ) -> Result<Painted, NotPainted> {
        let steps = u32::from(job.denoise.steps());
        let mut denoise_finished_at = 0;
        let mut stages = Stages::prepare();
        let mut recorded = Steps::new(&self.probes.profiles, OPERATORS);
        // What the last painting left behind is no peak of this one.
        self.memory.take();
        let mut observe = |done: PaintProgress| {
            self.tell_memory(done);
            stages.observe(done, steps);
            let (stage, step, steps) = match done {
                PaintProgress::GlyphEncoded => (Stage::Denoise, 0, steps),
                PaintProgress::Step { step, steps, .. } => (Stage::Denoise, step, steps),
                PaintProgress::Decoded => (Stage::Decode, 1, 1),
            };
            if stage == Stage::Denoise {
                denoise_finished_at = unix_millis();
            }
            report.tell(progress(job, stage, step, steps));
            let goes_on = step_is_next(done) && !stop.is_cancelled();
            if done != PaintProgress::Decoded {
                recorded.between(goes_on);
            }
            if step_is_next(done) && !goes_on {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let picture = self
            .painter
            .paint(&request(job), &mut observe)
            .map_err(not_painted)?;
        let bytes = match job.format {
            ImageFormat::Png => picture.to_png().map_err(not_painted)?,
        };
        Ok(Painted {
            image: encoded(job, bytes)?,
            denoise_finished_at,
        })
    }

    fn self_test(&self) -> Result<(), JobError> {
        let request = PaintRequest {
            prompt: "",
            height: SIDE_PIXELS_MULTIPLE,
            width: SIDE_PIXELS_MULTIPLE,
            seed: 0,
            steps: 1,
            guidance_scale: DenoiseParameters::GUIDANCE_SCALE_DEFAULT,
            prior: PriorGrid {
                h: 1,
                w: 1,
                ids: &[0],
            },
        };
        let picture = self
            .painter
            .paint(&request, &mut |_| ControlFlow::Continue(()));
        picture
            .and_then(|picture| picture.to_png())
            .map(drop)
            .map_err(|error| failed(&error))
    }

    fn revision(&self) -> String {
        self.revision.clone()
    }
}

impl Stages {
    /// The stage that follows from what is done.
    fn observe(&mut self, done: PaintProgress, steps: u32) {
        match done {
            PaintProgress::GlyphEncoded => self.denoise(steps),
            PaintProgress::Step { step, steps, sigma } => {
                self.step(step, Some(sigma));
                if step == steps {
                    self.vae_decode();
                }
            }
            PaintProgress::Decoded => self.encode(),
        }
    }
}

/// Whether a stop still saves a step.
fn step_is_next(done: PaintProgress) -> bool {
    match done {
        PaintProgress::GlyphEncoded => true,
        PaintProgress::Step { step, steps, .. } => step < steps,
        PaintProgress::Decoded => false,
    }
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
        error => NotPainted::Failed(failed(&error)),
    }
}

fn failed(error: &ModelError) -> JobError {
    let code = match error {
        // No other worker with this model can do better.
        ModelError::Request { .. } => ErrorCode::InvalidParameter,
        _ => ErrorCode::DenoiseFailed,
    };
    JobError::new(code, &service::exit::chain(error))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use protocol::Role;
    use service::{
        metrics::{DeviceClock, Histogram, Metrics, Worker},
        profile::Profiles,
    };
    use tokio::sync::watch;

    use super::*;
    use crate::fixtures::job;

    fn engine() -> TorchEngine {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tiny");
        let args = ModelArgs {
            model: Some(tiny),
            check_model: None,
            device: "cpu".into(),
            device_label: None,
            dtype: "f32".into(),
            threads: 1,
        };
        let metrics = Metrics::new(Role::Denoiser);
        let probes = Probes {
            memory: Worker::register(&metrics, "denoise", []).memory,
            profiles: Profiles::default(),
        };
        TorchEngine::load(&args, probes).expect("the tiny checkpoint")
    }

    /// Whether there is a picture.
    fn paint(engine: &TorchEngine, job: &DenoiseJob, stop: &CancellationToken) -> bool {
        let progress = watch::Sender::new(progress(job, Stage::Denoise, 0, 1));
        let report = Reporter::new(
            progress,
            Histogram::new([1.0]),
            DeviceClock::start(Default::default()),
        );
        match engine.paint(job, &report, stop) {
            Ok(painted) => {
                assert!(painted.image.bytes.starts_with(b"\x89PNG\r\n\x1a\n"));
                true
            }
            Err(NotPainted::Stopped) => false,
            Err(NotPainted::Failed(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn a_good_device_passes_its_self_test_and_tells_its_revision() {
        let engine = engine();
        assert_eq!(engine.self_test(), Ok(()));
        assert_eq!(engine.revision().len(), 12);
    }

    #[test]
    fn a_picture_whose_last_step_is_done_is_finished() {
        let step = |step| PaintProgress::Step {
            step,
            steps: 3,
            sigma: 0.5,
        };
        for (done, expected) in [
            (PaintProgress::GlyphEncoded, true),
            (step(1), true),
            (step(2), true),
            (step(3), false),
            (PaintProgress::Decoded, false),
        ] {
            assert_eq!(step_is_next(done), expected, "{done:?}");
        }
    }

    #[test]
    fn a_stop_is_heard_before_the_first_step() {
        let (engine, stop) = (engine(), CancellationToken::new());
        assert!(paint(&engine, &job("a red fox", 1), &stop));
        stop.cancel();
        assert!(!paint(&engine, &job("a red fox", 1), &stop));
    }
}
