//! At the limit of open files. One test only, because the limit applies to the process.

mod support;

use std::fs::File;
use std::os::fd::AsFd;

use esp_client::control::codec::{Decoder, encode, receive, send};
use esp_client::control::{Envelope, InterfaceInfo, Reply, Request, Rings, VERSION};
use esp_client::{Client, EspError, EspStream};
use esp_engine::shm::{ClientPage, EnginePage, Region, RingSizes};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{address, scripted, within};

#[test]
fn lost_descriptor_fails_one_call_only() {
    let (seen, closes) = std::sync::mpsc::channel();
    let path = scripted(move |socket| {
        let mut decoder = Decoder::<Request>::new();
        let (engine_page, client_page) =
            (EnginePage::create().unwrap(), ClientPage::create().unwrap());
        let (_region, region) = Region::create(RingSizes { tx: 4096, rx: 4096 }).unwrap();
        let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let events = [event(), event()];
        loop {
            rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::IN)], None).unwrap();
            if receive(&socket, &mut decoder).unwrap_or(0) == 0 {
                return;
            }
            while let Some((Envelope { id, body: request }, _)) = decoder.next().unwrap() {
                let rings = Rings { tx: 4096, rx: 4096 };
                let mut full = Vec::new();
                let (body, fds) = match request {
                    Request::Hello { .. } => {
                        let link = InterfaceInfo {
                            name: "eth0".into(),
                            addr: esp_client::MacAddr([2; 6]).into(),
                            mtu: 1500,
                            up: true,
                        };
                        let (daemon, client, incarnation) = ("test".into(), 1, 1);
                        let interfaces = vec![link];
                        let hello = Reply::Hello {
                            version: VERSION,
                            daemon,
                            client,
                            incarnation,
                            engine: 0,
                            interfaces,
                            leases: false,
                        };
                        let fds = vec![&engine_page.1, &client_page.1, &events[0], &events[1]];
                        (hello, fds)
                    }
                    Request::Connect {
                        peer, peer_port, ..
                    } => {
                        while let Ok(file) = File::open("/dev/null") {
                            full.push(file);
                        }
                        let interface = "eth0".into();
                        (
                            Reply::Stream {
                                slot: 5,
                                rings,
                                interface,
                                local_port: 1,
                                peer,
                                peer_port,
                            },
                            vec![&region],
                        )
                    }
                    other => {
                        seen.send(other).unwrap();
                        (Reply::Done, vec![])
                    }
                };
                let fds: Vec<_> = fds.into_iter().map(AsFd::as_fd).collect();
                let bytes = encode(&Envelope { id, body }).unwrap();
                assert_eq!(send(&socket, &bytes, &fds).unwrap(), bytes.len());
                // The files stay open until the program has handled the error.
                if !full.is_empty() {
                    rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::IN)], None).unwrap();
                }
            }
        }
    });
    let client = Client::connect(path).unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(100),
            maximum: limit.maximum,
        },
    )
    .unwrap();
    let program = client.clone();
    let error = within(30, "the connect", move || {
        EspStream::builder()
            .path(esp_client::Path::Daemon)
            .connect_at(&program, address(7))
            .unwrap_err()
    });
    assert!(
        matches!(EspError::of(&error), Some(EspError::Memory { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("limit of open files"), "{error}");
    client.check().expect("the client lives on");
    let given_back: Vec<_> = closes.iter().take(2).collect();
    assert_eq!(
        given_back,
        [Request::Abort { slot: 5 }, Request::Close { slot: 5 }]
    );
}
