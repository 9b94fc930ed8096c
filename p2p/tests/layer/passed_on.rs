//! Calls that a wrapper of a transport passes on.

/// Defines the calls that pass on to the field `inner`.
macro_rules! passed_on {
    () => {
        fn name(&self) -> &'static str {
            self.inner.name()
        }
        fn capabilities(&self) -> ::btl::Capabilities {
            self.inner.capabilities()
        }
        fn address(&self) -> Vec<u8> {
            self.inner.address()
        }
        fn deregister(&mut self, handle: u64) {
            self.inner.deregister(handle);
        }
        fn flush(&mut self) -> bool {
            self.inner.flush()
        }
        fn close(&mut self) {
            self.inner.close();
        }
    };
}
pub(crate) use passed_on;
