//! Reading `tests/data` in unit tests, and comparing with a tolerance. What each golden holds: `tests/reference/README.md`.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tch::{Device, Kind, Tensor};

use crate::config::read_json;
use crate::{Checkpoint, LoadOptions};

/// Embeddings, latents and predictions of another CPU differ by less (2.2e-5 measured, AVX-512 against AMX).
pub(crate) const LATENTS_ATOL: f64 = 5e-5;

pub(crate) fn data(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data")).join(name)
}

pub(crate) fn json<T: DeserializeOwned>(name: &str) -> T {
    read_json(&data("goldens").join(name)).unwrap()
}

pub(crate) fn tiny() -> Checkpoint {
    // One thread: the matrices are too small to share out, and spinning threads starve other tests.
    tch::set_num_threads(1);
    Checkpoint::open(&data("tiny")).unwrap()
}

pub(crate) fn cpu_f32() -> LoadOptions {
    LoadOptions::load(Device::Cpu, Kind::Float)
}

/// The text-to-image cases.
pub(crate) const CASES: [&str; 4] = ["t2i_128", "t2i_glyph_96x160", "t2i_n2_0", "t2i_n2_1"];

#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) prompt: String,
    pub(crate) height: u32,
    pub(crate) width: u32,
    pub(crate) num_inference_steps: u32,
    pub(crate) seed: u64,
    pub(crate) guidance_scale: f64,
}

impl Case {
    pub(crate) fn read(name: &str) -> Self {
        json(&format!("{name}/case.json"))
    }
}

/// Tensors of one file by name.
pub(crate) struct Tensors(HashMap<String, Tensor>);

impl Tensors {
    pub(crate) fn read(name: &str) -> Self {
        Self(
            Tensor::read_safetensors(data("goldens").join(name))
                .unwrap()
                .into_iter()
                .collect(),
        )
    }

    pub(crate) fn of_case(name: &str) -> Self {
        Self::read(&format!("{name}/tensors.safetensors"))
    }

    pub(crate) fn get(&self, name: &str) -> &Tensor {
        self.0
            .get(name)
            .unwrap_or_else(|| panic!("no golden called {name}"))
    }
}

/// Fails, naming what, unless the shapes are equal and no element differs by more than `atol`.
pub(crate) fn assert_close(what: &str, found: &Tensor, expected: &Tensor, atol: f64) {
    assert_eq!(found.size(), expected.size(), "{what}");
    let difference = (found.to_kind(Kind::Double) - expected.to_kind(Kind::Double))
        .abs()
        .max();
    let difference = difference.double_value(&[]);
    // Shown with --nocapture. On the machine that made the goldens it is zero, or the order of operations has changed;
    // but for the embedding of a single token, 6e-7: the reference uses fp32 weights where they lie in the file, 40
    // bytes off a cache line, and MKL sums a product of one row by alignment. (Its own model with its weights moved
    // to a cache line differs by as much.) What follows from that embedding differs by up to 1.4e-6 then.
    println!("{what}: max |d| {difference:e}, allowed {atol:e}");
    assert!(
        difference <= atol,
        "{what} differs by {difference:e}, more than {atol:e}"
    );
}

/// The samples of a PNG, row by row.
pub(crate) fn pixels_of(png: &[u8]) -> Vec<u8> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png))
        .read_info()
        .unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    pixels
}
