//! Where blocks are run: a folder that has what the repository has, programs on the PATH, and nothing of the machine's own.

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
};

use integration::{binary, fleet::until, root};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::blocks::{Block, Document, Mark};

/// A scratch folder, with what is to be read otherwise than it is written.
pub(crate) struct Site {
    folder: TempDir,
    /// Text of a document → text that is run.
    instead: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    staying: Vec<Staying>,
}

/// A block that runs on; it goes with all that it has started.
struct Staying(Child);

impl Drop for Staying {
    fn drop(&mut self) {
        let group = Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        killpg(group, Signal::SIGKILL).ok();
        self.0.wait().ok();
    }
}

impl Site {
    pub(crate) fn new() -> Self {
        let folder = TempDir::with_prefix("fresco-docs-").unwrap();
        for name in ["assets", "infra", "tests", "observability"] {
            symlink(root().join(name), folder.path().join(name)).unwrap();
        }
        let programs = binary("fresco").parent().unwrap().display().to_string();
        let mut site = Self {
            folder,
            instead: Vec::new(),
            environment: Vec::new(),
            staying: Vec::new(),
        };
        let links = root().join(".fresco/bin").display().to_string();
        let path = format!("{programs}:{links}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        site.set("PATH", &path);
        // Those on the PATH.
        for folder in ["target/release/", "target/debug/"] {
            site.read_as(folder, "");
        }
        site
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `text` of a document is run as `instead`.
    pub(crate) fn read_as(&mut self, text: &str, instead: &str) {
        self.instead.push((text.to_owned(), instead.to_owned()));
    }

    /// A folder of the machine becomes one of the site.
    pub(crate) fn move_here(&mut self, folder: &str) {
        let here = self.folder().join(folder.trim_start_matches('/'));
        fs::create_dir_all(here.parent().unwrap()).unwrap();
        self.read_as(folder, here.to_str().unwrap());
    }

    pub(crate) fn set(&mut self, variable: &str, value: &str) {
        self.environment
            .push((variable.to_owned(), value.to_owned()));
    }

    /// Runs what is to be run of a document, in order; what stays has to answer at one of `ports`. Says how many ran.
    pub(crate) async fn run(&mut self, document: &Document, ports: &[u16]) -> usize {
        let mut run = 0;
        for (index, block) in document
            .blocks
            .iter()
            .enumerate()
            .filter(|(_, block)| block.is_shell())
        {
            match block.mark {
                Mark::Run => {
                    let printed = self.run_to_its_end(block);
                    let next = document.blocks.get(index + 1);
                    let answer =
                        next.filter(|next| next.language == "text" && block.precedes(next));
                    if let Some(answer) = answer {
                        assert_eq!(
                            printed,
                            answer.text,
                            "{} prints something else",
                            block.place()
                        );
                    }
                }
                Mark::Stays => self.run_on(block, ports).await,
                Mark::RunBy(_) | Mark::NotRun(_) => continue,
            }
            run += 1;
        }
        run
    }

    fn run_to_its_end(&self, block: &Block) -> String {
        let output = self.shell(block).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{}: {}\n{}\n{printed}\n{said}",
            block.place(),
            output.status,
            self.text(block)
        );
        printed.into_owned()
    }

    async fn run_on(&mut self, block: &Block, ports: &[u16]) {
        use std::os::unix::process::CommandExt;
        let mut shell = self.shell(block);
        let child = shell
            .process_group(0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.staying.push(Staying(child));
        for port in ports {
            until(&format!("{} answers", block.place()), || async {
                TcpStream::connect(("127.0.0.1", *port)).ok().map(drop)
            })
            .await;
        }
    }

    fn shell(&self, block: &Block) -> Command {
        let mut shell = Command::new("bash");
        let text = format!("set -euo pipefail\n{}", self.text(block));
        shell.args(["-c", &text]);
        shell.current_dir(self.folder()).stdin(Stdio::null());
        shell.env_clear().envs(self.environment.iter().cloned());
        shell
    }

    fn text(&self, block: &Block) -> String {
        let read_as = |text: String, (from, to): &(String, String)| text.replace(from, to);
        self.instead.iter().fold(block.text.clone(), read_as)
    }
}
