//! The language model against the reference, stage by stage: text, ids, positions, logits, draws.
//! On the machine that made the goldens all of it is equal to the bit; the tolerances are those of
//! another CPU.

use std::ops::ControlFlow;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tch::{Device, Kind, Tensor};

use crate::ar::generate::{RowPrompt, generate};
use crate::ar::grid::{ImageSize, TargetGrids};
use crate::ar::rope::{Positions, decode_positions, prefill_positions};
use crate::ar::sampling::Place;
use crate::config::read_json;
use crate::prior::{PriorModel, PriorRequest};
use crate::rng::Generator;
use crate::{Checkpoint, LoadOptions};

/// Logits of another CPU differ by less (1.4e-5 measured, AVX-512 against AMX).
const LOGITS_ATOL: f64 = 5e-5;

fn data(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data")).join(name)
}

fn golden_json<T: DeserializeOwned>(name: &str) -> T {
    read_json(&data("goldens").join(name)).expect("a golden")
}

struct Tensors(Vec<(String, Tensor)>);

impl Tensors {
    fn read(name: &str) -> Self {
        Self(Tensor::read_safetensors(data("goldens").join(name)).expect("a golden"))
    }

    fn get(&self, name: &str) -> &Tensor {
        &self
            .0
            .iter()
            .find(|(found, _)| found == name)
            .expect("a tensor of the golden")
            .1
    }

    fn ids(&self, name: &str) -> Vec<i64> {
        Vec::try_from(self.get(name).flatten(0, -1)).expect("int64")
    }

    fn positions(&self, name: &str) -> Positions {
        let axis = |i| Vec::try_from(self.get(name).get(i)).expect("int64");
        Positions {
            t: axis(0),
            h: axis(1),
            w: axis(2),
        }
    }
}

fn tiny() -> PriorModel {
    // One thread: the matrices are too small to share out.
    tch::set_num_threads(1);
    let checkpoint = Checkpoint::open(&data("tiny")).expect("the tiny checkpoint");
    PriorModel::load(&checkpoint, LoadOptions::load(Device::Cpu, Kind::Float)).expect("a model")
}

fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    // Minus infinity on both sides is no distance.
    let difference = (a - b).abs().nan_to_num(0.0, f64::INFINITY, 0.0);
    difference.max().double_value(&[])
}

#[derive(Deserialize)]
struct Case {
    prompt: String,
    height: u32,
    width: u32,
    seed: u64,
    expanded_text: String,
}

const CASES: [&str; 4] = ["t2i_128", "t2i_glyph_96x160", "t2i_n2_0", "t2i_n2_1"];

#[test]
fn every_case_equals_the_reference_from_text_to_sampled_ids_a21() {
    let model = tiny();
    for name in CASES {
        let case: Case = golden_json(&format!("{name}/case.json"));
        let golden = Tensors::read(&format!("{name}/tensors.safetensors"));
        let grids = TargetGrids::of(ImageSize {
            height: case.height,
            width: case.width,
        })
        .expect("size");

        let text = model
            .codec
            .tokenizer
            .expand(&case.prompt, grids)
            .expect("text");
        assert_eq!(text, case.expanded_text, "{name}");
        let ids = model.codec.tokenizer.encode(&text).expect("ids");
        assert_eq!(ids, golden.ids("ar.input_ids"), "{name}");
        assert_eq!(
            prefill_positions(ids.len()),
            golden.positions("ar.prefill_position_ids")
        );
        assert_eq!(
            decode_positions(ids.len(), grids),
            golden.positions("ar.decode_position_ids")
        );

        let steps = golden.ids("ar.logit_steps");
        let (mut logits, mut warped) = (Vec::new(), Vec::new());
        let rows = [RowPrompt {
            ids,
            seed: case.seed,
        }];
        let written = generate(
            &model.model,
            &model.sampler,
            grids,
            &rows,
            &mut |at, found| {
                if steps.contains(&(i64::from(at.token) - 1)) {
                    let place = if at.token < at.tokens {
                        Place::Grid
                    } else {
                        Place::End
                    };
                    logits.push(found.copy());
                    warped.push(model.sampler.scores(found, place).expect("scores"));
                }
                ControlFlow::Continue(())
            },
        );
        let (logits, warped) = (Tensor::cat(&logits, 0), Tensor::cat(&warped, 0));
        let logits = distance(&logits, golden.get("ar.logits"));
        let warped = distance(&warped, golden.get("ar.warped_logits"));
        println!("{name}: logits max |d| {logits:e}, warped {warped:e}");
        assert!(
            logits <= LOGITS_ATOL && warped <= LOGITS_ATOL,
            "{name}: {logits:e}, {warped:e}"
        );
        assert_eq!(
            written.expect("ids"),
            [golden.ids("ar.sampled_ids")],
            "{name}"
        );

        assert_eq!(
            large_ids(&model, &case),
            golden.ids("ar.large_ids"),
            "{name}"
        );
    }
}

/// By the public function.
fn large_ids(model: &PriorModel, case: &Case) -> Vec<i64> {
    let request = PriorRequest {
        prompt: &case.prompt,
        seed: case.seed,
    };
    let size = ImageSize {
        height: case.height,
        width: case.width,
    };
    let rows = model.generate(size, &[request], &mut |_| ControlFlow::Continue(()));
    let row = rows.expect("rows").remove(0);
    row.tokens.into_iter().map(i64::from).collect()
}

#[derive(Deserialize)]
struct Batch {
    height: u32,
    width: u32,
    rows: Vec<BatchRow>,
}

#[derive(Deserialize)]
struct BatchRow {
    prompt: String,
    seed: u64,
    input_ids: Vec<i64>,
    sampled_ids: Vec<i64>,
}

#[test]
fn a_row_of_a_batch_equals_the_same_row_alone_to_the_bit() {
    let model = tiny();
    let batch: Batch = golden_json("ar_batch4/case.json");
    let grids = TargetGrids::of(ImageSize {
        height: batch.height,
        width: batch.width,
    })
    .expect("size");
    let run = |rows: &[RowPrompt]| {
        let mut logits = Vec::new();
        let written = generate(
            &model.model,
            &model.sampler,
            grids,
            rows,
            &mut |_, found| {
                logits.push(found.copy());
                ControlFlow::Continue(())
            },
        );
        (written.expect("ids"), logits)
    };
    let prompt = |row: &BatchRow| RowPrompt {
        ids: row.input_ids.clone(),
        seed: row.seed,
    };
    let prompts: Vec<_> = batch.rows.iter().map(prompt).collect();
    let (together, logits_together) = run(&prompts);
    for (i, row) in batch.rows.iter().enumerate() {
        let text = model
            .codec
            .tokenizer
            .expand(&row.prompt, grids)
            .expect("text");
        assert_eq!(
            model.codec.tokenizer.encode(&text).expect("ids"),
            row.input_ids
        );
        let (alone, logits_alone) = run(&[prompt(row)]);
        assert_eq!(alone[0], row.sampled_ids, "row {i} alone");
        assert_eq!(together[i], row.sampled_ids, "row {i} in the batch");
        let distances = logits_together
            .iter()
            .zip(&logits_alone)
            .map(|(together, alone)| distance(&together.narrow(0, i as i64, 1), alone));
        let largest = distances.fold(0.0, f64::max);
        println!("row {i}: in the batch and alone differ by {largest:e}");
        assert_eq!(largest, 0.0, "row {i}");
    }
}

#[test]
fn the_prefill_is_within_rounding_of_the_references_padded_batch() {
    let model = tiny();
    let batch: Batch = golden_json("ar_batch4/case.json");
    let golden = Tensors::read("ar_batch4/tensors.safetensors");
    let grids = TargetGrids::of(ImageSize {
        height: batch.height,
        width: batch.width,
    })
    .expect("size");
    let rows: Vec<_> = batch
        .rows
        .iter()
        .map(|row| RowPrompt {
            ids: row.input_ids.clone(),
            seed: 0,
        })
        .collect();
    let mut prefill = None;
    let stopped = generate(
        &model.model,
        &model.sampler,
        grids,
        &rows,
        &mut |_, logits| {
            prefill = Some(logits.copy());
            ControlFlow::Break(())
        },
    );
    assert!(matches!(stopped, Err(crate::ModelError::Interrupted)));
    let found = distance(
        &prefill.expect("logits"),
        golden.get("batch.prefill_logits"),
    );
    println!("padded prefill: max |d| {found:e}");
    // The reference's padded batch takes other kernels than its rows alone: 1.2e-5 here, which is
    // six steps of an f32 at the largest logits of the tiny model, about 20.
    assert!(found <= 5e-5, "{found:e}");
}

#[test]
fn rows_of_one_prompt_share_a_prefill_and_nothing_else() {
    let model = tiny();
    let size = ImageSize {
        height: 64,
        width: 64,
    };
    let row = |seed| PriorRequest {
        prompt: "a cat",
        seed,
    };
    let mut go = |_| ControlFlow::Continue(());
    let together = model
        .generate(size, &[row(1), row(2), row(1)], &mut go)
        .expect("rows");
    let second = model.generate(size, &[row(2)], &mut go).expect("a row");
    assert_eq!(together[0], together[2]);
    assert_eq!(together[1], second[0]);
    assert_ne!(together[0].tokens, together[1].tokens);
    assert_eq!(together[0].generated_tokens, 256 + 4 + 1);
}

#[derive(Deserialize)]
struct TokenizerRow {
    prompt: String,
    expanded_text: String,
    input_ids: Vec<i64>,
}

#[test]
fn prompts_of_all_sorts_give_the_references_ids() {
    let model = tiny();
    let grids = TargetGrids::of(ImageSize {
        height: 1024,
        width: 768,
    })
    .expect("a size");
    for row in golden_json::<Vec<TokenizerRow>>("tokenizer.json") {
        let text = model
            .codec
            .tokenizer
            .expand(&row.prompt, grids)
            .expect("text");
        assert_eq!(text, row.expanded_text);
        // A token that stands for a picture is refused; the reference reads it.
        if row.input_ids.iter().any(|id| [513, 865].contains(id)) {
            let error = model
                .codec
                .tokenizer
                .encode(&text)
                .expect_err("a picture in the prompt");
            assert!(matches!(
                error,
                crate::ModelError::Request {
                    field: "prompt",
                    ..
                }
            ));
        } else {
            assert_eq!(
                model.codec.tokenizer.encode(&text).expect("ids"),
                row.input_ids,
                "{text}"
            );
        }
    }
}

#[derive(Deserialize)]
struct GridRow {
    height: u32,
    width: u32,
    token_h: u32,
    token_w: u32,
    preview_h: u32,
    preview_w: u32,
    max_new_tokens: usize,
    large_image_start_offset: usize,
}

#[test]
fn the_grids_of_every_size_are_the_references() {
    for row in golden_json::<Vec<GridRow>>("grids.json") {
        let grids = TargetGrids::of(ImageSize {
            height: row.height,
            width: row.width,
        })
        .expect("size");
        assert_eq!((grids.large.h, grids.large.w), (row.token_h, row.token_w));
        assert_eq!(
            (grids.preview.h, grids.preview.w),
            (row.preview_h, row.preview_w)
        );
        assert_eq!(grids.tokens() + 1, row.max_new_tokens);
        assert_eq!(grids.preview.tokens(), row.large_image_start_offset);
    }
}

#[derive(Deserialize)]
struct RngCase {
    seeds: Vec<u64>,
    shape: Vec<i64>,
    draws: usize,
}

#[test]
fn random_numbers_equal_the_references_to_the_bit() {
    let case: RngCase = golden_json("rng.json");
    let golden = Tensors::read("rng.safetensors");
    let probabilities = golden.get("multinomial.probabilities");
    for seed in case.seeds {
        let generator = || Generator::new(seed).expect("a generator");
        for (name, shape) in [("randn", &case.shape), ("randn_8", &vec![8])] {
            let drawn = generator().randn(shape).expect("numbers");
            assert_eq!(
                &drawn,
                golden.get(&format!("{name}.{seed}")),
                "{name}, seed {seed}"
            );
        }
        let mut generator = generator();
        let ids: Vec<i64> = (0..case.draws)
            .map(|_| {
                generator
                    .multinomial(probabilities)
                    .expect("an id")
                    .int64_value(&[0, 0])
            })
            .collect();
        assert_eq!(
            ids,
            golden.ids(&format!("multinomial.{seed}")),
            "seed {seed}"
        );
    }
}
