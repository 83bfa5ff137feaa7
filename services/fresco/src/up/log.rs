//! The children's log files: emptied when `fresco up` starts, kept below a size, read for the last words of a child
//! that died.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio_util::task::TaskTracker;

/// A log larger than this is rolled when it is looked at; with its predecessor `.1` a child takes twice what it has written
/// by then. Lines that it writes while the log is copied are lost.
const LOG_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// How often the sizes are looked at: a child that writes 100 MB a second has a log of 1 GB by then.
const LOG_CHECK_PERIOD: Duration = Duration::from_secs(10);
/// The last words are looked for in this much of the end.
const TAIL_BYTES_MAX: u64 = 16 * 1024;

/// The log of the child called `name`.
pub(crate) fn path(logs: &Path, name: &str) -> PathBuf {
    logs.join(format!("{name}.log"))
}

/// Opens a log to be written at its end by a child.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).open(path)
}

/// Keeps the logs at `paths` small, for ever. A copy takes longer than a thread may be held that also hears signals: it
/// has a thread of its own, and `tracker` waits for its end.
pub(crate) async fn keep_small(paths: Vec<PathBuf>, tracker: TaskTracker) {
    let paths: Arc<[PathBuf]> = paths.into();
    loop {
        tokio::time::sleep(LOG_CHECK_PERIOD).await;
        let paths = Arc::clone(&paths);
        let rolled = tracker.spawn_blocking(move || {
            for path in paths.iter() {
                if let Err(error) = roll(path, LOG_BYTES_MAX) {
                    tracing::warn!(path = %path.display(), %error, "log cannot be kept small");
                }
            }
        });
        if let Err(error) = rolled.await {
            tracing::error!(%error, "logs are not kept small any more");
            return;
        }
    }
}

/// Copies and empties the log when it is too large: the child has it open and goes on writing at the new end.
fn roll(path: &Path, bytes_max: u64) -> io::Result<()> {
    if fs::metadata(path).map_or(0, |metadata| metadata.len()) <= bytes_max {
        return Ok(());
    }
    fs::copy(path, path.with_extension("log.1"))?;
    File::options().write(true).open(path)?.set_len(0)
}

/// The line, of what was written since `from`, that tells why a child died: its own last word, else the last line
/// that speaks of an error, else the last line.
pub(crate) fn last_words(path: &Path, from: u64) -> Option<String> {
    let text = tail(path, from).ok()?;
    let lines = || {
        text.lines()
            .rev()
            .map(str::trim)
            .filter(|line| !line.is_empty())
    };
    // As `service::exit::report` and clap end a process.
    let is_last_word = |line: &&str| line.starts_with("fresco") || line.starts_with("error:");
    let speaks = |line: &&str| {
        let line = line.to_ascii_lowercase();
        ["error", "panicked", "[ftl]"]
            .iter()
            .any(|word| line.contains(word))
    };
    let found = lines().find(is_last_word).or_else(|| lines().find(speaks));
    found.or_else(|| lines().next()).map(str::to_owned)
}

fn tail(path: &Path, from: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    // A rolled log starts again below `from`.
    let from = if from > length { 0 } else { from };
    file.seek(SeekFrom::Start(
        from.max(length.saturating_sub(TAIL_BYTES_MAX)),
    ))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_the_last_error_of_this_life() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = path(folder.path(), "x");
        let table = [
            ("", None),
            ("a\nb\n\n", Some("b")),
            (
                "INFO a\nerror: bad flag\n\nFor more information, try '--help'.\n",
                Some("error: bad flag"),
            ),
            ("one\nERROR two\nERROR three\nfour", Some("ERROR three")),
            (
                "ERROR one\nfresco-denoiser: no such file\nerror two",
                Some("fresco-denoiser: no such file"),
            ),
            (
                "[1] [FTL] cannot listen\nbye",
                Some("[1] [FTL] cannot listen"),
            ),
        ];
        for (text, words) in table {
            fs::write(&log, text).expect("a writable folder");
            assert_eq!(last_words(&log, 0).as_deref(), words, "{text}");
        }
        fs::write(&log, "ERROR old\nnew\n").expect("a writable folder");
        assert_eq!(last_words(&log, 10).as_deref(), Some("new"));
        assert_eq!(
            last_words(&log, 1_000).as_deref(),
            Some("ERROR old"),
            "a rolled log is read from its start"
        );
        assert_eq!(last_words(&folder.path().join("none"), 0), None);
    }

    #[test]
    fn a_large_log_is_rolled() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = path(folder.path(), "x");
        fs::write(&log, "0123456789").expect("a writable folder");
        roll(&log, 10).expect("nothing to do");
        assert_eq!(fs::read(&log).expect("it is there").len(), 10);
        roll(&log, 9).expect("a writable folder");
        assert_eq!(fs::read(&log).expect("it is there").len(), 0);
        assert_eq!(
            fs::read(folder.path().join("x.log.1"))
                .expect("it is there")
                .len(),
            10
        );
    }
}
