//! Peak memory of both sides, as the kernel counts it (VmHWM): many files and large ones at once.
//!
//! `just bench-memory` runs it at full size (`TEST_MEMORY=full`).

use std::fs;
use std::io::Write as _;

use libtest_mimic::Trial;

use crate::site::{Site, Spoke, pass_of, sized};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![trial!(memory_stays_small_with_many_files_and_large_ones)]
}

struct Size {
    files: u64,
    uploads: u64,
    upload_bytes: usize,
}

impl Size {
    fn chosen() -> Self {
        match std::env::var("TEST_MEMORY").as_deref() {
            Ok("full") => Self { files: 200_000, uploads: 16, upload_bytes: 512 << 20 },
            _ => Self { files: 20_000, uploads: 4, upload_bytes: 128 << 20 },
        }
    }
}

const FILE_BYTES: usize = 4 * 1024;
const SPOKE_MAX_KIB: u64 = 64 * 1024;
const HUB_MAX_KIB: u64 = 128 * 1024;

/// The peak of a process so far, in KiB; none when it is gone.
pub fn peak_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

fn memory_stays_small_with_many_files_and_large_ones() {
    let size = Size::chosen();
    let site = Site::new();
    let hub = site.hub();
    let many = site.spoke("many");
    for n in 0..size.files {
        let path = format!("d/m{}/2024/03/{:02}/{:02}/f{n}.parquet", n % 7, n % 28 + 1, n % 24);
        many.put(&path, &sized(n, FILE_BYTES));
    }
    // A spoke sends one body at a time, so uploads at once are those of as many spokes.
    let large: Vec<Spoke> = (0..size.uploads).map(|n| site.spoke(&format!("large{n}"))).collect();
    let name = "d/large/2024/03/01/00/f.parquet";
    let first = large[0].put(name, &sized(1, size.upload_bytes));
    for spoke in &large[1..] {
        let at = spoke.source().join(name);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::hard_link(&first, at).unwrap();
    }
    let mut pushes: Vec<_> = large.iter().chain([&many]).map(Spoke::start_push).collect();
    let (mut spoke_kib, mut most_at_once) = (0, 0);
    loop {
        let mut running = 0;
        for push in &mut pushes {
            if push.try_wait().unwrap().is_none() {
                running += 1;
                spoke_kib = peak_kib(push.id()).unwrap_or(0).max(spoke_kib);
            }
        }
        most_at_once = most_at_once.max(running);
        if running == 0 {
            break;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
    let files = size.uploads + size.files;
    let sent: u64 = pushes
        .into_iter()
        .map(|push| {
            let pass = pass_of(push.wait_with_output().unwrap());
            assert_eq!((pass.code, pass.count("left")), (0, 0), "{:?}", pass.stderr);
            pass.count("sent")
        })
        .sum();
    assert_eq!(sent, files);
    assert_eq!(most_at_once, size.uploads + 1);
    let hub_kib = peak_kib(hub.pid()).unwrap();
    let (spoke_mib, hub_mib) = (spoke_kib / 1024, hub_kib / 1024);
    let line = format!(
        "peak memory with {} files of 4 KiB and {} uploads of {} MiB at once: spoke {spoke_mib} MiB, hub {hub_mib} MiB",
        size.files,
        size.uploads,
        size.upload_bytes >> 20
    );
    let _ = writeln!(std::io::stdout(), "{line}");
    assert!(0 < spoke_kib && spoke_kib < SPOKE_MAX_KIB, "a spoke took {spoke_kib} KiB");
    assert!(0 < hub_kib && hub_kib < HUB_MAX_KIB, "the hub took {hub_kib} KiB");
}
