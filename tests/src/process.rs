//! A process of a test: its log in a file, gone with the test.

use std::{
    fs::File,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};

/// A running binary of ours.
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts `binary` with `arguments`; stdout and stderr go to `<folder>/<name>.log`.
    pub fn start(binary: &Path, name: &str, arguments: &[&str], folder: &Path) -> Self {
        let log = folder.join(format!("{name}.log"));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("the log can be written");
        let errors = file.try_clone().expect("a file handle can be copied");
        let mut command = Command::new(binary);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        Self {
            name: name.to_owned(),
            log,
            child,
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal; after `SIGSTOP`, waits until it is frozen.
    pub fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id fits"));
        kill(id, signal).unwrap_or_else(|error| panic!("{} is gone: {error}", self.name));
        if signal == Signal::SIGSTOP {
            // Its threads stop one after the other: until all have, it goes on.
            let stopped = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
            waitid(Id::Pid(id), stopped).expect("it is a child of ours");
        }
    }

    /// kill -9, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().expect("it was started");
        self.child.wait().expect("a killed process ends");
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it was started")
    }

    /// Waits for its end by itself.
    pub async fn end(&mut self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "{} did not end within {within:?}:\n{}",
                self.name,
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// SIGTERM, and its end within `within` by itself: not by a signal.
    pub async fn terminate(&mut self, within: Duration) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        let status = self.end(within).await;
        assert_eq!(
            status.signal(),
            None,
            "{} was killed, it did not end",
            self.name
        );
        status
    }
}

impl Drop for Process {
    #[expect(clippy::print_stderr, reason = "what a failed test's processes said")]
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("--- log of {}\n{}", self.name, self.log());
        }
    }
}
