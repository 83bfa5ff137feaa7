//! Flags of the roles that run a model.

use std::path::{Path, PathBuf};

/// Which model, and where it runs.
#[derive(Debug, Clone, clap::Args)]
pub struct ModelArgs {
    /// Checkpoint folder in the layout of zai-org/GLM-Image
    #[arg(long, value_name = "DIR", required_unless_present = "check_model")]
    pub model: Option<PathBuf>,

    /// Check keys and shapes of a checkpoint, print parameters and bytes of each part, and exit
    #[arg(long, value_name = "DIR", conflicts_with = "model")]
    pub check_model: Option<PathBuf>,

    /// Device to compute on: `cpu` or `cuda:<index>`
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: String,

    /// Numbers to compute with: `f32` or `bf16`
    #[arg(long, value_name = "DTYPE", default_value = "f32")]
    pub dtype: String,

    /// CPU threads of one operation; the same everywhere, or pictures of different workers differ in their last bit
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
}

impl ModelArgs {
    /// The checkpoint to run or check; clap has seen to it that there is one.
    pub fn folder(&self) -> &Path {
        let folder = self.model.as_deref().or(self.check_model.as_deref());
        folder.expect("clap requires --model or --check-model")
    }
}
