//! Which model a folder holds, as a short text that two machines can compare.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::checkpoint::{Checkpoint, PARTS};
use crate::error::{ModelError, Result};
use crate::shard;

/// Hex digits of a revision: short enough to read out, and no fleet has the millions of models that would meet in it.
const REVISION_DIGITS: usize = 12;

impl Checkpoint {
    /// The first digits of a SHA-256 over names and contents of the parts' configs, indexes, tokenizers and templates
    /// and over the headers of the weights. Never reads a weight, so it takes milliseconds; two trainings of the same
    /// shapes in the same files are therefore told apart by their configs only.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or weights without a header.
    pub fn revision(&self) -> Result<String> {
        let mut hash = Sha256::new();
        hash_file(
            &mut hash,
            "model_index.json",
            &self.part("model_index.json"),
        )?;
        for (part, _) in PARTS {
            for file in files(&self.part(part))? {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                hash_file(&mut hash, &format!("{part}/{name}"), &file)?;
            }
        }
        let mut digits = String::new();
        for byte in hash.finalize() {
            // Writing to a String cannot fail.
            write!(digits, "{byte:02x}").ok();
        }
        digits.truncate(REVISION_DIGITS);
        Ok(digits)
    }
}

/// By name: a folder lists its files in any order.
fn files(part: &Path) -> Result<Vec<PathBuf>> {
    let failed = |source| ModelError::Io {
        path: part.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(part).map_err(failed)? {
        files.push(entry.map_err(failed)?.path());
    }
    files.sort();
    Ok(files)
}

/// Each piece with its length, so that no two folders run into the same bytes. Files of other kinds, such as a
/// read-me, are no part of the model.
fn hash_file(hash: &mut Sha256, name: &str, file: &Path) -> Result<()> {
    let content = match file.extension().and_then(|extension| extension.to_str()) {
        Some("json" | "jinja") => std::fs::read(file).map_err(|source| ModelError::Io {
            path: file.to_owned(),
            source,
        })?,
        Some("safetensors") => shard::header(file)?,
        Some(_) | None => return Ok(()),
    };
    for piece in [name.as_bytes(), &content] {
        hash.update((piece.len() as u64).to_le_bytes());
        hash.update(piece);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::goldens;

    fn copy() -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        let from = goldens::data("tiny");
        fs::copy(
            from.join("model_index.json"),
            copy.path().join("model_index.json"),
        )
        .unwrap();
        for (part, _) in PARTS {
            fs::create_dir(copy.path().join(part)).unwrap();
            for file in files(&from.join(part)).unwrap() {
                fs::copy(
                    &file,
                    copy.path().join(part).join(file.file_name().unwrap()),
                )
                .unwrap();
            }
        }
        copy
    }

    fn revision(folder: &TempDir) -> Result<String> {
        Checkpoint::open(folder.path()).and_then(|checkpoint| checkpoint.revision())
    }

    /// Changes one byte at `at`, from the end when negative.
    fn change(file: &Path, at: i64) {
        let mut bytes = fs::read(file).unwrap();
        let at = (bytes.len() as i64 * i64::from(at < 0) + at) as usize;
        bytes[at] ^= 1;
        fs::write(file, bytes).unwrap();
    }

    #[test]
    fn a_revision_is_the_same_for_a_copy_in_another_place() {
        let original = goldens::tiny().revision().unwrap();
        assert_eq!(revision(&copy()).unwrap(), original);
        assert_eq!(original.len(), REVISION_DIGITS);
        assert!(original.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    #[test]
    fn a_change_of_a_config_or_a_header_is_another_revision_and_of_a_weight_is_not() {
        let original = goldens::tiny().revision().unwrap();
        let weights = "vae/diffusion_pytorch_model.safetensors";
        for (file, at, changes) in [
            ("vae/config.json", -2, true),
            ("processor/chat_template.jinja", 0, true),
            (
                "transformer/diffusion_pytorch_model.safetensors.index.json",
                -2,
                true,
            ),
            (weights, 20, true),
            (weights, -1, false),
        ] {
            let copy = copy();
            change(&copy.path().join(file), at);
            assert_eq!(
                revision(&copy).unwrap() != original,
                changes,
                "{file} at {at}"
            );
        }
    }

    #[test]
    fn another_kind_of_file_does_not_count() {
        let copy = copy();
        fs::write(copy.path().join("vae/README.md"), "read me").unwrap();
        assert_eq!(
            revision(&copy).unwrap(),
            goldens::tiny().revision().unwrap()
        );
    }

    #[test]
    fn weights_without_a_whole_header_are_refused() {
        for bytes in [
            &[][..],
            &[1; 7],
            &[0xff; 8],
            &[9, 0, 0, 0, 0, 0, 0, 0, b'{'],
        ] {
            let copy = copy();
            fs::write(
                copy.path().join("vae/diffusion_pytorch_model.safetensors"),
                bytes,
            )
            .unwrap();
            let refused = revision(&copy);
            assert!(
                matches!(
                    refused,
                    Err(ModelError::Truncated { .. } | ModelError::BadHeader { .. })
                ),
                "{bytes:?}"
            );
        }
    }
}
