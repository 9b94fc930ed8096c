//! Forwarding of the contract's methods by transports that wrap another one.

/// Implements the named methods of the contract by calling them on `self.<target>`, a field or a
/// method call. Used inside an `impl` of the trait that declares the methods.
///
/// ```text
/// impl Tx for Wrapper {
///     forward!(inner => send get put);
/// }
/// ```
#[macro_export]
macro_rules! forward {
    ($field:ident => $($method:ident)*) => {
        $($crate::forward_one! { [$field] $method })*
    };
    ($method_call:ident() => $($method:ident)*) => {
        $($crate::forward_one! { [$method_call()] $method })*
    };
}

/// One method of [`forward`](crate::forward).
#[doc(hidden)]
#[macro_export]
macro_rules! forward_one {
    ([$($to:tt)*] send) => {
        fn send(
            &mut self,
            peer: $crate::btl::Rank,
            header: &[u8],
            body: &[::std::io::IoSlice<'_>],
        ) -> Result<(), $crate::btl::SendError> {
            self.$($to)*.send(peer, header, body)
        }
    };
    ([$($to:tt)*] get) => {
        $crate::forward_one! { [$($to)*] get(*mut u8) }
    };
    ([$($to:tt)*] put) => {
        $crate::forward_one! { [$($to)*] put(*const u8) }
    };
    ([$($to:tt)*] put_last) => {
        $crate::forward_one! { [$($to)*] put_last(*const u8) }
    };
    ([$($to:tt)*] $one_sided:ident($pointer:ty)) => {
        unsafe fn $one_sided(
            &mut self,
            peer: $crate::btl::Rank,
            local: $pointer,
            length: usize,
            key: &[u8],
            offset: usize,
            token: u64,
        ) -> Result<$crate::btl::Started, $crate::btl::SendError> {
            // SAFETY: the caller's promise, handed on.
            unsafe { self.$($to)*.$one_sided(peer, local, length, key, offset, token) }
        }
    };
    ([$($to:tt)*] send_held) => {
        unsafe fn send_held(
            &mut self,
            peer: $crate::btl::Rank,
            header: &[u8],
            body: *const u8,
            length: usize,
            token: u64,
        ) -> Result<$crate::btl::Started, $crate::btl::SendError> {
            // SAFETY: the caller's promise, handed on.
            unsafe { self.$($to)*.send_held(peer, header, body, length, token) }
        }
    };
    ([$($to:tt)*] register_noticed) => {
        unsafe fn register_noticed(
            &mut self,
            memory: *mut u8,
            length: usize,
            peer: $crate::btl::Rank,
            notice: &[u8],
        ) -> Result<$crate::btl::Region, $crate::btl::RegisterError> {
            // SAFETY: the caller's promise, handed on.
            unsafe { self.$($to)*.register_noticed(memory, length, peer, notice) }
        }
    };
    ([$($to:tt)*] pending_peers) => {
        fn pending_peers(&self) -> Vec<$crate::btl::Rank> {
            self.$($to)*.pending_peers()
        }
    };
    ([$($to:tt)*] refuse) => {
        fn refuse(&mut self, rank: $crate::btl::Rank, reason: &str) {
            self.$($to)*.refuse(rank, reason);
        }
    };
    ([$($to:tt)*] name) => {
        fn name(&self) -> &'static str {
            self.$($to)*.name()
        }
    };
    ([$($to:tt)*] capabilities) => {
        fn capabilities(&self) -> $crate::btl::Capabilities {
            self.$($to)*.capabilities()
        }
    };
    ([$($to:tt)*] address) => {
        fn address(&self) -> Vec<u8> {
            self.$($to)*.address()
        }
    };
    ([$($to:tt)*] add_peer) => {
        fn add_peer(
            &mut self,
            peer: $crate::btl::Rank,
            address: &[u8],
        ) -> Result<$crate::btl::PeerInfo, $crate::btl::Unreachable> {
            self.$($to)*.add_peer(peer, address)
        }
    };
    ([$($to:tt)*] progress) => {
        fn progress(&mut self, events: &mut dyn $crate::btl::Events) -> usize {
            self.$($to)*.progress(events)
        }
    };
    ([$($to:tt)*] register) => {
        unsafe fn register(
            &mut self,
            memory: *mut u8,
            length: usize,
        ) -> Result<$crate::btl::Region, $crate::btl::RegisterError> {
            // SAFETY: the caller's promise, handed on.
            unsafe { self.$($to)*.register(memory, length) }
        }
    };
    ([$($to:tt)*] deregister) => {
        fn deregister(&mut self, handle: u64) {
            self.$($to)*.deregister(handle);
        }
    };
    ([$($to:tt)*] wait_fd) => {
        fn wait_fd(&self) -> Option<::std::os::fd::BorrowedFd<'_>> {
            self.$($to)*.wait_fd()
        }
    };
    ([$($to:tt)*] arm) => {
        fn arm(&mut self) -> bool {
            self.$($to)*.arm()
        }
    };
    ([$($to:tt)*] drop_peer) => {
        fn drop_peer(&mut self, peer: $crate::btl::Rank) -> bool {
            self.$($to)*.drop_peer(peer)
        }
    };
    ([$($to:tt)*] flush) => {
        fn flush(&mut self) -> bool {
            self.$($to)*.flush()
        }
    };
    ([$($to:tt)*] close) => {
        fn close(&mut self) {
            self.$($to)*.close();
        }
    };
}
