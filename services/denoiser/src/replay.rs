//! No model: steps that take their time, pictures that follow from the job, failures from a script.

use std::time::Instant;

use protocol::{DenoiseJob, ErrorCode, JobError, Stage};
use replay::{Fault, FaultStage, Faults, ReplayError, Scene, Times, picture};
use service::{ReplayArgs, clock::unix_millis};
use tokio_util::sync::CancellationToken;

use crate::{
    engine::{DenoiseEngine, NotPainted, Painted, Reporter, encoded, progress},
    stages::Stages,
};

/// What a replay engine calls its model.
pub const REVISION: &str = "replay";

/// Paints by table.
#[derive(Debug, Clone)]
pub struct ReplayEngine {
    times: Times,
    faults: Faults,
}

impl ReplayEngine {
    /// Reads the table; a script of failures is read now, to refuse a bad one, and again at every job.
    pub fn load(args: &ReplayArgs) -> Result<Self, ReplayError> {
        Ok(Self {
            times: Times::read(args.times_file(), args.time_scale)?,
            faults: Faults::open(args.faults.as_deref())?,
        })
    }

    /// Suffers what the script has for this prompt.
    fn suffer(&self, prompt: &str) -> Result<(), JobError> {
        let rules = self.faults.rules().map_err(|error| failed(&error))?;
        let Some(fault) = rules.fault(FaultStage::Denoise, prompt) else {
            return Ok(());
        };
        tracing::warn!(?fault, "scripted fault");
        fault.enact();
        debug_assert_eq!(fault, Fault::Fail);
        let text = "scripted failure of the replay engine";
        Err(JobError::new(ErrorCode::DenoiseFailed, text))
    }
}

impl DenoiseEngine for ReplayEngine {
    fn paint(
        &self,
        job: &DenoiseJob,
        report: &Reporter,
        stop: &CancellationToken,
    ) -> Result<Painted, NotPainted> {
        let mut stages = Stages::prepare();
        self.suffer(&job.prompt).map_err(NotPainted::Failed)?;
        let steps = u32::from(job.denoise.steps());
        report.tell(progress(job, Stage::Denoise, 0, steps));
        // From the start: what a sleep oversleeps must not add up.
        let started_at = Instant::now();
        stages.denoise(steps);
        for step in 1..=steps {
            if stop.is_cancelled() {
                return Err(NotPainted::Stopped);
            }
            // Steps of no time are no news.
            if !self.times.step().is_zero() {
                occupy_device_until(started_at + self.times.step() * step);
                report.tell(progress(job, Stage::Denoise, step, steps));
            }
            stages.step(step, None);
        }
        stages.vae_decode();
        let denoise_finished_at = unix_millis();
        let scene = Scene {
            prompt: &job.prompt,
            seed: job.seed,
            size: job.size,
            denoise: job.denoise,
            prior: &job.prior,
        };
        let bytes = picture(&scene).map_err(|error| NotPainted::Failed(failed(&error)))?;
        // The decoder of a device would have made it meanwhile.
        occupy_device_until(started_at + self.times.picture(job.denoise.steps()));
        report.tell(progress(job, Stage::Decode, 1, 1));
        stages.encode();
        Ok(Painted {
            image: encoded(job, bytes)?,
            denoise_finished_at,
        })
    }

    fn self_test(&self) -> Result<(), JobError> {
        self.suffer("")?;
        occupy_device_until(Instant::now() + self.times.picture(1));
        Ok(())
    }

    fn revision(&self) -> String {
        REVISION.to_owned()
    }
}

/// Nothing interrupts a step of a real device, so nothing interrupts this.
#[expect(
    clippy::disallowed_methods,
    reason = "the device's own thread is busy, as it would be in a call of libtorch; no executor waits for it"
)]
fn occupy_device_until(at: Instant) {
    // Sleeping for no time still goes to the kernel and back.
    let time = at.saturating_duration_since(Instant::now());
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

fn failed(error: &(dyn std::error::Error + 'static)) -> JobError {
    JobError::new(ErrorCode::DenoiseFailed, &service::exit::chain(error))
}

#[cfg(test)]
mod tests {
    use protocol::{ImageSize, Progress, Seed};
    use replay::{ArTimes, DenoiseTimes, Table, prior_tokens};
    use service::metrics::{DeviceClock, Histogram, SecondsCounter};
    use tokio::sync::watch;

    use super::*;
    use crate::fixtures;

    fn job(prompt: &str, steps: u16) -> DenoiseJob {
        let (seed, size) = (Seed::new(7), ImageSize::new(64, 32));
        let (seed, size) = (seed.expect("small"), size.expect("multiples of 32"));
        DenoiseJob {
            seed,
            size,
            prior: prior_tokens(seed, size),
            ..fixtures::job(prompt, steps)
        }
    }

    /// An engine of no time, with a script.
    fn engine(script: &str) -> (ReplayEngine, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("faults.json");
        std::fs::write(&file, script).expect("a writable folder");
        let table = Table {
            ar: ArTimes::new(&[(1, 0.0)], 1),
            denoise: DenoiseTimes {
                step_ms: 0.0,
                decode_ms: 0.0,
            },
        };
        let engine = ReplayEngine {
            times: Times::new(table, 1.0).expect("in range"),
            faults: Faults::open(Some(&file)).expect("a script"),
        };
        (engine, folder)
    }

    fn report(job: &DenoiseJob) -> (Reporter, watch::Receiver<Progress>) {
        let (progress, told) = watch::channel(progress(job, Stage::Prior, 0, 0));
        let report = Reporter::new(
            progress,
            Histogram::new([1.0]),
            DeviceClock::start(Default::default()),
        );
        (report, told)
    }

    #[test]
    fn a_device_is_seen_busy_while_it_paints_and_so_is_whose_it_is() {
        let job = job("a red fox", 3);
        let (progress, _told) = watch::channel(progress(&job, Stage::Prior, 0, 0));
        let counters: [SecondsCounter; 2] = Default::default();
        let clock = DeviceClock::start(counters.clone());
        let report = Reporter::new(progress, Histogram::new([1.0]), clock);
        occupy_device_until(Instant::now() + std::time::Duration::from_millis(2));
        report.tell(super::progress(&job, Stage::Denoise, 1, 3));
        let [busy, of_tenant] = counters.each_ref().map(SecondsCounter::get);
        assert!(busy >= 0.002, "{busy}");
        assert_eq!(busy, of_tenant);
    }

    fn paint(engine: &ReplayEngine, job: &DenoiseJob) -> Result<Vec<u8>, NotPainted> {
        let (report, told) = report(job);
        let painted = engine.paint(job, &report, &CancellationToken::new())?;
        assert_eq!(painted.image.size, job.size);
        assert_eq!(
            *told.borrow(),
            progress(job, Stage::Decode, 1, 1),
            "told to the end"
        );
        Ok(painted.image.bytes)
    }

    #[test]
    fn the_same_job_gives_the_same_picture_and_another_job_another() {
        let (engine, _folder) = engine("[]");
        let first = paint(&engine, &job("a red fox", 3)).expect("painted");
        let again = paint(&engine, &job("a red fox", 3)).expect("painted");
        let other = paint(&engine, &job("a red fox", 4)).expect("painted");
        assert_eq!(first, again);
        assert_ne!(first, other);
    }

    #[test]
    fn a_stop_is_heard_before_a_step() {
        let (engine, _folder) = engine("[]");
        let (job, stop) = (job("a red fox", 3), CancellationToken::new());
        stop.cancel();
        let (report, told) = report(&job);
        let stopped = engine.paint(&job, &report, &stop);
        assert!(matches!(stopped, Err(NotPainted::Stopped)));
        assert_eq!(*told.borrow(), progress(&job, Stage::Denoise, 0, 3));
    }

    #[test]
    fn a_scripted_failure_is_its_own_prompts_and_of_this_stage_only() {
        let script = r#"[{"prompt_contains": "poison", "stage": "denoise", "fault": "fail"},
                         {"prompt_contains": "fox", "stage": "prior", "fault": "fail"}]"#;
        let (engine, folder) = engine(script);
        let failed = paint(&engine, &job("a poison", 1));
        let Err(NotPainted::Failed(error)) = failed else {
            panic!("painted: {failed:?}")
        };
        assert_eq!(error.code, ErrorCode::DenoiseFailed);
        assert!(paint(&engine, &job("a red fox", 1)).is_ok());
        assert_eq!(engine.self_test(), Ok(()));

        std::fs::remove_file(folder.path().join("faults.json")).expect("it is there");
        assert!(paint(&engine, &job("a poison", 1)).is_ok());
    }

    #[test]
    fn a_rule_for_every_prompt_fails_the_self_test_too() {
        let script = r#"[{"prompt_contains": "", "stage": "denoise", "fault": "fail"}]"#;
        let (engine, _folder) = engine(script);
        let code = engine.self_test().map_err(|error| error.code);
        assert_eq!(code, Err(ErrorCode::DenoiseFailed));
    }

    #[test]
    #[should_panic(expected = "scripted")]
    fn a_scripted_panic_is_one_of_the_thread_that_paints() {
        let script = r#"[{"prompt_contains": "p", "stage": "denoise", "fault": "panic"}]"#;
        let (engine, _folder) = engine(script);
        drop(paint(&engine, &job("p", 1)));
    }
}
