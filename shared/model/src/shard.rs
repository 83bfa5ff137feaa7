//! One safetensors file, mapped into memory. The only place that knows the format.

use std::cmp::Ordering;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, UncheckedAdvice};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use tch::{Device, Kind, Tensor};

use crate::error::{ModelError, Result};

/// Elements copied before their pages are given back: 4 MiB of f32, large enough that the calls do
/// not show, small beside any model.
const PIECE_ELEMENTS: usize = 1 << 20;

/// safetensors starts with the header's length as a u64.
const LENGTH_BYTES: usize = 8;

/// The format's own limit (100 MB); the published model's headers are below 200 kB.
const HEADER_BYTES_MAX: u64 = 100_000_000;

#[derive(Debug)]
pub(crate) struct Shard {
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    data_start: usize,
}

impl Shard {
    /// Maps the file and checks header against length, so that a truncated file is found before
    /// anything is copied.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|source| ModelError::Io {
            path: path.to_owned(),
            source,
        })?;
        let map = map_file(&file).map_err(|source| ModelError::Io {
            path: path.to_owned(),
            source,
        })?;
        let (metadata, data_start) = read_header(path, &map)?;
        Ok(Self {
            path: path.to_owned(),
            map,
            metadata,
            data_start,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = String> {
        self.metadata.offset_keys().into_iter()
    }

    pub(crate) fn shape(&self, key: &str) -> Option<Vec<i64>> {
        let info = self.metadata.info(key)?;
        // A file cannot hold a dimension beyond i64; the format's own check bounds the product.
        info.shape
            .iter()
            .map(|dim| i64::try_from(*dim).ok())
            .collect()
    }

    /// Bytes the key takes in the file, if it is of a dtype that weights come in.
    pub(crate) fn bytes_of_float(&self, key: &str) -> Result<u64> {
        let (info, _) = self.float(key)?;
        Ok((info.data_offsets.1 - info.data_offsets.0) as u64)
    }

    /// Copies the tensor to the device in the wanted dtype, piece by piece.
    pub(crate) fn copy(&self, key: &str, dtype: Kind, device: Device) -> Result<Tensor> {
        let (info, kind) = self.float(key)?;
        let out = Tensor::f_empty(self.shape(key).unwrap_or_default(), (dtype, device))?;
        let flat = out.f_view([-1])?;
        let size = kind.elt_size_in_bytes();
        let elements: usize = info.shape.iter().product();
        let mut done = 0;
        while done < elements {
            let count = PIECE_ELEMENTS.min(elements - done);
            let from = self.data_start + info.data_offsets.0 + done * size;
            let piece = &self.map[from..from + count * size];
            let source = view(piece, count as i64, kind)?;
            flat.f_narrow(0, done as i64, count as i64)?
                .f_copy_(&source)?;
            self.release(from, count * size);
            done += count;
        }
        Ok(out)
    }

    fn float(&self, key: &str) -> Result<(&TensorInfo, Kind)> {
        let (file, key) = (self.path.clone(), key.to_owned());
        let Some(info) = self.metadata.info(&key) else {
            return Err(ModelError::BadHeader {
                file,
                problem: format!("key {key} is missing"),
            });
        };
        match info.dtype {
            Dtype::F32 => Ok((info, Kind::Float)),
            Dtype::BF16 => Ok((info, Kind::BFloat16)),
            Dtype::F16 => Ok((info, Kind::Half)),
            other => Err(ModelError::WrongDtype {
                file,
                key,
                found: format!("{other:?}"),
            }),
        }
    }

    /// Gives pages back that have been copied: mapped pages count as memory of this process. A
    /// kernel that refuses costs memory, nothing else.
    #[expect(unsafe_code, reason = "madvise has no safe form for dropping pages")]
    fn release(&self, offset: usize, len: usize) {
        // SAFETY: a read-only map of a file; dropped pages are read again from the file.
        drop(unsafe {
            self.map
                .unchecked_advise_range(UncheckedAdvice::DontNeed, offset, len)
        });
    }
}

#[expect(
    unsafe_code,
    reason = "mapping a file is unsafe: another process may change it"
)]
fn map_file(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is only ever copied from, any bytes are valid floats, and no reference to it
    // outlives the loading of a part. A file truncated meanwhile ends the process by SIGBUS: the
    // price of a map, and a checkpoint being overwritten while it loads is an operator's error.
    unsafe { Mmap::map(file) }
}

/// A tensor over mapped bytes. A copy of each piece instead would leave holes of its size in the
/// heap between the weights: a model of 160 MB took 230. Only a file whose writer did not pad its
/// header to the 8 bytes that are usual is copied.
#[expect(unsafe_code, reason = "a tensor over memory that it does not own")]
fn view(bytes: &[u8], count: i64, kind: Kind) -> Result<Tensor> {
    let data = bytes.as_ptr();
    if data.align_offset(kind.elt_size_in_bytes()) != 0 {
        return Ok(Tensor::f_from_data_size(bytes, &[count], kind)?);
    }
    // SAFETY: the bytes hold count aligned elements; the tensor is dropped before the map, and it
    // is only read, as the map is.
    Ok(unsafe { Tensor::f_from_blob(data, &[count], &[1], kind, Device::Cpu)? })
}

/// The header of a file as it is written, without a look at its tensors.
pub(crate) fn header(path: &Path) -> Result<Vec<u8>> {
    let failed = |source| ModelError::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?.len();
    let truncated = |expected| ModelError::Truncated {
        file: path.to_owned(),
        found,
        expected,
    };
    if found < LENGTH_BYTES as u64 {
        return Err(truncated(LENGTH_BYTES as u64));
    }
    let mut length = [0; LENGTH_BYTES];
    file.read_exact(&mut length).map_err(failed)?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_BYTES_MAX {
        return Err(too_long(path, length));
    }
    if found < LENGTH_BYTES as u64 + length {
        return Err(truncated(LENGTH_BYTES as u64 + length));
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).map_err(failed)?;
    Ok(header)
}

fn too_long(path: &Path, length: u64) -> ModelError {
    ModelError::BadHeader {
        file: path.to_owned(),
        problem: format!("its header would be {length} bytes long"),
    }
}

fn read_header(path: &Path, bytes: &[u8]) -> Result<(Metadata, usize)> {
    let bad = |problem: String| ModelError::BadHeader {
        file: path.to_owned(),
        problem,
    };
    let truncated = |expected: u64| ModelError::Truncated {
        file: path.to_owned(),
        found: bytes.len() as u64,
        expected,
    };
    let Some(length) = bytes.first_chunk::<LENGTH_BYTES>() else {
        return Err(truncated(LENGTH_BYTES as u64));
    };
    let length = u64::from_le_bytes(*length);
    if length > HEADER_BYTES_MAX {
        return Err(too_long(path, length));
    }
    let data_start = LENGTH_BYTES as u64 + length;
    let header = usize::try_from(data_start)
        .ok()
        .and_then(|end| bytes.get(LENGTH_BYTES..end));
    let Some(header) = header else {
        return Err(truncated(data_start));
    };
    let metadata: Metadata =
        serde_json::from_slice(header).map_err(|error| bad(error.to_string()))?;
    let expected = data_start + metadata.data_len() as u64;
    match (bytes.len() as u64).cmp(&expected) {
        Ordering::Less => Err(truncated(expected)),
        Ordering::Greater => Err(bad(format!(
            "it is longer than the {expected} bytes it lists"
        ))),
        Ordering::Equal => Ok((metadata, LENGTH_BYTES + header.len())),
    }
}
