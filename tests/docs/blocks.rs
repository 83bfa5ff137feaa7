//! Code blocks of the documents, and what stands above each.

use std::{
    fs,
    path::{Path, PathBuf},
};

use integration::root;

/// A fenced block.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// From the root of the repository.
    pub(crate) file: String,
    /// Of its fence.
    pub(crate) line: usize,
    /// What follows the fence: `sh`, `text`, nothing.
    pub(crate) language: String,
    /// Its lines.
    pub(crate) text: String,
    /// What is done with it.
    pub(crate) mark: Mark,
}

/// What a block's comment says: `<!-- … -->` right above the fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mark {
    /// No comment: the tests here run it, and it ends by itself.
    Run,
    /// `stays`: they run it until its document is done.
    Stays,
    /// `run by: TEST`: another test does what it says.
    RunBy(String),
    /// `not run: REASON`
    NotRun(String),
}

impl Mark {
    fn of(line: &str) -> Self {
        let comment = line
            .strip_prefix("<!-- ")
            .and_then(|line| line.strip_suffix(" -->"));
        let Some(comment) = comment else {
            return Self::Run;
        };
        match comment.split_once(": ") {
            None if comment == "stays" => Self::Stays,
            Some(("run by", test)) => Self::RunBy(test.to_owned()),
            Some(("not run", reason)) => Self::NotRun(reason.to_owned()),
            _ => Self::Run,
        }
    }
}

impl Block {
    /// Where it stands, for a report.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }

    /// Whether only an empty line is between the two.
    pub(crate) fn precedes(&self, next: &Self) -> bool {
        let fence = self.line + self.text.lines().count() + 1;
        next.line == fence + 2
    }

    /// Whether it is for a shell.
    pub(crate) fn is_shell(&self) -> bool {
        ["sh", "bash", "console"].contains(&self.language.as_str())
    }
}

/// A document: its blocks, and its text without them.
#[derive(Debug)]
pub(crate) struct Document {
    /// From the root of the repository.
    pub(crate) file: String,
    /// In order.
    pub(crate) blocks: Vec<Block>,
    /// All else.
    pub(crate) prose: String,
}

impl Document {
    /// The document at `file`, from the root of the repository.
    pub(crate) fn read(file: &str) -> Self {
        let text = fs::read_to_string(root().join(file)).unwrap();
        Self::parse(file, &text)
    }

    fn parse(file: &str, text: &str) -> Self {
        let (mut blocks, mut prose) = (Vec::new(), String::new());
        let (mut open, mut above) = (None::<Block>, "");
        for (index, line) in text.lines().enumerate() {
            let fence = line.trim_start().strip_prefix("```");
            match (fence, &mut open) {
                (Some(language), None) => {
                    open = Some(Block {
                        file: file.to_owned(),
                        line: index + 1,
                        language: language.trim().to_owned(),
                        text: String::new(),
                        mark: Mark::of(above),
                    });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some(block)) => block.text += &format!("{line}\n"),
                (None, None) => prose += &format!("{line}\n"),
            }
            above = line;
        }
        assert!(open.is_none(), "{file}: a block has no end");
        Self {
            file: file.to_owned(),
            blocks,
            prose,
        }
    }

    /// Code within lines.
    pub(crate) fn spans(&self) -> impl Iterator<Item = &str> {
        self.prose.split('`').skip(1).step_by(2)
    }
}

/// Every document of the repository.
pub(crate) fn documents() -> Vec<Document> {
    // Not ours: what was built, and what Python downloads.
    const NOT_OURS: [&str; 2] = ["target", "node_modules"];
    let (mut files, mut open) = (Vec::new(), vec![root()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && !path.is_symlink() {
                let ours = !name.starts_with('.') && !NOT_OURS.contains(&name);
                open.extend(ours.then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "md") {
                files.push(from_root(&path));
            }
        }
    }
    files.sort();
    files.iter().map(|file| Document::read(file)).collect()
}

fn from_root(path: &Path) -> String {
    let path = path.strip_prefix(root()).unwrap();
    path.to_str().unwrap().to_owned()
}
