//! Bytes between nodes arrive intact, whatever the network does.

use std::io::{Read, Write};
use std::thread;

use esp_client::{EspListener, EspStream};
use esp_tests::exchange::both_ways;
use esp_tests::{
    PATIENCE, address, check_pattern, client, counter, lab_or_skip, pair, send_pattern,
};
use lab::LabOptions;

#[test]
fn between_nodes_and_within_one() {
    let Some(lab) = lab_or_skip("between_nodes_and_within_one", &LabOptions::new(2)) else {
        return;
    };
    for (from, to) in [(0, 1), (1, 0), (0, 0)] {
        for len in [0, 1, 1489, 1490, 65536, 20 << 20] {
            let (left, right) = pair(&lab, from, to, 7000);
            both_ways(&left, &right, len);
        }
    }
}

#[test]
fn jumbo_frames() {
    let mut options = LabOptions::new(2);
    options.wire.mtu = 9000;
    let Some(lab) = lab_or_skip("jumbo_frames", &options) else {
        return;
    };
    let (left, right) = pair(&lab, 0, 1, 7000);
    both_ways(&left, &right, 30 << 20);
    let (left, _right) = pair(&lab, 0, 1, 7001);
    (&left).write_all(&[1]).unwrap();
    esp_tests::wait_until("full frames", || {
        let status = left.client().status().unwrap();
        status
            .connections
            .iter()
            .any(|c| c.peer_port == 7001 && c.payload == Some(8989))
    });
}

#[test]
fn one_frame_in_a_hundred_lost() {
    let mut options = LabOptions::new(4);
    options.wire.loss_ppm = 10_000;
    let Some(lab) = lab_or_skip("one_frame_in_a_hundred_lost", &options) else {
        return;
    };
    let (left, right) = pair(&lab, 0, 1, 7000);
    let (other, last) = pair(&lab, 2, 3, 7000);
    thread::scope(|scope| {
        scope.spawn(|| both_ways(&other, &last, 4 << 20));
        both_ways(&left, &right, 32 << 20);
    });
    assert!(
        lab.frames_lost().unwrap() > 0,
        "the wire lost nothing, so this test showed nothing"
    );
    assert!(counter(left.client(), "tx_retransmits") > 0);
}

#[test]
fn a_narrow_link_with_a_shallow_queue() {
    let mut options = LabOptions::new(3);
    options.wire.rate = Some(200_000_000);
    let Some(lab) = lab_or_skip("a_narrow_link_with_a_shallow_queue", &options) else {
        return;
    };
    let (a, at_a) = pair(&lab, 1, 0, 7000);
    let (b, at_b) = pair(&lab, 2, 0, 7001);
    thread::scope(|scope| {
        scope.spawn(|| send_pattern(&a, 8 << 20, 1));
        scope.spawn(|| send_pattern(&b, 8 << 20, 2));
        scope.spawn(|| check_pattern(&at_a, 8 << 20, 1));
        check_pattern(&at_b, 8 << 20, 2);
    });
}

#[test]
fn many_connections_of_one_program() {
    let Some(lab) = lab_or_skip("many_connections_of_one_program", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let listener = EspListener::builder()
        .rings(1 << 16, 1 << 16)
        .bind_at(&there, 7000)
        .unwrap();
    const MANY: usize = 300;
    let accepted = thread::spawn(move || -> Vec<EspStream> {
        (0..MANY)
            .map(|_| listener.accept_timeout(PATIENCE).expect("accept").0)
            .collect()
    });
    let connect = || {
        EspStream::builder()
            .rings(1 << 16, 1 << 16)
            .connect_at(&here, address(1, 7000))
    };
    let ours: Vec<EspStream> = (0..MANY).map(|_| connect().expect("connect")).collect();
    let theirs = accepted.join().unwrap();
    for (i, mut stream) in ours.iter().enumerate() {
        stream.write_all(&(i as u32).to_le_bytes()).unwrap();
    }
    // Possibly accepted in another order: each number comes back on the stream it came on.
    for mut stream in &theirs {
        let mut number = [0; 4];
        stream.read_exact(&mut number).unwrap();
        stream.write_all(&number).unwrap();
    }
    for (i, mut stream) in ours.iter().enumerate() {
        let mut number = [0; 4];
        stream.read_exact(&mut number).unwrap();
        assert_eq!(u32::from_le_bytes(number), i as u32);
    }
    drop((ours, theirs));
    esp_tests::wait_until("the connections to end", || {
        here.status().unwrap().connections.is_empty()
    });
}

#[test]
fn half_close_and_large_answer() {
    let Some(lab) = lab_or_skip("half_close_and_large_answer", &LabOptions::new(2)) else {
        return;
    };
    let (left, right) = pair(&lab, 0, 1, 7000);
    send_pattern(&left, 10, 1);
    check_pattern(&right, 10, 1);
    thread::scope(|scope| {
        scope.spawn(|| send_pattern(&right, 5 << 20, 2));
        check_pattern(&left, 5 << 20, 2);
    });
}

#[test]
fn tokio_programs() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let Some(lab) = lab_or_skip("tokio_programs", &LabOptions::new(2)) else {
        return;
    };
    let (here, there) = (client(&lab, 0), client(&lab, 1));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = EspListener::builder().bind_at(&there, 7000).unwrap();
        let listener = esp_client::aio::EspListener::from_std(listener);
        let echo = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 4096];
            loop {
                let n = stream.read(&mut buffer).await.unwrap();
                if n == 0 {
                    break;
                }
                stream.write_all(&buffer[..n]).await.unwrap();
            }
            stream.shutdown().await.unwrap();
        });
        let stream = EspStream::builder()
            .connect_at(&here, address(1, 7000))
            .unwrap();
        let (mut input, mut output) =
            tokio::io::split(esp_client::aio::EspStream::from_std(stream));
        let message: Vec<u8> = (0..1_000_000).map(|i| esp_tests::byte(i, 9)).collect();
        let copy = message.clone();
        let writer = tokio::spawn(async move {
            output.write_all(&copy).await.unwrap();
            output.shutdown().await.unwrap();
        });
        let mut back = Vec::new();
        tokio::time::timeout(PATIENCE, input.read_to_end(&mut back))
            .await
            .unwrap()
            .unwrap();
        assert!(back == message, "the echo differs");
        writer.await.unwrap();
        echo.await.unwrap();
    });
}
