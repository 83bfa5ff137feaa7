//! `docs/configuration.md`: below its mark the programs wrote it.

use std::{
    fs,
    process::{Command, Output},
};

use integration::{binary, root};

pub(crate) const PAGE: &str = "docs/configuration.md";

/// The last line that people write.
const MARK: &str = "<!-- below: make configuration -->\n";

const PROGRAMS: [&str; 4] = [
    "fresco-gateway",
    "fresco-ar-batcher",
    "fresco-denoiser",
    "fresco",
];

pub(crate) fn check() {
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let (_, written) = page.split_once(MARK).unwrap();
    let printed = PROGRAMS.map(|program| {
        let output = Command::new(binary(program))
            .arg("--print-reference")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        format!("\n{}", String::from_utf8(output.stdout).unwrap())
    });
    let printed = printed.concat();
    let differs = written
        .lines()
        .zip(printed.lines())
        .find(|(written, printed)| written != printed);
    assert_eq!(differs, None, "run: make configuration");
    assert_eq!(written.len(), printed.len(), "run: make configuration");
}

/// URLs with a password, none of which is of a kind that every flag takes.
const SECRET_URLS: [&str; 3] = [
    "http://me:se-cret@host:1",
    "nats://me:se-cret@host:1",
    "http://host:1/?key=se-cret",
];

/// What a flag of the page that takes a URL makes its program say of one with a password. `--help` lets none of them start.
pub(crate) fn said_of_secret_urls() -> Vec<(String, Output)> {
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let (mut program, mut said) = (Vec::new(), Vec::new());
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("##") {
            program = heading.trim_start_matches('#').split_whitespace().collect();
        }
        let cells: Vec<_> = line
            .split('|')
            .map(|cell| cell.trim_matches([' ', '`']))
            .collect();
        let [_, flag, variable, ..] = &cells[..] else {
            continue;
        };
        let Some((flag, "URL" | "URL…")) = flag.split_once(' ') else {
            continue;
        };
        for url in SECRET_URLS {
            let asked = |command: &mut Command| {
                command.arg("--help");
                (format!("{command:?}"), command.output().unwrap())
            };
            let new = || {
                let mut command = Command::new(binary(program[0]));
                command.args(&program[1..]);
                command
            };
            said.push(asked(new().arg(format!("{flag}={url}"))));
            if !variable.is_empty() {
                said.push(asked(new().env(variable, url)));
            }
        }
    }
    said
}
