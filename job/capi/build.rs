//! Gives the shared library a versioned name, so that programs keep the interface they were linked
//! with.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libesp.so.0");
}
