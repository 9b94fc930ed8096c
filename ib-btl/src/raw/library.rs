//! libibverbs, loaded on demand, so that the project builds and runs without it.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix::Library as Loaded;

use super::ffi::{
    Ah, AhAttr, CompChannel, Context, Cq, Device, DeviceAttr, Mr, Pd, PortAttr, Qp, QpAttr,
    QpInitAttr, Srq, SrqInitAttr,
};

macro_rules! library {
    ($($name:ident: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of the library.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Library {
            fn of(loaded: &Loaded) -> Result<Library, libloading::Error> {
                Ok(Library {
                    // SAFETY: the types are those of `infiniband/verbs.h`; the library is never
                    // unloaded.
                    $($name: unsafe { *loaded.get(concat!(stringify!($name), "\0").as_bytes())? },)*
                })
            }
        }
    };
}

library! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
    ibv_free_device_list: fn(*mut *mut Device);
    ibv_open_device: fn(*mut Device) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    ibv_query_gid: fn(*mut Context, u8, c_int, *mut [u8; 16]) -> c_int;
    ibv_alloc_pd: fn(*mut Context) -> *mut Pd;
    ibv_dealloc_pd: fn(*mut Pd) -> c_int;
    ibv_reg_mr: fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    ibv_get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut Cq, u32);
    ibv_create_srq: fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    ibv_destroy_srq: fn(*mut Srq) -> c_int;
    ibv_create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
    ibv_create_ah: fn(*mut Pd, *mut AhAttr) -> *mut Ah;
    ibv_destroy_ah: fn(*mut Ah) -> c_int;
    ibv_wc_status_str: fn(c_int) -> *const c_char;
}

/// Returns the library, or the reason why it is not available.
pub(super) fn library() -> Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let load = || {
        // SAFETY: libibverbs' initialisers have no effect on other code.
        let loaded = unsafe { Loaded::new("libibverbs.so.1") };
        let loaded = loaded.map_err(|e| {
            format!(
                "libibverbs.so.1 cannot be loaded (Debian: apt install libibverbs1 ibverbs-providers): {e}"
            )
        })?;
        let library = Library::of(&loaded)
            .map_err(|e| format!("libibverbs.so.1 is not the expected library: {e}"))?;
        // The function pointers are used until the process ends.
        std::mem::forget(loaded);
        Ok(library)
    };
    LIBRARY.get_or_init(load).as_ref().map_err(String::as_str)
}
