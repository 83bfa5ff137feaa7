//! The shell that every Fresco process wears: flags, telemetry, ordered shutdown, health. It knows no job, no queue
//! and no tensor.

pub mod address;
mod admin_key;
mod args;
pub mod bearer;
pub mod clock;
mod device_thread;
pub mod exit;
pub mod file_error;
pub mod health;
pub mod host;
pub mod metrics;
mod model_args;
mod open_files;
pub mod process;
pub mod profile;
pub mod reference;
mod replay_args;
mod shutdown;
pub mod telemetry;
mod trace_args;
mod unshown;

pub use admin_key::{AdminKey, AdminKeyError};
pub use args::{
    Admission, BusArgs, LogFormat, PLACE_VARIABLES, RetryArgs, ShellArgs, some_seconds,
    without_credentials,
};
pub use device_thread::{DeviceThread, DeviceThreadDied};
pub use health::{Health, Upstream};
pub use model_args::{ModelArgs, require_model};
pub use replay_args::ReplayArgs;
pub use shutdown::{Hangup, IMPATIENT_AFTER, Shutdown};
pub use trace_args::{OtlpEndpoint, OtlpProtocol, TraceArgs};
pub use unshown::{Unshown, unshown};
