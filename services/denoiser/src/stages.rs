//! The stages of a painting as spans, one after the other, each a child of the span that the device works in. Where no
//! collector gets them they are none.

use std::time::Instant;

use protocol::trace::{attribute, event, span};
use service::telemetry::spans;
use tracing::Span;

/// The stage that runs. It ends when the next one begins, or with this.
#[derive(Debug)]
pub(crate) struct Stages {
    running: Span,
    step_since: Instant,
}

impl Stages {
    /// From here on the picture is being prepared.
    pub(crate) fn prepare() -> Self {
        Self {
            running: tracing::debug_span!(span::PREPARE),
            step_since: Instant::now(),
        }
    }

    /// From here on it is being denoised.
    pub(crate) fn denoise(&mut self, steps: u32) {
        let steps = i64::from(steps);
        self.next(tracing::debug_span!(
            span::DENOISE,
            { attribute::STEPS } = steps
        ));
        self.step_since = Instant::now();
    }

    /// A step is done: an event, for a span each would be fifty of a picture. `sigma` is the noise level that it started
    /// at, where there is one.
    pub(crate) fn step(&mut self, step: u32, sigma: Option<f32>) {
        if self.running.is_disabled() {
            return;
        }
        let now = Instant::now();
        let took_ms = (now - self.step_since).as_secs_f64() * 1e3;
        self.step_since = now;
        let number = (attribute::STEP, i64::from(step).into());
        let took = (attribute::STEP_MS, took_ms.into());
        match sigma {
            None => spans::event(&self.running, event::STEP, [number, took]),
            Some(sigma) => {
                let sigma = (attribute::STEP_SIGMA, f64::from(sigma).into());
                spans::event(&self.running, event::STEP, [number, sigma, took]);
            }
        }
    }

    /// From here on its latents become pixels.
    pub(crate) fn vae_decode(&mut self) {
        self.next(tracing::debug_span!(span::VAE_DECODE));
    }

    /// From here on its pixels become a file.
    pub(crate) fn encode(&mut self) {
        self.next(tracing::debug_span!(span::ENCODE));
    }

    fn next(&mut self, stage: Span) {
        self.running = stage;
    }
}
