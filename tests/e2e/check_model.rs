//! A checkpoint that cannot be used is told in one line, with exit code 2, by both roles and by a start as by a check.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use integration::{binary, tiny_model};
use tempfile::TempDir;

/// A copy of the tiny checkpoint to break.
fn copy() -> TempDir {
    fn copy_folder(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let target = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy_folder(&entry.path(), &target);
            } else {
                fs::copy(entry.path(), target).unwrap();
            }
        }
    }
    let copy = TempDir::with_prefix("fresco-checkpoint-").unwrap();
    copy_folder(&tiny_model(), copy.path());
    copy
}

fn run(program: &str, flags: &[&str]) -> Output {
    Command::new(binary(program)).args(flags).output().unwrap()
}

fn check(program: &str, model: &Path) -> Output {
    run(program, &["--check-model", model.to_str().unwrap()])
}

/// The files of one part with an ending.
fn files(part: &Path, ending: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(part)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| path.to_str().unwrap().ends_with(ending))
        .collect();
    files.sort();
    files
}

#[test]
fn a_good_checkpoint_is_reported_part_by_part() {
    for (program, parts) in [
        ("fresco-ar-batcher", &["vision_language_encoder"][..]),
        ("fresco-denoiser", &["text_encoder", "transformer", "vae"]),
    ] {
        let output = check(program, &tiny_model());
        let report = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success(),
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        for part in parts {
            let line = report.lines().find(|line| line.starts_with(part));
            let line = line.unwrap_or_else(|| panic!("{program}: no {part} in {report}"));
            assert!(
                line.contains("parameters") && line.contains("bytes"),
                "{line}"
            );
        }
        assert!(report.contains("total"), "{program}: {report}");
    }
}

/// What is broken, in which part, and what the one line has to name.
type Break = (&'static str, fn(&Path) -> Vec<String>);

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Replaces bytes in the first weights file that has them, without changing its length.
fn replace(part: &Path, from: &str, to: &str) -> PathBuf {
    assert_eq!(from.len(), to.len());
    for file in files(part, ".safetensors") {
        let mut bytes = fs::read(&file).unwrap();
        if let Some(at) = bytes
            .windows(from.len())
            .position(|window| window == from.as_bytes())
        {
            bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
            fs::write(&file, bytes).unwrap();
            return file;
        }
    }
    panic!("no file of {} has {from}", part.display());
}

const BREAKS: [Break; 5] = [
    ("a renamed key", |part| {
        let (from, to) = match name(part).as_str() {
            "vae" => ("conv_out.bias", "conv_out.bixs"),
            _ => ("language_model.norm.weight", "language_model.norm.weighx"),
        };
        let file = replace(part, from, to);
        // The key that is missing or the one that is too many, whichever is met first.
        vec![name(&file), from[..from.len() - 2].into()]
    }),
    ("a truncated shard", |part| {
        let file = files(part, ".safetensors").remove(0);
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, &bytes[..bytes.len() - 8]).unwrap();
        vec![name(&file)]
    }),
    ("a missing shard", |part| {
        let file = files(part, ".safetensors").pop().unwrap();
        fs::remove_file(&file).unwrap();
        vec![name(&file)]
    }),
    ("a config of another model", |part| {
        let config = part.join("config.json");
        let text = fs::read_to_string(&config).unwrap();
        let text = text
            .replace("AutoencoderKL", "AutoencoderTiny")
            .replace("\"glm_image\"", "\"qwen_image\"");
        fs::write(&config, text).unwrap();
        vec!["config.json".into()]
    }),
    ("no config", |part| {
        fs::remove_file(part.join("config.json")).unwrap();
        vec!["config.json".into()]
    }),
];

#[test]
fn a_broken_checkpoint_is_one_line_that_names_it() {
    for (program, part) in [
        ("fresco-denoiser", "vae"),
        ("fresco-ar-batcher", "vision_language_encoder"),
    ] {
        for (what, break_it) in BREAKS {
            let copy = copy();
            let names = break_it(&copy.path().join(part));
            let model = copy.path().to_str().unwrap();
            for flags in [["--check-model", model], ["--model", model]] {
                refused(
                    run(program, &flags),
                    &names,
                    &format!("{what} {program} {flags:?}"),
                );
            }
        }
    }
}

/// Exit code 2, and a last line that has all `names`; the only line where nothing was to be started.
fn refused(output: Output, names: &[String], what: &str) {
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{what}: {errors}");
    let last = errors.lines().last().unwrap_or_default();
    for name in names {
        assert!(
            last.contains(name.as_str()),
            "{what}: {last} does not name {name}"
        );
    }
    if what.contains("--check-model") {
        assert_eq!(errors.lines().count(), 1, "{what}: {errors}");
    }
}

#[test]
fn a_wrong_shape_names_the_key_and_both_shapes() {
    let copy = copy();
    let config = copy.path().join("vision_language_encoder/config.json");
    let text = fs::read_to_string(&config).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let size = json["text_config"]["intermediate_size"].as_i64().unwrap();
    json["text_config"]["intermediate_size"] = (size + 32).into();
    fs::write(&config, json.to_string()).unwrap();
    let output = check("fresco-ar-batcher", copy.path());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), error.lines().count()),
        (Some(2), 1),
        "{error}"
    );
    let (found, wanted) = (2 * size, 2 * (size + 32));
    for part in [
        "gate_up_proj",
        ".safetensors",
        &found.to_string(),
        &wanted.to_string(),
    ] {
        assert!(error.contains(part), "{error} does not name {part}");
    }
}
