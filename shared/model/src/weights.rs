//! Weights of one part: safetensors files, with an index or single, mapped into memory and copied
//! tensor by tensor. Knows files, keys, shapes and dtypes; not what a tensor means.
//!
//! Copied rather than used in place: the map stays on disk's dtype and alignment, a device needs
//! a copy anyway, and a file replaced under a running process must not change its weights. Each
//! tensor is copied in pieces and the pages of a piece are given back at once, so that loading
//! peaks at the weights kept plus one piece, whatever the size of the largest tensor.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use crate::config::read_json;
use crate::error::{ModelError, Result, Shape};
use crate::shard::Shard;

pub use crate::report::PartReport;

/// Whether tensors are wanted, or only the certainty that they are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Every tensor is copied to the device.
    Load,
    /// Keys and shapes are checked against the files' headers; tensors come back undefined.
    Check,
}

/// How a part is loaded.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    pub device: Device,
    pub dtype: Kind,
    pub mode: Mode,
}

impl LoadOptions {
    pub fn load(device: Device, dtype: Kind) -> Self {
        Self {
            device,
            dtype,
            mode: Mode::Load,
        }
    }

    /// Nothing is loaded, so neither device nor dtype matters.
    pub fn check() -> Self {
        Self {
            device: Device::Cpu,
            dtype: Kind::Float,
            mode: Mode::Check,
        }
    }
}

/// The weight files of one part, and which of their keys have been asked for.
#[derive(Debug)]
pub struct Weights {
    options: LoadOptions,
    /// Index if there is one, else the single file: named when a key is nowhere.
    root: PathBuf,
    shards: Vec<Shard>,
    shard_of: BTreeMap<String, usize>,
    used: HashSet<String>,
    report: PartReport,
}

/// `{"weight_map": {key: file}}`; the metadata beside it is nobody's concern here.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Opens `<stem>.safetensors.index.json` with its shards, else `<stem>.safetensors`.
    pub fn open(dir: &Path, stem: &str, options: LoadOptions) -> Result<Self> {
        let index = dir.join(format!("{stem}.safetensors.index.json"));
        let single = dir.join(format!("{stem}.safetensors"));
        let (root, shards, shard_of) = if index.is_file() {
            let (shards, shard_of) = open_sharded(dir, &index)?;
            (index, shards, shard_of)
        } else {
            let shard = Shard::open(&single)?;
            let shard_of = shard.keys().map(|key| (key, 0)).collect();
            (single, vec![shard], shard_of)
        };
        let report = PartReport::default();
        Ok(Self {
            options,
            root,
            shards,
            shard_of,
            used: HashSet::new(),
            report,
        })
    }

    pub fn options(&self) -> LoadOptions {
        self.options
    }

    /// Whether the files hold the key; for keys that some writers leave out.
    pub fn contains(&self, key: &str) -> bool {
        self.shard_of.contains_key(key)
    }

    /// The tensor, in the dtype and on the device of the options (undefined in [`Mode::Check`]).
    pub fn tensor(&mut self, key: &str, shape: &[i64]) -> Result<Tensor> {
        let options = self.options;
        let elements = self.checked(key, shape)?;
        self.report.bytes_kept += elements * bytes_of(options.dtype);
        match options.mode {
            Mode::Check => Ok(Tensor::new()),
            Mode::Load => self.shards[self.shard_of[key]].copy(key, options.dtype, options.device),
        }
    }

    /// Checks a tensor that this crate does not use but the checkpoint has to hold.
    pub fn skip(&mut self, key: &str, shape: &[i64]) -> Result<()> {
        self.checked(key, shape).map(|_| ())
    }

    /// A view in which `prefix` and a dot stand before every key.
    pub fn scope(&mut self, prefix: &str) -> Scope<'_> {
        Scope {
            weights: self,
            prefix: format!("{prefix}."),
        }
    }

    /// Ends loading: a key that nobody asked for means that this is another model.
    pub fn finish(self) -> Result<PartReport> {
        match self
            .shard_of
            .iter()
            .find(|(key, _)| !self.used.contains(*key))
        {
            None => Ok(self.report),
            Some((key, shard)) => {
                let shard = &self.shards[*shard];
                let found = Shape(shard.shape(key).unwrap_or_default());
                Err(ModelError::ExtraKey {
                    file: shard.path().to_owned(),
                    key: key.clone(),
                    found,
                })
            }
        }
    }

    /// Marks the key as used and counts it; returns its number of elements.
    fn checked(&mut self, key: &str, shape: &[i64]) -> Result<u64> {
        let expected = || Shape(shape.to_vec());
        let Some(shard) = self.shard_of.get(key).map(|shard| &self.shards[*shard]) else {
            let (file, key) = (self.root.clone(), key.to_owned());
            return Err(ModelError::MissingKey {
                file,
                key,
                expected: expected(),
            });
        };
        let found = shard.shape(key).unwrap_or_default();
        if found != shape {
            let (file, key) = (shard.path().to_owned(), key.to_owned());
            let found = Shape(found);
            return Err(ModelError::WrongShape {
                file,
                key,
                found,
                expected: expected(),
            });
        }
        let bytes = shard.bytes_of_float(key)?;
        let elements = shape.iter().product::<i64>().unsigned_abs();
        if self.used.insert(key.to_owned()) {
            self.report = self.report
                + PartReport {
                    tensors: 1,
                    parameters: elements,
                    bytes,
                    bytes_kept: 0,
                };
        }
        Ok(elements)
    }
}

/// Keys below one prefix.
#[derive(Debug)]
pub struct Scope<'a> {
    weights: &'a mut Weights,
    prefix: String,
}

impl Scope<'_> {
    pub fn options(&self) -> LoadOptions {
        self.weights.options
    }

    pub fn contains(&self, name: &str) -> bool {
        self.weights.contains(&format!("{}{name}", self.prefix))
    }

    pub fn tensor(&mut self, name: &str, shape: &[i64]) -> Result<Tensor> {
        self.weights
            .tensor(&format!("{}{name}", self.prefix), shape)
    }

    pub fn skip(&mut self, name: &str, shape: &[i64]) -> Result<()> {
        self.weights.skip(&format!("{}{name}", self.prefix), shape)
    }

    /// A scope within this one: `name` is any `Display`, so that block numbers serve too.
    pub fn scope(&mut self, name: impl std::fmt::Display) -> Scope<'_> {
        Scope {
            prefix: format!("{}{name}.", self.prefix),
            weights: self.weights,
        }
    }
}

fn open_sharded(dir: &Path, index: &Path) -> Result<(Vec<Shard>, BTreeMap<String, usize>)> {
    let weight_map = read_json::<Index>(index)?.weight_map;
    let mut shards: Vec<Shard> = Vec::new();
    let mut number_of: BTreeMap<String, usize> = BTreeMap::new();
    let mut shard_of = BTreeMap::new();
    for (key, name) in weight_map {
        // A name with a folder in it could lead anywhere on the machine.
        if Path::new(&name).file_name() != Some(name.as_ref()) {
            let problem = format!("puts key {key} into {name:?}, which is no file name");
            return Err(ModelError::config(index, "weight_map", problem));
        }
        let file = dir.join(&name);
        let number = match number_of.get(&name) {
            Some(number) => *number,
            None if !file.is_file() => {
                return Err(ModelError::MissingShard {
                    file,
                    index: index.to_owned(),
                    key,
                });
            }
            None => {
                shards.push(Shard::open(&file)?);
                number_of.insert(name, shards.len() - 1);
                shards.len() - 1
            }
        };
        if shards[number].shape(&key).is_none() {
            return Err(ModelError::NotInShard {
                file,
                index: index.to_owned(),
                key,
            });
        }
        shard_of.insert(key, number);
    }
    // What a shard holds beyond the index counts as well: `finish` reports it as extra.
    for (number, shard) in shards.iter().enumerate() {
        for key in shard.keys() {
            shard_of.entry(key).or_insert(number);
        }
    }
    Ok((shards, shard_of))
}

fn bytes_of(dtype: Kind) -> u64 {
    dtype.elt_size_in_bytes() as u64
}
