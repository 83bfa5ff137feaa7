//! Who may know whom, as a table. An edge or a crate that is not in it fails here, so that adding one is a decision.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

/// Member → the members it may use. Down only: services compose, never use each other; `protocol` uses nobody.
const MAY_USE: [(&str, &[&str]); 11] = [
    ("protocol", &[]),
    ("batching", &["protocol"]),
    ("model", &[]),
    ("messaging", &["protocol"]),
    ("replay", &["protocol"]),
    ("service", &["protocol"]),
    ("gateway", &["batching", "messaging", "protocol", "service"]),
    (
        "ar-batcher",
        &[
            "batching",
            "messaging",
            "model",
            "protocol",
            "replay",
            "service",
        ],
    ),
    (
        "denoiser",
        &[
            "batching",
            "messaging",
            "model",
            "protocol",
            "replay",
            "service",
        ],
    ),
    (
        "fresco",
        &["batching", "messaging", "protocol", "replay", "service"],
    ),
    ("integration", &["messaging", "protocol", "replay"]),
];

/// Member → crates it must never link, directly or through others, with the reason.
const MUST_NOT_LINK: [(&str, &str, &str); 13] = [
    ("protocol", "tokio", "the wire has no runtime"),
    ("protocol", "async-nats", "the wire has no I/O"),
    ("batching", "tokio", "time is an argument"),
    ("model", "tokio", "the model is called from one thread"),
    ("model", "protocol", "the model knows no job"),
    ("messaging", "tch", "the queue knows no tensor"),
    ("messaging", "warp", "the bus is not HTTP"),
    ("replay", "tokio", "it says what and how long; engines wait"),
    ("replay", "torch-sys", "it is there to do without a model"),
    ("service", "async-nats", "the shell knows no queue"),
    (
        "gateway",
        "torch-sys",
        "the gateway runs where no libtorch is",
    ),
    (
        "fresco",
        "torch-sys",
        "the operator's command runs where no libtorch is",
    ),
    (
        "integration",
        "torch-sys",
        "the tests start the binaries, they do not link them",
    ),
];

/// Of this machine's platform only: what others would link is not downloaded here.
fn packages() -> (BTreeMap<String, Package>, cargo_metadata::Metadata) {
    let rustc = Command::new("rustc").arg("-vV").output().unwrap();
    let version = String::from_utf8(rustc.stdout).unwrap();
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .unwrap();
    let options = ["--locked", "--offline", "--filter-platform", host];
    let metadata = MetadataCommand::new()
        .other_options(options.map(str::to_owned))
        .exec()
        .unwrap();
    let members = metadata
        .workspace_packages()
        .into_iter()
        .map(|p| (p.name.to_string(), p.clone()))
        .collect();
    (members, metadata)
}

#[test]
fn members_use_only_who_they_may() {
    let (members, _) = packages();
    let table: BTreeMap<_, _> = MAY_USE.into_iter().collect();
    assert_eq!(
        members.keys().map(String::as_str).collect::<Vec<_>>(),
        table.keys().copied().collect::<Vec<_>>()
    );
    for (name, package) in &members {
        let used = package
            .dependencies
            .iter()
            .filter(|d| d.kind != DependencyKind::Development);
        let ours: BTreeSet<_> = used
            .map(|d| d.name.as_str())
            .filter(|name| members.contains_key(*name))
            .collect();
        let may: BTreeSet<_> = table[name.as_str()].iter().copied().collect();
        let more: Vec<_> = ours.difference(&may).collect();
        assert!(more.is_empty(), "{name} uses {more:?}: not in the table");
    }
}

#[test]
fn nobody_links_what_they_must_not_a19_a62() {
    let (members, metadata) = packages();
    let resolve = metadata.resolve.as_ref().unwrap();
    for (member, forbidden, reason) in MUST_NOT_LINK {
        let (mut seen, mut open) = (BTreeSet::new(), vec![members[member].id.clone()]);
        while let Some(id) = open.pop() {
            if !seen.insert(id.clone()) {
                continue;
            }
            let node = resolve.nodes.iter().find(|node| node.id == id).unwrap();
            let normal = |dep: &&cargo_metadata::NodeDep| {
                dep.dep_kinds
                    .iter()
                    .any(|kind| kind.kind == DependencyKind::Normal)
            };
            open.extend(node.deps.iter().filter(normal).map(|dep| dep.pkg.clone()));
        }
        let linked = metadata
            .packages
            .iter()
            .any(|p| p.name.as_str() == forbidden && seen.contains(&p.id));
        assert!(!linked, "{member} links {forbidden}: {reason}");
    }
}
