//! `fresco bench`: what it measures is there, and adds up.

use std::{
    fs,
    process::{Command, Output},
};

use integration::{binary, root};
use serde_json::Value;
use tempfile::TempDir;

/// Pictures of 40 ms and rows of 20 ms: slow beside the overhead of a debug build, quick beside a person.
const TABLE: &str =
    r#"{"ar": {"rows_ms": [[1, 20]], "tokens": 261}, "denoise": {"step_ms": 40, "decode_ms": 0}}"#;

/// Pictures of 1.5 s and rows of 0.75 s: beside them the overhead of a debug build on a busy machine is small.
const SLOW_TABLE: &str = r#"{"ar": {"rows_ms": [[1, 750]], "tokens": 261}, "denoise": {"step_ms": 1500, "decode_ms": 0}}"#;

/// A folder with the table and room for temporary files.
fn folder(table: &str) -> TempDir {
    let folder = TempDir::with_prefix("fresco-bench-").unwrap();
    fs::write(folder.path().join("times.json"), table).unwrap();
    fs::create_dir(folder.path().join("tmp")).unwrap();
    folder
}

fn run(folder: &TempDir, flags: &str) -> Output {
    Command::new(binary("fresco"))
        .arg("bench")
        .args(flags.split_whitespace())
        .current_dir(root())
        .env("TMPDIR", folder.path().join("tmp"))
        .output()
        .unwrap()
}

fn bench(folder: &TempDir, flags: &str) -> String {
    let run = run(folder, flags);
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{told}");
    String::from_utf8(run.stdout).unwrap()
}

#[test]
fn a_plan_is_within_5_percent_of_what_is_measured() {
    let folder = folder(SLOW_TABLE);
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (times, out) = (path("times.json"), path("out"));
    // Three clients for two denoisers: there is always one whose row is written.
    let fleet = "--denoisers 2 --ar-slots 4 --sizes 64x64 --steps 1 --concurrency 3 --requests 21";
    bench(
        &folder,
        &format!("run --times {times} --out {out} --name slow {fleet}"),
    );
    let result: Value = serde_json::from_slice(&fs::read(path("out/slow.json")).unwrap()).unwrap();
    let number = |pointer: &str| result.pointer(pointer).unwrap().as_f64().unwrap();
    let (measured, planned) = (
        number("/measured/images_per_s"),
        number("/planned/images_per_s"),
    );
    println!("measured {measured}, planned {planned}");
    assert!((planned / measured - 1.0).abs() <= 0.05);
}

#[test]
fn a_run_whose_requests_fail_is_no_success_and_tells_no_secret() {
    let folder = folder(TABLE);
    let times = folder.path().join("times.json");
    // Nobody listens on the port of a socket that is gone.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    drop(port);
    let flags = format!(
        "run --times {} --url http://user:secret@{address} --concurrency 1 --requests 4",
        times.display()
    );
    let run = run(&folder, &flags);
    let told = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{told}");
    assert!(told.contains("4 requests failed"), "{told}");
    assert!(!told.contains("secret"), "{told}");
}

#[test]
fn a_run_measures_its_own_fleet_and_leaves_nothing() {
    let folder = folder(TABLE);
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let bench = |flags: &str| bench(&folder, flags);
    let (times, out) = (path("times.json"), path("out"));
    let fleet = "--denoisers 2 --ar-slots 4 --sizes 64x64,64x32 --steps 1";
    bench(&format!(
        "run --times {times} --out {out} --name tiny {fleet} --concurrency 2 --requests 40"
    ));

    let result: Value = serde_json::from_slice(&fs::read(path("out/tiny.json")).unwrap()).unwrap();
    let number = |pointer: &str| result.pointer(pointer).unwrap().as_f64().unwrap();
    assert_eq!(number("/measured/failed"), 0.0);
    // Answers after the fourth and up to the last request, the 39th or 40th of which is still out.
    assert!((34.0..=36.0).contains(&number("/measured/requests")));
    let share = number("/measured/images_per_s") / number("/measured/bound_images_per_s");
    assert!(0.1 < share && share < 1.02, "{share} of the bound");
    assert!(number("/measured/latency_s/p50") >= 0.06, "both stages");
    assert!((0.1..1.05).contains(&number("/measured/denoisers_busy")));
    assert_eq!(
        result["measured"]["latency_by_size_s"]
            .as_object()
            .unwrap()
            .len(),
        2
    );
    let command = result["command"].as_str().unwrap();
    assert!(
        command.starts_with("fresco bench run --times times.json --out out "),
        "{command}"
    );
    let cpu = result["cpu_ms_per_request"].as_object().unwrap();
    let roles: Vec<&String> = cpu.keys().collect();
    let expected = [
        "ar-batcher",
        "client",
        "denoiser",
        "gateway",
        "nats-server",
        "supervisor",
    ];
    assert_eq!(roles, expected);
    assert!(number("/cpu_ms_per_request/denoiser") > 0.0);

    let traced = bench(&format!(
        "run --times {times} --out {out} --name traced --traced {fleet} --concurrency 2 --requests 10"
    ));
    assert!(traced.contains("batches of spans"), "{traced}");
    let result = fs::read_to_string(path("out/traced.json")).unwrap();
    assert!(result.contains("\"traced\": true"), "{result}");

    let report = bench(&format!("report {out} --plot {}", path("plot.svg")));
    assert!(
        report.contains("| 2 clients | 2 | 4 | 2 | continuous |"),
        "{report}"
    );
    let plot = fs::read_to_string(path("plot.svg")).unwrap();
    assert!(plot.contains("<svg") && plot.contains("2 clients, 4 AR slots: continuous"));
    assert_eq!(
        fs::read_dir(path("tmp")).unwrap().count(),
        0,
        "temporary folders are gone"
    );
}
