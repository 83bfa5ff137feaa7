//! Command lines as words, without a shell.

use std::{path::PathBuf, process::Command};

use integration::{binary, root};

/// Programs that are built here.
const OURS: [&str; 8] = [
    "fresco",
    "fresco-gateway",
    "fresco-ar-batcher",
    "fresco-denoiser",
    "fake-srt",
    "chaos",
    "failover",
    "judge",
];

/// What stands in the documents for what a reader has to put there.
const PLACEHOLDERS: [(&str, &str); 4] = [
    ("OUTPUT", "0123456789abcdef0123456789abcdef-0"),
    ("JOB", "0123456789abcdef0123456789abcdef"),
    ("IP", "10.0.0.1"),
    ("URL", "http://host:1"),
];

/// As docs/tenants.md has it, with a whole hash.
const TENANTS: &str = r#"
[[tenant]]
name = "studio"
key_sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"#;

/// A program of the documents with its flags.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Without its folder.
    pub(crate) program: String,
    /// Behind it.
    pub(crate) arguments: Vec<String>,
}

/// The commands of a shell's text: comments, variables in front and operators between them left out.
pub(crate) fn lines(text: &str) -> Vec<Line> {
    let text = text.replace("\\\n", " ");
    text.lines().flat_map(of_line).collect()
}

fn of_line(line: &str) -> Vec<Line> {
    const BETWEEN: [&str; 6] = ["&&", "||", "|", "&", ";", ">"];
    let words = shlex::split(line).unwrap_or_default();
    let commands = words.split(|word| BETWEEN.contains(&word.as_str()));
    commands.filter_map(command).collect()
}

fn command(words: &[String]) -> Option<Line> {
    let assigns = |word: &&String| {
        word.split_once('=')
            .is_some_and(|(name, _)| is_variable(name))
    };
    let mut words = words.iter().skip_while(assigns);
    let program = words.next()?.rsplit('/').next()?.to_owned();
    Some(Line {
        program,
        arguments: words.cloned().collect(),
    })
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

impl Line {
    /// Whether it starts a program of ours.
    pub(crate) fn is_ours(&self) -> bool {
        OURS.contains(&self.program.as_str())
    }

    /// What the program itself says against these flags. The help comes last, and only if all before it were right.
    pub(crate) fn refusal(&self) -> Option<String> {
        // What a program reads before it has read its whole command line.
        let folder = tempfile::TempDir::new().unwrap();
        for (file, text) in [
            ("tenants.toml", TENANTS),
            ("key.txt", "sk-0123456789abcdef"),
        ] {
            std::fs::write(folder.path().join(file), text).unwrap();
        }
        let arguments = self.arguments.iter().map(|word| filled(word));
        let output = Command::new(binary(&self.program))
            .args(arguments)
            .arg("--help")
            .current_dir(folder.path())
            .output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success()).then_some(said)
    }
}

impl Line {
    /// Without a flag at its end, whose value the text leaves out; and that flag.
    pub(crate) fn without_last_flag(mut self) -> (Self, Option<String>) {
        let last = self.arguments.pop_if(|word| word.starts_with("--"));
        (self, last)
    }
}

fn filled(word: &str) -> String {
    let found = PLACEHOLDERS.iter().find(|(name, _)| *name == word);
    found.map_or(word, |(_, value)| value).to_owned()
}

/// Targets of the Makefile.
pub(crate) fn targets() -> Vec<String> {
    let makefile: PathBuf = root().join("Makefile");
    let text = std::fs::read_to_string(makefile).unwrap();
    let phony = text.lines().find_map(|line| line.strip_prefix(".PHONY: "));
    phony.unwrap().split(' ').map(str::to_owned).collect()
}
