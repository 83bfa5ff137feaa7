//! The data folder of one `fresco up`: who may use it, and where things lie in it.
//!
//! Two locks, both let go by the kernel when their holders are gone, so that none is ever stale. `up.lock` is held
//! by `fresco up`. `children.lock` is also open in every child (as its stdin): two brokers never share a store, not
//! even when a killed run's children are still on their way out.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::time::{Instant, sleep};

use super::supervisor::STOP_MAX;

/// How often a held lock is tried again: nobody notices it, and it costs nothing.
const LOCK_POLL: Duration = Duration::from_millis(50);
/// A run that is just ending lets go within this.
const ENDING_MAX: Duration = Duration::from_millis(500);
/// The children of a killed run get the time that an ordered stop gives them, and a second of their own.
const LEFTOVERS_MAX: Duration = STOP_MAX.saturating_add(Duration::from_secs(1));

/// A data folder that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FolderError {
    /// Another `fresco up` runs on it.
    #[error("{} is in use by another fresco up{process}: stop that one, or give another --data", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
        /// ` (process 123)`, when it can be read.
        process: String,
    },
    /// Processes of a killed run do not end.
    #[error("processes of an earlier run hold {} and do not end", path.display())]
    Leftovers {
        /// The lock they hold.
        path: PathBuf,
    },
    /// The file system refuses.
    #[error("cannot use {}", path.display())]
    Io {
        /// What was to be used.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// A data folder in our hands.
#[derive(Debug)]
pub(crate) struct DataFolder {
    path: PathBuf,
    _up_lock: File,
    children_lock: File,
}

impl DataFolder {
    /// Makes the folder when it is missing, and takes it.
    pub(crate) async fn take(path: &Path) -> Result<Self, FolderError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| FolderError::Io { path, source }
        };
        fs::create_dir_all(path.join("logs")).map_err(io(path))?;
        let path = path.canonicalize().map_err(io(path))?;
        let up_path = path.join("up.lock");
        let mut up_lock = open(&up_path).map_err(io(&up_path))?;
        if !lock_until(&up_lock, ENDING_MAX)
            .await
            .map_err(io(&up_path))?
        {
            return Err(FolderError::InUse {
                process: holder(&mut up_lock),
                path,
            });
        }
        up_lock.set_len(0).map_err(io(&up_path))?;
        write!(up_lock, "{}", std::process::id()).map_err(io(&up_path))?;

        let children_path = path.join("children.lock");
        let children_lock = open(&children_path).map_err(io(&children_path))?;
        if !lock_until(&children_lock, LEFTOVERS_MAX)
            .await
            .map_err(io(&children_path))?
        {
            kill_holders(&children_path);
            if !lock_until(&children_lock, Duration::from_secs(1))
                .await
                .map_err(io(&children_path))?
            {
                return Err(FolderError::Leftovers {
                    path: children_path,
                });
            }
        }
        Ok(Self {
            path,
            _up_lock: up_lock,
            children_lock,
        })
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the logs.
    pub(crate) fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// A handle that keeps the folder taken for as long as a child has it open.
    pub(crate) fn hold(&self) -> io::Result<File> {
        self.children_lock.try_clone()
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

async fn lock_until(file: &File, patience: Duration) -> io::Result<bool> {
    let give_up_at = Instant::now() + patience;
    while !try_lock(file)? {
        if Instant::now() >= give_up_at {
            return Ok(false);
        }
        sleep(LOCK_POLL).await;
    }
    Ok(true)
}

/// Who wrote the lock file; a courtesy, so empty when it cannot be read.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    match file.read_to_string(&mut text) {
        Ok(_) if !text.is_empty() => format!(" (process {text})"),
        _ => String::new(),
    }
}

/// Ends the processes whose stdin is the lock at `path`: nobody else's can be.
fn kill_holders(path: &Path) {
    let Ok(processes) = fs::read_dir("/proc") else {
        return;
    };
    for process in processes.flatten() {
        let Some(id) = process
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        if fs::read_link(process.path().join("fd/0")).is_ok_and(|stdin| stdin == path) {
            tracing::warn!(process = id, "killing what an earlier run left behind");
            if let Err(error) = kill(Pid::from_raw(id), Signal::SIGKILL) {
                tracing::debug!(process = id, %error, "it is gone already");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[tokio::test]
    async fn a_folder_has_one_owner_at_a_time() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let data = folder.path().join("data");
        let taken = DataFolder::take(&data).await.expect("a fresh folder");
        let second = DataFolder::take(&data).await;
        let process = format!(" (process {})", std::process::id());
        assert!(matches!(second, Err(FolderError::InUse { process: p, .. }) if p == process));
        drop(taken);
        DataFolder::take(&data)
            .await
            .expect("a folder that was let go");
    }

    #[tokio::test]
    async fn children_of_a_killed_run_are_waited_for() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let killed = DataFolder::take(folder.path())
            .await
            .expect("a fresh folder");
        let last_act = folder.path().join("last-act");
        let mut child = Command::new("sh");
        child.args(["-c", "sleep 0.3; touch \"$0\""]).arg(&last_act);
        child.stdin(killed.hold().expect("a handle"));
        let mut running = child.spawn().expect("sh runs");
        drop((child, killed));
        DataFolder::take(folder.path())
            .await
            .expect("the child ends by itself");
        assert!(last_act.exists(), "the child was not waited for");
        assert!(running.wait().expect("it is our child").success());
    }

    #[tokio::test]
    async fn children_of_a_killed_run_that_hang_are_killed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let killed = DataFolder::take(folder.path())
            .await
            .expect("a fresh folder");
        let stdin = Stdio::from(killed.hold().expect("a handle"));
        let mut child = Command::new("sleep")
            .arg("600")
            .stdin(stdin)
            .spawn()
            .expect("sleep runs");
        drop(killed);
        let children_path = folder
            .path()
            .canonicalize()
            .expect("it is there")
            .join("children.lock");
        kill_holders(&children_path);
        assert!(!child.wait().expect("it is our child").success());
        DataFolder::take(folder.path())
            .await
            .expect("nobody holds it");
    }
}
