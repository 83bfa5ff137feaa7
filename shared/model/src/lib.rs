//! GLM-Image in libtorch, from a checkpoint in the published layout.
//!
//! Pure tensor code: a prompt and a seed become prior tokens ([`PriorModel`]), prior tokens become
//! a picture. Nothing here knows of jobs, queues or the network, and every function is to be
//! called from one thread that owns the device. The same request gives the same numbers as the
//! reference implementation (diffusers), which is what the goldens in `tests/` hold it to.

// An integer division that was meant to be a float one made every beta 0 elsewhere.
#![deny(clippy::integer_division)]

mod ar;
pub mod checkpoint;
pub mod config;
#[cfg(test)]
mod demo_tests;
mod device;
mod dit;
pub mod error;
mod glyph;
#[cfg(test)]
mod goldens;
mod layers;
mod paint_request;
mod painter;
mod picture;
mod prior;
mod prior_codec;
pub mod probe;
mod report;
mod revision;
pub mod rng;
mod sampler;
mod schedule;
mod shard;
mod shim;
mod template;
mod tokenizer;
mod vae;
pub mod weights;

pub use ar::generation_config::{Draw, SamplingConfig, Warpers};
pub use ar::grid::{Grid, TargetGrids};
pub use checkpoint::{CheckReport, Checkpoint};
pub use device::set_threads;
pub use error::{ModelError, Result};
pub use paint_request::{Limits, PaintProgress, PaintRequest, PaintStage, PriorGrid};
pub use painter::Painter;
pub use picture::Picture;
pub use prior::{ArProgress, ImageSize, PriorModel, PriorRequest, PriorRow};
pub use prior_codec::{PriorCodec, PriorPrompt};
pub use weights::{LoadOptions, Mode, PartReport};
