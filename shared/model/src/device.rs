//! Where a model runs and with which numbers, from the texts of a command line.

use tch::{Device, Kind};

use crate::{LoadOptions, Mode, ModelError, Result};

impl LoadOptions {
    /// To load onto `device` (`cpu` or `cuda:<index>`) in `dtype` (`f32` or `bf16`). A CUDA device that libtorch
    /// does not see is an error here, not at the first kernel.
    pub fn from_text(device: &str, dtype: &str) -> Result<Self> {
        let dtype = match dtype {
            "f32" => Kind::Float,
            "bf16" => Kind::BFloat16,
            _ => {
                return Err(ModelError::request(
                    "dtype",
                    format!("{dtype} is neither f32 nor bf16"),
                ));
            }
        };
        let index = device.strip_prefix("cuda:").map(str::parse::<usize>);
        let seen = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
        let device = match (device, index) {
            ("cpu", _) => Device::Cpu,
            (_, Some(Ok(index))) if index < seen => Device::Cuda(index),
            _ => {
                let problem =
                    format!("{device} is neither cpu nor one of {seen} visible cuda:<index>");
                return Err(ModelError::request("device", problem));
            }
        };
        Ok(Self {
            device,
            dtype,
            mode: Mode::Load,
        })
    }
}

/// Sets how many CPU threads one operation of this process uses.
pub fn set_threads(threads: u16) {
    tch::set_num_threads(i32::from(threads));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_dtypes_are_read_from_their_names() {
        let options = LoadOptions::from_text("cpu", "bf16").expect("both exist");
        assert_eq!(
            (options.device, options.dtype),
            (Device::Cpu, Kind::BFloat16)
        );
        for (device, dtype) in [
            ("gpu", "f32"),
            ("cuda", "f32"),
            ("cuda:999", "f32"),
            ("cpu", "f16"),
            ("", "f32"),
        ] {
            let error = LoadOptions::from_text(device, dtype);
            assert!(
                matches!(error, Err(ModelError::Request { .. })),
                "{device} {dtype}"
            );
        }
    }
}
