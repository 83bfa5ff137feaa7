//! The flow-match Euler schedule with dynamic shift: which noise levels a picture passes through.
//!
//! Plain arithmetic, no tensors. Every operation is in the precision and order of the reference (diffusers 0.42.1,
//! `pipeline_glm_image.py` and `scheduling_flow_match_euler_discrete.py`): grids in f64, everything after in f32.
//! A sigma that is one bit off moves every latent after it.

use std::path::Path;

use serde::Deserialize;

use crate::config::read_part_config;
use crate::error::{ModelError, Result};

/// What `scheduler/scheduler_config.json` says, checked to be a schedule this module computes.
#[derive(Clone, Debug)]
pub(crate) struct SchedulerConfig {
    num_train_timesteps: u32,
    base_image_tokens: u32,
    base_shift: f64,
    max_shift: f64,
}

impl SchedulerConfig {
    /// Reads `scheduler_config.json`.
    ///
    /// # Errors
    ///
    /// A file that is missing or not this scheduler's, or a setting that asks for another schedule (no dynamic
    /// shift, another kind of shift, inverted, Karras, exponential, beta or stochastic): named with its value.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let file: SchedulerFile =
            read_part_config(path, "_class_name", "FlowMatchEulerDiscreteScheduler")?;
        file.check(path)
    }

    /// The most steps a request may ask for: one for each training timestep.
    pub(crate) fn steps_max(&self) -> u32 {
        self.num_train_timesteps
    }

    /// The schedule of `steps` steps for a picture of `image_tokens` DiT patches ((height / 16) (width / 16)).
    ///
    /// # Errors
    ///
    /// [`ModelError::Request`] unless `1 <= steps <= steps_max()`.
    pub(crate) fn schedule(&self, image_tokens: u32, steps: u32) -> Result<Schedule> {
        if steps == 0 || steps > self.steps_max() {
            return Err(ModelError::request(
                "steps",
                format!("{steps} is not in 1..={}", self.steps_max()),
            ));
        }
        let timesteps = self.timesteps(steps);
        let mu = self.mu(image_tokens) as f32;
        let train_timesteps = self.num_train_timesteps as f32;
        let mut sigmas: Vec<f32> = timesteps
            .iter()
            .map(|timestep| shifted(mu, timestep / train_timesteps))
            .collect();
        sigmas.push(0.0);
        Ok(Schedule { timesteps, sigmas })
    }

    /// The strength of the shift: grows with the square root of the picture's token count
    /// (`calculate_shift` of the reference pipeline).
    fn mu(&self, image_tokens: u32) -> f64 {
        let ratio = f64::from(image_tokens) / f64::from(self.base_image_tokens);
        ratio.sqrt() * self.max_shift + self.base_shift
    }

    /// `trunc(linspace(num_train_timesteps, 1, steps + 1)[:-1])`, as numpy computes it: index times step plus start.
    fn timesteps(&self, steps: u32) -> Vec<f32> {
        let start = f64::from(self.num_train_timesteps);
        let step = (1.0 - start) / f64::from(steps);
        (0..steps)
            .map(|index| (f64::from(index) * step + start).trunc() as f32)
            .collect()
    }
}

#[cfg(test)]
impl SchedulerConfig {
    /// The values of zai-org/GLM-Image.
    pub(crate) const fn published() -> Self {
        Self {
            num_train_timesteps: 1000,
            base_image_tokens: 256,
            base_shift: 0.25,
            max_shift: 0.75,
        }
    }
}

/// The linear time shift (`_time_shift_linear` with its exponent 1).
fn shifted(mu: f32, sigma: f32) -> f32 {
    mu / (mu + (1.0 / sigma - 1.0))
}

/// The noise levels of one picture.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Schedule {
    /// Unshifted training timesteps, falling from `num_train_timesteps`; one for each step.
    timesteps: Vec<f32>,
    /// Shifted noise levels from 1 to 0; one more than there are steps.
    sigmas: Vec<f32>,
}

impl Schedule {
    /// What each step does, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Step> + '_ {
        self.timesteps
            .iter()
            .zip(self.sigmas.windows(2))
            .map(|(timestep, sigmas)| Step {
                conditioning: timestep - 1.0,
                sigma: sigmas[0],
                sigma_change: sigmas[1] - sigmas[0],
            })
    }
}

/// One Euler step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    /// What the DiT is told: the raw timestep less one, **not** the shifted sigma. (A diffusers snapshot of July
    /// 2026 passed the shifted one; two ports found pictures oversaturated with it.)
    pub(crate) conditioning: f32,
    /// The noise level that it starts at.
    pub(crate) sigma: f32,
    /// Next sigma minus this sigma; negative.
    pub(crate) sigma_change: f32,
}

/// The file as it is. Absent booleans and strings mean what they mean to diffusers' class.
#[derive(Deserialize)]
struct SchedulerFile {
    num_train_timesteps: u32,
    base_image_seq_len: u32,
    base_shift: f64,
    max_shift: f64,
    #[serde(default)]
    use_dynamic_shifting: bool,
    #[serde(default = "exponential")]
    time_shift_type: String,
    #[serde(default)]
    shift_terminal: Option<f64>,
    #[serde(default)]
    invert_sigmas: bool,
    #[serde(default)]
    stochastic_sampling: bool,
    #[serde(default)]
    use_karras_sigmas: bool,
    #[serde(default)]
    use_exponential_sigmas: bool,
    #[serde(default)]
    use_beta_sigmas: bool,
}

fn exponential() -> String {
    "exponential".to_owned()
}

impl SchedulerFile {
    fn check(self, path: &Path) -> Result<SchedulerConfig> {
        let refuse = |key: &str, value: &dyn std::fmt::Display| {
            Err(ModelError::config(
                path,
                key,
                format!("is {value}, which is not supported"),
            ))
        };
        if !self.use_dynamic_shifting {
            return refuse("use_dynamic_shifting", &false);
        }
        if self.time_shift_type != "linear" {
            return refuse("time_shift_type", &self.time_shift_type);
        }
        // The reference takes 0 for "none", too.
        if let Some(terminal) = self.shift_terminal.filter(|terminal| *terminal != 0.0) {
            return refuse("shift_terminal", &terminal);
        }
        let flags = [
            ("invert_sigmas", self.invert_sigmas),
            ("stochastic_sampling", self.stochastic_sampling),
            ("use_karras_sigmas", self.use_karras_sigmas),
            ("use_exponential_sigmas", self.use_exponential_sigmas),
            ("use_beta_sigmas", self.use_beta_sigmas),
        ];
        if let Some((key, _)) = flags.into_iter().find(|(_, set)| *set) {
            return refuse(key, &true);
        }
        if self.num_train_timesteps == 0 {
            return refuse("num_train_timesteps", &0);
        }
        if self.base_image_seq_len == 0 {
            return refuse("base_image_seq_len", &0);
        }
        Ok(SchedulerConfig {
            num_train_timesteps: self.num_train_timesteps,
            base_image_tokens: self.base_image_seq_len,
            base_shift: self.base_shift,
            max_shift: self.max_shift,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goldens;

    const PUBLISHED: SchedulerConfig = SchedulerConfig::published();
    /// 1024 x 1024 pixels.
    const TOKENS_1024: u32 = 64 * 64;

    #[test]
    fn mu_grows_with_the_square_root_of_the_picture() {
        let mus = [
            (TOKENS_1024, 3.25),
            (32 * 32, 1.75),
            (128 * 128, 6.25),
            (8 * 8, 0.625),
        ];
        for (tokens, mu) in mus {
            assert_eq!(PUBLISHED.mu(tokens), mu, "{tokens} tokens");
        }
    }

    #[test]
    fn fifty_steps_at_1024_are_the_reference_schedule() {
        let schedule = PUBLISHED.schedule(TOKENS_1024, 50).unwrap();

        let expected: Vec<f32> = (0..50).map(|i| 1000.0 - 20.0 * i as f32).collect();
        assert_eq!(schedule.timesteps, expected);
        let sigmas = schedule.sigmas;
        assert_eq!(sigmas.len(), 51);
        assert_eq!(
            sigmas[..5],
            [1.0, 0.993_759_75, 0.987_341_76, 0.980_738_34, 0.973_941_4]
        );
        assert_eq!(
            sigmas[46..],
            [
                0.220_338_99,
                0.171_806_16,
                0.119_266_056,
                0.062_200_956,
                0.0
            ]
        );
    }

    #[test]
    fn thirty_steps_at_1024_are_the_reference_schedule() {
        let schedule = PUBLISHED.schedule(TOKENS_1024, 30).unwrap();

        let timesteps = schedule.timesteps;
        assert_eq!(timesteps[..6], [1000.0, 966.0, 933.0, 900.0, 866.0, 833.0]);
        assert_eq!(timesteps[27..], [100.0, 67.0, 34.0]);
        let sigmas = schedule.sigmas;
        assert_eq!(sigmas[..3], [1.0, 0.989_286_24, 0.978_381_93]);
        assert_eq!(sigmas[29..], [0.102_647_476, 0.0]);
    }

    #[test]
    fn every_golden_schedule_is_equal_to_the_bit() {
        #[derive(Deserialize)]
        struct Golden {
            height: u32,
            width: u32,
            num_inference_steps: u32,
            mu: f64,
            timesteps: Vec<f32>,
            sigmas: Vec<f32>,
        }
        let config =
            SchedulerConfig::read(&goldens::data("tiny/scheduler/scheduler_config.json")).unwrap();
        for golden in goldens::json::<Vec<Golden>>("schedule.json") {
            let image_tokens = golden.height.div_euclid(16) * golden.width.div_euclid(16);
            let schedule = config
                .schedule(image_tokens, golden.num_inference_steps)
                .unwrap();
            let what = (golden.height, golden.width, golden.num_inference_steps);
            assert_eq!(config.mu(image_tokens), golden.mu, "{what:?}");
            assert_eq!(schedule.timesteps, golden.timesteps, "{what:?}");
            assert_eq!(schedule.sigmas, golden.sigmas, "{what:?}");
        }
    }

    #[test]
    fn the_transformer_is_told_the_raw_timestep_less_one() {
        let schedule = PUBLISHED.schedule(TOKENS_1024, 50).unwrap();

        let steps: Vec<Step> = schedule.iter().collect();

        assert_eq!(steps.len(), 50);
        assert_eq!(steps[0].conditioning, 999.0);
        assert_eq!(steps[1].conditioning, 979.0);
        assert_eq!(steps[49].conditioning, 19.0);
        assert_eq!(steps[49].sigma_change, -schedule.sigmas[49]);
    }

    #[test]
    fn every_step_count_falls_strictly_and_ends_at_zero() {
        for steps in [1, 2, 7, 333, 999, 1000] {
            let schedule = PUBLISHED.schedule(64, steps).unwrap();
            assert_eq!(schedule.sigmas.len(), steps as usize + 1);
            assert!(
                schedule.iter().all(|step| step.sigma_change < 0.0),
                "{steps} steps"
            );
            assert_eq!(schedule.sigmas[0], 1.0);
        }
    }

    #[test]
    fn step_counts_out_of_range_are_refused() {
        for steps in [0, 1001, u32::MAX] {
            let error = PUBLISHED.schedule(64, steps).unwrap_err();
            assert!(
                matches!(error, ModelError::Request { field: "steps", .. }),
                "{error}"
            );
        }
    }

    #[test]
    fn settings_of_another_schedule_are_refused_by_name() {
        let published = serde_json::json!({
            "num_train_timesteps": 1000, "base_image_seq_len": 256, "base_shift": 0.25, "max_shift": 0.75,
            "use_dynamic_shifting": true, "time_shift_type": "linear", "shift_terminal": null,
        });
        let others = [
            ("use_dynamic_shifting", serde_json::json!(false)),
            ("time_shift_type", serde_json::json!("exponential")),
            ("shift_terminal", serde_json::json!(0.1)),
            ("invert_sigmas", serde_json::json!(true)),
            ("stochastic_sampling", serde_json::json!(true)),
            ("use_karras_sigmas", serde_json::json!(true)),
            ("use_exponential_sigmas", serde_json::json!(true)),
            ("use_beta_sigmas", serde_json::json!(true)),
        ];
        let check = |value: serde_json::Value| {
            serde_json::from_value::<SchedulerFile>(value)
                .unwrap()
                .check(Path::new("scheduler_config.json"))
        };
        check(published.clone()).unwrap();
        for (key, value) in others {
            let mut config = published.clone();
            config[key] = value;
            let error = check(config).unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}
