//! Memory of a transport: mappings of others, copies after the end, keys.

use btl::{Btl, PeerError, SendError, Tx};

use super::help::pair;
use super::transport;
use crate::address::ShmAddress;
use crate::transport::ShmBtl;

#[test]
fn no_other_mapping_of_the_data_is_writable() {
    let one = transport(0);
    let address = ShmAddress::decode(&one.address()).expect("a good address");
    let path = format!("/proc/self/fd/{}", address.data);
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("our own file");
    let length = usize::try_from(file.metadata().expect("our own file").len()).expect("a length");
    let shared = shmem::SharedFile::open(&file, length).expect("a sealed file");
    let map = |access| shared.map(0, 4096, access);
    assert!(map(shmem::Access::Write).is_err(), "a writable mapping");
    assert!(map(shmem::Access::Read).is_ok(), "a readable one");
    assert!(
        std::os::unix::fs::FileExt::write_all_at(&file, &[1], 0).is_err(),
        "a write"
    );
    assert!(file.set_len(1).is_err(), "a shorter file");
}

/// Gets a region of another transport that has ended the connection in this way, and has used the
/// memory for something else.
fn get_after(end: fn(&mut ShmBtl), length: usize) -> Option<PeerError> {
    let (mut one, mut other, mut source, region) = pair(length)?;
    end(&mut other);
    source.fill(9);
    let mut target = vec![0u8; length];
    // SAFETY: the memory lives until the end of this function.
    let got = unsafe { one.get(1, target.as_mut_ptr(), length, &region.key, 0, 5) };
    match got {
        Err(SendError::Failed { peer: 1, error }) => Some(error),
        other => panic!("{length} bytes: {other:?}"),
    }
}

#[test]
fn a_get_fails_if_the_owner_has_ended_the_connection() {
    // The longer one is a cooperative copy.
    for length in [100, 64 << 10] {
        let Some(error) = get_after(Btl::close, length) else {
            return;
        };
        assert_eq!(error, PeerError::Left, "{length} bytes");
        let dropped = |other: &mut ShmBtl| assert!(other.drop_peer(0));
        let error = get_after(dropped, length);
        assert!(matches!(error, Some(PeerError::Lost(_))), "{error:?}");
    }
}

#[test]
fn only_registered_memory_has_a_key() {
    let mut one = transport(0);
    if !one.capabilities().get {
        println!("SKIPPED: cross-memory attach is not allowed here");
        return;
    }
    let mut memory = [0u8; 64];
    // SAFETY: the memory outlives the transport, and no peer is there.
    let register = |one: &mut ShmBtl, memory: &mut [u8]| unsafe {
        one.register(memory.as_mut_ptr(), memory.len())
            .expect("room")
            .handle
    };
    let (a, b) = (
        register(&mut one, &mut memory),
        register(&mut one, &mut memory),
    );
    assert_ne!(a, b);
    one.deregister(a);
    for unknown in [a, 0, u64::MAX] {
        one.deregister(unknown);
    }
    assert_eq!(one.regions.keys().collect::<Vec<_>>(), [&b]);
}
