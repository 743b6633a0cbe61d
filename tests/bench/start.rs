//! How soon a spoke's first byte is on the line, and how large its program is.

use std::io::Read as _;
use std::net::TcpListener;
use std::time::Instant;

use crate::page::{Page, tell};
use crate::process::{Hub, Running, program};
use crate::stats::Sorted;

pub fn run(page: &mut Page, rounds: usize) {
    let root = crate::process::folder();
    let hub = Hub::new(root.path(), 1);
    let spoke = hub.spoke("s");
    spoke.fill(0..1, 4096);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    spoke.call(&[&listener.local_addr().unwrap().to_string()]);
    let times = (0..rounds).map(|_| {
        let begun = Instant::now();
        let push = Running::start(&mut spoke.push(), &root.path().join("push.log"));
        let (mut line, _) = listener.accept().unwrap();
        line.read_exact(&mut [0]).unwrap();
        let took = begun.elapsed().as_secs_f64() * 1000.0;
        drop(push);
        took
    });
    let times = Sorted::of(times.collect::<Vec<_>>());
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let mib = std::fs::metadata(program()).unwrap().len() as f64 / 1024.0 / 1024.0;
    tell!(page, "\n| first byte ms, median | min | max | program MiB |\n|---|---|---|---|");
    tell!(page, "| {:.1} | {:.1} | {:.1} | {mib:.1} |", times.median(), times.min(), times.max());
}
