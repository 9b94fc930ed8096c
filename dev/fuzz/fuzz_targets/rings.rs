//! Feeds arbitrary bytes to the engine where it expects a program's datagram records, with valid
//! records between them.
#![no_main]

use esp_engine::shm::record::{DgramHeader, EdpKind, MAX_DATAGRAM};
use esp_engine::shm::{Region, RingSizes, RxConsumer, RxProducer, TxConsumer, TxProducer};
use esp_fuzz::Choices;
use libfuzzer_sys::fuzz_target;

const SIZES: RingSizes = RingSizes { tx: 4096, rx: 4096 };

fuzz_target!(|data: &[u8]| {
    let Ok((engine, fd)) = Region::create(SIZES) else {
        return;
    };
    let program = Region::open(std::os::fd::AsFd::as_fd(&fd), SIZES).expect("its own region");
    let (mut to, mut from) = (
        TxProducer::new(program.clone()),
        TxConsumer::new(engine.clone()),
    );
    let (mut back, mut home) = (RxProducer::new(engine), RxConsumer::new(program));
    let mut buffer = vec![0; MAX_DATAGRAM];
    let mut choices = Choices::new(data);
    while !choices.is_empty() {
        match choices.byte() % 4 {
            // Anything.
            0 => {
                let len = choices.below(300) as usize;
                to.write(choices.bytes(len));
            }
            // A header that is nearly right.
            1 => {
                let len = choices.below(300);
                let mut record = [0; 24];
                record[..4].copy_from_slice(&len.to_le_bytes());
                for byte in record.iter_mut().skip(4) {
                    *byte = choices.byte();
                }
                to.write(&record);
                let body = choices.bytes((len as usize).next_multiple_of(8));
                to.write(body);
            }
            2 => {
                let header = DgramHeader {
                    kind: EdpKind::Data,
                    addr: esp_proto::MacAddr([2, 0, 0, 0, 0, choices.byte()]).into(),
                    port: choices.word(),
                    sequence: choices.word(),
                    timestamp_ns: 1,
                };
                let len = choices.below(2000) as usize;
                let bytes = choices.bytes(len);
                to.put_record(&header, bytes);
                if back.put_record(&header, bytes) == Ok(true) {
                    back.publish();
                }
            }
            _ => {
                while let Some((header, len)) = home.take_record(&mut buffer) {
                    assert!(
                        len <= SIZES.rx as usize && header.timestamp_ns == 1,
                        "what the engine put in"
                    );
                }
            }
        }
        loop {
            let mut bytes = Vec::new();
            match from.take_record(&mut bytes, |header, _| (header.port % 2 == 0).then_some(())) {
                Ok(Some(_)) => assert!(bytes.len() <= SIZES.tx as usize),
                Ok(None) => break,
                Err(corruption) => {
                    assert!(!corruption.what.is_empty());
                    return;
                }
            }
        }
    }
});
