//! Flags of the roles that run a model. They can replay instead ([`crate::ReplayArgs`]), and then take none of these but the
//! device's name.

use std::path::{Path, PathBuf};

use clap::{CommandFactory, error::ErrorKind};

/// Which model, and where it runs.
#[derive(Debug, Clone, clap::Args)]
pub struct ModelArgs {
    /// Checkpoint folder in the layout of zai-org/GLM-Image
    #[arg(long, value_name = "DIR", conflicts_with = "times")]
    pub model: Option<PathBuf>,

    /// Check keys and shapes of a checkpoint, print parameters and bytes of each part, and exit
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "times"])]
    pub check_model: Option<PathBuf>,

    /// Device to compute on: `cpu` or `cuda:<index>`
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "cpu",
        conflicts_with = "times"
    )]
    pub device: String,

    /// What others are told of the device, for example `cuda:7` where a variable shows the process only one, which it then calls
    /// `cuda:0` [default: the device]
    #[arg(long, value_name = "NAME", value_parser = device_label)]
    pub device_label: Option<String>,

    /// Numbers to compute with: `f32` or `bf16`
    #[arg(
        long,
        value_name = "DTYPE",
        default_value = "f32",
        conflicts_with = "times"
    )]
    pub dtype: String,

    /// CPU threads of one operation; the same everywhere, or pictures of different workers differ in their last bit
    #[arg(long, value_name = "COUNT", default_value_t = 1, conflicts_with = "times", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
}

impl ModelArgs {
    /// The checkpoint to run or check; [`ModelArgs::require`] has seen to it that there is one.
    pub fn folder(&self) -> &Path {
        let folder = self.model.as_deref().or(self.check_model.as_deref());
        folder.expect("--model or --check-model is required")
    }

    /// For the engines of the command `A` that run a model.
    pub fn require<A: CommandFactory>(&self) -> Result<(), clap::Error> {
        require_model::<A>(self.model.as_ref().or(self.check_model.as_ref()))
    }

    /// What others are told of the device that the engine calls `own`.
    pub fn device_told(&self, own: &str) -> String {
        self.device_label.clone().unwrap_or_else(|| own.to_owned())
    }
}

/// An error where there is no `model` for a command `A` that runs one. Not clap's to see: it can tie a flag to another one's
/// absence, not to the absence of one of its values, and would ask whoever replays for a model besides the times.
pub fn require_model<A: CommandFactory>(model: Option<&PathBuf>) -> Result<(), clap::Error> {
    match model {
        Some(_) => Ok(()),
        None => Err(A::command().error(
            ErrorKind::MissingRequiredArgument,
            "the following required arguments were not provided:\n  --model <DIR>",
        )),
    }
}

/// The numbers of all devices of one machine fit.
const DEVICE_LABEL_CHARACTERS_MAX: usize = 256;

/// A label of metrics and a word of lists: neither takes everything.
fn device_label(text: &str) -> Result<String, String> {
    let fits = (1..=DEVICE_LABEL_CHARACTERS_MAX).contains(&text.len());
    let plain = |c: char| c.is_ascii_alphanumeric() || ":,-_./".contains(c);
    if fits && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "not 1 to {DEVICE_LABEL_CHARACTERS_MAX} of a-z, A-Z, 0-9 and :,-_./"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_called_by_a_word() {
        let longest = "x".repeat(DEVICE_LABEL_CHARACTERS_MAX);
        for good in ["npu:7", "cuda:0,1", "GPU-5f/1", &longest] {
            assert_eq!(device_label(good), Ok(good.to_owned()));
        }
        for bad in ["", "a b", "ü", "a\nb", &format!("{longest}x")] {
            assert!(device_label(bad).is_err(), "{bad:?}");
        }
    }
}
