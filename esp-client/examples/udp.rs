//! Sends bytes to a server over ESP in UDP, without a daemon and without a privilege.
//!
//! `udp serve` prints its address; `udp ADDRESS:PORT [MIB]` sends to it.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Instant;

use esp_client::{Client, EspAddr, EspListener, EspStream};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("udp: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let client = Client::udp()?;
    match args.first().map(String::as_str) {
        Some("serve") => {
            let listener = EspListener::builder().bind_at(&client, 0)?;
            let own = client.interface(None).ok_or("no interface")?;
            println!("{}", EspAddr::new(own.addr, listener.port()));
            let (mut stream, peer) = listener.accept()?;
            println!("connected to {peer}");
            let mut buffer = vec![0; 1 << 20];
            let mut sum = 0u64;
            loop {
                let n = stream.read(&mut buffer)?;
                if n == 0 {
                    break;
                }
                sum += n as u64;
            }
            stream.write_all(&sum.to_le_bytes())?;
            Ok(())
        }
        Some(address) => {
            let mib: u64 = args.get(1).map_or(Ok(64), |text| text.parse())?;
            let address: EspAddr = address.parse()?;
            let mut stream = EspStream::builder().connect_at(&client, address)?;
            let start = Instant::now();
            let buffer = vec![7; 1 << 20];
            for _ in 0..mib {
                stream.write_all(&buffer)?;
            }
            stream.shutdown(std::net::Shutdown::Write)?;
            let mut sum = [0; 8];
            stream.read_exact(&mut sum)?;
            let time = start.elapsed().as_secs_f64();
            println!(
                "{} bytes in {time:.3} s: {:.2} Gbit/s",
                u64::from_le_bytes(sum),
                (mib << 23) as f64 / time / 1e9
            );
            Ok(())
        }
        None => Err("usage: udp serve | udp ADDRESS:PORT [MIB]".into()),
    }
}
