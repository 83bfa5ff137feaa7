//! The autoregressive language model: from prompt ids to prior tokens.
//!
//! Knows ids, grids and positions; not text (`tokenizer`), not pictures.

pub(crate) mod attention;
pub(crate) mod cache;
pub(crate) mod config;
pub(crate) mod generate;
pub(crate) mod generation_config;
pub(crate) mod grid;
pub(crate) mod language_model;
mod linear;
pub(crate) mod rope;
pub(crate) mod sampling;

#[cfg(test)]
mod golden_tests;
