//! Files with secrets.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// A file that only its owner may read, at no time anybody else; whole or not there.
pub(crate) fn write_secret(file: &Path, text: &str) -> io::Result<()> {
    let fresh = file.with_extension("part");
    if let Err(error) = fs::remove_file(&fresh)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut options = fs::File::options();
    let mut opened = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)?;
    opened.write_all(text.as_bytes())?;
    fs::rename(fresh, file)
}
