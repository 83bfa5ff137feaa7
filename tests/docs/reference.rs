//! `docs/configuration.md`: below its mark the programs wrote it.

use std::{fs, process::Command};

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
