//! Random numbers: torch's CPU generator as an object, one for each request and purpose.
//!
//! Always on the CPU, whatever the device: the same seed then gives the same numbers everywhere,
//! and they are those of the reference, bit for bit.

use std::ptr::NonNull;

use tch::{Device, Kind, Tensor};

use crate::error::Result;
use crate::shim::checked;

/// A stream of random numbers that nothing else draws from.
#[derive(Debug)]
pub struct Generator {
    handle: NonNull<ffi::Opaque>,
}

impl Generator {
    /// The stream of `torch.Generator("cpu").manual_seed(seed)`.
    #[expect(unsafe_code, reason = "calls the shim")]
    pub fn new(seed: u64) -> Result<Self> {
        let handle = checked(|message, capacity| {
            // SAFETY: message is writable for capacity bytes; the shim lets no exception out.
            unsafe { ffi::fresco_generator_new(seed, message, capacity) }
        })?;
        Ok(Self { handle })
    }

    /// Standard normal numbers, f32 on the CPU.
    #[expect(unsafe_code, reason = "calls the shim")]
    pub fn randn(&mut self, size: &[i64]) -> Result<Tensor> {
        let tensor = checked(|message, capacity| {
            let (size, dims) = (size.as_ptr(), size.len());
            // SAFETY: the handle is live and, by &mut, not in use elsewhere; size has dims entries.
            unsafe { ffi::fresco_randn(self.handle.as_ptr(), size, dims, message, capacity) }
        })?;
        // SAFETY: the shim made the tensor for us; from_ptr takes ownership.
        Ok(unsafe { Tensor::from_ptr(tensor.as_ptr()) })
    }

    /// Draws one id from each row of probabilities, (rows, ids) → (rows, 1).
    ///
    /// The probabilities must be on the CPU: a device's would need that device's generator.
    #[expect(unsafe_code, reason = "calls the shim")]
    pub fn multinomial(&mut self, probabilities: &Tensor) -> Result<Tensor> {
        debug_assert_eq!(probabilities.device(), Device::Cpu);
        debug_assert_eq!(probabilities.kind(), Kind::Float);
        let tensor = checked(|message, capacity| {
            let (handle, probabilities) = (self.handle.as_ptr(), probabilities.as_ptr());
            // SAFETY: as in randn; the tensor is borrowed for the call.
            unsafe { ffi::fresco_multinomial(handle, probabilities, message, capacity) }
        })?;
        // SAFETY: the shim made the tensor for us; from_ptr takes ownership.
        Ok(unsafe { Tensor::from_ptr(tensor.as_ptr()) })
    }
}

impl Drop for Generator {
    #[expect(unsafe_code, reason = "calls the shim")]
    fn drop(&mut self) {
        // SAFETY: made by fresco_generator_new, freed only here.
        unsafe { ffi::fresco_generator_free(self.handle.as_ptr()) }
    }
}

#[expect(unsafe_code, reason = "declares the shim, see shim.cpp")]
mod ffi {
    use std::ffi::c_char;

    use torch_sys::C_tensor;

    /// An at::Generator.
    #[repr(C)]
    #[derive(Debug)]
    pub(super) struct Opaque {
        _private: [u8; 0],
    }

    unsafe extern "C" {
        pub(super) fn fresco_generator_new(
            seed: u64,
            message: *mut c_char,
            capacity: usize,
        ) -> *mut Opaque;
        pub(super) fn fresco_generator_free(generator: *mut Opaque);
        pub(super) fn fresco_randn(
            generator: *mut Opaque,
            size: *const i64,
            dims: usize,
            message: *mut c_char,
            capacity: usize,
        ) -> *mut C_tensor;
        pub(super) fn fresco_multinomial(
            generator: *mut Opaque,
            probabilities: *const C_tensor,
            message: *mut c_char,
            capacity: usize,
        ) -> *mut C_tensor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ModelError;

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.flatten(0, -1)).expect("a CPU tensor of floats")
    }

    #[test]
    fn seed_42_gives_the_numbers_of_torch() {
        let mut generator = Generator::new(42).expect("a generator");
        let drawn = numbers(&generator.randn(&[1, 16, 16, 16]).expect("numbers"));
        // torch.randn((1, 16, 16, 16), generator=torch.Generator().manual_seed(42))[0, 0, 0, :4]
        for (got, want) in drawn.iter().zip([1.9269, 1.4873, 0.9007, -2.1055]) {
            assert!((got - want).abs() < 1e-4, "{got} is not {want}");
        }
    }

    #[test]
    fn interleaved_generators_do_not_disturb_each_other() {
        let draw_alone = |seed| {
            let mut generator = Generator::new(seed).expect("a generator");
            (0..4)
                .map(|_| numbers(&generator.randn(&[5, 7]).expect("numbers")))
                .collect::<Vec<_>>()
        };
        let (mut first, mut second) = (
            Generator::new(1).expect("a generator"),
            Generator::new(2).expect("a generator"),
        );
        let mut together = (Vec::new(), Vec::new());
        for _ in 0..4 {
            together
                .0
                .push(numbers(&first.randn(&[5, 7]).expect("numbers")));
            together
                .1
                .push(numbers(&second.randn(&[5, 7]).expect("numbers")));
        }
        assert_eq!(together, (draw_alone(1), draw_alone(2)));
    }

    #[test]
    fn multinomial_draws_what_the_process_wide_generator_would() {
        let weights = Generator::new(7)
            .and_then(|mut g| g.randn(&[1, 300]))
            .expect("numbers");
        let probabilities = weights.softmax(-1, Kind::Float);
        let mut generator = Generator::new(11).expect("a generator");
        tch::manual_seed(11);
        for _ in 0..20 {
            let got = generator.multinomial(&probabilities).expect("an id");
            assert_eq!(
                got.int64_value(&[0, 0]),
                probabilities.multinomial(1, false).int64_value(&[0, 0])
            );
        }
    }

    #[test]
    fn a_libtorch_failure_is_an_error_of_one_line() {
        let error = Generator::new(1)
            .and_then(|mut g| g.randn(&[-1]))
            .expect_err("a bad size");
        assert!(
            matches!(error, ModelError::Torch(text) if !text.is_empty() && !text.contains('\n'))
        );
    }
}
