//! A checkpoint that is not what it says: one line that names file and key, before anything runs.

use std::fs;
use std::path::{Path, PathBuf};

use model::error::Shape;
use model::{Checkpoint, LoadOptions, ModelError, PriorModel};
use serde_json::{Map, Value, json};
use tch::{Device, Kind};
use tempfile::TempDir;

const PART: &str = "vision_language_encoder";
const KEY: &str = "model.language_model.layers.0.self_attn.q_proj.weight";

/// A copy of the tiny checkpoint to break.
struct Copy {
    dir: TempDir,
}

impl Copy {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let tiny = Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/data/tiny"
        ));
        copy_folder(tiny, dir.path());
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn edit_json(&self, name: &str, edit: impl FnOnce(&mut Map<String, Value>)) {
        let path = self.path(name);
        let text = fs::read(&path).expect("a file");
        let mut json = serde_json::from_slice(&text).expect("JSON");
        edit(&mut json);
        fs::write(path, serde_json::to_vec(&json).expect("JSON")).expect("room");
    }

    fn index(&self) -> PathBuf {
        self.path(PART).join("model.safetensors.index.json")
    }

    /// The shard that holds the key.
    fn shard_of(&self, key: &str) -> PathBuf {
        let index: Value =
            serde_json::from_slice(&fs::read(self.index()).expect("an index")).expect("JSON");
        self.path(PART).join(
            index["weight_map"][key]
                .as_str()
                .expect("a key of the index"),
        )
    }

    /// Changes the header of the shard that holds the key; the data stays.
    fn edit_header(&self, key: &str, edit: impl FnOnce(&mut Map<String, Value>, usize)) -> PathBuf {
        let shard = self.shard_of(key);
        let bytes = fs::read(&shard).expect("a shard");
        let (length, rest) = bytes.split_at(8);
        let length = u64::from_le_bytes(length.try_into().expect("8 bytes")) as usize;
        let (header, data) = rest.split_at(length);
        let mut header = serde_json::from_slice(header).expect("JSON");
        edit(&mut header, data.len());
        let header = serde_json::to_vec(&header).expect("JSON");
        let length = (header.len() as u64).to_le_bytes();
        fs::write(&shard, [&length[..], &header, data].concat()).expect("room");
        shard
    }

    /// What check and load both say.
    fn error(&self) -> ModelError {
        let checked = Checkpoint::open(self.dir.path()).and_then(|c| PriorModel::check(&c));
        let options = LoadOptions::load(Device::Cpu, Kind::Float);
        let loaded = Checkpoint::open(self.dir.path()).and_then(|c| PriorModel::load(&c, options));
        let (checked, loaded) = (checked.expect_err("broken"), loaded.expect_err("broken"));
        let text = loaded.to_string();
        assert_eq!(checked.to_string(), text);
        assert!(!text.contains('\n'), "{text}");
        loaded
    }
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

fn rename(map: &mut Map<String, Value>) {
    let value = map.remove(KEY).expect("a key of the map");
    map.insert(format!("{KEY}_renamed"), value);
}

#[test]
fn the_tiny_checkpoint_is_whole() {
    let copy = Copy::new();
    let checkpoint = Checkpoint::open(copy.dir.path()).expect("a checkpoint");
    let report = PriorModel::check(&checkpoint).expect("whole");
    let total = report.total();
    assert!(total.bytes_kept > 0 && total.tensors > 50 && total.parameters > total.tensors);
    assert!(report.to_string().lines().count() == 2, "{report}");
}

#[test]
fn a_key_renamed_in_its_shard_alone_is_missing_from_the_shard() {
    let copy = Copy::new();
    let shard = copy.edit_header(KEY, |header, _| rename(header));
    let error = copy.error();
    assert!(
        matches!(&error, ModelError::NotInShard { file, key, .. } if *file == shard && key == KEY),
        "{error}"
    );
}

#[test]
fn a_key_renamed_everywhere_is_missing_with_its_shape() {
    let copy = Copy::new();
    copy.edit_header(KEY, |header, _| rename(header));
    let index = format!("{PART}/model.safetensors.index.json");
    copy.edit_json(&index, |json| {
        rename(json["weight_map"].as_object_mut().expect("a map"))
    });
    let error = copy.error();
    let wanted = Shape(vec![128, 128]);
    assert!(
        matches!(&error, ModelError::MissingKey { file, key, expected }
            if *file == copy.index() && key == KEY && *expected == wanted),
        "{error}"
    );
}

#[test]
fn a_wrong_shape_is_told_with_the_right_one() {
    let copy = Copy::new();
    let shard = copy.edit_header(KEY, |header, _| header[KEY]["shape"] = json!([64, 256]));
    let error = copy.error();
    assert!(
        matches!(&error, ModelError::WrongShape { file, key, found, expected }
            if *file == shard && key == KEY && found.0 == [64, 256] && expected.0 == [128, 128]),
        "{error}"
    );
}

#[test]
fn a_wrong_dtype_is_refused() {
    let copy = Copy::new();
    let shard = copy.edit_header(KEY, |header, _| {
        let dtype = header[KEY]["dtype"].as_str().expect("a dtype");
        header[KEY]["dtype"] = json!(if dtype == "F32" { "I32" } else { "I16" });
    });
    let error = copy.error();
    assert!(
        matches!(&error, ModelError::WrongDtype { file, key, .. } if *file == shard && key == KEY),
        "{error}"
    );
}

#[test]
fn an_extra_key_is_refused() {
    let copy = Copy::new();
    let shard = copy.edit_header(KEY, |header, end| {
        let empty = json!({"dtype": "F32", "shape": [0], "data_offsets": [end, end]});
        header.insert("extra.weight".to_owned(), empty);
    });
    let error = copy.error();
    assert!(
        matches!(&error, ModelError::ExtraKey { file, key, found }
            if *file == shard && key == "extra.weight" && found.0 == [0]),
        "{error}"
    );
}

#[test]
fn a_truncated_shard_is_told_with_both_lengths() {
    for keep in [0, 5, 100, -1] {
        let copy = Copy::new();
        let shard = copy.shard_of(KEY);
        let bytes = fs::read(&shard).expect("a shard");
        let whole = bytes.len() as u64;
        let keep = usize::try_from(keep).unwrap_or(bytes.len() - 1);
        fs::write(&shard, &bytes[..keep]).expect("room");
        let error = copy.error();
        assert!(
            matches!(&error, ModelError::Truncated { file, found, expected }
                if *file == shard && *found == keep as u64 && (keep as u64) < *expected && *expected <= whole),
            "{error}"
        );
    }
}

#[test]
fn a_missing_shard_is_told_with_a_key_it_should_hold() {
    let copy = Copy::new();
    let shard = copy.shard_of(KEY);
    fs::remove_file(&shard).expect("a shard");
    let error = copy.error();
    assert!(
        matches!(&error, ModelError::MissingShard { file, index, .. }
            if *file == shard && *index == copy.index()),
        "{error}"
    );
}

#[test]
fn a_file_that_is_no_safetensors_is_refused() {
    let copy = Copy::new();
    let shard = copy.shard_of(KEY);
    let header = b"not JSON";
    let length = (header.len() as u64).to_le_bytes();
    fs::write(&shard, [&length[..], header].concat()).expect("room");
    let error = copy.error();
    assert!(
        matches!(&error, ModelError::BadHeader { file, .. } if *file == shard),
        "{error}"
    );
}

#[test]
fn another_pipeline_part_or_model_is_refused_by_name() {
    type Edit = fn(&mut Map<String, Value>);
    let cases: [(&str, Edit, &str, &str); 4] = [
        (
            "model_index.json",
            |j| j["_class_name"] = json!("FluxPipeline"),
            "_class_name",
            "FluxPipeline",
        ),
        (
            "model_index.json",
            |j| j["vae"] = json!(["diffusers", "VQModel"]),
            "vae",
            "VQModel",
        ),
        (
            "model_index.json",
            |j| drop(j.remove("transformer")),
            "transformer",
            "absent",
        ),
        (
            "vision_language_encoder/config.json",
            |j| j["model_type"] = json!("glm4v"),
            "model_type",
            "glm4v",
        ),
    ];
    for (name, edit, field, found) in cases {
        let copy = Copy::new();
        copy.edit_json(name, edit);
        let error = copy.error();
        assert!(
            matches!(&error, ModelError::ForeignClass { path, field: f, found: g, .. }
                if *path == copy.path(name) && f == field && g == found),
            "{error}"
        );
    }
}

#[test]
fn a_config_that_cannot_be_built_is_refused_by_field() {
    type Edit = fn(&mut Map<String, Value>);
    let config = "vision_language_encoder/config.json";
    let cases: [(&str, Edit, &str); 6] = [
        (
            config,
            |j| j["text_config"]["num_attention_heads"] = json!(0),
            "num_attention_heads",
        ),
        (
            config,
            |j| j["text_config"]["num_key_value_heads"] = json!(3),
            "num_key_value_heads",
        ),
        (
            config,
            |j| j["text_config"]["hidden_act"] = json!("relu"),
            "hidden_act",
        ),
        (
            config,
            |j| j["image_end_token_id"] = json!(3),
            "image_end_token_id",
        ),
        (
            config,
            |j| j["text_config"]["rope_parameters"]["mrope_section"] = json!([8, 12, 12]),
            "mrope_section",
        ),
        (
            "vision_language_encoder/generation_config.json",
            |j| j["temperature"] = json!(0.0),
            "temperature",
        ),
    ];
    for (name, edit, wanted) in cases {
        let copy = Copy::new();
        copy.edit_json(name, edit);
        let error = copy.error();
        assert!(
            matches!(&error, ModelError::Config { path, field, .. }
                if *path == copy.path(name) && field == wanted),
            "{error}"
        );
    }
}

#[test]
fn the_chat_template_may_stand_in_the_tokenizer_config_but_nowhere_is_an_error() {
    let copy = Copy::new();
    let template = copy.path("processor/chat_template.jinja");
    let text = fs::read_to_string(&template).expect("a template");
    fs::remove_file(&template).expect("a template");
    let error = copy.error();
    assert!(
        matches!(&error, ModelError::Template { path, .. } if *path == template),
        "{error}"
    );
    copy.edit_json("processor/tokenizer_config.json", |json| {
        json.insert("chat_template".to_owned(), json!(text));
    });
    let checkpoint = Checkpoint::open(copy.dir.path()).expect("a checkpoint");
    assert!(PriorModel::check(&checkpoint).is_ok());
}
