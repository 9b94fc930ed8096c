//! Names that daemons announce: as addresses of programs, and as lines of /etc/ethers.

use std::io::{Read, Write};
use std::path::Path;

use esp_client::{Client, EspError, EspListener, EspStream, aio, resolve};
use esp_tests::process::{Daemon, Finished, TempFile, bare_lab, output, programs};
use esp_tests::{PATIENCE, address};
use lab::Lab;

fn start(lab: &Lab, node: usize, name: &str) -> Daemon {
    Daemon::start(lab, node, &format!("node_name = \"{name}\""))
}

fn esping(lab: &Lab, node: usize, args: &[&str]) -> Finished {
    let mut command = lab
        .command(node, programs().join("esping"))
        .expect("a command of the node");
    output(command.args(args))
}

fn ethers(lab: &Lab, node: usize, write: Option<&Path>) -> Finished {
    let file = write.map(|file| file.to_str().expect("a path of text"));
    let mut args = vec!["--discover", "--ethers", "-W", "0.3"];
    args.extend(file.iter().flat_map(|file| ["--write", file]));
    esping(lab, node, &args)
}

fn connect_error(client: &Client, address: &str) -> EspError {
    let error = EspStream::builder()
        .connect_at(client, address)
        .expect_err(address);
    EspError::of(&error).expect("an error of ESP").clone()
}

#[test]
fn two_nodes_of_one_name_are_told_apart_by_their_addresses_only() {
    let Some(lab) = bare_lab("two_nodes_of_one_name", 3) else {
        return;
    };
    let alpha = start(&lab, 0, "alpha");
    let _beta = start(&lab, 1, "beta");
    let _second = start(&lab, 2, "Beta");
    let both = ["02:e5:00:00:00:02", "02:e5:00:00:00:03"];

    let lines = ethers(&lab, 0, None);
    assert_eq!(
        (lines.code, lines.out.as_str()),
        (Some(1), "02:e5:00:00:00:01 alpha\n"),
        "{lines:?}"
    );
    let text = lines.complaint();
    assert!(both.iter().all(|mac| text.contains(mac)), "{text}");

    let refused = esping(&lab, 0, &["-c", "1", "beta.esp"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let text = refused.complaint();
    assert!(both.iter().all(|mac| text.contains(mac)), "{text}");
    match connect_error(&alpha.client(), "BETA.esp:7000") {
        EspError::AmbiguousName { nodes, .. } => {
            let mut texts: Vec<_> = nodes.iter().map(ToString::to_string).collect();
            texts.sort();
            assert_eq!(texts, both);
        }
        other => panic!("{other}"),
    }
    // The name of another node, and the node's own, which no broadcast asks for.
    for node in [0, 1] {
        let found = esping(&lab, node, &["-c", "1", "alpha.esp"]);
        assert_eq!(found.code, Some(0), "{found:?}");
        assert!(found.out.contains("(02:e5:00:00:00:01)"), "{}", found.out);
    }
}

#[test]
fn announced_names_are_addresses_of_streams() {
    let Some(lab) = bare_lab("announced_names_are_addresses", 2) else {
        return;
    };
    let alpha = start(&lab, 0, "alpha");
    let gamma = start(&lab, 1, "gamma");
    let (here, there) = (alpha.client(), gamma.client());
    let listener = EspListener::builder().bind_at(&there, 7000).unwrap();
    let greet = |mut stream: &EspStream| {
        let (mut accepted, _) = listener.accept_timeout(PATIENCE).expect("accept");
        stream.write_all(b"hello").expect("write");
        let mut text = [0; 5];
        accepted.read_exact(&mut text).expect("read");
        assert_eq!(&text, b"hello");
        assert_eq!(stream.peer_addr().addr, address(1, 7000).addr);
    };
    for target in ["gamma.esp:7000", "gamma.esp%eth0:7000", "GAMMA.ESP:7000"] {
        let builder = EspStream::builder();
        greet(&builder.connect_at(&here, target).expect(target));
        greet(
            &builder
                .connect_at(&here, (target.split(':').next().unwrap(), 7000))
                .unwrap(),
        );
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let connect = EspStream::builder();
    let stream = runtime.block_on(connect.connect_async_at(&here, "gamma.esp:7000"));
    let stream: aio::EspStream = stream.expect("connect");
    greet(stream.get_ref());

    let unknown = connect_error(&here, "delta.esp:7000");
    assert!(matches!(unknown, EspError::UnknownName { .. }), "{unknown}");
    let nowhere = connect_error(&here, "gamma.esp%eth9:7000");
    assert!(nowhere.to_string().contains("eth9"), "{nowhere}");
    // Addresses need no daemon.
    assert_eq!(resolve("02:e5:00:00:00:02", None), Ok(address(1, 1).addr));
}

#[test]
fn lines_are_added_to_a_file_once() {
    let Some(lab) = bare_lab("lines_are_added_to_a_file", 2) else {
        return;
    };
    let _alpha = start(&lab, 0, "alpha");
    let _odd = start(&lab, 1, "not a host name");
    let old = "# mine\n02:e5:00:00:00:77 elsewhere";
    let file = TempFile::new(old);
    let new = format!("{old}\n02:e5:00:00:00:01 alpha\n");
    for (added, kept) in [(1, 0), (0, 1)] {
        let written = ethers(&lab, 1, Some(file.path()));
        assert_eq!(written.code, Some(1), "{written:?}");
        assert!(
            written
                .out
                .ends_with(&format!(": {added} lines added, {kept} already present\n")),
            "{}",
            written.out
        );
        assert!(
            written.complaint().contains("not a host name"),
            "{written:?}"
        );
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), new);
    }
}
