//! From a prompt, prior tokens and a seed to a picture: glyph encoder, denoising loop, VAE decoder.
//!
//! Knows one picture at a time and nothing of jobs. Runs on one thread: a [`Painter`] is `Send`, not `Sync`.

use std::ops::ControlFlow;

use tch::{Device, Kind, Tensor};

use crate::checkpoint::{CheckReport, Checkpoint};
use crate::dit::{Canvas, Conditioning, Dit, Prior};
use crate::error::{ModelError, Result};
use crate::glyph::GlyphEncoder;
use crate::paint_request::{Limits, PaintProgress, PaintRequest, PaintStage, Plan};
use crate::picture::Picture;
use crate::rng::Generator;
use crate::sampler::{euler_step, guided};
use crate::schedule::SchedulerConfig;
use crate::vae::{Vae, picture_of};
use crate::weights::{LoadOptions, Mode};

/// The denoising half of the model, loaded and ready.
#[derive(Debug)]
pub struct Painter {
    glyph: GlyphEncoder,
    dit: Dit,
    vae: Vae,
    scheduler: SchedulerConfig,
    device: Device,
    dtype: Kind,
}

impl Painter {
    /// Loads glyph encoder, DiT and VAE decoder.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the folder, in one line that names file and key; parts that do not fit each other.
    pub fn load(checkpoint: &Checkpoint, options: LoadOptions) -> Result<Self> {
        Self::open(
            checkpoint,
            LoadOptions {
                mode: Mode::Load,
                ..options
            },
        )
        .map(|(painter, _)| painter)
    }

    /// Verifies keys, shapes and configs of the same parts without loading them.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn check(checkpoint: &Checkpoint) -> Result<CheckReport> {
        Self::open(checkpoint, LoadOptions::check()).map(|(_, report)| report)
    }

    fn open(checkpoint: &Checkpoint, options: LoadOptions) -> Result<(Self, CheckReport)> {
        let scheduler_config = checkpoint.part("scheduler").join("scheduler_config.json");
        let scheduler = SchedulerConfig::read(&scheduler_config)?;
        let (glyph, text_encoder) = GlyphEncoder::load(checkpoint, options)?;
        let (dit, transformer) = Dit::load(checkpoint, options)?;
        let (vae, vae_report) = Vae::load(checkpoint, options)?;
        let (device, dtype) = (options.device, options.dtype);
        let painter = Self {
            glyph,
            dit,
            vae,
            scheduler,
            device,
            dtype,
        };
        painter.check_fit(checkpoint)?;
        let parts = [
            ("text_encoder", text_encoder),
            ("transformer", transformer),
            ("vae", vae_report),
        ];
        let parts = parts.map(|(name, report)| (name.to_owned(), report)).into();
        Ok((painter, CheckReport { parts }))
    }

    fn check_fit(&self, checkpoint: &Checkpoint) -> Result<()> {
        let dit = self.dit.config();
        let sizes = [
            (
                "text_embed_dim",
                dit.text_embed_dim,
                "d_model of text_encoder",
                self.glyph.width(),
            ),
            (
                "in_channels",
                dit.in_channels,
                "latent_channels of vae",
                self.vae.config().latent_channels,
            ),
        ];
        match sizes
            .into_iter()
            .find(|(_, found, _, expected)| found != expected)
        {
            None => Ok(()),
            Some((key, found, other, expected)) => {
                let path = checkpoint.part("transformer").join("config.json");
                Err(ModelError::config(
                    &path,
                    key,
                    format!("is {found}, but {other} is {expected}"),
                ))
            }
        }
    }

    /// What a request must keep to.
    pub fn limits(&self) -> Limits {
        let dit = self.dit.config();
        let patch_pixels = self.vae.config().scale() * dit.patch_size;
        let small = |size: i64| u32::try_from(size).unwrap_or(u32::MAX);
        Limits {
            patch_pixels: small(patch_pixels),
            codebook_size: small(dit.codebook_size),
            steps_max: self.scheduler.steps_max(),
        }
    }

    /// Paints one picture, calling `observe` after the glyphs, after each step and after decoding.
    ///
    /// # Errors
    ///
    /// [`ModelError::Request`] naming the field for a request this model cannot paint, before anything is computed;
    /// [`ModelError::Interrupted`] when `observe` breaks; [`ModelError::NotFinite`] when half precision overflowed;
    /// what libtorch reports.
    pub fn paint(
        &self,
        request: &PaintRequest<'_>,
        observe: &mut dyn FnMut(PaintProgress) -> ControlFlow<()>,
    ) -> Result<Picture> {
        self.paint_staged(request, observe, &mut |_| ())
    }

    /// [`Self::paint`], showing each intermediate tensor to `look`.
    ///
    /// # Errors
    ///
    /// As [`Self::paint`].
    pub fn paint_staged(
        &self,
        request: &PaintRequest<'_>,
        observe: &mut dyn FnMut(PaintProgress) -> ControlFlow<()>,
        look: &mut dyn FnMut(PaintStage<'_>),
    ) -> Result<Picture> {
        let plan = request.plan(&self.limits(), &self.scheduler)?;
        let _no_grad = tch::no_grad_guard();
        let mut report = |progress| match observe(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ModelError::Interrupted),
        };

        let scene = self.scene(request, &plan, look)?;
        report(PaintProgress::GlyphEncoded)?;

        let mut latents = self.noise(request)?;
        look(PaintStage::Noise(&latents));
        for (step, euler) in (1..).zip(plan.schedule.iter()) {
            let velocity = self.velocity(&latents, euler.conditioning, &scene, look)?;
            latents = euler_step(&latents, &velocity, euler.sigma_change)?;
            look(PaintStage::Latents(&latents));
            report(PaintProgress::Step {
                step,
                steps: request.steps,
                sigma: euler.sigma,
            })?;
        }

        let picture = self.develop(&latents, look)?;
        report(PaintProgress::Decoded)?;
        Ok(picture)
    }

    /// Everything that is the same at each step.
    fn scene(
        &self,
        request: &PaintRequest<'_>,
        plan: &Plan,
        look: &mut dyn FnMut(PaintStage<'_>),
    ) -> Result<Scene> {
        let glyphs = self.glyph.encode(request.prompt)?;
        look(PaintStage::Glyphs(&glyphs));
        let prior_ids = Tensor::f_from_slice(&plan.prior_ids)?.f_unsqueeze(0)?; // (1, patches)
        let (height, width) = (request.height.into(), request.width.into());
        let canvas = self.dit.canvas(height, width, plan.patch_grid)?;
        let conditional = self.dit.condition(&glyphs, &prior_ids, Prior::Shown)?;
        let guidance = if request.guidance_scale > 1.0 {
            let empty = self.glyph.empty()?;
            let unconditional = self.dit.condition(&empty, &prior_ids, Prior::Hidden)?;
            Some(Guidance {
                unconditional,
                scale: request.guidance_scale,
            })
        } else {
            None
        };
        Ok(Scene {
            canvas,
            conditional,
            guidance,
        })
    }

    /// (1, channels, height / 8, width / 8): drawn in f32 on the CPU whatever dtype and device, then rounded and
    /// moved, so that a seed means the same noise everywhere.
    fn noise(&self, request: &PaintRequest<'_>) -> Result<Tensor> {
        let scale = self.vae.config().scale();
        let side = |pixels: u32| i64::from(pixels).div_euclid(scale);
        let size = [
            1,
            self.dit.config().in_channels,
            side(request.height),
            side(request.width),
        ];
        let noise = Generator::new(request.seed)?.randn(&size)?;
        Ok(noise.f_to_kind(self.dtype)?.f_to_device(self.device)?)
    }

    /// The velocity to follow from `latents`; guided, if the scene is.
    fn velocity(
        &self,
        latents: &Tensor,
        timestep: f32,
        scene: &Scene,
        look: &mut dyn FnMut(PaintStage<'_>),
    ) -> Result<Tensor> {
        let conditional =
            self.dit
                .velocity(latents, timestep, &scene.canvas, &scene.conditional)?;
        look(PaintStage::Conditional(&conditional));
        let Some(Guidance {
            unconditional,
            scale,
        }) = &scene.guidance
        else {
            return Ok(conditional);
        };
        // Two forwards rather than a batch of two: glyph lengths differ, and the DiT has no mask.
        let unconditional = self
            .dit
            .velocity(latents, timestep, &scene.canvas, unconditional)?;
        look(PaintStage::Unconditional(&unconditional));
        guided(&conditional, &unconditional, *scale)
    }

    fn develop(&self, latents: &Tensor, look: &mut dyn FnMut(PaintStage<'_>)) -> Result<Picture> {
        let latents = self.vae.denormalized(latents)?;
        look(PaintStage::Denormalized(&latents));
        let decoded = self.vae.decode(&latents)?;
        look(PaintStage::Decoded(&decoded));
        picture_of(&decoded)
    }
}

/// What the denoising loop reads and never changes.
#[derive(Debug)]
struct Scene {
    canvas: Canvas,
    conditional: Conditioning,
    /// Only above a guidance scale of 1.
    guidance: Option<Guidance>,
}

#[derive(Debug)]
struct Guidance {
    unconditional: Conditioning,
    scale: f64,
}

#[cfg(test)]
mod tests;
