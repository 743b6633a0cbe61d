//! Peak memory of both sides, as the kernel counts it (VmHWM), with many files and a large one.

use std::fs;
use std::io::Write as _;

use libtest_mimic::Trial;

use crate::site::{Site, pass_of, sized};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![trial!(memory_stays_small_with_many_files_and_a_large_one)]
}

const FILES: u64 = 20_000;
const FILE_BYTES: usize = 4 * 1024;
const LARGE_BYTES: usize = 256 * 1024 * 1024;
const SPOKE_MAX_KIB: u64 = 64 * 1024;
const HUB_MAX_KIB: u64 = 128 * 1024;

/// The peak of a process so far, in KiB; none when it is gone.
fn peak_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

fn memory_stays_small_with_many_files_and_a_large_one() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    for n in 0..FILES {
        let path = format!("d/m{}/2024/03/{:02}/{:02}/f{n}.parquet", n % 7, n % 28 + 1, n % 24);
        spoke.put(&path, &sized(n, FILE_BYTES));
    }
    spoke.put("d/large/2024/03/01/00/f.parquet", &sized(1, LARGE_BYTES));
    let mut push = spoke.start_push();
    let mut spoke_kib = 0;
    while push.try_wait().unwrap().is_none() {
        spoke_kib = peak_kib(push.id()).unwrap_or(0).max(spoke_kib);
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
    let pass = pass_of(push.wait_with_output().unwrap());
    assert_eq!((pass.code, pass.count("sent")), (0, FILES + 1), "{:?}", pass.stderr);
    let hub_kib = peak_kib(hub.pid()).unwrap();
    let (spoke_mib, hub_mib) = (spoke_kib / 1024, hub_kib / 1024);
    let line = format!("peak memory: spoke {spoke_mib} MiB, hub {hub_mib} MiB");
    let _ = writeln!(std::io::stdout(), "{line}");
    assert!(0 < spoke_kib && spoke_kib < SPOKE_MAX_KIB, "the spoke took {spoke_kib} KiB");
    assert!(0 < hub_kib && hub_kib < HUB_MAX_KIB, "the hub took {hub_kib} KiB");
}
