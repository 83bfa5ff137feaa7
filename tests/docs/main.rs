//! The documents do what they say: every command in them is one that the programs take, and is run here, is run by another
//! test, or says why not.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

mod blocks;
mod commands;
mod faults;
mod measured;
mod reference;
mod site;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use integration::{
    demo_model,
    fleet::{Engine, Fleet, Size, until},
    free_port, http, root,
};
use protocol::Role;
use serde_json::{Value, json};

use crate::{
    blocks::{Document, Mark, documents},
    commands::{Line, lines, targets},
    site::Site,
};

/// Whose blocks the tests below run.
const RUN_HERE: [&str; 5] = [
    "README.md",
    "docs/bench.md",
    "docs/deploy.md",
    "docs/srt.md",
    "observability/README.md",
];

/// Languages of blocks that nobody runs; pictures of text have none.
const SHOWN: [&str; 5] = ["", "json", "text", "toml", "traceql"];

/// Flags in the documents that are others', and clap's own.
const FOREIGN: [&str; 9] = [
    "--api-key",
    "--cuda-graph-max-bs",
    "--enable-deterministic-inference",
    "--help",
    "--max-queued-requests",
    "--nkey",
    "--scale",
    "--script",
    "--test",
];

/// Where a test that is named in a document would be; a module within another one is behind a slash.
fn file_of(test: &str) -> Option<PathBuf> {
    let mut parts = test.split("::");
    let (package, module) = (parts.next()?, parts.next()?);
    let tests = match package {
        "e2e" => root().join("tests/e2e"),
        service => root().join("services").join(service).join("tests"),
    };
    Some(tests.join(format!("{module}.rs")))
}

fn is_a_test(test: &str) -> bool {
    let text = file_of(test).and_then(|file| fs::read_to_string(file).ok());
    let text = text.unwrap_or_default();
    // A module alone would say nothing of what is run.
    let named = test.split("::").nth(2);
    named.is_some_and(|name| has_test(&text, name))
}

fn has_test(text: &str, name: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line == "#[test]" || line.starts_with("#[tokio::test") {
            let function = lines.find(|line| !line.starts_with("#["));
            let function = function.unwrap_or_default();
            if function.contains(&format!("fn {name}(")) {
                return true;
            }
        }
    }
    false
}

#[test]
fn a_helper_and_a_module_are_no_tests() {
    let named = "e2e::secured::a_deployment_works_on_a_cluster_with_tls_and_a_credential_a_role";
    assert!(is_a_test(named));
    for other in ["e2e::secured", "e2e::secured::address", "e2e::none::such"] {
        assert!(!is_a_test(other), "{other}");
    }
}

/// Variables of the environment that a configuration of the broker names.
fn named_in(config: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("infra/nats").join(config)).unwrap();
    let set = text.lines().filter(|line| !line.trim().starts_with('#'));
    let words =
        set.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && !"$_".contains(c)));
    words
        .filter_map(|word| word.strip_prefix('$'))
        .map(str::to_owned)
        .collect()
}

/// Nobody but three machines would run it.
#[test]
fn the_environment_of_a_node_is_what_its_configuration_names() {
    let document = Document::read("docs/deploy.md");
    let mut blocks = document.blocks.iter();
    let block = blocks.find(|block| block.text.contains("/etc/fresco/nats.env"));
    let set = block.unwrap().text.lines();
    let set = set.filter_map(|line| Some(line.split_once('=')?.0.to_owned()));
    let mut set: BTreeSet<_> = set.filter(|name| name.starts_with("FRESCO_")).collect();
    // What the unit reads, and what it sets itself.
    let unit = fs::read_to_string(root().join("infra/nats/nats-server.service")).unwrap();
    assert!(set.remove("FRESCO_NATS_CONFIG") && unit.contains("${FRESCO_NATS_CONFIG}"));
    assert!(unit.contains("EnvironmentFile=-/etc/fresco/nats.env"));
    assert!(unit.contains(" FRESCO_NATS_STORE="));
    set.insert("FRESCO_NATS_STORE".to_owned());
    assert_eq!(set, named_in("cluster/node.conf"));
    let alone = BTreeSet::from(["FRESCO_NATS_STORE".to_owned()]);
    assert_eq!(alone, named_in("single.conf"));
}

#[test]
fn every_block_is_run_or_says_why_not() {
    for document in documents() {
        for block in &document.blocks {
            let place = block.place();
            if !block.is_shell() {
                assert!(
                    SHOWN.contains(&block.language.as_str()),
                    "{place}: {}",
                    block.language
                );
                let commands = lines(&block.text);
                let hidden = commands.iter().find(|line| line.is_ours());
                assert_eq!(
                    hidden, None,
                    "{place}: a command in a block that is for no shell"
                );
                continue;
            }
            match &block.mark {
                Mark::Run | Mark::Stays => {
                    let here = RUN_HERE.contains(&document.file.as_str());
                    assert!(here, "{place} is neither run nor says why not");
                }
                Mark::RunBy(test) => assert!(is_a_test(test), "{place}: no test {test}"),
                Mark::NotRun(reason) => assert!(reason.len() > 8, "{place}: {reason}"),
            }
        }
    }
}

#[test]
fn every_command_line_is_one_that_the_programs_take() {
    let (mut seen, targets) = (BTreeSet::new(), targets());
    for document in documents() {
        let blocks = document.blocks.iter().filter(|block| block.is_shell());
        let blocks = blocks.flat_map(|block| lines(&block.text));
        let spans = document.spans().flat_map(lines);
        for line in blocks.chain(spans.map(|line| line.without_last_flag().0)) {
            if line.program == "make" {
                let target = line.arguments.iter().find(|word| !word.contains('='));
                assert!(
                    target.is_none_or(|target| targets.contains(target)),
                    "{}: {line:?}",
                    document.file
                );
            }
            let new =
                line.is_ours() && !line.arguments.is_empty() && seen.insert(format!("{line:?}"));
            if let Some(refusal) = new.then(|| line.refusal()).flatten() {
                panic!("{}: {line:?}\n{refusal}", document.file);
            }
        }
    }
    assert!(seen.len() > 20, "{seen:?}");
}

#[test]
fn every_flag_in_the_text_is_in_the_reference() {
    let reference = fs::read_to_string(root().join(reference::PAGE)).unwrap();
    for document in documents() {
        let spans: Vec<_> = document.spans().collect();
        let alone = spans.iter().filter(|span| span.starts_with("--"));
        let alone = alone.filter_map(|span| span.split([' ', '=']).next().map(str::to_owned));
        let lines = spans
            .iter()
            .flat_map(|span| lines(span))
            .filter(Line::is_ours);
        let last = lines.filter_map(|line| line.without_last_flag().1);
        for flag in alone.chain(last) {
            let flag = flag.as_str();
            let known = reference.contains(&format!("`{flag} "))
                || reference.contains(&format!("`{flag}`"));
            assert!(
                known || FOREIGN.contains(&flag),
                "{}: {flag} is no flag",
                document.file
            );
        }
    }
}

/// The prompt that the demo model knows, at a server of a test's own.
async fn demo() -> Fleet {
    let engine = Engine::Model(demo_model());
    Fleet::start(Size {
        engine,
        ..Size::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_readme_says_works_on_a_deployment_with_the_demo_model() {
    let fleet = demo().await;
    let done = json!({"prompt": "a red circle", "size": "128x128", "num_inference_steps": 1});
    let done = http::generate(&fleet.gateway, &done).await;
    let mut site = Site::new();
    for server in ["http://127.0.0.1:8080", "http://GATEWAY:8080"] {
        site.read_as(server, &fleet.gateway);
    }
    site.read_as("JOB", &done.id());
    site.read_as("sleep 30", "sleep 0.2");
    site.read_as("--out DIR", "--out keys");
    for flag in fleet.broker.flags(Role::Operator).chunks(2) {
        let variable = flag[0]
            .trim_start_matches("--")
            .to_uppercase()
            .replace('-', "_");
        site.set(&format!("FRESCO_{variable}"), &flag[1]);
    }
    site.set("FRESCO_GATEWAY", &fleet.gateway);
    for (file, least) in [
        ("README.md", 3),
        ("docs/bench.md", 1),
        ("observability/README.md", 1),
    ] {
        let run = site.run(&Document::read(file), &[]).await;
        assert!(run >= least, "{file}: {run} blocks");
    }
    let files = |folder: &str| fs::read_dir(site.folder().join(folder)).unwrap().count();
    assert_eq!(files("pictures"), 2);
    assert!(files("keys") > 5);
    let file = site.folder().join("targets/fresco.json");
    let targets = until("the list for Prometheus is written", || async {
        serde_json::from_slice::<Value>(&fs::read(&file).ok()?).ok()
    });
    // Gateway, AR-batcher, two denoisers.
    assert_eq!(targets.await[0]["targets"].as_array().unwrap().len(), 4);
}

/// `infra/nats` but for its fixed ports.
fn broker_at(port: u16, folder: &Path) -> PathBuf {
    let copy = folder.join("broker");
    let files = ["single.conf", "common.conf", "roles.conf"];
    fs::create_dir(&copy).unwrap();
    for file in files {
        let text = fs::read_to_string(root().join("infra/nats").join(file)).unwrap();
        let text = text.replace("0.0.0.0:4222", &format!("127.0.0.1:{port}"));
        let text = text.replace("127.0.0.1:8222", "127.0.0.1:-1");
        fs::write(copy.join(file), text).unwrap();
    }
    copy
}

/// The layout without a model, on a broker of one's own.
fn fleet_file(folder: &Path) -> PathBuf {
    let path = folder.join("fleet.toml");
    let infra = root().join("infra");
    let text = fs::read_to_string(infra.join("fleet/replay-16.toml")).unwrap();
    let text = text.replace("..", infra.to_str().unwrap());
    let text = text.replace("127.0.0.1:0", "127.0.0.1:8080");
    fs::write(
        &path,
        format!("{text}\n[broker]\nurls = [\"tls://n1.example.com:4222\"]\n"),
    )
    .unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn one_machine_is_set_up_as_the_page_on_deployment_says() {
    let (mut site, port) = (Site::new(), free_port());
    let copy = broker_at(port, site.folder());
    let file = fleet_file(site.folder());
    site.read_as("cp -r infra/nats", &format!("cp -r {}", copy.display()));
    site.read_as("--fleet FILE", &format!("--fleet {}", file.display()));
    site.read_as("n1.example.com:4222", &format!("localhost:{port}"));
    site.read_as("n1.example.com", "localhost");
    for folder in ["/etc/fresco", "/etc/systemd/system", "/var/lib/fresco"] {
        site.move_here(folder);
    }
    let document = Document::read("docs/deploy.md");
    let run = site.run(&document, &[port]).await;
    assert!(run >= 5, "{run} blocks");
    let units = fs::read_dir(site.folder().join("etc/systemd/system")).unwrap();
    assert!(units.count() > 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ar_stage_over_http_is_tried_as_the_page_on_srt_says() {
    let (mut site, server, gateway) = (Site::new(), free_port(), free_port());
    let listens = |port: u16| format!("--listen 127.0.0.1:{port}");
    site.read_as("fake-srt ", &format!("fake-srt {} ", listens(server)));
    site.read_as("127.0.0.1:30020", &format!("127.0.0.1:{server}"));
    site.read_as("fresco up", &format!("fresco up {}", listens(gateway)));
    let run = site
        .run(&Document::read("docs/srt.md"), &[server, gateway])
        .await;
    assert_eq!(run, 1);
    let url = format!("http://127.0.0.1:{gateway}");
    until("the gateway is ready", || async {
        let (status, _) = http::text(&format!("{url}/readyz")).await?;
        status.is_success().then_some(())
    })
    .await;
    let request = json!({"prompt": "a red fox", "size": "64x64", "num_inference_steps": 1});
    let answer = http::generate(&url, &request).await;
    assert_eq!(answer.data().len(), 1);
}

#[test]
fn the_reference_of_flags_is_what_the_programs_take() {
    reference::check();
}

#[test]
fn a_url_with_a_password_is_shown_by_no_program() {
    let said = reference::said_of_secret_urls();
    for (command, output) in &said {
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(text);
            assert!(!text.contains("se-cret"), "{command}\n{text}");
        }
    }
    let refused = said.iter().filter(|(_, output)| !output.status.success());
    assert!(refused.count() > 5, "of {} command lines", said.len());
}
