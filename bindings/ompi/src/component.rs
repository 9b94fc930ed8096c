//! The symbol that Open MPI looks up. Its layout is that of Open MPI 4.1, 5.0 and 6.0 on x86-64 and
//! arm64, which `shim/component.c` asserts.

use std::ffi::c_int;

use crate::ffi;

/// Release of Open MPI against whose headers this component was built. It is also the version of
/// the component that `ompi_info` shows, because it works with this release series only.
pub(crate) const BUILT_FOR: [c_int; 3] = [
    number(env!("OMPI_MAJOR")),
    number(env!("OMPI_MINOR")),
    number(env!("OMPI_RELEASE")),
];
/// Version of the BTL interface of that release.
const INTERFACE: [c_int; 3] = [
    number(env!("OMPI_BTL_MAJOR")),
    number(env!("OMPI_BTL_MINOR")),
    number(env!("OMPI_BTL_RELEASE")),
];

/// Parses a decimal number that `build.rs` has printed.
const fn number(digits: &str) -> c_int {
    let digits = digits.as_bytes();
    let (mut value, mut at) = (0, 0);
    while at < digits.len() {
        value = value * 10 + (digits[at] - b'0') as c_int;
        at += 1;
    }
    value
}

type Call = Option<unsafe extern "C" fn() -> c_int>;

/// `mca_base_component_t`.
#[repr(C)]
struct Base {
    mca: [c_int; 3],
    project_name: [u8; 16],
    project: [c_int; 3],
    type_name: [u8; 32],
    kind: [c_int; 3],
    name: [u8; 64],
    version: [c_int; 3],
    open: Call,
    close: Call,
    query: Call,
    register: Call,
    flags: i32,
    reserved: [u8; 28],
}

/// `mca_btl_base_component_t`.
#[repr(C)]
pub(crate) struct Component {
    base: Base,
    flags: u32,
    reserved: [u8; 32],
    init: Option<unsafe extern "C" fn(*mut c_int, bool, bool) -> *mut *mut ffi::Module>,
    progress: Call,
}

// SAFETY: this library never accesses it after initialization; Open MPI synchronizes its accesses.
unsafe impl Sync for Component {}

const _: () = assert!(size_of::<Base>() == 224 && size_of::<Component>() == 280);

const fn name<const N: usize>(text: &str) -> [u8; N] {
    let bytes = text.as_bytes();
    let mut array = [0; N];
    let mut at = 0;
    while at < bytes.len() {
        array[at] = bytes[at];
        at += 1;
    }
    array
}

/// A mutable static, because Open MPI writes to its components.
#[repr(transparent)]
pub(crate) struct Cell(std::cell::UnsafeCell<Component>);

// SAFETY: as for `Component`.
unsafe impl Sync for Cell {}

/// The component's descriptor.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub(crate) static mca_btl_esp_component: Cell = Cell(std::cell::UnsafeCell::new(Component {
    base: Base {
        mca: [2, 1, 0],
        project_name: name("opal"),
        project: BUILT_FOR,
        type_name: name("btl"),
        kind: INTERFACE,
        name: name("esp"),
        version: BUILT_FOR,
        open: Some(ffi::esp_shim_open),
        close: Some(ffi::esp_shim_close),
        query: None,
        register: Some(ffi::esp_shim_register),
        flags: 0,
        reserved: [0; 28],
    },
    flags: 0,
    reserved: [0; 32],
    init: Some(ffi::esp_shim_init),
    progress: Some(ffi::esp_shim_progress),
}));
