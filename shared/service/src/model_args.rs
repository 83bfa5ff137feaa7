//! Flags of the roles that run a model. They can replay instead ([`crate::ReplayArgs`]), and then take none of these.

use std::path::{Path, PathBuf};

/// Which model, and where it runs.
#[derive(Debug, Clone, clap::Args)]
pub struct ModelArgs {
    /// Checkpoint folder in the layout of zai-org/GLM-Image
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present_any = ["check_model", "times"],
        conflicts_with = "times"
    )]
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
    /// The checkpoint to run or check; clap has seen to it that there is one.
    pub fn folder(&self) -> &Path {
        let folder = self.model.as_deref().or(self.check_model.as_deref());
        folder.expect("clap requires --model or --check-model")
    }
}
