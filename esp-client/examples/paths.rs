//! Measures half the round trip of one byte between two nodes, over each pair of data paths:
//! `paths SOCKET0 SOCKET1 MAC1 SECONDS`. Both ends are threads of this program, each with the
//! client of its node.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use esp_client::{Client, EspAddr, EspListener, EspStream, Path, Spin};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("paths: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [near, far, mac, seconds] = args.as_slice() else {
        return Err("SOCKET0 SOCKET1 MAC1 SECONDS".into());
    };
    let (near, far) = (Client::connect(near)?, Client::connect(far)?);
    let time = Duration::from_secs_f64(seconds.parse()?);
    for (port, paths) in (7000..).zip([
        [Path::Lease, Path::Lease],
        [Path::Lease, Path::Daemon],
        [Path::Daemon, Path::Lease],
        [Path::Daemon, Path::Daemon],
    ]) {
        let spin = Spin::default();
        let listener = EspListener::builder()
            .spin(spin)
            .path(paths[1])
            .bind_at(&far, port)?;
        let to = EspAddr::new(mac.parse::<esp_client::NodeAddr>()?, port);
        let mut stream = EspStream::builder()
            .spin(spin)
            .path(paths[0])
            .connect_at(&near, to)?;
        let (mut peer, _) = listener.accept_timeout(Duration::from_secs(5))?;
        let taken = [stream.path(), peer.path()];
        let echo = std::thread::spawn(move || {
            let mut byte = [0];
            while matches!(peer.read(&mut byte), Ok(1)) && peer.write_all(&byte).is_ok() {}
        });
        let (start, mut rounds) = (Instant::now(), 0u32);
        while start.elapsed() < time {
            stream.write_all(&[rounds as u8])?;
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            assert_eq!(byte[0], rounds as u8);
            rounds += 1;
        }
        let half = start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds) / 2.0;
        println!("{taken:?}: {half:.2} us, {rounds} rounds");
        let shown: Vec<String> = near
            .status()?
            .connections
            .iter()
            .map(|c| c.path.clone())
            .collect();
        println!("  near node shows {shown:?}");
        drop(stream);
        let _ = echo.join();
    }
    Ok(())
}
