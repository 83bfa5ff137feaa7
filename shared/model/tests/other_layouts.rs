//! The same weights stored otherwise, in f32 and in one file a part, give the same tokens and the same picture.

use std::{
    collections::BTreeMap,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use model::{
    Checkpoint, ImageSize, LoadOptions, PaintRequest, Painter, Picture, PriorGrid, PriorModel,
    PriorRequest,
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use tch::{Device, Kind};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny");
const SEED: u64 = 42;

/// A copy of `from` with each part's weights in one f32 file.
fn unsharded_f32(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    let mut weights = Vec::new();
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_owned();
        if path.is_dir() {
            unsharded_f32(&path, &to.join(name));
        } else if path.extension().is_some_and(|end| end == "safetensors") {
            weights.push(path);
        } else if !path.to_string_lossy().ends_with(".index.json") {
            fs::copy(&path, to.join(name)).expect("room");
        }
    }
    if let Some(first) = weights.first() {
        let name = first
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let stem = name.split(['-', '.']).next().expect("a name has a start");
        fs::write(to.join(format!("{stem}.safetensors")), merged(&weights)).expect("room");
    }
}

fn merged(files: &[PathBuf]) -> Vec<u8> {
    let mut tensors = BTreeMap::new();
    for file in files {
        let bytes = fs::read(file).expect("a file");
        for (key, view) in SafeTensors::deserialize(&bytes)
            .expect("safetensors")
            .tensors()
        {
            tensors.insert(key, (view.shape().to_vec(), as_f32(&view)));
        }
    }
    let views = tensors.iter().map(|(key, (shape, data))| {
        let view = TensorView::new(Dtype::F32, shape.clone(), data);
        (key, view.expect("the data fills the shape"))
    });
    safetensors::serialize(views, None).expect("they can be written")
}

/// A bf16 number is the upper half of the f32 of the same value.
fn as_f32(view: &TensorView<'_>) -> Vec<u8> {
    match view.dtype() {
        Dtype::F32 => view.data().to_vec(),
        Dtype::BF16 => {
            let (pairs, _) = view.data().as_chunks::<2>();
            pairs
                .iter()
                .flat_map(|[low, high]| [0, 0, *low, *high])
                .collect()
        }
        other => panic!("{other:?} is not a dtype of the tiny checkpoint"),
    }
}

fn painted(dir: &Path) -> (Vec<u16>, Picture) {
    let checkpoint = Checkpoint::open(dir).expect("a checkpoint");
    let options = LoadOptions::load(Device::Cpu, Kind::Float);
    let size = ImageSize {
        height: 64,
        width: 96,
    };
    let prompt = "a sign that says \"OPEN\"";
    let prior = PriorModel::load(&checkpoint, options).expect("it loads");
    let rows = [PriorRequest { prompt, seed: SEED }];
    let rows = prior.generate(size, &rows, &mut |_| ControlFlow::Continue(()));
    let row = rows.expect("tokens").remove(0);
    let request = PaintRequest {
        prompt,
        height: size.height,
        width: size.width,
        seed: SEED,
        steps: 3,
        guidance_scale: 1.5,
        prior: PriorGrid {
            h: row.token_h,
            w: row.token_w,
            ids: &row.tokens,
        },
    };
    let painter = Painter::load(&checkpoint, options).expect("it loads");
    let picture = painter.paint(&request, &mut |_| ControlFlow::Continue(()));
    (row.tokens, picture.expect("a picture"))
}

#[test]
fn an_unsharded_f32_checkpoint_paints_the_same_picture() {
    let copy = tempfile::tempdir().expect("a folder");
    unsharded_f32(Path::new(TINY), copy.path());
    assert!(
        copy.path()
            .join("transformer/diffusion_pytorch_model.safetensors")
            .exists()
    );
    assert!(
        copy.path()
            .join("vision_language_encoder/model.safetensors")
            .exists()
    );
    let (tokens, picture) = painted(Path::new(TINY));
    let (other_tokens, other_picture) = painted(copy.path());
    assert_eq!(tokens, other_tokens);
    assert_eq!(picture.rgb, other_picture.rgb);
}
