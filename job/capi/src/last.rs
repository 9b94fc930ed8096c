//! Details of a thread's last error.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Stores the details.
pub(crate) fn set(text: &str) {
    let bytes: Vec<u8> = text.bytes().filter(|&b| b != 0).collect();
    let text = CString::new(bytes).unwrap_or_default();
    // A thread that is ending has no storage any more.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// Returns the details, valid until the next [`set`] of this thread.
pub(crate) fn get() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}
