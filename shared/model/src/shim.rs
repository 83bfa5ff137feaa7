//! What every function of the C++ shim answers: a pointer, or null and why.

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

use crate::error::{ModelError, Result};

/// Room for the first line of a C++ message; the rest is a stack trace.
const MESSAGE_BYTES: usize = 512;

/// What the shim made, or its message as an error.
pub(crate) fn checked<T>(call: impl FnOnce(*mut c_char, usize) -> *mut T) -> Result<NonNull<T>> {
    let mut message = [0u8; MESSAGE_BYTES];
    NonNull::new(call(message.as_mut_ptr().cast(), MESSAGE_BYTES)).ok_or_else(|| {
        let text = CStr::from_bytes_until_nul(&message)
            .unwrap_or_default()
            .to_string_lossy();
        ModelError::Torch(text.lines().next().unwrap_or_default().to_owned())
    })
}
