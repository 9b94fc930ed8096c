//! An echo server and its client.
//!
//! ```text
//! echo serve 5000                      answer every connection to port 5000
//! echo send node1:5000 hello world     send the words, print the answer
//! ```
//!
//! Both need a running esp-daemon on their node. `node1` is a name in `/etc/ethers`; a MAC address
//! such as `02:00:00:00:00:01:5000` works as well.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::process::ExitCode;
use std::thread;

use esp_client::{EspListener, EspStream};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [mode, port] if mode == "serve" => serve(port.parse().map_err(io::Error::other)?),
        [mode, address, words @ ..] if mode == "send" => send(address, &words.join(" ")),
        _ => Err(io::Error::other(
            "usage: echo serve PORT | echo send ADDRESS WORD...",
        )),
    }
}

/// Accepts connections and serves each on a thread of its own.
fn serve(port: u16) -> io::Result<()> {
    let listener = EspListener::bind(port)?;
    println!("listening on port {}", listener.port());
    loop {
        let (stream, peer) = listener.accept()?;
        thread::spawn(move || match echo(stream) {
            Ok(bytes) => println!("{peer}: {bytes} bytes"),
            Err(error) => eprintln!("{peer}: {error}"),
        });
    }
}

/// Returns everything to the peer until it ends its sending direction. Dropping the stream closes
/// it.
fn echo(mut stream: EspStream) -> io::Result<u64> {
    let mut buffer = [0; 16 * 1024];
    let mut total = 0;
    loop {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            return Ok(total);
        }
        stream.write_all(&buffer[..n])?;
        total += n as u64;
    }
}

/// Sends the text, ends the sending direction, and prints what comes back.
fn send(address: &str, text: &str) -> io::Result<()> {
    let mut stream = EspStream::connect(address)?;
    stream.write_all(text.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    println!("{answer}");
    Ok(())
}
