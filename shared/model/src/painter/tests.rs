//! The painter against the reference, from prior ids to pixels. The tolerances are
//! those of another CPU; see `assert_close` for what the machine that made the goldens gives.

use super::*;
use crate::goldens::{self, CASES, Case, LATENTS_ATOL, Tensors, assert_close, pixels_of};
use crate::paint_request::PriorGrid;

/// Latents times up to 5, plus up to 2: the error of another CPU grows with them (2.2e-5 measured).
const DENORMALIZED_ATOL: f64 = 5e-5;
const DECODED_ATOL: f64 = 1e-4;

fn painter() -> Painter {
    Painter::load(&goldens::tiny(), goldens::cpu_f32()).unwrap()
}

/// A golden case with what it takes to paint it.
struct Scenario {
    case: Case,
    golden: Tensors,
    ids: Vec<u16>,
}

impl Scenario {
    fn read(name: &str) -> Self {
        let golden = Tensors::of_case(name);
        let ids = Vec::<i64>::try_from(golden.get("ar.large_ids")).unwrap();
        let ids = ids
            .into_iter()
            .map(|id| u16::try_from(id).unwrap())
            .collect();
        Self {
            case: Case::read(name),
            golden,
            ids,
        }
    }

    fn request(&self) -> PaintRequest<'_> {
        let case = &self.case;
        let (h, w) = (case.height.div_euclid(32), case.width.div_euclid(32));
        PaintRequest {
            prompt: &case.prompt,
            height: case.height,
            width: case.width,
            seed: case.seed,
            steps: case.num_inference_steps,
            guidance_scale: case.guidance_scale,
            prior: PriorGrid {
                h,
                w,
                ids: &self.ids,
            },
        }
    }
}

fn paint(painter: &Painter, request: &PaintRequest<'_>) -> Result<Picture> {
    painter.paint(request, &mut |_| ControlFlow::Continue(()))
}

/// Compares each stage with its golden and counts the steps seen.
struct Comparison<'a> {
    name: &'a str,
    golden: &'a Tensors,
    steps: usize,
}

impl Comparison<'_> {
    fn look(&mut self, stage: &PaintStage<'_>) {
        let latents_key = format!("denoise.latents_after_step.{}", self.steps);
        let (key, found, atol) = match stage {
            PaintStage::Glyphs(found) => ("glyph.prompt_embeds", found, LATENTS_ATOL),
            PaintStage::Noise(found) => ("denoise.initial_latents", found, LATENTS_ATOL),
            // The golden holds the predictions of the first step only.
            PaintStage::Conditional(_) | PaintStage::Unconditional(_) if self.steps > 0 => return,
            PaintStage::Conditional(found) => ("denoise.step0.cond.output", found, LATENTS_ATOL),
            PaintStage::Unconditional(found) => {
                ("denoise.step0.uncond.output", found, LATENTS_ATOL)
            }
            PaintStage::Latents(found) => (latents_key.as_str(), found, LATENTS_ATOL),
            PaintStage::Denormalized(found) => ("vae.latents", found, DENORMALIZED_ATOL),
            PaintStage::Decoded(found) => ("vae.decoded", found, DECODED_ATOL),
        };
        assert_close(
            &format!("{} {key}", self.name),
            found,
            self.golden.get(key),
            atol,
        );
        self.steps += usize::from(matches!(stage, PaintStage::Latents(_)));
    }
}

#[test]
fn a_painter_can_move_to_the_thread_that_owns_the_device() {
    fn is_send<T: Send>() {}
    is_send::<Painter>();
}

#[test]
fn every_stage_of_every_case_equals_the_reference_a79() {
    let painter = painter();
    for name in CASES {
        let scenario = Scenario::read(name);
        let mut comparison = Comparison {
            name,
            golden: &scenario.golden,
            steps: 0,
        };
        let picture = painter
            .paint_staged(
                &scenario.request(),
                &mut |_| ControlFlow::Continue(()),
                &mut |stage| {
                    comparison.look(&stage);
                },
            )
            .unwrap();

        assert_eq!(comparison.steps, scenario.case.num_inference_steps as usize);
        assert_eq!(
            (picture.width, picture.height),
            (scenario.case.width, scenario.case.height)
        );
        let image = scenario.golden.get("image").to_kind(Kind::Int);
        let pixels = Tensor::from_slice(&picture.rgb)
            .view_as(&image)
            .to_kind(Kind::Int);
        assert_close(&format!("{name} image"), &pixels, &image, 1.0);
    }
}

/// The file is left in target/tmp, to be looked at.
#[test]
fn the_png_shows_the_picture_of_the_reference() {
    for name in CASES {
        let png = paint(&painter(), &Scenario::read(name).request())
            .unwrap()
            .to_png()
            .unwrap();

        let target = goldens::data("../../target/tmp");
        std::fs::create_dir_all(&target).unwrap();
        std::fs::write(target.join(format!("{name}.png")), &png).unwrap();
        let expected = std::fs::read(goldens::data(&format!("goldens/{name}/image.png"))).unwrap();
        let differences = pixels_of(&png).into_iter().zip(pixels_of(&expected));
        assert!(
            differences
                .into_iter()
                .all(|(found, expected)| found.abs_diff(expected) <= 1)
        );
    }
}

#[test]
fn the_same_request_gives_the_same_file_and_another_seed_another() {
    let painter = painter();
    let scenario = Scenario::read("t2i_128");
    let request = PaintRequest {
        steps: 2,
        ..scenario.request()
    };
    let file = |request: &PaintRequest<'_>| paint(&painter, request).unwrap().to_png().unwrap();

    let first = file(&request);
    let other = file(&PaintRequest {
        seed: request.seed + 1,
        ..request
    });
    assert_eq!(file(&request), first);
    assert_ne!(other, first);
}

#[test]
fn two_pictures_painted_in_turns_do_not_disturb_each_other() {
    let painter = painter();
    let scenario = Scenario::read("t2i_128");
    let request = PaintRequest {
        steps: 3,
        ..scenario.request()
    };
    let inner_request = PaintRequest { seed: 5, ..request };
    let (alone, inner_alone) = (
        paint(&painter, &request).unwrap(),
        paint(&painter, &inner_request).unwrap(),
    );

    let mut inner = None;
    let outer = painter
        .paint(&request, &mut |progress| {
            if matches!(
                progress,
                PaintProgress::Step {
                    step: 1,
                    steps: 3,
                    ..
                }
            ) {
                inner = Some(paint(&painter, &inner_request).unwrap());
            }
            ControlFlow::Continue(())
        })
        .unwrap();

    assert_eq!(outer, alone);
    assert_eq!(inner, Some(inner_alone));
}

/// The noise level that a step started at.
fn sigma(progress: &PaintProgress) -> Option<f32> {
    match progress {
        PaintProgress::Step { sigma, .. } => Some(*sigma),
        PaintProgress::GlyphEncoded | PaintProgress::Decoded => None,
    }
}

#[test]
fn progress_comes_after_the_glyphs_each_step_and_the_decoding() {
    let scenario = Scenario::read("t2i_n2_0");
    let mut seen = Vec::new();

    painter()
        .paint(&scenario.request(), &mut |progress| {
            seen.push(progress);
            ControlFlow::Continue(())
        })
        .unwrap();

    let sigmas: Vec<f32> = seen.iter().filter_map(sigma).collect();
    assert_eq!(sigmas[0], 1.0, "pure noise");
    assert!(sigmas.is_sorted_by(|a, b| a > b), "{sigmas:?}");
    let step = |step: u32| PaintProgress::Step {
        step,
        steps: 4,
        sigma: sigmas[step as usize - 1],
    };
    let expected = [
        PaintProgress::GlyphEncoded,
        step(1),
        step(2),
        step(3),
        step(4),
        PaintProgress::Decoded,
    ];
    assert_eq!(seen, expected);
}

#[test]
fn breaking_off_stops_the_picture_at_once() {
    let painter = painter();
    let scenario = Scenario::read("t2i_n2_0");
    for stop_after in 1..=6 {
        let mut calls = 0;
        let result = painter.paint(&scenario.request(), &mut |_| {
            calls += 1;
            if calls == stop_after {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        assert!(
            matches!(result, Err(ModelError::Interrupted)),
            "{stop_after}"
        );
        assert_eq!(calls, stop_after);
    }
}

#[test]
fn without_guidance_there_is_one_forward_a_step() {
    let painter = painter();
    let scenario = Scenario::read("t2i_n2_0");
    for (guidance_scale, expected) in [(1.5, [4, 4]), (1.0, [4, 0]), (0.0, [4, 0])] {
        let request = PaintRequest {
            guidance_scale,
            ..scenario.request()
        };
        let mut forwards = [0, 0];
        painter
            .paint_staged(&request, &mut |_| ControlFlow::Continue(()), &mut |stage| {
                forwards[0] += usize::from(matches!(stage, PaintStage::Conditional(_)));
                forwards[1] += usize::from(matches!(stage, PaintStage::Unconditional(_)));
            })
            .unwrap();
        assert_eq!(forwards, expected, "guidance {guidance_scale}");
    }
}

#[test]
fn bf16_paints_nearly_the_same_picture() {
    let checkpoint = goldens::tiny();
    let painter =
        Painter::load(&checkpoint, LoadOptions::load(Device::Cpu, Kind::BFloat16)).unwrap();
    let scenario = Scenario::read("t2i_glyph_96x160");

    let picture = paint(&painter, &scenario.request()).unwrap();

    let image = scenario.golden.get("image").to_kind(Kind::Float);
    let pixels = Tensor::from_slice(&picture.rgb)
        .view_as(&image)
        .to_kind(Kind::Float);
    let mean = (pixels - image).abs().mean(Kind::Float).double_value(&[]);
    assert!(mean < 4.0, "{mean} of 255");
}

#[test]
fn the_prior_and_the_quoted_text_each_change_the_picture() {
    let painter = painter();
    let scenario = Scenario::read("t2i_glyph_96x160");
    let request = scenario.request();
    let picture = paint(&painter, &request).unwrap();

    let ids: Vec<u16> = scenario.ids.iter().rev().copied().collect();
    let reversed = PaintRequest {
        prior: PriorGrid {
            ids: &ids,
            ..request.prior
        },
        ..request
    };
    assert_ne!(paint(&painter, &reversed).unwrap(), picture);
    let unquoted = PaintRequest {
        prompt: "a poster",
        ..request
    };
    assert_ne!(paint(&painter, &unquoted).unwrap(), picture);
}

#[test]
fn a_request_that_cannot_be_painted_is_refused_before_anything_runs() {
    let painter = painter();
    let scenario = Scenario::read("t2i_128");
    let request = PaintRequest {
        height: 96,
        ..scenario.request()
    };
    let mut calls = 0;

    let error = painter
        .paint(&request, &mut |_| {
            calls += 1;
            ControlFlow::Continue(())
        })
        .unwrap_err();

    assert!(
        matches!(error, ModelError::Request { field: "prior", .. }),
        "{error}"
    );
    assert_eq!(calls, 0);
}
