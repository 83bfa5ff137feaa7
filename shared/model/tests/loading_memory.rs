//! Loading must not need room for the weights twice. One test, so that nothing else in the process
//! allocates meanwhile.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use model::LoadOptions;
use model::weights::Weights;
use serde_json::{Map, json};
use tch::{Device, Kind, Tensor};

/// The largest tensor is half of the model, far more than in a real one: the peak must not depend
/// on it. 75 Mi parameters in all.
const ROWS: [(&str, i64); 4] = [
    ("large.weight", 10240),
    ("a.weight", 2560),
    ("b.weight", 4608),
    ("c.weight", 3072),
];
const WIDTH: i64 = 3840;

const PEAK_MAX: f64 = 1.2;

#[test]
fn loading_peaks_at_a_fifth_above_the_weights_kept_a47() {
    for (name, bytes, kept) in [
        ("BF16", 2, Kind::BFloat16),
        ("F32", 4, Kind::Float),
        ("BF16", 2, Kind::Float),
    ] {
        let dir = tempfile::tempdir().expect("a folder");
        // The first call reads in libtorch's own code, which is no part of loading. A small model,
        // so that the heap is not left with room that the large one would fill unseen.
        write_model(dir.path(), (name, bytes), 1);
        drop(load(dir.path(), kept, 1));
        write_model(dir.path(), (name, bytes), WIDTH);
        // Resets VmHWM to what is in use now.
        fs::write("/proc/self/clear_refs", "5").expect("our own peak can be reset");
        let before = status("VmRSS");
        let (tensors, bytes) = load(dir.path(), kept, WIDTH);
        let peak = (status("VmHWM") - before) as f64;
        let ratio = peak / bytes as f64;
        println!("{name} kept as {kept:?}: peak {peak} of {bytes} bytes kept, {ratio:.3}");
        assert_eq!(tensors.len(), ROWS.len());
        assert!(ratio <= PEAK_MAX, "{name} kept as {kept:?}: {ratio:.3}");
    }
}

fn load(dir: &Path, dtype: Kind, width: i64) -> (Vec<Tensor>, u64) {
    let options = LoadOptions::load(Device::Cpu, dtype);
    let mut weights = Weights::open(dir, "model", options).expect("the file");
    let tensors = ROWS
        .iter()
        .map(|(key, rows)| weights.tensor(key, &[*rows, width]).expect("a tensor"))
        .collect();
    (tensors, weights.finish().expect("nothing else").bytes_kept)
}

/// The data is a hole in the file: reading it takes the same pages.
fn write_model(dir: &Path, (dtype, bytes): (&str, i64), width: i64) {
    let mut header = Map::new();
    let mut end = 0;
    for (key, rows) in ROWS {
        let start = end;
        end += rows * width * bytes;
        let entry = json!({"dtype": dtype, "shape": [rows, width], "data_offsets": [start, end]});
        header.insert(key.to_owned(), entry);
    }
    let header = serde_json::to_vec(&header).expect("JSON");
    let mut file = File::create(dir.join("model.safetensors")).expect("a file");
    file.write_all(&(header.len() as u64).to_le_bytes())
        .expect("room");
    file.write_all(&header).expect("room");
    file.set_len(8 + header.len() as u64 + end.unsigned_abs())
        .expect("room");
}

/// Bytes, from a line such as `VmHWM:    1234 kB`.
fn status(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text
        .lines()
        .find(|line| line.starts_with(field))
        .expect("a field of the kernel's");
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number");
    kib * 1024
}
