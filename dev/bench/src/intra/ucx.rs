//! `ucx_perftest`: a server and a client for each figure.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::contender::find;
use super::work::{Answer, Work};
use cli::out::{Context, Failure};

/// Time limit of a test.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time for the server to listen, before each attempt.
const LISTENS: Duration = Duration::from_millis(40);
/// Attempts to reach the server.
const ATTEMPTS: usize = 20;
/// Bytes of a MB in its output.
const MIB: f64 = 1024.0 * 1024.0;

/// Measures the work; `None` if ucx_perftest has no such test.
pub(super) fn run(work: &Work, cores: &[usize]) -> Option<Result<Answer, Failure>> {
    match *work {
        Work::PingPong { size, count, .. } => Some(latency(size, count, cores)),
        Work::Window {
            size,
            window,
            count,
            at_once,
            ..
        } => Some(bandwidth(size, window, (count, at_once), cores)),
        _ => None,
    }
}

/// Measures latency in two runs, one for each percentile.
fn latency(size: usize, count: usize, cores: &[usize]) -> Result<Answer, Failure> {
    let median = perftest("tag_lat", size, count, &["-R", "50"], cores)?;
    let tail = perftest("tag_lat", size, count, &["-R", "99"], cores)?;
    let round = |row: &[f64]| row.get(1).map(|micros| micros * 2000.0);
    let broken = || Failure::new("ucx_perftest printed no latency");
    let (median, tail) = (
        round(&median).ok_or_else(broken)?,
        round(&tail).ok_or_else(broken)?,
    );
    // Samples of which 98 in 100 are the median have these percentiles.
    let times = (0..100)
        .map(|i| if i < 98 { median } else { tail })
        .collect();
    Ok(Answer {
        times,
        batches: vec![median],
    })
}

fn bandwidth(
    size: usize,
    window: usize,
    (count, at_once): (usize, usize),
    cores: &[usize],
) -> Result<Answer, Failure> {
    let row = perftest(
        "tag_bw",
        size,
        count * window,
        &["-O", &at_once.to_string()],
        cores,
    )?;
    let speed = row.get(5).copied().filter(|speed| *speed > 0.0);
    let speed = speed.ok_or_else(|| Failure::new("ucx_perftest printed no bandwidth"))?;
    Ok(Answer {
        times: vec![(size * window) as f64 / (speed * MIB) * 1e9],
        batches: Vec::new(),
    })
}

/// Runs a test and returns the numbers of its line: count, percentile, average and overall latency
/// (µs), average and overall bandwidth (MiB/s), and rates.
fn perftest(
    test: &str,
    size: usize,
    count: usize,
    more: &[&str],
    cores: &[usize],
) -> Result<Vec<f64>, Failure> {
    let program = find("ucx_perftest", "ucx-utils")?;
    let port = free_port().doing("ucx_perftest")?.to_string();
    let command = |core: Option<&usize>| {
        let mut command = Command::new(&program);
        command.args([
            "-p",
            &port,
            "-t",
            test,
            "-s",
            &size.to_string(),
            "-n",
            &count.to_string(),
        ]);
        command
            .args(["-w", &(count / 10).max(10).to_string(), "-f", "-v"])
            .args(more);
        if let Some(core) = core {
            command.args(["-c", &core.to_string()]);
        }
        command
            .env("UCX_TLS", "posix,sysv,cma,self")
            .env("UCX_WARN_UNUSED_ENV_VARS", "n");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let mut server = Running(
        command(cores.get(1).or(cores.first()))
            .spawn()
            .doing(program.display())?,
    );
    let mut said = String::new();
    for _ in 0..ATTEMPTS {
        std::thread::sleep(LISTENS);
        let mut client = command(cores.first());
        client.arg("127.0.0.1");
        let mut client = Running(client.spawn().doing(program.display())?);
        let output = client.finish()?;
        let row = output.0.lines().rev().find_map(numbers);
        if let Some(row) = row {
            server.finish()?;
            return Ok(row);
        }
        said = output.1;
    }
    let said: String = said
        .lines()
        .next()
        .unwrap_or("it printed nothing")
        .chars()
        .take(300)
        .collect();
    Err(Failure::new(format!("ucx_perftest failed: {said}")))
}

/// Parses a line of numbers.
fn numbers(line: &str) -> Option<Vec<f64>> {
    let numbers: Vec<f64> = line
        .split(',')
        .map(|word| word.trim().parse().ok())
        .collect::<Option<_>>()?;
    (numbers.len() > 5).then_some(numbers)
}

/// Returns an unused port of the loopback interface.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A process that is killed on drop.
struct Running(Child);

impl Running {
    /// Waits for the process and returns its output and errors, which are short.
    fn finish(&mut self) -> Result<(String, String), Failure> {
        use std::io::Read;
        let end = Instant::now() + PATIENCE;
        while self.0.try_wait().doing("ucx_perftest")?.is_none() {
            if Instant::now() > end {
                return Err(Failure::new("ucx_perftest hangs"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let (mut out, mut err) = (String::new(), String::new());
        if let Some(stdout) = &mut self.0.stdout {
            stdout.read_to_string(&mut out).doing("ucx_perftest")?;
        }
        if let Some(stderr) = &mut self.0.stderr {
            stderr.read_to_string(&mut err).doing("ucx_perftest")?;
        }
        Ok((out, err))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_numbers_are_parsed() {
        assert_eq!(
            numbers("iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw"),
            None
        );
        assert_eq!(numbers("1,2"), None);
        let row = numbers("100000,0.196,0.732,0.732,10.43,10.43,1366913,1366913");
        assert_eq!(row.map(|r| r[1]), Some(0.196));
    }

    #[test]
    fn other_work_is_not_supported() {
        assert!(
            run(
                &Work::Unexpected {
                    backlog: 1,
                    count: 1,
                    depth: 1
                },
                &[]
            )
            .is_none()
        );
    }
}
