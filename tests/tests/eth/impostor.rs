//! A peer that need not keep the protocol of the transport.

use std::io::Write;

use btl::Btl;
use btl_eth::EthBtl;
use btl_eth::address::{AddressInterface, EthAddress, job_hash};
use btl_eth::record::{self, Hello, Kind};
use esp_client::{EspStream, MacAddr};
use esp_tests::{address, client};
use lab::{Lab, Node};

use crate::member::{JOB, Member, run};

/// A rank that the test plays over a plain stream.
pub(super) struct Impostor {
    pub(super) stream: EspStream,
    pub(super) hello: Hello,
    pub(super) number: u16,
    /// Number of the next record to read.
    pub(super) next: u16,
    /// Bytes that were read, starting with that record.
    pub(super) unread: Vec<u8>,
}

impl Impostor {
    /// Makes rank 1 of two, on node 1, and adds it to `victim`, rank 0 on node 0.
    pub(super) fn added(lab: &Lab, victim: &mut Member) -> Impostor {
        let mut impostor = Impostor::new(lab, victim);
        let address = EthAddress {
            port: 2000,
            job: job_hash(JOB),
            incarnation: client(lab, 1).incarnation(),
            nonce: 4711,
            max_send: 1 << 16,
            keys: None,
            interfaces: vec![AddressInterface {
                addr: MacAddr(Node(1).mac()).into(),
                mtu: 1500,
                name: "eth0".into(),
            }],
        };
        victim
            .btl
            .add_peer(1, &address.encode())
            .expect("its node answers");
        impostor.hello.from_nonce = 4711;
        impostor
    }

    pub(super) fn new(lab: &Lab, victim: &Member) -> Impostor {
        Impostor::of_job(lab, victim, job_hash(JOB))
    }

    /// Makes a stranger to an open transport.
    pub(super) fn open(lab: &Lab, victim: &Member) -> Impostor {
        let mut impostor = Impostor::of_job(lab, victim, EthBtl::open_key(JOB));
        let hello = &mut impostor.hello;
        (hello.from, hello.to, hello.from_nonce) = (2000, 1 << 16, 4711);
        impostor
    }

    fn of_job(lab: &Lab, victim: &Member, job: [u8; 16]) -> Impostor {
        let to_nonce = EthAddress::decode(&victim.btl.address())
            .expect("an address")
            .nonce;
        let builder = EspStream::builder().key(job).rings(1 << 18, 1 << 18);
        let stream = builder
            .connect_at(&client(lab, 1), address(0, victim.port()))
            .expect("connect");
        let hello = Hello {
            job,
            from: 1,
            to: 0,
            from_nonce: 0,
            to_nonce,
            attempt: 1,
        };
        Impostor {
            stream,
            hello,
            number: 0,
            next: 0,
            unread: Vec::new(),
        }
    }

    /// Makes the next attempt of this peer.
    pub(super) fn again(&self, lab: &Lab, victim: &Member) -> Impostor {
        let mut next = Impostor::of_job(lab, victim, self.hello.job);
        next.hello = Hello {
            attempt: self.hello.attempt + 1,
            ..self.hello
        };
        next
    }

    pub(super) fn write(&mut self, kind: Kind, header: usize, body: &[u8]) {
        let head = record::head(kind, header, body.len(), self.number);
        self.number = self.number.wrapping_add(1);
        self.stream
            .write_all(&[&head[..], body].concat())
            .expect("write");
    }

    pub(super) fn greet(&mut self) {
        let hello = self.hello.encode();
        self.write(Kind::Hello, 0, &hello);
    }

    /// Connects to the victim.
    pub(super) fn establish(&mut self, victim: &mut Member) {
        self.greet();
        assert_eq!(self.hears(victim), "Welcome");
        self.write(Kind::Confirm, 0, b"");
    }

    /// Returns the next record, polling the victim.
    pub(super) fn hears(&mut self, victim: &mut Member) -> String {
        let mut received = None;
        run("an answer", &mut [victim], |_| {
            received = self.heard();
            received.is_some()
        });
        received.unwrap_or_default()
    }

    /// Returns true if the victim has ended the stream without a record.
    pub(super) fn has_ended(&mut self) -> bool {
        match self.stream.try_read(&mut [0; 300]) {
            Ok(length) => length == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }

    /// Returns the next record if it has arrived.
    pub(super) fn heard(&mut self) -> Option<String> {
        let mut part = [0; 300];
        match self.stream.try_read(&mut part) {
            Ok(0) if self.unread.is_empty() => panic!("the end of the stream"),
            Ok(n) => self.unread.extend(&part[..n]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        let (record, length) = record::decode(&self.unread, self.next, 0).expect("a record")?;
        let body = String::from_utf8_lossy(record.body);
        let received = format!("{:?} {body}", record.kind).trim_end().to_owned();
        self.unread.drain(..length);
        self.next += 1;
        Some(received)
    }
}
