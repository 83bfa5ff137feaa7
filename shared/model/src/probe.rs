//! libtorch's own accounts of a thread: the memory of its tensors, and the time of its operators.
//!
//! tch has neither. Both hooks are of one thread, and so are the types here: they never leave it.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;

use tch::Device;

use crate::error::Result;
use crate::shim::checked;

/// What a thread has of its device's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of tensors that are alive, weights too.
    pub live: u64,
    /// The most that was alive at once since it was asked before.
    pub peak: u64,
}

/// Watches what this thread allocates on one kind of device and gives back, from now on: begin it before the model is
/// loaded, or its weights are no part of it.
#[derive(Debug)]
pub struct MemoryWatch {
    handle: NonNull<ffi::Watch>,
    _of_thread: PhantomData<*const ()>,
}

impl MemoryWatch {
    /// Of the memory of `device`, whatever its index: a thread has one device.
    ///
    /// # Errors
    ///
    /// What libtorch says.
    #[expect(unsafe_code, reason = "calls the shim")]
    pub fn begin(device: Device) -> Result<Self> {
        let handle = checked(|message, capacity| {
            // SAFETY: message is writable for capacity bytes; the shim lets no exception out.
            unsafe { ffi::fresco_memory_watch(device.is_cuda(), message, capacity) }
        })?;
        Ok(Self {
            handle,
            _of_thread: PhantomData,
        })
    }

    /// What there is now, and at most since the last time.
    #[expect(unsafe_code, reason = "calls the shim")]
    pub fn take(&self) -> MemoryUse {
        let (mut live, mut peak) = (0, 0);
        // SAFETY: the handle is live, and this is its thread, as the type cannot leave it.
        unsafe { ffi::fresco_memory_take(self.handle.as_ptr(), &mut live, &mut peak) };
        // Below zero where memory is given back that was taken before the watch began.
        let bytes = |count: i64| u64::try_from(count).unwrap_or(0);
        MemoryUse {
            live: bytes(live),
            peak: bytes(peak),
        }
    }
}

impl Drop for MemoryWatch {
    #[expect(unsafe_code, reason = "calls the shim")]
    fn drop(&mut self) {
        // SAFETY: made by fresco_memory_watch on this thread, freed only here.
        unsafe { ffi::fresco_memory_unwatch(self.handle.as_ptr()) }
    }
}

/// What an operator of libtorch took, all its calls together. On a CPU that is its run; on a CUDA device it is how long
/// it took to be launched, because it runs while the thread goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorTimes {
    /// `aten::…`.
    pub name: String,
    /// How often it was called, by us or by another operator.
    pub calls: u64,
    /// Without the operators that it called.
    pub self_ns: u64,
    /// With them.
    pub total_ns: u64,
}

/// Records the operators that this thread calls; one recording a thread at a time.
#[derive(Debug)]
pub struct OperatorRecording {
    /// `None` once it is finished.
    handle: Option<NonNull<ffi::Recording>>,
    _of_thread: PhantomData<*const ()>,
}

impl OperatorRecording {
    /// From now on.
    ///
    /// # Errors
    ///
    /// That this thread is being recorded already, or what libtorch says.
    #[expect(unsafe_code, reason = "calls the shim")]
    pub fn begin() -> Result<Self> {
        let handle = checked(|message, capacity| {
            // SAFETY: message is writable for capacity bytes; the shim lets no exception out.
            unsafe { ffi::fresco_operators_record(message, capacity) }
        })?;
        Ok(Self {
            handle: Some(handle),
            _of_thread: PhantomData,
        })
    }

    /// Ends it: what was called, the longest by itself first.
    pub fn finish(mut self) -> Vec<OperatorTimes> {
        let mut operators = self.end();
        operators.sort_by(|a, b| (b.self_ns, &a.name).cmp(&(a.self_ns, &b.name)));
        operators
    }

    #[expect(unsafe_code, reason = "calls the shim")]
    fn end(&mut self) -> Vec<OperatorTimes> {
        let mut operators = Vec::new();
        if let Some(handle) = self.handle.take() {
            let to = (&raw mut operators).cast();
            // SAFETY: made by fresco_operators_record on this thread, finished only here; `show` is called before it
            // returns, with the list that is behind `to`.
            unsafe { ffi::fresco_operators_finish(handle.as_ptr(), to, show) };
        }
        operators
    }
}

impl Drop for OperatorRecording {
    fn drop(&mut self) {
        drop(self.end());
    }
}

#[expect(unsafe_code, reason = "is called by the shim")]
extern "C" fn show(
    to: *mut c_void,
    name: *const u8,
    bytes: usize,
    calls: u64,
    self_ns: u64,
    total_ns: u64,
) {
    // SAFETY: `to` is the list that `end` gave, which nobody else touches meanwhile; the name has so many bytes.
    let (operators, name) = unsafe {
        (
            &mut *to.cast::<Vec<OperatorTimes>>(),
            std::slice::from_raw_parts(name, bytes),
        )
    };
    operators.push(OperatorTimes {
        name: String::from_utf8_lossy(name).into_owned(),
        calls,
        self_ns,
        total_ns,
    });
}

#[expect(unsafe_code, reason = "declares the shim, see probe.cpp")]
mod ffi {
    use std::ffi::{c_char, c_void};

    /// An account of memory.
    #[repr(C)]
    #[derive(Debug)]
    pub(super) struct Watch {
        _private: [u8; 0],
    }

    /// Operators and their times.
    #[repr(C)]
    #[derive(Debug)]
    pub(super) struct Recording {
        _private: [u8; 0],
    }

    unsafe extern "C" {
        pub(super) fn fresco_memory_watch(
            is_cuda: bool,
            message: *mut c_char,
            capacity: usize,
        ) -> *mut Watch;
        pub(super) fn fresco_memory_unwatch(watch: *mut Watch);
        pub(super) fn fresco_memory_take(watch: *mut Watch, live: *mut i64, peak: *mut i64);
        pub(super) fn fresco_operators_record(
            message: *mut c_char,
            capacity: usize,
        ) -> *mut Recording;
        pub(super) fn fresco_operators_finish(
            finished: *mut Recording,
            to: *mut c_void,
            show: extern "C" fn(*mut c_void, *const u8, usize, u64, u64, u64),
        );
    }
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::*;

    /// Of a tensor of so many f32.
    const fn bytes(count: u64) -> u64 {
        count * 4
    }

    fn zeros(count: i64) -> Tensor {
        Tensor::zeros([count], (Kind::Float, Device::Cpu))
    }

    #[test]
    fn memory_is_what_is_alive_and_its_peak_starts_anew() {
        let watch = MemoryWatch::begin(Device::Cpu).unwrap();
        let kept = zeros(1 << 16);
        let (live, more) = (bytes(1 << 16), bytes(1 << 20));
        assert_eq!(watch.take(), MemoryUse { live, peak: live });
        drop(zeros(1 << 20));
        let peak = live + more;
        assert_eq!(watch.take(), MemoryUse { live, peak });
        assert_eq!(watch.take(), MemoryUse { live, peak: live });
        drop(kept);
        let nothing = MemoryUse {
            live: 0,
            peak: live,
        };
        assert_eq!(watch.take(), nothing);
        let of_a_device = MemoryWatch::begin(Device::Cuda(0)).unwrap();
        drop(zeros(8));
        assert_eq!(of_a_device.take(), MemoryUse::default());
    }

    #[test]
    fn an_operator_is_told_with_its_calls_and_only_while_it_is_recorded() {
        let (a, b) = (zeros(1 << 14).view([128, 128]), zeros(128));
        drop(a.matmul(&a));
        let recording = OperatorRecording::begin().unwrap();
        let again = OperatorRecording::begin();
        assert!(again.is_err(), "one a thread");
        for _ in 0..3 {
            drop(a.matmul(&a));
        }
        drop(&b + &b);
        let operators = recording.finish();
        drop(a.matmul(&a));
        let of = |name: &str| operators.iter().find(|operator| operator.name == name);
        let calls = ["aten::matmul", "aten::mm", "aten::add"].map(|name| of(name).map(|o| o.calls));
        assert_eq!(calls, [Some(3), Some(3), Some(1)], "{operators:?}");
        let (outer, inner) = (of("aten::matmul").unwrap(), of("aten::mm").unwrap());
        assert!(
            outer.total_ns >= outer.self_ns + inner.total_ns,
            "{operators:?}"
        );
        assert!(operators.is_sorted_by(|a, b| a.self_ns >= b.self_ns));
        let next = OperatorRecording::begin().unwrap();
        assert_eq!(next.finish(), [], "a recording is over when it is finished");
    }
}
