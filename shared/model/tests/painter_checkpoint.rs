//! The painter's half of a checkpoint: what `check` counts, and what is refused by name.

use std::fs;
use std::path::Path;

use model::{Checkpoint, LoadOptions, ModelError, Painter};
use serde_json::{Value, json};
use tch::{Device, Kind};
use tempfile::TempDir;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny");

/// A copy of the tiny checkpoint with one value of one JSON file replaced (null takes it away).
fn edited(file: &str, key: &str, value: &Value) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    copy_folder(Path::new(TINY), dir.path());
    let path = dir.path().join(file);
    let mut json: Value = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON");
    let object = json.as_object_mut().expect("an object");
    match value {
        Value::Null => object.remove(key),
        value => object.insert(key.to_owned(), value.clone()),
    };
    fs::write(path, serde_json::to_vec(&json).expect("JSON")).expect("room");
    dir
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("room");
        }
    }
}

/// What check and load both say.
fn error_of(dir: &TempDir) -> ModelError {
    let checkpoint = Checkpoint::open(dir.path()).expect("a folder of the right parts");
    let checked = Painter::check(&checkpoint).expect_err("broken");
    let loaded = Painter::load(&checkpoint, LoadOptions::load(Device::Cpu, Kind::Float))
        .expect_err("broken");
    assert_eq!(checked.to_string(), loaded.to_string());
    assert!(!loaded.to_string().contains('\n'), "{loaded}");
    loaded
}

#[test]
fn a_check_counts_each_part_of_the_painter() {
    let report = Painter::check(&Checkpoint::open(Path::new(TINY)).unwrap()).unwrap();

    let names: Vec<&str> = report.parts.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["text_encoder", "transformer", "vae"]);
    for (name, part) in &report.parts {
        assert!(part.tensors > 0 && part.parameters > 0, "{name}");
        assert!(
            part.bytes_kept > 0 && part.bytes >= 2 * part.parameters,
            "{name}"
        );
    }
    // The encoder of the VAE stays on disk.
    let (_, vae) = &report.parts[2];
    assert!(vae.bytes_kept < 4 * vae.parameters, "{vae:?}");
}

#[test]
fn a_setting_that_changes_the_maths_is_refused_by_name() {
    let table = [
        (
            "scheduler/scheduler_config.json",
            "time_shift_type",
            json!("exponential"),
        ),
        (
            "scheduler/scheduler_config.json",
            "time_shift_type",
            Value::Null,
        ),
        (
            "scheduler/scheduler_config.json",
            "use_dynamic_shifting",
            Value::Null,
        ),
        (
            "scheduler/scheduler_config.json",
            "invert_sigmas",
            json!(true),
        ),
        (
            "text_encoder/config.json",
            "feed_forward_proj",
            json!("relu"),
        ),
        ("text_encoder/config.json", "dense_act_fn", json!("relu")),
        (
            "text_encoder/config.json",
            "relative_attention_num_buckets",
            json!(6),
        ),
        (
            "text_encoder/config.json",
            "relative_attention_max_distance",
            json!(8),
        ),
        ("text_encoder/config.json", "num_heads", json!(0)),
        ("transformer/config.json", "attention_head_dim", json!(30)),
        ("transformer/config.json", "time_embed_dim", json!(63)),
        ("transformer/config.json", "out_channels", json!(8)),
        ("vae/config.json", "act_fn", json!("relu")),
        ("vae/config.json", "mid_block_add_attention", json!(true)),
        ("vae/config.json", "mid_block_add_attention", Value::Null),
        ("vae/config.json", "use_quant_conv", json!(true)),
        ("vae/config.json", "use_post_quant_conv", Value::Null),
        (
            "vae/config.json",
            "up_block_types",
            json!(vec!["AttnUpDecoderBlock2D"; 4]),
        ),
        ("vae/config.json", "norm_num_groups", json!(7)),
        ("vae/config.json", "latents_mean", json!([0.0])),
        ("vae/config.json", "out_channels", json!(4)),
    ];
    for (file, key, value) in table {
        let error = error_of(&edited(file, key, &value));
        let ModelError::Config { path, field, .. } = &error else {
            panic!("{key}: {error:?}")
        };
        assert!(path.ends_with(file), "{key}: {error}");
        // A number of groups is refused by the widths it does not divide.
        let expected = if key == "norm_num_groups" {
            "block_out_channels"
        } else {
            key
        };
        assert_eq!(field, expected, "{error}");
    }
}

#[test]
fn the_config_of_another_model_is_refused_by_name() {
    let table = [
        (
            "scheduler/scheduler_config.json",
            "_class_name",
            json!("EulerDiscreteScheduler"),
        ),
        ("text_encoder/config.json", "model_type", json!("bert")),
        (
            "tokenizer/tokenizer_config.json",
            "tokenizer_class",
            json!("T5Tokenizer"),
        ),
        (
            "transformer/config.json",
            "_class_name",
            json!("FluxTransformer2DModel"),
        ),
        ("vae/config.json", "_class_name", json!("AutoencoderDC")),
    ];
    for (file, key, value) in table {
        let error = error_of(&edited(file, key, &value));
        let ModelError::ForeignClass { path, found, .. } = &error else {
            panic!("{error:?}")
        };
        assert!(path.ends_with(file), "{error}");
        assert_eq!(found, value.as_str().unwrap());
    }
}

#[test]
fn a_size_that_the_weights_do_not_have_names_the_key() {
    let table = [
        ("text_encoder/config.json", "d_ff", json!(128)),
        ("text_encoder/config.json", "num_layers", json!(1)),
        ("text_encoder/config.json", "num_layers", json!(3)),
        ("transformer/config.json", "num_layers", json!(1)),
        (
            "transformer/config.json",
            "prior_vq_quantizer_codebook_size",
            json!(500),
        ),
        ("vae/config.json", "layers_per_block", json!(2)),
    ];
    for (file, key, value) in table {
        let error = error_of(&edited(file, key, &value));
        let named = matches!(
            error,
            ModelError::WrongShape { .. }
                | ModelError::MissingKey { .. }
                | ModelError::ExtraKey { .. }
        );
        assert!(named, "{key}: {error}");
    }
}

#[test]
fn limits_come_from_the_configs() {
    let checkpoint = Checkpoint::open(Path::new(TINY)).unwrap();
    let painter = Painter::load(&checkpoint, LoadOptions::load(Device::Cpu, Kind::Float)).unwrap();

    let limits = painter.limits();

    assert_eq!(
        (
            limits.side_multiple(),
            limits.codebook_size,
            limits.steps_max
        ),
        (32, 512, 1000)
    );
}
