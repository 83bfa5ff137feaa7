//! The trained demo checkpoint against the reference: the pictures that people see are those of diffusers.

use std::ops::ControlFlow;

use serde::Deserialize;
use tch::{Device, Kind};

use crate::config::read_json;
use crate::goldens::{data, pixels_of};
use crate::{
    Checkpoint, ImageSize, LoadOptions, PaintRequest, Painter, PriorGrid, PriorModel, PriorRequest,
};

const CASES: [&str; 4] = ["default_steps", "single", "letter", "wide"];

#[derive(Deserialize)]
struct Case {
    prompt: String,
    height: u32,
    width: u32,
    num_inference_steps: u32,
    seed: u64,
    guidance_scale: f64,
    /// Of the large grid, row by row.
    large_ids: Vec<u16>,
}

fn checkpoint() -> Checkpoint {
    tch::set_num_threads(1);
    Checkpoint::open(&data("../../assets/fresco-demo")).expect("the demo checkpoint")
}

fn cases() -> impl Iterator<Item = (String, Case)> {
    CASES.iter().map(|name| {
        let folder = format!("demo/goldens/{name}");
        let case = read_json(&data(&folder).join("case.json")).expect("a golden");
        (folder, case)
    })
}

#[test]
fn the_demo_model_writes_the_ids_of_the_reference() {
    let options = LoadOptions::load(Device::Cpu, Kind::Float);
    let model = PriorModel::load(&checkpoint(), options).expect("a model");
    for (name, case) in cases() {
        let size = ImageSize {
            height: case.height,
            width: case.width,
        };
        let request = PriorRequest {
            prompt: &case.prompt,
            seed: case.seed,
        };
        let rows = model.generate(size, &[request], &mut |_| ControlFlow::Continue(()));
        assert_eq!(rows.expect("a row")[0].tokens, case.large_ids, "{name}");
    }
}

#[test]
fn the_demo_model_paints_the_pictures_of_the_reference() {
    let options = LoadOptions::load(Device::Cpu, Kind::Float);
    let painter = Painter::load(&checkpoint(), options).expect("a painter");
    for (name, case) in cases() {
        let request = PaintRequest {
            prompt: &case.prompt,
            height: case.height,
            width: case.width,
            seed: case.seed,
            steps: case.num_inference_steps,
            guidance_scale: case.guidance_scale,
            prior: PriorGrid {
                h: case.height.div_euclid(32),
                w: case.width.div_euclid(32),
                ids: &case.large_ids,
            },
        };
        let picture = painter.paint(&request, &mut |_| ControlFlow::Continue(()));
        let found = pixels_of(&picture.expect("a picture").to_png().expect("a PNG"));
        let file = std::fs::read(data(&name).join("image.png")).expect("a golden");
        let expected = pixels_of(&file);
        assert_eq!(found.len(), expected.len(), "{name}");
        let largest = found
            .iter()
            .zip(&expected)
            .map(|(a, b)| a.abs_diff(*b))
            .max();
        assert!(
            largest <= Some(1),
            "{name}: a colour differs by {largest:?}"
        );
    }
}
