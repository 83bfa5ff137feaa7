//! Programs of ours that node runs on packages that set-up fetches: a question in JSON, an answer in JSON.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::root;

/// What `script`, a file below `tests/src`, answers. It is given the folder below `.fresco` that has its packages.
pub(crate) fn ask<Answer: DeserializeOwned>(
    script: &str,
    packages: &str,
    question: &impl Serialize,
) -> Answer {
    let question = serde_json::to_vec(question).expect("texts and values are JSON");
    let mut node = Command::new("node")
        .arg(root().join("tests/src").join(script))
        .arg(root().join(".fresco").join(packages))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("node: {error}; run `make test`"));
    let mut stdin = node.stdin.take().expect("it is piped");
    // Who fails before it reads says why.
    drop(stdin.write_all(&question));
    drop(stdin);
    let output = node.wait_with_output().expect("node ends");
    let answer = serde_json::from_slice(&output.stdout).ok();
    let answer = answer.filter(|_| output.status.success());
    answer.expect("node says above what is wrong; `infra/setup/setup --test` fetches the packages")
}
