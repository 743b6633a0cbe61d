//! What a pass may take of the link: bytes, time, pace, and bytes of a day.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;

use crate::proxy::CuttingProxy;
use crate::site::{Pass, Site, Spoke, pass_of, sized};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(a_pass_sends_no_more_than_it_may_and_the_next_ones_bring_the_rest),
        trial!(a_budget_of_a_day_counts_over_passes_and_restarts),
        trial!(a_pass_ends_when_its_time_is_over_and_loses_nothing),
        trial!(globs_choose_what_is_shipped_now_and_at_all),
        trial!(a_pace_is_kept_in_small_steps),
    ]
}

fn push_with(spoke: &Spoke, flags: &[&str]) -> Pass {
    let pass = pass_of(spoke.push_command().args(flags).output().unwrap());
    pass.assert_closes();
    pass
}

fn a_pass_sends_no_more_than_it_may_and_the_next_ones_bring_the_rest() {
    const LIMIT: u64 = 1_000_000;
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    // One file is larger than what a pass may send.
    spoke.put("d/m/2024/03/31/05/large.parquet", &sized(99, 2_500_000));
    for n in 0..12 {
        spoke.put(&format!("d/m/2024/03/31/{n:02}/f.parquet"), &sized(n, 200_000));
    }
    let proxy = CuttingProxy::start(&hub.address, u64::MAX);
    spoke.edit_config(&hub.address, &proxy.address);
    let (mut passes, mut before) = (0, 0);
    loop {
        let pass = push_with(&spoke, &["--max-bytes", "1MB"]);
        passes += 1;
        assert_eq!(pass.code, 0, "{pass:?}");
        assert!(pass.count("wire_bytes") <= LIMIT, "{pass:?}");
        let carried = proxy.carried();
        // Offers and headers are not counted; they are small beside the bodies.
        assert!(carried - before < LIMIT + 100_000, "{} bytes in one pass", carried - before);
        before = carried;
        if pass.count("left") == 0 {
            break;
        }
        assert_eq!(pass.report["stopped_by"], "max_bytes", "{pass:?}");
        assert!(passes < 12, "{pass:?}");
    }
    assert!(passes >= 5, "{passes} passes");
    site.assert_landed(&[&spoke]);
}

fn a_budget_of_a_day_counts_over_passes_and_restarts() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    for n in 0..10 {
        spoke.put(&format!("d/m/2024/03/31/{n:02}/f.parquet"), &sized(n, 200_000));
    }
    let flags = ["--budget", "1MB/day"];
    let first = push_with(&spoke, &flags);
    assert_eq!((first.code, &first.report["stopped_by"]), (0, &"budget".into()), "{first:?}");
    let sent = first.count("sent");
    assert!((3..=5).contains(&sent), "{first:?}");
    let second = push_with(&spoke, &flags);
    assert_eq!((second.code, &second.report["stopped_by"]), (0, &"budget".into()), "{second:?}");
    assert!(first.count("wire_bytes") + second.count("wire_bytes") <= 1_000_000);
    let third = push_with(&spoke, &flags);
    assert_eq!((third.code, third.count("wire_bytes")), (0, 0), "{third:?}");
    // Another day, another budget; here: none.
    assert_eq!(push_with(&spoke, &[]).count("left"), 0);
    site.assert_landed(&[&spoke]);
}

fn a_pass_ends_when_its_time_is_over_and_loses_nothing() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    spoke.put("d/m/2024/03/31/05/large.parquet", &sized(99, 40_000_000));
    let started = Instant::now();
    let pass = push_with(&spoke, &["--max-duration", "10s", "--bandwidth", "1MB/s"]);
    assert_eq!((pass.code, pass.count("left")), (0, 1), "{pass:?}");
    assert_eq!(pass.report["stopped_by"], "max_duration");
    assert!(started.elapsed() < Duration::from_secs(40), "{pass:?}");
    // What went is kept.
    let rest = spoke.push();
    assert_eq!((rest.code, rest.count("sent")), (0, 1), "{rest:?}");
    let offset = rest.report["resumed"][0]["offset"].as_u64().unwrap();
    assert!(offset > 0, "{rest:?}");
    site.assert_landed(&[&spoke]);
}

fn a_pace_is_kept_in_small_steps() {
    const BYTES: usize = 3_000_000;
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    spoke.put("d/m/2024/03/31/05/f.parquet", &sized(1, BYTES));
    let proxy = CuttingProxy::start(&hub.address, u64::MAX);
    spoke.edit_config(&hub.address, &proxy.address);
    spoke.edit_config("settle = \"50ms\"", "settle = \"50ms\"\nbandwidth = \"8Mbit/s\"");
    let started = Instant::now();
    let mut push = spoke.start_push();
    // At no time has more gone than the pace lets go, but for what buffers hold.
    while push.try_wait().unwrap().is_none() {
        let carried = proxy.carried();
        let may = started.elapsed().as_secs_f64() * 1_000_000.0 + 150_000.0;
        assert!((carried as f64) < may, "{carried} bytes after {:?}", started.elapsed());
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let pass = pass_of(push.wait_with_output().unwrap());
    assert_eq!((pass.code, pass.count("sent")), (0, 1), "{pass:?}");
    assert!(started.elapsed() > Duration::from_millis(2_900));
}

fn globs_choose_what_is_shipped_now_and_at_all() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    for folder in ["alarms/m", "factory/m", "factory/debug"] {
        spoke.put(&format!("{folder}/2024/03/31/02/f.parquet"), &sized(folder.len() as u64, 1_000));
    }
    spoke.edit_config("settle = \"50ms\"", "settle = \"50ms\"\nexclude = [\"**/debug/**\"]");
    // Alarms first, over a dear link.
    let first = push_with(&spoke, &["--include", "alarms/**"]);
    assert_eq!(
        (first.code, first.count("sent"), first.count("discovered")),
        (0, 1, 1),
        "{first:?}"
    );
    assert_eq!(first.report["ignored_by"]["excluded"], 2);
    let all = push_with(&spoke, &[]);
    assert_eq!((all.code, all.count("sent"), all.count("present")), (0, 1, 1), "{all:?}");
    assert_eq!(all.report["ignored_by"]["excluded"], 1);
    assert!(!site.landing().join("s/factory/debug").exists());
    let wrong = spoke.push_command().args(["--include", "["]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("no glob"));
}
